"""What a run counts while it goes on in virtual time, and the `Result` that comes of it there and on a socket. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from hivemind_addon.kernel.values.events import BreakerChanged
from hivemind_addon.kernel.values.snapshot import BreakerState
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.actor import Actor, ScriptedActor, SimUpstream, Taken, bill_of
from hivemind_addon.sim.bound import Bound, Ideal, Spent, input_cost, lower_bound_of_models
from hivemind_addon.sim.call import AnswerEnding, SimAnswer
from hivemind_addon.sim.dialect import Reply
from hivemind_addon.sim.workload import DEFAULT_MODEL, PlannedTurn, Scenario

ZOMBIE_FACTOR = 10


@dataclass(frozen=True, slots=True)
class CrowdResult:
    """What became of one crowd."""

    agents: int
    lost: int
    turns_done: int
    waits_s: tuple[float, ...]
    """Of every ticket that ended, all its waits together."""
    ended_s: tuple[float, ...]
    """When the agents finished, who did."""
    halfway_turns: tuple[int, ...] = ()
    """Of each agent, that were answered when half of the run was over; empty: not measured."""
    latencies_s: tuple[float, ...] = ()
    """Of every turn that was answered: from when its agent first asked until it had the answer; empty: not measured."""
    stopped: int = 0
    """Agents that their own budget ended: neither finished nor lost."""

    def wait_s(self, share: float) -> float:
        """The wait that this share of the tickets did not exceed."""
        return _not_exceeded(self.waits_s, share)

    def latency_s(self, share: float) -> float:
        """How long this share of the answered turns took at most."""
        return _not_exceeded(self.latencies_s, share)


@dataclass(frozen=True, slots=True)
class CallResult:
    """What became of one scripted call."""

    id: str
    asked_at: float | None
    """When its client sent it first; None: it never came to that."""
    ended_at: float | None
    """None: the run was over before."""
    death: str | None
    """Why it failed; None: it was answered, or still runs."""
    billed: Spend
    """For all its attempts, at its model's own price."""
    in_vain: Spend
    """Of it, for attempts that gave no answer."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run."""

    makespan_s: float
    """When the last agent ended."""
    bound: Bound
    attempts: int
    statuses: Counter[int]
    """Attempts by status; 0: none came."""
    crowds: dict[str, CrowdResult]
    """By name, without those that are refused for good."""
    deaths: Counter[str]
    cost: float
    """Input paid for, in uncached tokens."""
    ideal_cost: float
    """Of the turns that were done, with a cache that forgets nothing."""
    cap_used: float
    """Mean of calls in flight ÷ concurrency cap, over the time; 0 where there is no cap."""
    breaker_opened: int
    """Times that the scheduler took the provider for down."""
    sheds: int
    neighbour_calls: int
    """Of the neighbours, that were let through."""
    shared_bound_s: float
    """The lower bound when what the neighbours took counts as spent."""
    idle_s: float = 0.0
    """The longest time that nothing was sent though the provider would have served all who waited."""
    refused: int = 0
    """Attempts that a limit or the cap refused; faults and outages are no refusals, whatever their status."""
    unforeseen: int = 0
    """Of them: by the cap, though the own calls left a slot, the first since a neighbour's call had taken it."""
    finished: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """When each agent that came to its end did, and the attempts for it."""
    script: tuple[CallResult, ...] = ()
    """Of the scripted calls, in the scenario's order."""
    billed: Spend = field(default_factory=Spend)
    """By the provider, at the prices of `upstream.PRICED_AS`."""
    wasted: Spend = field(default_factory=Spend)
    """Of it: attempts that gave no answer, and all of agents that were lost, or that their budget stopped."""
    wanted: int = 0
    """Turns that agents asked for, each once however often it was sent; 0: not measured."""
    held_s: float = 0.0
    """Seconds that attempts were in flight, all together: how long lanes were held."""
    served_s: float = 0.0
    """Of them, that the turns which were answered took of the provider: what the lanes were held for."""
    paid_in_vain: int = 0
    """Attempts that providers completed, above the answers delivered and the completed ones whose client had left."""
    zombies: int = 0
    """Attempts that were in flight for more than `ZOMBIE_FACTOR` times what a turn of their crowd usually takes."""
    overspent: float = 0.0
    """The largest of what an agent spent ÷ its budget; 0: nobody has one."""

    @property
    def agents(self) -> int:
        """All."""
        return sum(crowd.agents for crowd in self.crowds.values())

    @property
    def lost(self) -> int:
        """Agents that died, or that a run without end left behind; whom no provider answers is not counted."""
        return sum(crowd.lost for crowd in self.crowds.values())

    @property
    def stopped(self) -> int:
        """Agents that their own budget ended."""
        return sum(crowd.stopped for crowd in self.crowds.values())

    @property
    def turns_done(self) -> int:
        """Answered, of all crowds."""
        return sum(crowd.turns_done for crowd in self.crowds.values())

    @property
    def turns_a_minute(self) -> float:
        """Answered turns by time."""
        return 60 * self.turns_done / self.makespan_s if self.makespan_s else 0.0

    def latency_s(self, share: float) -> float:
        """How long this share of all answered turns took at most, from the first ask to the whole answer."""
        return _not_exceeded(chain.from_iterable(crowd.latencies_s for crowd in self.crowds.values()), share)

    @property
    def wasted_lane_s(self) -> float:
        """Seconds that lanes were held for nothing: by what hung, failed, was refused, or was slower than it had to."""
        return self.held_s - self.served_s

    @property
    def cost_ratio(self) -> float:
        """Input cost ÷ ideal; 1 where nothing was answered."""
        return self.cost / self.ideal_cost if self.ideal_cost else 1.0

    @property
    def fairness(self) -> float:
        """Jain's index of the turns that agents had done when half of the time was over: 1 is equal, 1/n one had all.

        Of the crowd that is worst off; 0 where it was not measured.
        """
        return min((_jain(crowd.halfway_turns) for crowd in self.crowds.values()), default=0.0)

    @property
    def stretch(self) -> float:
        """Makespan ÷ lower bound."""
        return self.makespan_s / self.bound.bound_s if self.bound.bound_s else 0.0

    @property
    def shared_stretch(self) -> float:
        """Makespan ÷ the lower bound when what a neighbour took counts as spent: nobody else can use it."""
        return self.makespan_s / self.shared_bound_s if self.shared_bound_s else 0.0


