"""Lines that come in a crowd: the first few are told, the others are counted."""

from dataclasses import dataclass

BURST = 5
"""Lines of one kind that are told one by one within `EVERY_S`."""
EVERY_S = 300.0
_KINDS_KEPT = 1000


@dataclass(slots=True)
class _Crowd:
    began_at: float
    told: int = 0
    counted: int = 0


class Repeats[Kind]:
    """Who asks before each line hears whether it is one too many. Time is passed."""

    def __init__(self) -> None:
        self._crowds: dict[Kind, _Crowd] = {}
        """Oldest first: each goes `EVERY_S` after it began."""

    def lets(self, kind: Kind, now: float) -> bool:
        """Whether a line of this kind is to be told; else it is counted. Call `over` first."""
        crowd = self._crowds.get(kind)
        if crowd is None:
            if len(self._crowds) >= _KINDS_KEPT:
                return True
            crowd = self._crowds[kind] = _Crowd(now)
        if crowd.told < BURST:
            crowd.told += 1
            return True
        crowd.counted += 1
        return False

    def over(self, now: float) -> list[tuple[Kind, int, float]]:
        """The crowds that are over, with how many lines were only counted and over how many seconds; each once."""
        ended = []
        while self._crowds:
            kind, crowd = next(iter(self._crowds.items()))
            if now - crowd.began_at < EVERY_S:
                break
            del self._crowds[kind]
            if crowd.counted:
                ended.append((kind, crowd.counted, now - crowd.began_at))
        return ended
