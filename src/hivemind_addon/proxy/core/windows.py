"""The long windows of a subscription (five hours, a week), as the provider last told them.

They are shown and never paced by: how much a request takes of them is nobody's knowledge but the provider's, and what
is left of a week is for people to share out. A window that is spent shows as a wall (`wall.py`).
"""

import math
from dataclasses import dataclass

from hivemind_addon.api.snapshot import WindowView
from hivemind_addon.api.ticket import WindowReading

_STEPS = 10
"""A window is told anew with each further tenth of it that is used."""
_MOST = 32
"""A provider has a handful."""


@dataclass(frozen=True, slots=True)
class _Told:
    reading: WindowReading
    resets_at: float | None


class Windows:
    """One pool's long windows, by name."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def __repr__(self) -> str:
        return f"<Windows {', '.join(self._told)}>"

    def learn(self, reading: WindowReading, now: float) -> bool:
        """Remember what one response said. True: people should hear of it."""
        known = self._told.get(reading.window)
        if known is None and len(self._told) >= _MOST:
            return False
        resets_at = None if reading.resets_in_s is None else now + reading.resets_in_s
        self._told[reading.window] = _Told(reading, resets_at)
        return known is None or _step(known.reading) != _step(reading) or known.reading.status != reading.status

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept."""
        for name, told in self._told.items():
            if told.resets_at is not None:
                self._told[name] = _Told(told.reading, told.resets_at - delta_s)

    def absorb(self, other: "Windows") -> None:
        """Another pool turned out to be of the same account."""
        self._told = other._told | self._told  # noqa: SLF001  its own kind

    def views(self, now: float) -> tuple[WindowView, ...]:
        """The windows at one instant; one that has begun anew since it was told is not known any more."""
        return tuple(
            WindowView(
                name=name,
                used=told.reading.used,
                status=told.reading.status,
                resets_in_s=None if told.resets_at is None else told.resets_at - now,
                length_s=told.reading.length_s,
            )
            for name, told in self._told.items()
            if told.resets_at is None or told.resets_at > now
        )


def _step(reading: WindowReading) -> int | None:
    used = reading.used
    return None if used is None or not math.isfinite(used) else math.floor(used * _STEPS)