def _not_exceeded(values: Iterable[float], share: float) -> float:
    """What this share of the values does not exceed; 0 where there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _jain(shares: tuple[int, ...]) -> float:
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


class _Slots:
    """A provider's concurrency cap over the time, and how much of it was used."""

    def __init__(self, cap: int | None) -> None:
        self._cap = cap
        self._in_flight = 0
        self._used_s = 0.0
        self._offered_s = 0.0
        self._counted_at = 0.0

    def move(self, cap: int, now: float) -> None:
        self._count(now)
        self._cap = cap

    @property
    def are_free(self) -> bool:
        """Whether the scenario's own calls leave one."""
        return self._cap is not None and self._in_flight < self._cap

    def change(self, by: int, now: float) -> None:
        self._count(now)
        self._in_flight += by

    def used(self, now: float) -> float:
        """Mean of calls in flight ÷ cap; 0 where there is no cap."""
        self._count(now)
        return self._used_s / self._offered_s if self._offered_s else 0.0

    def _count(self, now: float) -> None:
        if self._cap is not None:
            passed_s = now - self._counted_at
            self._used_s += passed_s * min(self._in_flight, self._cap)
            self._offered_s += passed_s * self._cap
        self._counted_at = now


class RunLedger:
    """Of one run. `own`: the scenario's own provider, one of `upstreams`, whose slots are counted."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        own: SimUpstream,
        upstreams: Collection[SimUpstream],
        equal: Collection[SimUpstream] = (),
    ) -> None:
        """`equal`: of `upstreams`, those that any call of the own provider's may go to."""
        self._equal = equal
        self._scenario = scenario
        self._own = own
        self._upstreams = upstreams
        models = {crowd.model for crowd in scenario.crowds if not crowd.site}
        self._slots = _Slots(scenario.provider.slots(models))
        self._statuses: Counter[int] = Counter()
        self._refused = self._unforeseen = 0
        self._cost = 0.0
        self._ideal = Ideal()
        self._breaker_opened = 0
        self._was_closed = True
        self._sheds = 0
        self._foreign: defaultdict[SimUpstream, Taken] = defaultdict(Taken)
        """What neighbours took, by whose limits."""
        self._unmet: set[str] = set()
        """Calls of neighbours that run at the own provider, and that nobody could know of yet."""
        self._in_flight: dict[Hashable, tuple[float, Actor]] = {}
        """Attempts: since when, and whose."""
        self._held_s = 0.0
        self._zombies = self.paid_in_vain = 0

    def __repr__(self) -> str:
        return f"<Ledger of {self._scenario.name}, {self._statuses.total()} attempts>"

    def move_cap(self, cap: int, now: float) -> None:
        """The own provider lets another number of calls run at once."""
        self._slots.move(cap, now)

    def attempt_sent(self, attempt: Hashable, agent: Actor, now: float) -> None:
        """An attempt leaves for its provider."""
        agent.attempts += 1
        self._in_flight[attempt] = now, agent

    def attempt_over(self, attempt: Hashable, now: float) -> None:
        """Nobody waits for it any more."""
        sent_at, agent = self._in_flight.pop(attempt)
        self._held_s += now - sent_at
        self._zombies += now - sent_at > ZOMBIE_FACTOR * agent.crowd.usual_service_s

    def attempt_answered(self, answer: SimAnswer, upstream: SimUpstream, now: float) -> None:
        """The provider has decided what an attempt gets."""
        self._statuses[answer.status] += 1
        is_up = not any(from_s <= now < to_s for from_s, to_s in upstream.provider.outages())
        self._refused += is_up and answer.ending in (AnswerEnding.REFUSED, AnswerEnding.OVERLOADED)
        if is_up and answer.ending is AnswerEnding.OVERLOADED and upstream is self._own and self._slots.are_free:
            self._unforeseen += bool(self._unmet)
            self._unmet.clear()

    def call_began(self, upstream: SimUpstream, now: float) -> None:
        """A call takes a slot."""
        if upstream is self._own:
            self._slots.change(1, now)

    def call_ended(self, upstream: SimUpstream, now: float) -> None:
        """A call gives its slot back."""
        if upstream is self._own:
            self._slots.change(-1, now)

    def shed(self) -> None:
        """A ticket was refused without a try."""
        self._sheds += 1

    def neighbour_called(self, answer: SimAnswer, upstream: SimUpstream) -> None:
        """A call of a neighbour was let through."""
        into = answer.reply.input_tokens if answer.reply else 0
        self._foreign[upstream].units.update(
            {Dimension.REQUESTS: 1, Dimension.INPUT_TOKENS: into, Dimension.TOTAL_TOKENS: into}
        )
        if upstream is self._own:
            self._unmet.add(answer.request_id)

    def neighbour_ended(self, answer: SimAnswer, upstream: SimUpstream) -> None:
        """It is over, whether it was let through or not."""
        self._foreign[upstream].service_s += answer.latency_s if answer.reply else 0.0
        self._unmet.discard(answer.request_id)

    def breaker_changed(self, event: BreakerChanged) -> None:
        """In any pool."""
        is_closed = event.state == BreakerState.CLOSED.value
        self._breaker_opened += self._was_closed and not is_closed
        self._was_closed = is_closed

    def book_attempt(self, agent: Actor, upstream: SimUpstream, reply: Reply, tokens: int, *, is_whole: bool) -> None:
        """What an attempt took and is billed for of which so much was generated."""
        if not is_whole:
            waste = upstream.taken[agent.crowd.model].waste
            waste[Dimension.REQUESTS] += 1
            waste[Dimension.INPUT_TOKENS] += reply.input_tokens + reply.written_tokens
            waste[Dimension.OUTPUT_TOKENS] += tokens
        upstream.late_tokens = max(upstream.late_tokens, tokens)
        self._cost += input_cost(
            uncached_tokens=reply.input_tokens,
            written_tokens=reply.written_tokens,
            cached_tokens=reply.cached_tokens,
        )
        bill = bill_of(reply, output_tokens=tokens, price=agent.price)
        agent.billed += bill
        if not is_whole:
            agent.in_vain += bill

    def book_turn(self, agent: Actor, upstream: SimUpstream, turn: PlannedTurn) -> None:
        """What an answered call takes at least, of money and of each limit."""
        self.paid_in_vain -= 1
        upstream.taken[agent.crowd.model].units.update(
            self._ideal.book(
                agent.crowd,
                prompt_tokens=agent.prompt_tokens(turn),
                marked=agent.marked,
                output_tokens=turn.output_tokens,
            )
        )

    def result(self, agents: Sequence[Actor], now: float) -> Result:
        """What came of the run, which is over; `agents`: all, those of the script too."""
        for attempt in tuple(self._in_flight):
            self.attempt_over(attempt, now)
        script = [agent for agent in agents if isinstance(agent, ScriptedActor)]
        healthy = [agent for agent in agents if not agent.crowd.is_refused]
        # An agent that runs still does so until now.
        makespan_s = max((now if agent.ended_at is None else agent.ended_at for agent in healthy), default=now)
        crowds = self._crowds(agents, makespan_s) | _script_crowds(script)
        return Result(
            makespan_s=makespan_s,
            bound=self._bound(agents),
            attempts=self._statuses.total(),
            statuses=self._statuses,
            crowds=crowds,
            deaths=Counter(agent.death for agent in healthy if agent.death is not None),
            cost=self._cost,
            ideal_cost=self._ideal.cost,
            cap_used=self._slots.used(now),
            breaker_opened=self._breaker_opened,
            sheds=self._sheds,
            neighbour_calls=sum(taken.units[Dimension.REQUESTS] for taken in self._foreign.values()),
            shared_bound_s=self._bound(agents, is_shared=True).bound_s,
            idle_s=max(upstream.idle.longest_s for upstream in self._upstreams),
            refused=self._refused,
            unforeseen=self._unforeseen,
            billed=sum((agent.billed for agent in healthy), Spend()),
            wasted=sum((agent.in_vain if _came_through(agent) else agent.billed for agent in healthy), Spend()),
            wanted=sum(agent.wanted for agent in agents),
            held_s=self._held_s,
            served_s=sum(service_s for agent in agents for _, service_s in agent.turns_s),
            paid_in_vain=self.paid_in_vain,
            zombies=self._zombies,
            overspent=_overspent(agents),
            finished={
                agent.name: (agent.ended_at, agent.attempts)
                for agent in healthy
                if agent.ended_at is not None and _came_through(agent)
            },
            script=tuple(
                CallResult(call.name, call.asked_at, call.ended_at, call.death, call.billed, call.in_vain)
                for call in script
            ),
        )

    def _crowds(self, agents: Sequence[Actor], makespan_s: float) -> dict[str, CrowdResult]:
        is_endless = math.isfinite(self._scenario.duration_s)
        crowds = {}
        for crowd in self._scenario.crowds:
            if crowd.is_refused:
                continue
            members = [agent for agent in agents if agent.crowd is crowd]
            crowds[crowd.name] = CrowdResult(
                agents=len(members),
                lost=sum(agent.death is not None or (agent.ended_at is None and not is_endless) for agent in members),
                turns_done=sum(len(agent.latencies_s) for agent in members),
                waits_s=tuple(wait_s for agent in members for wait_s in agent.waits_s),
                ended_s=tuple(
                    agent.ended_at for agent in members if agent.ended_at is not None and _came_through(agent)
                ),
                halfway_turns=tuple(sum(at <= makespan_s / 2 for at in agent.answered_at) for agent in members),
                latencies_s=tuple(latency_s for agent in members for latency_s in agent.latencies_s),
                stopped=sum(agent.is_stopped for agent in members),
            )
        return crowds

    def _bound(self, agents: Sequence[Actor], *, is_shared: bool = False) -> Bound:
        """Of all providers; `is_shared`: what neighbours took of their limits counts as spent."""
        alone = [(upstream,) for upstream in self._upstreams if upstream not in (self._own, *self._equal)]
        bounds = [
            self._bound_at(upstreams, agents, is_shared=is_shared)
            for upstreams in (*alone, tuple(self._equal) or (self._own,))
        ]
        return max(bounds, key=lambda bound: bound.bound_s)

    def _bound_at(self, upstreams: Sequence[SimUpstream], agents: Sequence[Actor], *, is_shared: bool) -> Bound:
        """Of equal ones together."""
        first, *others = upstreams
        settings = first.settings
        longest_path_s = max((agent.path_s for agent in agents if not agent.crowd.is_refused), default=0.0)
        spent: dict[str, Spent] = {}
        for upstream in upstreams:
            for model, taken in upstream.taken.items():
                here = Spent(
                    units=taken.units + taken.waste,
                    longest_path_s=longest_path_s,
                    service_s=taken.service_s,
                    turns_s=[
                        agent.turns_s for agent in agents if agent.upstream is upstream and agent.crowd.model == model
                    ],
                )
                spent[model] = spent[model] + here if model in spent else here
        # The neighbours' calls are of the model that crowds have by default.
        theirs = [self._foreign[one] for one in upstreams if is_shared]
        foreign = Spent(
            units=sum((taken.units for taken in theirs), Counter()),
            longest_path_s=longest_path_s,
            service_s=sum(taken.service_s for taken in theirs),
        )
        spent[DEFAULT_MODEL] = spent[DEFAULT_MODEL] + foreign if DEFAULT_MODEL in spent else foreign
        return lower_bound_of_models(
            spent,
            settings,
            concurrency=settings.most_at_once(None if self._scenario.caps else settings.concurrency),
            late_units=sum(
                upstream.late_tokens * self._most_in_flight(len(agents), upstream.settings.slots(upstream.taken))
                for upstream in upstreams
            ),
            outages=_outages(first),
            beside=tuple((other.settings, _outages(other)) for other in others),
        )

    def _most_in_flight(self, agents: int, cap: int | None) -> int:
        """How many calls can be in flight at most: an agent has one, and of a script as many as it has chains."""
        script = self._scenario.script
        continued = {call.after[0] for call in script if call.after}
        most = agents - len(continued)
        return most if cap is None else min(cap, most)


