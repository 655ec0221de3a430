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


class SystemClock:
    """The machine's time."""

    def monotonic(self) -> float:
        """Seconds since some instant in the past."""
        return time.monotonic()  # noqa: TID251  the one place that fetches it

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()  # noqa: TID251  the one place that fetches it
