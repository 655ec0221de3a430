"""A script in a proxy: its wall clock is off by the seconds that a file says, which a test may change at any time."""

import os
import time
from pathlib import Path

OFFSET = Path(os.environ["TEST_CLOCK_OFFSET"])
true_time = time.time


def jumped():
    return true_time() + float(OFFSET.read_text() or 0)


time.time = jumped
