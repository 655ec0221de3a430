"""Virtual time: agents, the real scheduler and the simulated provider on one heap of events. Pure and repeatable.

    agent ──ask──► scheduler ──Admitted──► provider.begin ──head──► observe ──end──► settle ──► agent
                       └──Shed──► agent                                          └──Backoff──► scheduler

The scheduler is the same object that the proxy drives, called in the same order: after each call one poll, and a wakeup
at `next_wakeup`. What an answer says is read by the same parsers (`wire/hints.py`, `wire/outcome.py`). Other policies,
for comparison, are agents that go straight to the provider.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import assert_never

import msgspec.structs

from hivemind_addon.core.breaker import BreakerState
from hivemind_addon.core.decision import Admitted, Backoff, GiveUp, Refused, Shed
from hivemind_addon.core.events import BreakerChanged, Event, TicketEnded
from hivemind_addon.core.scheduler import Scheduler
from hivemind_addon.core.ticket import (
    CallKind,
    Demand,
    Dimension,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Priority,
    Reservation,
    Ticket,
    Usage,
)
from hivemind_addon.core.watchdog import FirstBytes
from hivemind_addon.profile.load import load_profiles
from hivemind_addon.profile.model import DialectName, InputCharge, OutputCharge, Profile
from hivemind_addon.sim import faults
from hivemind_addon.sim.bound import Bound, Spent, lower_bound
from hivemind_addon.sim.dialect import Dialect
from hivemind_addon.sim.prompt_cache import Prefix
from hivemind_addon.sim.provider import Answer, Ending, RequestFacts, SimProvider
from hivemind_addon.sim.workload import Crowd, Neighbour, Scenario, ScriptedCall, Site, Turn, turns
from hivemind_addon.wire.error import ErrorFacts
from hivemind_addon.wire.hints import read_hints
from hivemind_addon.wire.outcome import TransportTrouble, judge_answer, judge_stream_error, judge_transport

_WALL_S = 1_800_000_000.0
"""Seconds since the epoch at the beginning of every run."""
_LONGEST_S = 6 * 3600.0
"""A run that has no end is cut here; whoever still runs is lost."""
_POOL = PoolKey(host="api.sim", account="key-sim", model_group="sim-1")
_GAP_S = 0.01
_COME_BACK_MAX_S = 30
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 8.0
_RETRY_AFTER_MAX_S = 60.0
_SDK_RETRIES = 2
_WRITE, _READ = 1.25, 0.1
"""What an input token costs that is written to or read from a prompt cache, of one that is neither."""


class Policy(Enum):
    """Who decides when a call goes."""

    HIVEMIND = "hivemind"
    FIFO = "hivemind, first come first served"
    """The same scheduler, told that all tickets are one session's: the same limits, no order but arrival."""
    DIRECT = "direct"
    SDK = "SDK retries"
    """Each agent for itself, with the two re-sends of the providers' SDKs."""

    @property
    def is_scheduled(self) -> bool:
        """Whether calls pass the scheduler."""
        return self in (Policy.HIVEMIND, Policy.FIFO)


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

    @property
    def mean_end_s(self) -> float:
        """Mean of `ended_s`; 0 when nobody finished."""
        return sum(self.ended_s) / len(self.ended_s) if self.ended_s else 0.0

    def wait_s(self, share: float) -> float:
        """The wait that this share of the tickets did not exceed."""
        ordered = sorted(self.waits_s)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


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
    waited_s: float
    """In the queue, all its waits and re-sends together."""


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
    """By name, without poisoned ones."""
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
    """Of the neighbour, that were let through."""
    shared_bound_s: float
    """The lower bound when what the neighbour took counts as spent."""
    script: tuple[CallResult, ...] = ()
    """Of the scripted calls, in the scenario's order."""

    @property
    def agents(self) -> int:
        """All."""
        return sum(crowd.agents for crowd in self.crowds.values())

    @property
    def lost(self) -> int:
        """Agents that died, or that a run without end left behind; poisoned ones are not counted."""
        return sum(crowd.lost for crowd in self.crowds.values())

    @property
    def stretch(self) -> float:
        """Makespan ÷ lower bound."""
        return self.makespan_s / self.bound.bound_s if self.bound.bound_s else 0.0

    @property
    def shared_stretch(self) -> float:
        """Makespan ÷ the lower bound when what a neighbour took counts as spent: nobody else can use it."""
        return self.makespan_s / self.shared_bound_s if self.shared_bound_s else 0.0


def run(scenario: Scenario, *, seed: int, policy: Policy = Policy.HIVEMIND) -> Result:
    """One run of a scenario."""
    return World(scenario, seed=seed, policy=policy).run()


@cache
def _profile(name: str) -> Profile:
    return load_profiles(None).by_name[name]


