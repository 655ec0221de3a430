"""Others who spend the same limits in virtual time. Repeatable."""

import random
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from hivemind_addon.kernel.values.ticket import Demand
from hivemind_addon.sim.call import SimAnswer, SimRequestFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hivemind_addon.sim.actor import SimUpstream
    from hivemind_addon.sim.agenda import Agenda
    from hivemind_addon.sim.result import RunLedger
    from hivemind_addon.sim.workload import Neighbour

_NOTHING = Demand()
_LOOK_S = 1.0
"""A call that waits for a slot looks again after so long at the latest: a cap may have moved."""
_INSTANT_S = 1e-6
"""Nobody looks again sooner: sums of instants lose digits."""


class Neighbours:
    """All neighbours of a run."""

    def __init__(
        self,
        neighbours: "Sequence[Neighbour]",
        *,
        seed: int,
        agenda: "Agenda",
        ledger: "RunLedger",
        upstreams: "Mapping[str, SimUpstream]",
    ) -> None:
        """`upstreams`: by the name of the site."""
        self._agenda = agenda
        self._ledger = ledger
        self._waiting: defaultdict[SimUpstream, deque[Neighbour]] = defaultdict(deque)
        """Calls that wait until they fit, first come first served."""
        self._will_look: set[SimUpstream] = set()
        for index, neighbour in enumerate(neighbours):
            rng = random.Random(f"{seed} neighbour{index or ''}")
            agenda.at(neighbour.comes_at(0.0), self._offer, neighbour, upstreams[neighbour.site], rng)

    def __repr__(self) -> str:
        return f"<Neighbours at {self._agenda.now:.1f} s, {sum(map(len, self._waiting.values()))} calls wait>"

    def go_first(self, upstream: "SimUpstream") -> None:
        """Somebody else's request is about to arrive: calls that wait and fit begin before it."""
        waiting = self._waiting[upstream]
        while waiting and not upstream.provider.serves_in_s(self._agenda.now, _request(waiting[0], upstream), _NOTHING):
            self._begin(waiting.popleft(), upstream)

    def _offer(self, neighbour: "Neighbour", upstream: "SimUpstream", rng: random.Random) -> None:
        if neighbour.waits:
            self._waiting[upstream].append(neighbour)
            if upstream not in self._will_look:
                self._look(upstream)
        else:
            self._begin(neighbour, upstream)
        next_at = neighbour.comes_at(self._agenda.now + rng.expovariate(neighbour.calls_per_s))
        self._agenda.at(next_at, self._offer, neighbour, upstream, rng)

    def _look(self, upstream: "SimUpstream") -> None:
        self._will_look.discard(upstream)
        self.go_first(upstream)
        if waiting := self._waiting[upstream]:
            wait_s = upstream.provider.serves_in_s(self._agenda.now, _request(waiting[0], upstream), _NOTHING)
            self._will_look.add(upstream)
            self._agenda.after(min(max(wait_s, _INSTANT_S), _LOOK_S), self._look, upstream)

    def _begin(self, neighbour: "Neighbour", upstream: "SimUpstream") -> None:
        answer = upstream.provider.begin(self._agenda.now, _request(neighbour, upstream))
        if answer.reply is not None:
            self._ledger.neighbour_called(answer, upstream)
        self._agenda.after(answer.latency_s, self._end, answer, upstream)

    def _end(self, answer: SimAnswer, upstream: "SimUpstream") -> None:
        self._ledger.neighbour_ended(answer, upstream)
        upstream.provider.end(self._agenda.now, answer, output_tokens=answer.reply.output_tokens if answer.reply else 0)
        self.go_first(upstream)


def _request(neighbour: "Neighbour", upstream: "SimUpstream") -> SimRequestFacts:
    return SimRequestFacts(
        dialect=upstream.dialect,
        credential="sk-sim-neighbour",
        input_tokens=neighbour.input_tokens,
        max_tokens=neighbour.output_tokens,
        chunks=neighbour.output_tokens,
        latency_s=neighbour.latency_s,
    )
