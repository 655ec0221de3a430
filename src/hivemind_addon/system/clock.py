"""Where time comes from; everything else gets it as an argument."""

import sys
import time
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
    """The machine's time."""

    def monotonic(self) -> float:
        """Seconds since some instant in the past; where the system cannot tell, sleep is not counted."""
        return self.awake() if _COUNTS_SLEEP is None else time.clock_gettime(_COUNTS_SLEEP)

    def awake(self) -> float:
        """Seconds since some instant in the past, without those that the machine slept."""
        return time.monotonic()  # noqa: TID251  the one place that fetches it

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()  # noqa: TID251  the one place that fetches it