class _Upstream:
    """A site at work: its provider, how its answers are read, and what was taken from it."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        self.pool = site.pool
        self.dialect = site.dialect
        self.settings = site.provider
        self.provider = SimProvider(site.provider, rng, wall_offset_s=_WALL_S)
        self.profile = _profile(site.profile)
        self.dialect_name = _DIALECT_NAMES[site.dialect]
        self.pool_settings = self.profile.pool_settings
        self.units: Counter[Dimension] = Counter()
        """What the turns that were done take at least of each limit."""
        self.waste: Counter[Dimension] = Counter()
        """What attempts took that failed and were charged all the same, as those do that end without a head."""
        self.service_s = 0.0
        self.late_tokens = 0

    def charged(self, usage: Usage, reserved: Demand) -> Demand:
        """What the limits count of an attempt with this usage."""
        charge = self.profile.charge
        into = usage.total_input_tokens
        if charge.input is InputCharge.UNCACHED:
            into -= usage.cache_read_tokens
        out = usage.output_tokens if charge.output is OutputCharge.ACTUAL else reserved.output_tokens
        return Demand(input_tokens=into, output_tokens=out, total_tokens=into + out)


_DIALECT_NAMES = {
    Dialect.MESSAGES: DialectName.ANTHROPIC_MESSAGES,
    Dialect.CHAT: DialectName.OPENAI_CHAT,
    Dialect.RESPONSES: DialectName.OPENAI_RESPONSES,
    Dialect.OLLAMA: DialectName.OLLAMA,
}


@dataclass(slots=True, eq=False)
class _Agent:
    index: int
    name: str
    session: str
    crowd: Crowd
    upstream: _Upstream
    turns: Iterator[Turn]
    jitter: random.Random
    turn: Turn | None = None
    number: int = 0
    """Of the turn, from 1."""
    retry: int = 0
    marked: int = 0
    """Tokens of the last answered prompt."""
    said: int = 0
    """Tokens of the conversation so far, answers included, without what the crowd shares."""
    path_s: float = 0.0
    turns_s: list[tuple[float, float]] = field(default_factory=list)
    """Think and service time of the turns that were answered."""
    output_mean: float | None = None
    output_deviation: float = 0.0
    ended_at: float | None = None
    death: str | None = None
    waits_s: list[float] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        """Of the present turn's request, all of it."""
        assert self.turn is not None
        return self.crowd.shared_tokens + self.said + self.turn.prompt_tokens

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        """What the present request marks for the prompt cache."""
        if not self.crowd.caches:
            return ()
        marks = [Prefix(f"{self.name} {self.number}", self.prompt_tokens)]
        if self.marked:
            marks.insert(0, Prefix(f"{self.name} {self.number - 1}", self.marked))
        if self.crowd.shared_tokens:
            marks.insert(0, Prefix(self.crowd.name, self.crowd.shared_tokens))
        return tuple(marks)

    @property
    def likely_output_tokens(self) -> int:
        """Guessed as `wire/estimate.py` does: rarely exceeded."""
        if self.output_mean is None:
            return self.upstream.profile.charge.default_output_tokens
        return round(self.output_mean + 2 * self.output_deviation)

    def learn(self, output_tokens: int) -> None:
        if self.output_mean is None:
            self.output_mean, self.output_deviation = output_tokens, output_tokens / 2
        else:
            self.output_deviation += 0.2 * (abs(output_tokens - self.output_mean) - self.output_deviation)
            self.output_mean += 0.2 * (output_tokens - self.output_mean)


@dataclass(slots=True, eq=False)
class _Scripted(_Agent):
    """One scripted call: an agent of one turn, that comes after others."""

    call: ScriptedCall = field(kw_only=True)
    waits_for: int = 0
    """Calls that have to be over before it."""
    followers: list["_Scripted"] = field(default_factory=list)
    asked_at: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return self.call.turn.prompt_tokens

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        return self.call.prefixes

    @classmethod
    def of(cls, index: int, call: ScriptedCall, upstream: _Upstream, jitter: random.Random) -> "_Scripted":
        """A call that nobody has asked for yet."""
        ticket, turn = call.ticket, call.turn
        generated = max(1, turn.output_tokens - 1)
        crowd = Crowd(
            ticket.agent,
            1,
            tokens_per_s=generated / turn.generation_s if turn.generation_s else math.inf,
            caches=bool(call.prefixes),
            streamed=ticket.streamed,
            timeout_s=ticket.deadline_at,
            retries=call.retries,
        )
        marked = call.prefixes[-2].tokens if len(call.prefixes) > 1 else 0
        return cls(
            index=index,
            name=ticket.id,
            session=ticket.session,
            crowd=crowd,
            upstream=upstream,
            turns=iter(()),
            jitter=jitter,
            turn=turn,
            number=1,
            marked=marked,
            waits_for=len(call.after),
            call=call,
        )


