"""A command in the place of this process, so that signals, the terminal and its exit status are its own."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses, as shells have them."""


def become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Does not come back; a command that cannot be started is one line and an exit status."""
    for out in (sys.stdout, sys.stderr):
        if out is not None:  # it is where it was closed
            out.flush()
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)  # Python ignores these, and a program inherits that
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 - what the user asked for
    except FileNotFoundError:
        not_found(command)
    except OSError as error:
        sys.stderr.write(f"Error: {command[0]}: {error.strerror}\n")
        sys.exit(NOT_EXECUTABLE)


def insist(command: Sequence[str]) -> None:
    """End as `become` would where there is no such command, before anything is done for it."""
    if not shutil.which(command[0]) and os.sep not in command[0]:
        not_found(command)


def not_found(command: Sequence[str]) -> NoReturn:
    """One line and an exit status."""
    sys.stderr.write(f"Error: there is no command {command[0]!r} on the PATH\n")
    sys.exit(NOT_FOUND)
