"""Virtual time: the present instant, and deeds at later ones. Every simulated world steps through an agenda. Pure."""

import heapq
import math
from collections.abc import Callable


class Agenda:
    """Deeds by their instants; of those at the same instant the first to be put down goes first."""

    def __init__(self) -> None:
        self.now = 0.0
        """Moved by `step`, and never back."""
        self._deeds: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._put_down = 0

    def __repr__(self) -> str:
        return f"<Agenda at {self.now:.1f} s, {len(self._deeds)} deeds>"

    @property
    def first_at(self) -> float:
        """When the first deed is due; infinite: there is none."""
        return self._deeds[0][0] if self._deeds else math.inf

    def at(self, instant: float, do: Callable[..., None], *arguments: object) -> None:
        """Put a deed down; a deed of the past is due now."""
        self._put_down += 1
        heapq.heappush(self._deeds, (max(instant, self.now), self._put_down, do, arguments))

    def after(self, delay_s: float, do: Callable[..., None], *arguments: object) -> None:
        """Put a deed down that is due so much later."""
        self.at(self.now + delay_s, do, *arguments)

    def step(
        self,
        wakes_at: float | None = None,
        *,
        until: float = math.inf,
        before: Callable[[float], None] = lambda _: None,
    ) -> bool:
        """Go on to the next instant and do the first deed that is due then, if any; False: nothing comes by `until`.

        `wakes_at`: something happens then though no deed is due. `before` gets the instant while that is yet to come.
        """
        instant = self.first_at if wakes_at is None else min(self.first_at, wakes_at)
        if instant > until or math.isinf(instant):
            return False
        before(instant)
        self.now = instant
        if self.first_at <= instant:
            _, _, do, arguments = heapq.heappop(self._deeds)
            do(*arguments)
        return True