@dataclass(slots=True, eq=False)
class _Call:
    """One request of an agent, as its client sees it."""

    id: str
    agent: _Agent
    over: bool = False
    has_begun: bool = False
    """Its answer streams: the client's patience starts anew with each byte."""
    attempt: "_Attempt | None" = None


@dataclass(slots=True, eq=False)
class _Attempt:
    call: _Call
    reservation: Reservation | None
    """None: it goes past the scheduler."""
    over: bool = False
    answer: Answer | None = None
    arrived_at: float = 0.0
    """At the provider."""
    hints: Hints = field(default_factory=Hints)
    is_open: bool = False
    """At the provider."""


@dataclass(frozen=True, slots=True)
class _Course:
    """How one answer goes, in seconds from its call's arrival at the provider."""

    end_s: float
    head_s: float | None
    trouble: TransportTrouble | None = None
    error: ErrorFacts | None = None
    """Inside a stream."""
    share: float = 1.0
    """Of the output, that is generated."""
    silent_from_s: float = 0.0
    silent_s: float = 0.0
    """The longest silence."""

    @property
    def shows_content(self) -> bool:
        """Whether some of it reaches a streaming client before it fails."""
        return self.share > 0


def _course(answer: Answer) -> _Course:
    head_s = answer.latency_s
    tokens = answer.reply.output_tokens if answer.reply else 1
    generation_s = (tokens - 1) * answer.interval_s if answer.streamed else 0.0
    whole = _Course(head_s + generation_s, head_s, silent_s=head_s)
    match answer.fault:
        case faults.NoHead():
            return _Course(head_s, None, TransportTrouble.CLOSED_BEFORE_HEAD, share=0.0, silent_s=head_s)
        case faults.RefusedStream():
            return _Course(head_s, None, TransportTrouble.REFUSED_STREAM, share=0.0, silent_s=head_s)
        case faults.HeadThenReset():
            return _Course(head_s + _GAP_S, head_s, TransportTrouble.CUT, share=0.0, silent_s=head_s)
        case faults.BodyCut() | faults.StreamCut() | faults.ResetStream() | faults.GoAway(error=True):
            return _Course(head_s + generation_s / 2 + _GAP_S, head_s, TransportTrouble.CUT, share=0.5)
        case faults.StreamError(at_event=place) if answer.streamed:
            early = place is not None
            end_s = head_s + (0.0 if early else generation_s / 2)
            return _Course(end_s, head_s, error=ErrorFacts(type="overloaded_error"), share=0.0 if early else 0.5)
        case faults.Stall(stall_s):
            from_s = head_s + generation_s / 2
            return _Course(whole.end_s + stall_s, head_s, silent_from_s=from_s, silent_s=stall_s)
        case _:
            return whole


