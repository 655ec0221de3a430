"""Where time comes from. Everything else is told what time it is."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks in one; tests bring their own."""

    def monotonic(self) -> float:
        """Seconds that never go back. Every `_at` of the project is one of these."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, to understand and to write timestamps."""
        ...

    def asleep(self) -> float | None:
        """For how long the machine has slept, since some instant; None: it does not tell.

        It tells a sleep, in which time has passed, from a wall clock that was set, in which none has.
        """
        ...


class SystemClock:
    """The machine's time."""

    def monotonic(self) -> float:
        """Seconds since some instant in the past."""
        return time.monotonic()  # noqa: TID251  the one place that fetches it

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()  # noqa: TID251  the one place that fetches it

    def asleep(self) -> float | None:
        """Linux's boot time goes on in a sleep, and its monotonic time does not."""
        if not hasattr(time, "CLOCK_BOOTTIME"):
            return None
        monotonic = time.clock_gettime(time.CLOCK_MONOTONIC)
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - monotonic)