def _outages(upstream: SimUpstream) -> tuple[tuple[float, float], ...]:
    return tuple((outage.from_s, outage.to_s) for outage in upstream.settings.outages)


def _came_through(agent: Actor) -> bool:
    """Whether it finished, or runs still."""
    return agent.death is None and not agent.is_stopped


def _overspent(agents: Sequence[Actor]) -> float:
    spent: Counter[str] = Counter()
    budgets: dict[str, int] = {}
    for agent in agents:
        if agent.crowd.budget_tokens is not None:
            spent[agent.holder] += agent.billed.tokens
            budgets[agent.holder] = agent.crowd.budget_tokens
    return max((spent[holder] / budget for holder, budget in budgets.items()), default=0.0)


def _script_crowds(script: Sequence[ScriptedActor]) -> dict[str, CrowdResult]:
    """Each agent of the script as a crowd of one: lost when a call failed that others needed."""
    results = {}
    by_agent: dict[str, list[ScriptedActor]] = {}
    for call in script:
        by_agent.setdefault(call.crowd.name, []).append(call)
    for name, calls in by_agent.items():
        is_lost = any(call.ended_at is None or (call.death and call.call.is_vital) for call in calls)
        ends_s = [call.ended_at for call in calls if call.ended_at is not None]
        results[name] = CrowdResult(
            agents=1,
            lost=int(is_lost),
            turns_done=sum(len(call.latencies_s) for call in calls),
            waits_s=tuple(wait_s for call in calls for wait_s in call.waits_s),
            latencies_s=tuple(latency_s for call in calls for latency_s in call.latencies_s),
            ended_s=() if is_lost else (max(ends_s),),
        )
    return results
