"""Where time comes from; everything else gets it as an argument."""

import sys
import time
from functools import partial
from typing import Protocol

_COUNTS_SLEEP = getattr(time, "CLOCK_MONOTONIC_RAW" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)
"""Linux's boot time and macOS's raw monotonic time go on while the machine sleeps; their monotonic times do not."""


class Clock(Protocol):
    """Three clocks in one; tests bring their own."""

    def monotonic(self) -> float:
        """Seconds that never go back, and go on while the machine sleeps. Every `_at` of the project is one of these.

        So a sleep is time that passed: windows turn, buckets refill and budgets renew by themselves.
        """
        ...

    def awake(self) -> float:
        """Seconds that never go back, and stand still while the machine sleeps."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, to understand and to write timestamps. A person may set it: nothing waits by it."""
        ...


class SystemClock:
    """The machine's time: each clock is a function of the system's own. The one place that fetches it."""

    monotonic = staticmethod(
        time.monotonic if _COUNTS_SLEEP is None else partial(time.clock_gettime, _COUNTS_SLEEP)  # noqa: TID251
    )
    """Seconds since some instant in the past; where the system cannot tell, sleep is not counted."""
    awake = staticmethod(time.monotonic)  # noqa: TID251
    """Seconds since some instant in the past, without those that the machine slept."""
    wall = staticmethod(time.time)  # noqa: TID251
    """Seconds since the epoch."""
