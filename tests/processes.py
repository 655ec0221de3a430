"""Processes of the system, by their ids."""

import os
import sys
from pathlib import Path


def is_alive(pid):
    """Whether it still runs; one that has ended may wait for long until somebody asks for its status."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # gone meanwhile, or a system without /proc
        return not sys.platform.startswith("linux")
