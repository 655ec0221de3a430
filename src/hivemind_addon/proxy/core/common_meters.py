"""Limits of an account that headers tell of in several pools, and that are one limit in truth.

Of meters that pools of one account are told of alike (name, limit, window) a *common* one is kept beside each pool's
own. It counts the attempts of all these pools and learns from all their headers; so does each pool's own meter from its
own. Every header is then a trial: where others spend the same limit, it tells less than the pool's own meter expects,
and what the common one expects; where each model has a limit of its own, it is the other way round. Two headers that
only the common one explains put it into the place of the others, and it leaves again when headers speak against it.
As all are fed all the time, either change takes effect at once, and nothing is lost by it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hivemind_addon.api.ticket import Attempt, Reading
from hivemind_addon.proxy.core.lanes import InFlight
from hivemind_addon.proxy.core.meter import Meter

if TYPE_CHECKING:
    from hivemind_addon.proxy.core.meters import Meters

_MOST_VOTES = 4
ENOUGH_VOTES = 2
"""A common meter counts from then on."""
_NOISE = 0.02
"""Of the limit: two expectations that differ by less explain a header equally well."""


class CommonMeter:
    """One limit of several pools, in use or not."""

    def __init__(self, like: Meter, now: float) -> None:
        self.members: list[Meters] = []
        self.votes = 0
        """Headers that it explained better than the pools' own meters, less those that it explained worse."""
        self.is_used = False
        self.meter = Meter.resume(like.learned, now)

    def __repr__(self) -> str:
        return f"<CommonMeter of {len(self.members)} pools, {self.votes} votes, {self.meter!r}>"

    def join(self, meters: "Meters", own: Meter, flights: InFlight, now: float) -> None:
        """A pool is told of this limit, and has counted what it takes from it on a meter of its own so far."""
        self.members.append(meters)
        for attempt in flights.attempts:
            self.adopt(attempt, now)
        self.meter.inherit(own, now)

    def adopt(self, attempt: Attempt, now: float) -> None:
        """Count an attempt that was sent before."""
        units = attempt.demand.of(self.meter.dimension)
        self.meter.adopt(stamp=attempt.stamp, units=units, admitted_at=attempt.admitted_at, now=now)

    def judge(self, own: Meter, reading: Reading, *, answered: bool) -> None:
        """Both have learned from a header; did one of them expect it?

        No refusal speaks against it: what was refused in other pools at the same time is not settled yet, and missing.
        """
        if reading.limit is not None and reading.limit != self.meter.limit:
            self._vote(-2)
        if own.surprise is None or self.meter.surprise is None:
            return
        noise = max(0.5, reading.granularity, _NOISE * self.meter.limit)
        gain = abs(own.surprise) - abs(self.meter.surprise)
        if gain > noise:
            self._vote(1)
        elif answered and gain < -noise and abs(own.surprise) <= noise:
            self._vote(-2)

    def _vote(self, vote: int) -> None:
        self.votes = max(-_MOST_VOTES, min(self.votes + vote, _MOST_VOTES))


class CommonMeters:
    """One account's. Each pool's `Meters` join once, and tell of each of their attempts and headers."""

    def __init__(self) -> None:
        self._flights: dict[Meters, InFlight] = {}
        self._common: dict[str, CommonMeter] = {}

    def __repr__(self) -> str:
        return f"<CommonMeters {list(self._common.values())}>"

    @property
    def is_in_use(self) -> bool:
        """Whether any of them counts."""
        return any(common.is_used for common in self._common.values())

    def join(self, meters: "Meters", flights: InFlight) -> None:
        """A pool is of this account."""
        self._flights[meters] = flights

    def leave(self, meters: "Meters") -> None:
        """It is no longer."""
        del self._flights[meters]
        for name in [name for name, common in self._common.items() if meters in common.members]:
            self._drop(name)

    def members_of(self, meter: Meter) -> "tuple[Meters, ...]":
        """The pools that draw on a meter together; none where it is one pool's own."""
        common = self._common.get(meter.name)
        return tuple(common.members) if common is not None and common.meter is meter else ()

    def of(self, meters: "Meters") -> Iterator[Meter]:
        """The common meters that count a pool's attempts, in use or not."""
        return (common.meter for common in self._common.values() if meters in common.members)

    def adopt(self, meters: "Meters", attempt: Attempt, now: float) -> None:
        """A pool took an attempt over that another one has sent."""
        for common in self._common.values():
            if meters in common.members:
                common.adopt(attempt, now)

    def learn(
        self, meters: "Meters", own: Meter, reading: Reading, attempt: Attempt, now: float, *, answered: bool
    ) -> None:
        """A pool's own meter has learned from a header; `answered`: it is no refusal's."""
        self.meet(own, now)
        common = self._common.get(own.name)
        if common is None or meters not in common.members:
            return
        common.meter.learn(reading, stamp=attempt.stamp, sent_at=attempt.admitted_at, now=now)
        # What other pools were just refused looks like staleness; where headers are stale, each pool finds them so.
        common.meter.stale_s = min(common.meter.stale_s, own.stale_s)
        common.judge(own, reading, answered=answered)
        if common.votes == -_MOST_VOTES and not self._is_alike(common):
            self._drop(own.name)
        else:
            self._put_in_use(common)

    def meet(self, own: Meter, now: float, *, votes: int = 0) -> None:
        """A pool knows a limit: those that are told of it alike have a common one. `votes`: that it begins with."""
        if len(self._flights) < 2:
            return
        common = self._common.get(own.name)
        if common is None:
            common = self._common[own.name] = CommonMeter(own, now)
        if not _are_alike(own, common.meter):
            return
        common.votes = max(common.votes, votes)
        for meters, flights in self._flights.items():
            its = meters.own(own.name)
            if meters not in common.members and its is not None and _are_alike(own, its):
                common.join(meters, its, flights, now)
        self._put_in_use(common)

    def _is_alike(self, common: CommonMeter) -> bool:
        return all(
            (own := meters.own(common.meter.name)) is not None and _are_alike(own, common.meter)
            for meters in common.members
        )

    def _drop(self, name: str) -> None:
        common = self._common.pop(name)
        for meters in common.members:
            meters.draw_on(name, None)

    def _put_in_use(self, common: CommonMeter) -> None:
        """Let it take the place of the members' own meters, or give it back, as the votes are."""
        common.is_used = common.votes >= (1 if common.is_used else ENOUGH_VOTES)
        for meters in common.members:
            meters.draw_on(common.meter.name, common.meter if common.is_used else None)


def _are_alike(one: Meter, other: Meter) -> bool:
    return (one.limit, one.window_s, one.dimension) == (other.limit, other.window_s, other.dimension)
