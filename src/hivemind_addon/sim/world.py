"""Virtual time: agents, the real scheduler and the simulated provider on one heap of events. Pure and repeatable.

    agent ──ask──► scheduler ──Admitted──► provider.begin ──head──► observe ──end──► settle ──► agent
                       └──Shed──► agent                                          └──Backoff──► scheduler

The scheduler is the same object that the proxy drives, called in the same order: after each call one poll, and a wakeup
at `next_wakeup`. What an answer says is read by the same parsers (`wire/hints.py`, `wire/outcome.py`). Other policies,
for comparison, put something else in its place, or nothing (`policy.py`).
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

import msgspec.structs

from hivemind_addon.core.breaker import BreakerState
from hivemind_addon.core.decision import Admitted, Backoff, GiveUp, Refused, Shed
from hivemind_addon.core.events import BreakerChanged, Event, TicketEnded
from hivemind_addon.core.spend import Spend
from hivemind_addon.core.ticket import (
    CallKind,
    Demand,
    Dimension,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Reservation,
    Ticket,
    Usage,
)
from hivemind_addon.core.watchdog import FirstBytes
from hivemind_addon.sim import faults
from hivemind_addon.sim.actor import Actor, ScriptedActor
from hivemind_addon.sim.bound import Bound, Spent, lower_bound
from hivemind_addon.sim.call import Answer, Ending, RequestFacts
from hivemind_addon.sim.course import Course, course_of
from hivemind_addon.sim.dialect import Dialect
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.result import CallResult, CrowdResult, Result
from hivemind_addon.sim.upstream import WALL_S, Upstream, bill_of
from hivemind_addon.sim.workload import Neighbour, Scenario, ScriptedCall, Site, turns
from hivemind_addon.wire.hints import read_hints
from hivemind_addon.wire.outcome import TransportTrouble, judge_answer, judge_stream_error, judge_transport

_LONGEST_S = 6 * 3600.0
"""A run that has no end is cut here; whoever still runs is lost."""
_POOL = PoolKey(host="api.sim", account="key-sim", model_group="sim-1")
_COME_BACK_MAX_S = 30
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 8.0
_RETRY_AFTER_MAX_S = 60.0
_WRITE, _READ = 1.25, 0.1
"""What an input token costs that is written to or read from a prompt cache, of one that is neither."""


def run(scenario: Scenario, *, seed: int, policy: Policy = Policy.HIVEMIND) -> Result:
    """One run of a scenario."""
    return World(scenario, seed=seed, policy=policy).run()


@dataclass(slots=True, eq=False)
class _Call:
    """One request of an agent, as its client sees it."""

    id: str
    agent: Actor
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
        admission = policy.admission or Policy.HIVEMIND.admission
        assert admission is not None
        self.scheduler = admission(random.Random(f"{seed} scheduler"))
        """Of no use where nobody admits calls."""
        settings = scenario.scheduler
        self._own = Upstream(Site("", _POOL, scenario.provider), random.Random(f"{seed} provider"), settings)
        self.provider = self._own.provider
        self._upstreams = {"": self._own} | {
            site.name: Upstream(site, random.Random(f"{seed} provider {site.name}"), settings)
            for site in scenario.sites
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
            Actor(
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
            if isinstance(agent, ScriptedActor):
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
        # Whoever follows a script ends with it, be it a night long.
        ends_at = self._scenario.duration_s if self._script else min(self._scenario.duration_s, _LONGEST_S)
        while self._running:
            event_at = self._agenda[0][0] if self._agenda else math.inf
            wakeup_at = self.scheduler.next_wakeup()
            instant = min(event_at, math.inf if wakeup_at is None else wakeup_at)
            if instant > ends_at or math.isinf(instant):
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

    def _scripted(self, script: tuple[ScriptedCall, ...]) -> "list[ScriptedActor]":
        site_of = {upstream.pool: upstream for upstream in self._upstreams.values()}
        calls = [
            ScriptedActor.of(
                index, call, site_of[call.ticket.pool], random.Random(f"{self._seed} {call.ticket.id} jitter")
            )
            for index, call in enumerate(script, start=len(self._agents))
        ]
        by_id = {call.name: call for call in calls}
        for call in calls:
            for other in call.call.after:
                by_id[other].followers.append(call)
        return calls

    def _start_scripted(self, agent: ScriptedActor) -> None:
        if agent.call.faults:
            agent.upstream.provider.script(f"sk-sim-{agent.name}", (one.fault for one in agent.call.faults))
        if not agent.waits_for:
            self._at(agent.call.turn.think_s, self._ask, agent)

    def _release(self, agent: ScriptedActor) -> None:
        """A scripted call is over: whoever waited for it alone thinks, and asks."""
        for follower in agent.followers:
            follower.waits_for -= 1
            follower.path_s = max(follower.path_s, agent.path_s)
            if not follower.waits_for and follower.ended_at is None:
                self._in(follower.call.turn.think_s, self._ask, follower)

    def _forsake(self, agent: ScriptedActor) -> None:
        """A scripted call failed that others needed: none of them will ever be asked for."""
        forsaken = list(agent.followers)
        while forsaken:
            follower = forsaken.pop()
            if follower.ended_at is None:
                follower.ended_at, follower.death = self.now, f"never asked: {agent.name} failed"
                self._running -= 1
                forsaken += follower.followers

    # Agents ----------------------------------------------------------------------------------------------------------

    def _next_turn(self, agent: Actor) -> None:
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

    def _ask(self, agent: Actor) -> None:
        self._calls += 1
        if isinstance(agent, ScriptedActor) and agent.asked_at is None:
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
        if isinstance(agent, ScriptedActor):
            return self._scripted_ticket(call.id, agent.call.ticket)
        timeout_s = crowd.timeout_s
        cached_tokens = agent.marked if crowd.caches else 0
        error = self._guess.lognormvariate(0, self._scenario.input_error)
        into = max(1, round((agent.prompt_tokens - cached_tokens) * error))
        out = agent.likely_output_tokens
        prefix = ""
        if crowd.caches:
            prefix = crowd.name if crowd.shared_tokens else agent.name
        return Ticket(
            id=call.id,
            pool=agent.upstream.pool,
            agent=crowd.parent_session or agent.session,
            session=agent.session,
            model="sim-1",
            demand=Demand(input_tokens=into, output_tokens=out, total_tokens=into + out),
            arrived_at=self.now,
            deadline_at=self.now + timeout_s,
            shed_at=self.now + max(timeout_s - agent.upstream.profile.patience.margin_s, 0.9 * timeout_s),
            kind=CallKind.SUBAGENT if crowd.parent_session else CallKind.TURN,
            parent_session=crowd.parent_session,
            prefix=prefix,
            prefix_tokens=(crowd.shared_tokens or agent.said) if prefix else 0,
            cached_tokens=cached_tokens,
            cold_tokens=cached_tokens,
            streamed=crowd.streamed,
            request_hash=f"{agent.name} {agent.number}",
        )

    def _scripted_ticket(self, name: str, ticket: Ticket) -> Ticket:
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
        retries = agent.crowd.retries if self._policy.resends is None else self._policy.resends
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
        agent.answered_at.append(self.now)
        agent.path_s += turn.think_s + service_s
        agent.upstream.service_s += turn.service_s
        self._next_turn(agent)

    def _book_ideal(self, agent: Actor) -> None:
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

    def _end(self, agent: Actor) -> None:
        agent.ended_at = self.now
        self._running -= 1
        if isinstance(agent, ScriptedActor):
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
        max_tokens = None
        # A plain answer takes as long as the stream would have.
        latency_s = turn.latency_s if streamed else turn.service_s
        if isinstance(agent, ScriptedActor):
            max_tokens, latency_s = agent.call.max_tokens, agent.latency_s
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
                latency_s=latency_s,
                prefixes=agent.prefixes,
            ),
        )
        self._statuses[answer.status] += 1
        attempt.answer, attempt.arrived_at, attempt.is_open = answer, self.now, True
        if answer.ending not in (Ending.REFUSED, Ending.OVERLOADED):
            if isinstance(agent, ScriptedActor):
                agent.faults_met += 1
            if agent.upstream is self._own:
                self._count_slots()
                self._in_flight += 1
        course = course_of(answer)
        way_s = self._scenario.way_s
        if course.head_s is not None:
            self._in(course.head_s + way_s, self._head, attempt)
        self._in(course.end_s, self._provider_ends, attempt, course.share)
        self._in(course.end_s + way_s, self._ended, attempt, course)
        if attempt.reservation is not None and streamed and self._policy.watches:
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
            bill = bill_of(reply, output_tokens=tokens, price=attempt.call.agent.price)
            attempt.call.agent.billed += bill
            if ending is not Ending.COMPLETED:
                attempt.call.agent.in_vain += bill

    def _head(self, attempt: _Attempt) -> None:
        if attempt.over:
            return
        answer = attempt.answer
        assert answer is not None
        upstream = attempt.call.agent.upstream
        attempt.hints = read_hints(upstream.profile, dict(answer.headers), WALL_S + self.now)
        if upstream is not self._own:
            # All simulated providers name one account; whose theirs is, their sites say.
            attempt.hints = msgspec.structs.replace(attempt.hints, account=None)
        if attempt.reservation is not None:
            self.scheduler.observe(attempt.reservation, attempt.hints, self.now, answered=answer.status < 400)
            if answer.streamed and answer.status == 200:
                self._first_bytes.note(upstream.pool, self.now - attempt.reservation.admitted_at)
        if answer.streamed and answer.reply is not None:
            attempt.call.has_begun = True

    def _ended(self, attempt: _Attempt, course: Course) -> None:
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
            outcome if self._policy.retries else msgspec.structs.replace(outcome, retryable=False),
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
        makespan_s = max(
            (agent.ended_at for agent in self._agents if agent.ended_at is not None and not agent.crowd.poisoned),
            default=self.now,
        )
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
                halfway_turns=tuple(sum(at <= makespan_s / 2 for at in agent.answered_at) for agent in members),
            )
        crowds |= self._script_results()
        deaths.update(call.death for call in self._script if call.death is not None)
        bound = self._bound(0)
        healthy = [agent for agent in self._agents if not agent.crowd.poisoned]
        return Result(
            makespan_s=makespan_s,
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
            billed=sum((agent.billed for agent in healthy), Spend()),
            wasted=sum((agent.in_vain if agent.death is None else agent.billed for agent in healthy), Spend()),
            script=tuple(
                CallResult(call.name, call.asked_at, call.ended_at, call.death, call.billed, call.in_vain)
                for call in self._script
            ),
        )

    def _script_results(self) -> dict[str, CrowdResult]:
        """Each agent of the script as a crowd of one: lost when a call failed that others needed."""
        results = {}
        by_agent: dict[str, list[ScriptedActor]] = {}
        for call in self._script:
            by_agent.setdefault(call.crowd.name, []).append(call)
        for name, calls in by_agent.items():
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

    def _bound_at(self, upstream: Upstream, foreign_calls: int) -> Bound:
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
