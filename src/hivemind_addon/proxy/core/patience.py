"""How long clients wait that do not say it: learned for each kind from those that left, and from those that stayed.

Most clients leave silently when no byte has come for a usual time: 60, 120, 300 or 600 s. One of a kind (its user
agent's product) that leaves at a usual time is believed; at any other it may be a person who gives up, so that it takes
two that leave alike. Who waits longer speaks against it:

    share of a time = left / (left + stayed)          from `_LIKELY` on it is a time at which a client may leave

Only the order goes by it, and nobody is refused because of it: so who stays is seen to stay, and a wrong time is
forgotten. That usual times are guesses before anybody has left did not pay: who is let pass for leaving at 60 s takes
the place of one that does leave at 120 (`stress` with silent clients, windows: 18 of 240 agents lost instead of 3).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

_USUAL_S = (60.0, 120.0, 300.0, 600.0)
_ALIKE = 0.03
"""Two waits are of one time when they differ by no more, as a share of it."""
_LEAST_S = 20.0
"""Who leaves sooner tells of no time-out."""
_LIKELY = 0.2
_MOST = 20.0
"""Of those that left and stayed together; at more both are halved: what was seen long ago counts for less."""
_MOST_TIMES = 8
_MOST_KINDS = 200
_ALONE = 0.5
"""What the first one counts for that leaves at no usual time."""
_MARGIN = 0.05
"""Of the time: an answer has to be there before."""


@dataclass(slots=True)
class LeavingTime:
    """One time after which clients of a kind leave."""

    after_s: Annotated[float, Meta(ge=1, le=86_400)]
    left: Annotated[float, Meta(ge=0, le=1e15)]
    stayed: Annotated[float, Meta(ge=0, le=1e15)] = 0.0

    @property
    def is_likely(self) -> bool:
        """Whether enough have left then."""
        return self.left >= 1 and self.left >= _LIKELY * (self.left + self.stayed)

    def count(self, *, left: int = 0, stayed: int = 0) -> None:
        """One more."""
        self.left += left
        self.stayed += stayed
        if self.left + self.stayed > _MOST:
            self.left /= 2
            self.stayed /= 2


class Patience:
    """Of all kinds of clients. One whose patience was announced is of no kind: an empty name."""

    def __init__(self) -> None:
        self._times: dict[str, list[LeavingTime]] = {}

    def __repr__(self) -> str:
        return f"<Patience of {len(self._times)} kinds of clients>"

    def leaves_after_s(self, client: str, waited_s: float) -> float:
        """The next wait after which a client may leave that has waited so long, less a margin; infinite: none known."""
        likely = ((1 - _MARGIN) * time.after_s for time in self._times.get(client, ()) if time.is_likely)
        return min((after_s for after_s in likely if after_s > waited_s), default=math.inf)

    def left(self, client: str, waited_s: float) -> bool:
        """A client left after such a wait, in which no byte had come. Whether a time became likely by that."""
        if not client or waited_s < _LEAST_S:
            return False
        times = self._times.setdefault(client, [])
        time = next((time for time in times if _are_alike(time.after_s, waited_s)), None)
        if time is not None:
            was_likely = time.is_likely
            time.after_s = min(time.after_s, waited_s)
            time.count(left=1)
            return time.is_likely and not was_likely
        if len(times) == _MOST_TIMES:
            times.remove(min(times, key=lambda time: time.left))
        if len(self._times) > _MOST_KINDS:
            del self._times[next(iter(self._times))]
        is_usual = any(_are_alike(usual_s, waited_s) for usual_s in _USUAL_S)
        times.append(LeavingTime(waited_s, left=1.0 if is_usual else _ALONE))
        return is_usual

    def stayed(self, client: str, waited_s: float) -> None:
        """A client was still there after such a wait, in which no byte had come."""
        for time in self._times.get(client, ()):
            if waited_s > (1 + _ALIKE) * time.after_s:
                time.count(stayed=1)

    @property
    def learned(self) -> dict[str, list[LeavingTime]]:
        """What outlives a run, by kind of client."""
        return self._times

    def resume(self, learned: Mapping[str, list[LeavingTime]]) -> None:
        """Begin with what an earlier run has learned."""
        self._times.update(learned)


def _are_alike(one_s: float, other_s: float) -> bool:
    return abs(one_s - other_s) <= _ALIKE * one_s
