"""How long nothing was sent though the provider would have served all who waited. Pure.

Between two events nothing changes at the provider but time: limits replenish, outages begin and end. So each such
stretch is looked at once, when it is over, but not more than one in a second: the measure is that exact. It ends with
an attempt, with an outage, and when somebody waits who could not be served: what is left may then be kept for that
one, or a neighbour took it.

Served means: within the limits, by what the scheduler was told of each request, and beside what it expects the open
calls to be charged still. A ticket that backs off after a failure of its own does not wait for nothing while others
are in flight; two of them do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hivemind_addon.kernel.values.ticket import Demand
from hivemind_addon.sim.call import SimRequestFacts
from hivemind_addon.sim.provider import SimProvider

_QUIET_S = 1.0
"""While the last attempt or look is not longer ago, nobody looks: it would cost more than the run itself."""


@dataclass(slots=True, eq=False)
class KnownRequest:
    """A request that the scheduler has, in flight or not."""

    request: SimRequestFacts
    demand: Demand
    """What the scheduler was told that it takes, and what the provider's headers are coarse by."""
    owed_tokens: int
    """Of output, that it will be charged when it ends."""
    backs_off_until: float = -math.inf
    """After a failure of its own."""


class IdleMeter:
    """Of one provider. Time must not go back between calls."""

    def __init__(self, provider: SimProvider, *, coarse_tokens: int) -> None:
        """`coarse_tokens`: so many less may be left than headers say, which are rounded."""
        self._provider = provider
        self._coarse_tokens = coarse_tokens
        self._sent_at = self._looked_at = -math.inf
        self._idle_since: float | None = None
        self.longest_s = 0.0

    def __repr__(self) -> str:
        return f"<IdleMeter {self.longest_s:.1f} s>"

    def keep(self, request: SimRequestFacts, demand: Demand) -> KnownRequest:
        """The scheduler gets a request."""
        return KnownRequest(
            request,
            Demand(
                input_tokens=demand.input_tokens + self._coarse_tokens,
                output_tokens=demand.output_tokens + self._coarse_tokens,
                total_tokens=demand.total_tokens + self._coarse_tokens,
            ),
            owed_tokens=demand.output_tokens if request.dialect.charges_output_late else 0,
        )

    def sent(self, now: float) -> None:
        """An attempt went out."""
        self._sent_at = now
        self._idle_since = None

    def is_due(self, now: float) -> bool:
        """Whether the stretch that ends now has to be looked at."""
        return now - max(self._sent_at, self._looked_at) > _QUIET_S

    def pass_time(
        self, since: float, now: float, *, waiting: Sequence[KnownRequest], in_flight: Sequence[KnownRequest]
    ) -> None:
        """Nothing happened between these instants."""
        self._looked_at = now
        backing_off = [one for one in waiting if one.backs_off_until > since]
        if in_flight and len(backing_off) == 1:
            waiting = [one for one in waiting if one is not backing_off[0]]
        owed = sum(one.owed_tokens for one in in_flight)
        for from_s, to_s in self._up(since, now):
            if from_s > since:
                self._idle_since = None
            self._count(from_s, to_s, waiting, owed)

    def _count(self, since: float, now: float, waiting: Sequence[KnownRequest], owed_tokens: int) -> None:
        in_s = 0.0 if waiting else math.inf
        for one in waiting:
            in_s = max(in_s, self._provider.serves_in_s(since, one.request, one.demand, owed_tokens=owed_tokens))
            if since + in_s >= now:
                break
        if in_s > 0:
            self._idle_since = None
        if since + in_s < now:
            if self._idle_since is None:
                self._idle_since = since + in_s
            self.longest_s = max(self.longest_s, now - self._idle_since)

    def _up(self, since: float, now: float) -> list[tuple[float, float]]:
        """The parts of the stretch in which the provider is up."""
        parts = []
        for from_s, to_s in self._provider.outages():
            if since < min(from_s, now):
                parts.append((since, min(from_s, now)))
            since = max(since, to_s)
        if since < now:
            parts.append((since, now))
        return parts