class World:
    """One run. `run` it once."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int,
        policy: Policy = Policy.HIVEMIND,
        listen: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(rng=random.Random(f"{seed} scheduler"))
        self._own = _Upstream(Site("", _POOL, scenario.provider), random.Random(f"{seed} provider"))
        self.provider = self._own.provider
        self._upstreams = {"": self._own} | {
            site.name: _Upstream(site, random.Random(f"{seed} provider {site.name}")) for site in scenario.sites
        }
        self._scenario = scenario
        self._seed = seed
        self._policy = policy
        self._listen = listen
        self._first_bytes = FirstBytes()
        self._guess = random.Random(f"{seed} guess")
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._entries = 0
        self._agents = [
            _Agent(
                index=index,
                name=f"{crowd.name}-{number}",
                session=f"{crowd.name}-{number // crowd.per_session}",
                crowd=crowd,
                upstream=self._upstreams[crowd.site],
                turns=turns(crowd, random.Random(f"{seed} {crowd.name}-{number}")),
                jitter=random.Random(f"{seed} {crowd.name}-{number} jitter"),
            )
            for index, (crowd, number) in enumerate(
                (crowd, number) for crowd in scenario.crowds for number in range(crowd.agents)
            )
        ]
        self._script = self._scripted(scenario.script)
        self._agents += self._script
        self._running = len(self._agents)
        self._waiting: dict[str, _Call] = {}
        """By ticket: calls that the scheduler has."""
        self._calls = 0
        self._statuses: Counter[int] = Counter()
        self._in_flight = 0
        self._cap = scenario.provider.concurrency
        self._used_s = 0.0
        self._offered_s = 0.0
        self._counted_at = 0.0
        self._cost = 0.0
        self._ideal_cost = 0.0
        self._written: set[str] = set()
        """Crowds whose shared instructions an ideal cache holds."""
        self._breaker_opened = 0
        self._was_closed = True
        self._sheds = 0
        self._neighbour_calls = 0

    def __repr__(self) -> str:
        return f"<World {self._scenario.name} at {self.now:.1f} s, {self._running} agents run>"

    def run(self) -> Result:
        """Until all agents have ended, or the scenario's time is over."""
        rng = random.Random(f"{self._seed} starts")
        for agent in self._agents:
            if isinstance(agent, _Scripted):
                self._start_scripted(agent)
                continue
            if agent.crowd.poisoned:
                agent.upstream.provider.script(f"sk-sim-{agent.name}", (), then=faults.Status(500))
            starts_s = rng.uniform(*agent.crowd.starts_s)
            agent.path_s = starts_s
            self._at(starts_s, self._next_turn, agent)
        for at, cap in self._scenario.caps:
            self._at(at, self._move_cap, cap)
        if self._scenario.neighbour:
            self._at(0.0, self._neighbour, self._scenario.neighbour, random.Random(f"{self._seed} neighbour"))
        ends_at = min(self._scenario.duration_s, _LONGEST_S)
        while self._running:
            event_at = self._agenda[0][0] if self._agenda else math.inf
            wakeup_at = self.scheduler.next_wakeup()
            instant = min(event_at, math.inf if wakeup_at is None else wakeup_at)
            if instant > ends_at:
                break
            self.now = instant
            if event_at <= instant:
                _, _, do, arguments = heapq.heappop(self._agenda)
                do(*arguments)
            self._turn()
        if self._running:
            self.now = ends_at
        self._count_slots()
        return self._result()

    # Time ------------------------------------------------------------------------------------------------------------

    def _at(self, instant: float, do: Callable[..., None], *arguments: object) -> None:
        self._entries += 1
        heapq.heappush(self._agenda, (max(instant, self.now), self._entries, do, arguments))

    def _in(self, delay_s: float, do: Callable[..., None], *arguments: object) -> None:
        self._at(self.now + delay_s, do, *arguments)

    def _turn(self) -> None:
        """What the driver does after each call: poll, and hand the decisions out."""
        for decision in self.scheduler.poll(self.now):
            match decision:
                case Admitted(reservation):
                    self._transmit(self._waiting[reservation.ticket.id], reservation)
                case Shed(ticket, reason, come_back_s):
                    self._sheds += 1
                    told_s = float(min(max(1, math.ceil(come_back_s)), _COME_BACK_MAX_S))
                    call = self._waiting.pop(ticket.id)
                    self._refused(call, f"shed: {reason.value}", curable=True, retry_after_s=told_s)
                case Refused(ticket):
                    self._refused(self._waiting.pop(ticket.id), "refused", curable=False)
                case _:
                    assert_never(decision)
        for event in self.scheduler.drain_events():
            self._listen(event)
            if isinstance(event, TicketEnded):
                self._waited(event)
            elif isinstance(event, BreakerChanged):
                is_closed = event.state == BreakerState.CLOSED.value
                self._breaker_opened += self._was_closed and not is_closed
                self._was_closed = is_closed

    def _waited(self, event: TicketEnded) -> None:
        agent = self._agents[int(event.ticket_id.partition(".")[0])]
        agent.waits_s.append(event.waited_s)

    # Scripted calls --------------------------------------------------------------------------------------------------

    def _scripted(self, script: tuple[ScriptedCall, ...]) -> "list[_Scripted]":
        site_of = {upstream.pool: upstream for upstream in self._upstreams.values()}
        calls = [
            _Scripted.of(index, call, site_of[call.ticket.pool], random.Random(f"{self._seed} {call.ticket.id} jitter"))
            for index, call in enumerate(script, start=len(self._agents))
        ]
        by_id = {call.name: call for call in calls}
        for call in calls:
            for other in call.call.after:
                by_id[other].followers.append(call)
        return calls

    def _start_scripted(self, agent: _Scripted) -> None:
        if agent.call.faults:
            agent.upstream.provider.script(f"sk-sim-{agent.name}", agent.call.faults)
        if not agent.waits_for:
            self._at(agent.call.turn.think_s, self._ask, agent)

    def _release(self, agent: _Scripted) -> None:
        """A scripted call is over: whoever waited for it alone thinks, and asks."""
        for follower in agent.followers:
            follower.waits_for -= 1
            follower.path_s = max(follower.path_s, agent.path_s)
            if not follower.waits_for and follower.ended_at is None:
                self._in(follower.call.turn.think_s, self._ask, follower)

    def _forsake(self, agent: _Scripted) -> None:
        """A scripted call failed that others needed: none of them will ever be asked for."""
        forsaken = list(agent.followers)
        while forsaken:
            follower = forsaken.pop()
            if follower.ended_at is None:
                follower.ended_at, follower.death = self.now, f"never asked: {agent.name} failed"
                self._running -= 1
                forsaken += follower.followers

    # Agents ----------------------------------------------------------------------------------------------------------

    def _next_turn(self, agent: _Agent) -> None:
        agent.turn = next(agent.turns, None)
        if agent.turn is None:
            self._end(agent)
            return
        agent.number += 1
        agent.retry = 0
        if agent.number == 1 or not agent.crowd.remembers:
            agent.said = agent.jitter.randint(*agent.crowd.opening_tokens)
            agent.marked = 0
        self._in(agent.turn.think_s, self._ask, agent)

    def _ask(self, agent: _Agent) -> None:
        self._calls += 1
        if isinstance(agent, _Scripted) and agent.asked_at is None:
            agent.asked_at = self.now
        call = _Call(id=f"{agent.index}.{self._calls}", agent=agent)
        self._in(agent.crowd.timeout_s, self._time_out, call)
        if self._policy.is_scheduled:
            self._waiting[call.id] = call
            self.scheduler.submit(self._ticket(call), agent.upstream.pool_settings, self.now)
        else:
            self._transmit(call, None)

    def _ticket(self, call: _Call) -> Ticket:
        agent, crowd = call.agent, call.agent.crowd
        if isinstance(agent, _Scripted):
            return self._scripted_ticket(call.id, agent.call.ticket)
        timeout_s = crowd.timeout_s
        cached_tokens = agent.marked if crowd.caches else 0
        error = self._guess.lognormvariate(0, self._scenario.input_error)
        into = max(1, round((agent.prompt_tokens - cached_tokens) * error))
        out = agent.likely_output_tokens
        in_order = self._policy is Policy.HIVEMIND
        prefix = ""
        if crowd.caches and in_order:
            prefix = crowd.name if crowd.shared_tokens else agent.name
        return Ticket(
            id=call.id,
            pool=agent.upstream.pool,
            agent=(crowd.parent_session or agent.session) if in_order else "all",
            session=agent.session if in_order else "all",
            model="sim-1",
            demand=Demand(input_tokens=into, output_tokens=out, total_tokens=into + out),
            arrived_at=self.now,
            deadline_at=self.now + timeout_s,
            shed_at=self.now + max(timeout_s - agent.upstream.profile.patience.margin_s, 0.9 * timeout_s),
            kind=CallKind.SUBAGENT if crowd.parent_session and in_order else CallKind.TURN,
            parent_session=crowd.parent_session if in_order else "",
            prefix=prefix,
            prefix_tokens=(crowd.shared_tokens or agent.said) if prefix else 0,
            cached_tokens=cached_tokens if in_order else 0,
            cold_tokens=cached_tokens if in_order else 0,
            streamed=crowd.streamed,
            request_hash=f"{agent.name} {agent.number}",
        )

    def _scripted_ticket(self, name: str, ticket: Ticket) -> Ticket:
        if self._policy is not Policy.HIVEMIND:
            ticket = msgspec.structs.replace(
                ticket,
                agent="all",
                session="all",
                priority=Priority.NORMAL,
                kind=CallKind.TURN,
                parent_session="",
                prefix="",
                cached_tokens=0,
                cold_tokens=0,
            )
        return msgspec.structs.replace(
            ticket,
            id=name,
            arrived_at=self.now,
            deadline_at=self.now + ticket.deadline_at,
            shed_at=self.now + ticket.shed_at,
            request_hash=ticket.id,
        )

    def _time_out(self, call: _Call) -> None:
        """The client's patience is over."""
        if call.over or call.has_begun:
            return
        attempt = call.attempt
        if attempt is not None and not attempt.over:
            self._abandon(attempt)
            if attempt.reservation is not None:
                gone = Outcome(OutcomeKind.CANCELLED, "client gone")
                self.scheduler.settle(attempt.reservation, gone, self.now)
        elif self._policy.is_scheduled:
            self.scheduler.cancel(call.id, self.now)
        self._waiting.pop(call.id, None)
        self._refused(call, "timeout", curable=True)

    def _refused(self, call: _Call, why: str, *, curable: bool, retry_after_s: float | None = None) -> None:
        """The client got something else than an answer."""
        call.over = True
        agent = call.agent
        retries = {Policy.DIRECT: 0, Policy.SDK: _SDK_RETRIES}.get(self._policy, agent.crowd.retries)
        if not curable or agent.retry >= retries:
            agent.death = why
            self._end(agent)
            return
        if retry_after_s is None or not 0 < retry_after_s <= _RETRY_AFTER_MAX_S:
            step_s = min(_FIRST_BACKOFF_S * 2.0**agent.retry, _MAX_BACKOFF_S)
            retry_after_s = step_s * (1 - 0.25 * agent.jitter.random())
        agent.retry += 1
        self._in(retry_after_s, self._ask, agent)

    def _answered(self, call: _Call) -> None:
        call.over = True
        agent, turn = call.agent, call.agent.turn
        assert turn is not None
        crowd, tokens = agent.crowd, agent.prompt_tokens
        self._book_ideal(agent)
        agent.learn(turn.output_tokens)
        agent.marked = tokens
        agent.said = tokens - crowd.shared_tokens + turn.output_tokens
        service_s = turn.service_s + 2 * self._scenario.way_s
        agent.turns_s.append((turn.think_s, service_s))
        agent.path_s += turn.think_s + service_s
        agent.upstream.service_s += turn.service_s
        self._next_turn(agent)

    def _book_ideal(self, agent: _Agent) -> None:
        """What this turn takes at least, of money and of each limit."""
        crowd, tokens, turn = agent.crowd, agent.prompt_tokens, agent.turn
        assert turn is not None
        read = 0
        if crowd.caches:
            read = agent.marked
            if not read and crowd.shared_tokens and crowd.name in self._written:
                read = crowd.shared_tokens
            self._written.add(crowd.name)
        self._ideal_cost += read * _READ + (tokens - read) * (_WRITE if crowd.caches else 1.0)
        units = agent.upstream.units
        units[Dimension.REQUESTS] += 1
        units[Dimension.INPUT_TOKENS] += tokens - read
        units[Dimension.OUTPUT_TOKENS] += turn.output_tokens
        units[Dimension.TOTAL_TOKENS] += tokens - read + turn.output_tokens

    def _end(self, agent: _Agent) -> None:
        agent.ended_at = self.now
        self._running -= 1
        if isinstance(agent, _Scripted):
            if agent.death is None or not agent.call.is_vital:
                self._release(agent)
            else:
                self._forsake(agent)

    # Attempts --------------------------------------------------------------------------------------------------------

    def _transmit(self, call: _Call, reservation: Reservation | None) -> None:
        attempt = _Attempt(call=call, reservation=reservation)
        call.attempt = attempt
        self._in(self._scenario.way_s, self._arrive, attempt)

    def _arrive(self, attempt: _Attempt) -> None:
        """The provider has the request."""
        if attempt.over:
            return
        agent = attempt.call.agent
        turn = agent.turn
        assert turn is not None
        streamed = agent.crowd.streamed
        max_tokens = agent.call.max_tokens if isinstance(agent, _Scripted) else None
        answer = agent.upstream.provider.begin(
            self.now,
            RequestFacts(
                dialect=agent.upstream.dialect,
                credential=f"sk-sim-{agent.name}",
                stream=streamed,
                input_tokens=agent.prompt_tokens,
                max_tokens=max_tokens or turn.output_tokens + 1,
                chunks=turn.output_tokens,
                interval_s=1 / agent.crowd.tokens_per_s if streamed else 0.0,
                # A plain answer takes as long as the stream would have.
                latency_s=turn.latency_s if streamed else turn.service_s,
                prefixes=agent.prefixes,
            ),
        )
        self._statuses[answer.status] += 1
        attempt.answer, attempt.arrived_at, attempt.is_open = answer, self.now, True
        if answer.ending not in (Ending.REFUSED, Ending.OVERLOADED) and agent.upstream is self._own:
            self._count_slots()
            self._in_flight += 1
        course = _course(answer)
        way_s = self._scenario.way_s
        if course.head_s is not None:
            self._in(course.head_s + way_s, self._head, attempt)
        self._in(course.end_s, self._provider_ends, attempt, course.share)
        self._in(course.end_s + way_s, self._ended, attempt, course)
        if attempt.reservation is not None and streamed:
            pool, watchdog = agent.upstream.pool, agent.upstream.profile.watchdog
            silent_s = self._first_bytes.silent_s(pool, least_s=watchdog.silent_s, factor=watchdog.factor)
            if course.silent_s > silent_s:
                self._in(course.silent_from_s + silent_s + way_s, self._stalled, attempt)

    def _provider_ends(self, attempt: _Attempt, share: float) -> None:
        if not attempt.is_open:
            return
        attempt.is_open = False
        answer = attempt.answer
        assert answer is not None
        tokens = round(answer.reply.output_tokens * share) if answer.reply else 0
        self._close(attempt, answer, tokens, None)

    def _abandon(self, attempt: _Attempt) -> None:
        """Whoever waited for the attempt goes, and closes it."""
        attempt.over = True
        if attempt.is_open:
            attempt.is_open = False
            assert attempt.answer is not None
            self._close(attempt, attempt.answer, 0, Ending.ABANDONED)

    def _close(self, attempt: _Attempt, answer: Answer, tokens: int, ending: Ending | None) -> None:
        ending = ending or answer.ending
        upstream = attempt.call.agent.upstream
        upstream.provider.end(self.now, answer, output_tokens=tokens, ending=ending)
        if ending not in (Ending.REFUSED, Ending.OVERLOADED) and upstream is self._own:
            self._count_slots()
            self._in_flight -= 1
        if ending in (Ending.FAILED, Ending.CUT, Ending.ABANDONED):
            wasted_s = self.now - attempt.arrived_at
            upstream.service_s += wasted_s
            attempt.call.agent.path_s += wasted_s
        if reply := answer.reply:
            if ending is not Ending.COMPLETED:
                upstream.waste[Dimension.REQUESTS] += 1
                upstream.waste[Dimension.INPUT_TOKENS] += reply.input_tokens + reply.written_tokens
                upstream.waste[Dimension.OUTPUT_TOKENS] += tokens
            upstream.late_tokens = max(upstream.late_tokens, tokens)
            self._cost += reply.input_tokens + reply.written_tokens * _WRITE + reply.cached_tokens * _READ

    def _head(self, attempt: _Attempt) -> None:
        if attempt.over:
            return
        answer = attempt.answer
        assert answer is not None
        upstream = attempt.call.agent.upstream
        attempt.hints = read_hints(upstream.profile, dict(answer.headers), _WALL_S + self.now)
        if upstream is not self._own:
            # All simulated providers name one account; whose theirs is, their sites say.
            attempt.hints = msgspec.structs.replace(attempt.hints, account=None)
        if attempt.reservation is not None:
            self.scheduler.observe(attempt.reservation, attempt.hints, self.now, answered=answer.status < 400)
            if answer.streamed and answer.status == 200:
                self._first_bytes.note(upstream.pool, self.now - attempt.reservation.admitted_at)
        if answer.streamed and answer.reply is not None:
            attempt.call.has_begun = True

    def _ended(self, attempt: _Attempt, course: _Course) -> None:
        """The answer is over, whole or not."""
        if attempt.over:
            return
        answer = attempt.answer
        assert answer is not None
        upstream = attempt.call.agent.upstream
        profile = upstream.profile
        if course.trouble is not None:
            outcome = judge_transport(course.trouble, "")
        elif course.error is not None:
            outcome = judge_stream_error(profile, course.error)
        else:
            body = answer.error_body or None
            name = upstream.dialect_name
            outcome = judge_answer(profile, name, answer.status, dict(answer.headers), body, attempt.hints)
        usage = None
        if answer.reply is not None and course.trouble is not TransportTrouble.CLOSED_BEFORE_HEAD:
            usage = Usage(
                input_tokens=answer.reply.input_tokens,
                cache_read_tokens=answer.reply.cached_tokens,
                cache_write_tokens=answer.reply.written_tokens,
                output_tokens=round(answer.reply.output_tokens * course.share),
                reported=outcome.kind is OutcomeKind.SUCCESS,
            )
        self._settle(attempt, outcome, usage, saw_bytes=answer.streamed and course.shows_content)

    def _stalled(self, attempt: _Attempt) -> None:
        """The layer's watchdog: the attempt is silent."""
        if attempt.over:
            return
        saw_bytes = attempt.call.has_begun
        self._abandon(attempt)
        self._settle(attempt, judge_transport(TransportTrouble.STALLED, ""), None, saw_bytes=saw_bytes)

    def _settle(self, attempt: _Attempt, outcome: Outcome, usage: Usage | None, *, saw_bytes: bool) -> None:
        attempt.over = True
        call = attempt.call
        if attempt.reservation is None:
            if outcome.kind is OutcomeKind.SUCCESS:
                self._answered(call)
            else:
                curable = outcome.retryable and not saw_bytes
                self._refused(call, outcome.reason, curable=curable, retry_after_s=outcome.retry_after_s)
            return
        charged = None  # unless the provider said, what was reserved
        if usage is not None and usage.reported:
            charged = call.agent.upstream.charged(usage, attempt.reservation.ticket.demand)
        verdict = self.scheduler.settle(
            attempt.reservation,
            outcome,
            self.now,
            usage=usage,
            charged=charged,
            client_saw_bytes=saw_bytes and outcome.kind is not OutcomeKind.SUCCESS,
        )
        if isinstance(verdict, Backoff):
            return
        self._waiting.pop(call.id, None)
        if isinstance(verdict, GiveUp):
            curable = outcome.retryable and not saw_bytes
            why = f"{outcome.reason}: {verdict.reason.value}"
            self._refused(call, why, curable=curable, retry_after_s=outcome.retry_after_s)
        else:
            self._answered(call)

    # The provider's side ---------------------------------------------------------------------------------------------

    def _move_cap(self, cap: int) -> None:
        self._count_slots()
        self._cap = cap
        self.provider.set_concurrency(cap)

    def _count_slots(self) -> None:
        if self._cap is not None:
            passed_s = self.now - self._counted_at
            self._used_s += passed_s * min(self._in_flight, self._cap)
            self._offered_s += passed_s * self._cap
        self._counted_at = self.now

    def _neighbour(self, neighbour: Neighbour, rng: random.Random) -> None:
        answer = self.provider.begin(
            self.now,
            RequestFacts(
                dialect=Dialect.MESSAGES,
                credential="sk-sim-neighbour",
                input_tokens=neighbour.input_tokens,
                latency_s=neighbour.latency_s,
            ),
        )
        self._neighbour_calls += answer.reply is not None
        self._in(answer.latency_s, self._neighbour_ends, answer)
        self._in(rng.expovariate(neighbour.calls_per_s), self._neighbour, neighbour, rng)

    def _neighbour_ends(self, answer: Answer) -> None:
        self.provider.end(self.now, answer, output_tokens=answer.reply.output_tokens if answer.reply else 0)

    # Results ---------------------------------------------------------------------------------------------------------

    def _result(self) -> Result:
        endless = math.isfinite(self._scenario.duration_s)
        crowds = {}
        deaths: Counter[str] = Counter()
        for crowd in self._scenario.crowds:
            if crowd.poisoned:
                continue
            members = [agent for agent in self._agents if agent.crowd is crowd]
            deaths.update(agent.death for agent in members if agent.death is not None)
            crowds[crowd.name] = CrowdResult(
                agents=len(members),
                lost=sum(agent.death is not None or (agent.ended_at is None and not endless) for agent in members),
                turns_done=sum(len(agent.turns_s) for agent in members),
                waits_s=tuple(wait_s for agent in members for wait_s in agent.waits_s),
                ended_s=tuple(
                    agent.ended_at for agent in members if agent.ended_at is not None and agent.death is None
                ),
            )
        crowds |= self._script_results()
        deaths.update(call.death for call in self._script if call.death is not None)
        bound = self._bound(0)
        return Result(
            makespan_s=max(
                (agent.ended_at for agent in self._agents if agent.ended_at is not None and not agent.crowd.poisoned),
                default=self.now,
            ),
            bound=bound,
            attempts=self._statuses.total(),
            statuses=self._statuses,
            crowds=crowds,
            deaths=deaths,
            cost=self._cost,
            ideal_cost=self._ideal_cost,
            cap_used=self._used_s / self._offered_s if self._offered_s else 0.0,
            breaker_opened=self._breaker_opened,
            sheds=self._sheds,
            neighbour_calls=self._neighbour_calls,
            shared_bound_s=self._bound(self._neighbour_calls).bound_s,
            script=tuple(
                CallResult(call.name, call.asked_at, call.ended_at, call.death, sum(call.waits_s))
                for call in self._script
            ),
        )

    def _script_results(self) -> dict[str, CrowdResult]:
        """Each agent of the script as a crowd of one: lost when a call failed that others needed."""
        results = {}
        for name in dict.fromkeys(call.crowd.name for call in self._script):
            calls = [call for call in self._script if call.crowd.name == name]
            is_lost = any(call.ended_at is None or (call.death and call.call.is_vital) for call in calls)
            ends_s = [call.ended_at for call in calls if call.ended_at is not None]
            results[name] = CrowdResult(
                agents=1,
                lost=int(is_lost),
                turns_done=sum(len(call.turns_s) for call in calls),
                waits_s=tuple(wait_s for call in calls for wait_s in call.waits_s),
                ended_s=() if is_lost else (max(ends_s),),
            )
        return results

    def _bound(self, foreign_calls: int) -> Bound:
        """Of all providers; the neighbour is the scenario's own provider's."""
        bounds = (
            self._bound_at(upstream, foreign_calls if upstream is self._own else 0)
            for upstream in self._upstreams.values()
        )
        return max(bounds, key=lambda bound: bound.bound_s)

    def _bound_at(self, upstream: _Upstream, foreign_calls: int) -> Bound:
        settings = upstream.settings
        units = upstream.units + upstream.waste
        units[Dimension.REQUESTS] += foreign_calls
        spent = Spent(
            units=units,
            longest_path_s=max((agent.path_s for agent in self._agents if not agent.crowd.poisoned), default=0.0),
            service_s=upstream.service_s,
            turns_s=[agent.turns_s for agent in self._agents if agent.upstream is upstream],
        )
        return lower_bound(
            spent,
            settings.limits,
            concurrency=None if self._scenario.caps else settings.concurrency,
            late_units=upstream.late_tokens * self._most_in_flight(settings.concurrency),
            outages=tuple((wall.from_s, wall.to_s) for wall in settings.walls),
        )

    def _most_in_flight(self, cap: int | None) -> int:
        """How many calls can be in flight at most: an agent has one, and of a script as many as it has chains."""
        continued = {call.after[0] for call in self._scenario.script if call.after}
        chains = len(self._scenario.script) - len(continued)
        agents = len(self._agents) - len(self._script) + chains
        return agents if cap is None else min(cap, agents)
