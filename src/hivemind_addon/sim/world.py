"""Virtual time: agents, the real scheduler and the simulated provider on one heap of events. Pure and repeatable.

    agent ──ask──► scheduler ──Admitted──► provider.begin ──head──► observe ──end──► settle ──► agent
                       └──Shed──► agent                                          └──Backoff──► scheduler

The scheduler is the same object that the proxy drives, called in the same order: after each call a poll, and a wakeup
at `next_wakeup`. Answers are read by the same parsers (`formats/wire/hints.py`, `formats/wire/outcome.py`).
Other policies, for comparison, take the scheduler's place, or nothing does (`policy.py`).
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

import msgspec.structs

from hivemind_addon.formats.wire.hints import read_hints
from hivemind_addon.formats.wire.outcome import TransportTrouble, judge_answer, judge_stream_error, judge_transport
from hivemind_addon.formats.wire.watchdog import Durations, may_be_silent_s
from hivemind_addon.kernel.limits.learned import Saved
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted, Backoff, GiveUp, Refused, Shed
from hivemind_addon.kernel.values.events import BreakerChanged, Event, Moved, Submitted
from hivemind_addon.kernel.values.spend import Budget, Scope, Shortage, Spend
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    CallKind,
    Demand,
    Endpoint,
    Hints,
    Outcome,
    OutcomeKind,
    PoolKey,
    Ticket,
    Usage,
)
from hivemind_addon.proxy.api.replies import in_words
from hivemind_addon.sim import faults
from hivemind_addon.sim.actor import WALL_S, Actor, ScriptedActor, SdkBackoff, SimUpstream
from hivemind_addon.sim.agenda import Agenda
from hivemind_addon.sim.call import AnswerEnding, SimAnswer, SimRequestFacts
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.idle import KnownRequest
from hivemind_addon.sim.plan import Course, course_of
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.result import Result, RunLedger
from hivemind_addon.sim.workload import Crowd, Neighbour, Scenario, ScriptedCall, Site, turns

_LONGEST_S = 6 * 3600.0
"""A run that has no end is cut here; agents that still run are lost."""
_POOL = PoolKey(host="api.sim", account="key-sim", model_group="sim-1")
_COME_BACK_MAX_S = 30
_BACKOFF = SdkBackoff()


def run(scenario: Scenario, *, seed: int, policy: Policy = Policy.HIVEMIND) -> Result:
    """A run of a scenario."""
    return World(scenario, seed=seed, policy=policy).run()


@dataclass(slots=True, eq=False)
class _Call:
    """A request of an agent, as the client sees that."""

    id: str
    agent: Actor
    over: bool = False
    has_begun: bool = False
    """The answer streams: the client's patience starts anew with each byte."""
    attempt: "_Attempt | None" = None
    kept: KnownRequest | None = None
    """As the scheduler has the request."""
    waits_at: SimUpstream | None = None
    """Whose pool holds the call; None: the agent's."""
    waits_since: float | None = None
    """Since when the call waits to be admitted; None: an attempt is in flight."""
    waited_s: float = 0.0
    """In earlier waits."""

    @property
    def upstream(self) -> SimUpstream:
        """Where the call waits, or was sent."""
        return self.waits_at or self.agent.upstream


@dataclass(slots=True, eq=False)
class _Attempt:
    call: _Call
    sent: Attempt | None
    """None: the attempt goes past the scheduler."""
    over: bool = False
    answer: SimAnswer | None = None
    arrived_at: float = 0.0
    """At the provider."""
    hints: Hints = field(default_factory=Hints)
    is_open: bool = False
    """At the provider."""
    is_paid: bool = False
    """The provider has completed it."""
    upstream: SimUpstream = field(init=False)
    """Whose provider got the attempt."""

    def __post_init__(self) -> None:
        self.upstream = self.call.upstream


class World:
    """A run. `run` may be called once."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int,
        policy: Policy = Policy.HIVEMIND,
        listen: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self.agenda = Agenda()
        admission = policy.admission or Policy.HIVEMIND.admission
        assert admission is not None
        self.scheduler = admission(random.Random(f"{seed} scheduler"))
        """Of no use where nobody admits calls."""
        if scenario.learned and isinstance(self.scheduler, Scheduler):
            self.scheduler.restore(Saved(pools=scenario.learned, accounts=(), same_account={}).to_json(), 0.0)
        settings = scenario.scheduler
        self._own = SimUpstream(Site("", _POOL, scenario.provider), random.Random(f"{seed} provider"), settings)
        self.provider = self._own.provider
        self._upstreams = {"": self._own} | {
            site.name: SimUpstream(site, random.Random(f"{seed} provider {site.name}"), settings)
            for site in scenario.sites
        }
        self._at_pool = {(one.pool.host, one.pool.account): one for one in self._upstreams.values()}
        equal = (self._own, *(self._upstreams[site.name] for site in scenario.sites if site.equal))
        self._equal = equal if len(equal) > 1 else ()
        """To the scenario's own provider, which is among them; empty: there is only that."""
        self._scenario = scenario
        self._seed = seed
        self._policy = policy
        self._listen = listen
        self._first_bytes = Durations()
        self._guess = random.Random(f"{seed} guess")
        self._ways = random.Random(f"{seed} ways")
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
        self._ledger = RunLedger(scenario, own=self._own, upstreams=tuple(self._upstreams.values()), equal=self._equal)

    def __repr__(self) -> str:
        return f"<World {self._scenario.name} at {self.now:.1f} s, {self._running} agents run>"

    @property
    def now(self) -> float:
        """The instant of the run."""
        return self.agenda.now

    def run(self) -> Result:
        """Until all agents have ended, or the scenario's time is over."""
        rng = random.Random(f"{self._seed} starts")
        for agent in self._agents:
            if isinstance(agent, ScriptedActor):
                self._start_scripted(agent)
                continue
            if agent.crowd.poisoned:
                fault = faults.ErrorStatus(agent.crowd.poisoned_status)
                agent.upstream.provider.script(f"sk-sim-{agent.name}", (), then=fault)
            starts_s = rng.uniform(*agent.crowd.starts_s)
            agent.path_s = starts_s
            self.agenda.at(starts_s, self._next_turn, agent)
        for at, cap in self._scenario.caps:
            self.agenda.at(at, self._move_cap, cap)
        if self._scenario.neighbour:
            self.agenda.at(0.0, self._neighbour, self._scenario.neighbour, random.Random(f"{self._seed} neighbour"))
        # Whoever follows a script ends with it, be it a night long.
        ends_at = self._scenario.duration_s if self._script else min(self._scenario.duration_s, _LONGEST_S)
        while self._running and self.agenda.step(self.scheduler.next_wakeup(), until=ends_at, before=self._let_pass):
            self._turn()
        if self._running:
            self._let_pass(ends_at)
            self.agenda.now = ends_at
        return self._ledger.result(self._agents, self.now)

    def _turn(self) -> None:
        """As the driver does after each call: poll, and hand the decisions out."""
        for decision in self.scheduler.poll(self.now):
            match decision:
                case Admitted(sent):
                    call = self._waiting[sent.ticket.id]
                    call.waited_s += self.now - (call.waits_since or 0.0)
                    call.waits_since = None
                    if sent.ticket.endpoints:
                        call.waits_at = self._at(sent.ticket.pool)
                    self._transmit(call, sent)
                case Shed(ticket, reason, come_back_s):
                    self._ledger.shed()
                    told_s = float(min(max(1, math.ceil(come_back_s)), _COME_BACK_MAX_S))
                    call = self._leave(ticket.id)
                    self._refused(call, f"shed: {reason.value}", curable=True, retry_after_s=told_s)
                case Refused(ticket, cause):
                    call = self._leave(ticket.id)
                    if isinstance(cause, Shortage) and not isinstance(call.agent, ScriptedActor):
                        call.over = call.agent.is_stopped = True
                        self._end(call.agent)
                    else:
                        self._refused(call, "refused", curable=False)
                case _:
                    assert_never(decision)
        events = self.scheduler.drain_events() if isinstance(self.scheduler, Scheduler) else ()
        for event in map(in_words, events):
            self._listen(event)
            if isinstance(event, Submitted) and event.ticket.endpoints and event.ticket.id in self._waiting:
                self._waiting[event.ticket.id].waits_at = self._at(event.ticket.pool)
            elif isinstance(event, Moved) and event.ticket_id in self._waiting:
                self._waiting[event.ticket_id].waits_at = self._at(event.pool)
            elif isinstance(event, BreakerChanged):
                self._ledger.breaker_changed(event)

    def _at(self, pool: PoolKey) -> SimUpstream:
        return self._at_pool[pool.host, pool.account]

    def _let_pass(self, instant: float) -> None:
        """Nothing happens until then: was anybody kept for nothing?"""
        if not self._policy.is_scheduled or instant <= self.now or math.isinf(instant):
            return
        for upstream in self._upstreams.values():
            if not upstream.idle.is_due(instant):
                continue
            waiting: list[KnownRequest] = []
            in_flight: list[KnownRequest] = []
            for call in self._waiting.values():
                if call.upstream is upstream and call.kept is not None:
                    is_waiting = call.attempt is None or call.attempt.over
                    (waiting if is_waiting else in_flight).append(call.kept)
            upstream.idle.pass_time(self.now, instant, waiting=waiting, in_flight=in_flight)

    def _leave(self, ticket_id: str) -> _Call:
        """The scheduler has no longer to do with a call."""
        call = self._waiting.pop(ticket_id)
        since = self.now if call.waits_since is None else call.waits_since
        call.agent.waits_s.append(call.waited_s + self.now - since)
        return call

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
            self.agenda.at(agent.call.turn.think_s, self._ask, agent)

    def _release(self, agent: ScriptedActor) -> None:
        """A scripted call is over: calls that waited for this alone begin to think, and ask."""
        for follower in agent.followers:
            follower.waits_for -= 1
            follower.path_s = max(follower.path_s, agent.path_s)
            if not follower.waits_for and follower.ended_at is None:
                self.agenda.after(follower.call.turn.think_s, self._ask, follower)

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
        agent.asked_at = None
        if agent.number == 1 or not agent.crowd.remembers:
            agent.said = agent.jitter.randint(*agent.crowd.opening_tokens)
            agent.marked = 0
        self.agenda.after(agent.turn.think_s, self._ask, agent)

    def _ask(self, agent: Actor) -> None:
        self._calls += 1
        if agent.asked_at is None:
            agent.asked_at = self.now
            agent.wanted += 1
        call = _Call(id=f"{agent.index}.{self._calls}", agent=agent)
        self.agenda.after(agent.crowd.timeout_s, self._time_out, call)
        if self._policy.is_scheduled:
            self._waiting[call.id] = call
            call.waits_since = self.now
            ticket = self._ticket(call)
            call.kept = agent.upstream.idle.keep(self._request(call), ticket.demand)
            self.scheduler.submit(ticket, agent.upstream.pool_settings, self.now)
        else:
            self._transmit(call, None)

    def _ticket(self, call: _Call) -> Ticket:
        agent, crowd = call.agent, call.agent.crowd
        if isinstance(agent, ScriptedActor):
            return self._scripted_ticket(call.id, agent.call.ticket)
        patience = agent.upstream.profile.patience
        timeout_s = crowd.timeout_s if crowd.announces_timeout else patience.default_s
        cached_tokens = agent.marked if crowd.caches else 0
        error = self._guess.lognormvariate(0, self._scenario.input_error)
        into = max(1, round((agent.prompt_tokens - cached_tokens) * error))
        out = agent.likely_output_tokens
        prefix = ""
        if crowd.caches:
            prefix = crowd.name if crowd.shared_tokens else agent.name
        return Ticket(
            id=call.id,
            pool=agent.pool,
            agent=agent.holder,
            session=agent.session,
            model=crowd.model,
            demand=Demand(input_tokens=into, output_tokens=out, total_tokens=into + out),
            arrived_at=self.now,
            deadline_at=self.now + timeout_s,
            shed_at=self.now + max(timeout_s - patience.margin_s, 0.9 * timeout_s),
            priority=crowd.priority,
            kind=CallKind.SUBAGENT if crowd.parent_session else CallKind.TURN,
            parent_session=crowd.parent_session,
            prefix=prefix,
            prefix_tokens=(crowd.shared_tokens or agent.said) if prefix else 0,
            cached_tokens=cached_tokens,
            cold_tokens=cached_tokens,
            streamed=crowd.streamed,
            request_hash=f"{agent.name} {agent.number}",
            budgets=_budgets(crowd, agent.holder),
            expected=Spend(tokens=into + cached_tokens + out),
            client="" if crowd.announces_timeout else crowd.name,
            endpoints=() if crowd.site else tuple(Endpoint(one.pool_of(crowd.model)) for one in self._equal),
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
            self._ledger.paid_in_vain -= attempt.is_paid
            self._abandon(attempt)
            if attempt.sent is not None:
                gone = Outcome(OutcomeKind.CANCELLED, "client gone")
                self.scheduler.settle(attempt.sent, AttemptResult(gone), self.now)
        elif self._policy.is_scheduled:
            self.scheduler.cancel(call.id, self.now)
        if call.id in self._waiting:
            self._leave(call.id)
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
        wait_s = _BACKOFF.wait_s(agent.retry, retry_after_s, agent.jitter)
        agent.retry += 1
        self.agenda.after(wait_s, self._ask, agent)

    def _answered(self, call: _Call) -> None:
        call.over = True
        agent, turn = call.agent, call.agent.turn
        assert turn is not None
        crowd, tokens = agent.crowd, agent.prompt_tokens
        self._ledger.book_turn(agent, call.upstream)
        agent.learn(turn.output_tokens)
        agent.marked = tokens
        agent.said = tokens - crowd.shared_tokens + turn.output_tokens
        service_s = turn.service_s + 2 * self._scenario.way_s
        agent.turns_s.append((turn.think_s, service_s))
        assert agent.asked_at is not None
        agent.latencies_s.append(self.now - agent.asked_at)
        agent.answered_at.append(self.now)
        agent.path_s += turn.think_s + service_s
        call.upstream.taken[crowd.model].service_s += turn.service_s
        self._next_turn(agent)

    def _end(self, agent: Actor) -> None:
        agent.ended_at = self.now
        self._running -= 1
        if isinstance(agent, ScriptedActor):
            if agent.death is None or not agent.call.is_vital:
                self._release(agent)
            else:
                self._forsake(agent)

    # Attempts --------------------------------------------------------------------------------------------------------

    def _transmit(self, call: _Call, sent: Attempt | None) -> None:
        attempt = _Attempt(call=call, sent=sent)
        call.attempt = attempt
        self._ledger.attempt_sent(attempt, call.agent, self.now)
        attempt.upstream.idle.sent(self.now)
        jitter_s = self._scenario.way_jitter_s
        way_s = self._scenario.way_s + (self._ways.uniform(0, jitter_s) if jitter_s else 0.0)
        self.agenda.after(way_s, self._arrive, attempt)

    def _arrive(self, attempt: _Attempt) -> None:
        """The provider has the request."""
        if attempt.over:
            return
        agent = attempt.call.agent
        answer = attempt.upstream.provider.begin(self.now, self._request(attempt.call))
        self._ledger.attempt_answered(answer, attempt.upstream, self.now)
        attempt.answer, attempt.arrived_at, attempt.is_open = answer, self.now, True
        if answer.ending not in (AnswerEnding.REFUSED, AnswerEnding.OVERLOADED):
            if isinstance(agent, ScriptedActor):
                agent.faults_met += 1
            self._ledger.call_began(attempt.upstream, self.now)
        course = course_of(answer, attempt.upstream.profile)
        way_s = self._scenario.way_s
        if course.head_s is not None:
            self.agenda.after(course.head_s + way_s, self._head, attempt, course)
        self.agenda.after(course.end_s, self._provider_ends, attempt, course.share)
        self.agenda.after(course.end_s + course.late_s + way_s, self._ended, attempt, course)
        silent_s = math.inf if attempt.sent is None else self._may_be_silent_s(attempt.sent, attempt, course)
        if course.silent_s > silent_s:
            self.agenda.after(course.silent_from_s + silent_s + way_s, self._stalled, attempt)

    def _may_be_silent_s(self, sent: Attempt, attempt: _Attempt, course: Course) -> float:
        """How long, until the policy closes it; infinite: never. No scenario's streams are silent after content."""
        stated_s = self._scenario.silent_s
        if self._policy.reaps_after_s is not None:
            return self._policy.reaps_after_s if stated_s is None else stated_s
        if not self._policy.watches or not attempt.call.agent.crowd.streamed:
            return math.inf
        watchdog = attempt.upstream.profile.watchdog
        if stated_s is not None:
            watchdog = replace(watchdog, silent_s=stated_s, begun_s=stated_s)
        ticket = sent.ticket
        return may_be_silent_s(
            watchdog,
            streamed=True,
            begun=bool(course.silent_from_s),
            usual_s=0 if course.silent_from_s else self._first_bytes.p99_s(ticket.pool),
            patience_s=ticket.deadline_at - ticket.arrived_at,
            stalls=0,
        )

    def _request(self, call: _Call) -> SimRequestFacts:
        """A call as the provider sees that."""
        agent, turn = call.agent, call.agent.turn
        assert turn is not None
        streamed = agent.crowd.streamed
        max_tokens = None
        # A plain answer takes as long as the stream would have.
        latency_s = turn.latency_s if streamed else turn.service_s
        if isinstance(agent, ScriptedActor):
            max_tokens, latency_s = agent.call.max_tokens, agent.latency_s
        return SimRequestFacts(
            dialect=agent.upstream.dialect,
            credential=f"sk-sim-{agent.name}",
            model=agent.crowd.model,
            stream=streamed,
            input_tokens=agent.prompt_tokens,
            max_tokens=max_tokens or turn.output_tokens + 1,
            chunks=turn.output_tokens,
            interval_s=1 / agent.crowd.tokens_per_s if streamed else 0.0,
            latency_s=latency_s,
            prefixes=agent.prefixes,
        )

    def _provider_ends(self, attempt: _Attempt, share: float) -> None:
        if not attempt.is_open:
            return
        attempt.is_open = False
        answer = attempt.answer
        assert answer is not None
        tokens = round(answer.reply.output_tokens * share) if answer.reply else 0
        self._close(attempt, answer, tokens, AnswerEnding.ABANDONED if attempt.over else None)

    def _abandon(self, attempt: _Attempt) -> None:
        """The waiting side goes, and closes the attempt."""
        attempt.over = True
        self._ledger.attempt_over(attempt, self.now)
        if attempt.is_open and not attempt.upstream.settings.works_on:
            attempt.is_open = False
            assert attempt.answer is not None
            self._close(attempt, attempt.answer, 0, AnswerEnding.ABANDONED)

    def _close(self, attempt: _Attempt, answer: SimAnswer, tokens: int, ending: AnswerEnding | None) -> None:
        ending = ending or answer.ending
        upstream = attempt.upstream
        attempt.is_paid = ending is AnswerEnding.COMPLETED
        self._ledger.paid_in_vain += attempt.is_paid
        upstream.provider.end(self.now, answer, output_tokens=tokens, ending=ending)
        if ending not in (AnswerEnding.REFUSED, AnswerEnding.OVERLOADED):
            self._ledger.call_ended(upstream, self.now)
        if ending in (AnswerEnding.FAILED, AnswerEnding.CUT, AnswerEnding.ABANDONED):
            wasted_s = max(0.0, self.now - attempt.arrived_at - answer.queued_s)
            upstream.taken[attempt.call.agent.crowd.model].service_s += wasted_s
            # Where a call goes on without its client, the agent does not wait for all of that.
            attempt.call.agent.path_s += 0.0 if upstream.settings.works_on else wasted_s
        if answer.reply:
            self._ledger.book_attempt(
                attempt.call.agent, upstream, answer.reply, tokens, is_whole=ending is AnswerEnding.COMPLETED
            )

    def _head(self, attempt: _Attempt, course: Course) -> None:
        if attempt.over:
            return
        answer = attempt.answer
        assert answer is not None
        upstream = attempt.upstream
        attempt.hints = read_hints(upstream.profile, dict(answer.headers), WALL_S + self.now)
        if upstream is not self._own:
            # All simulated providers name one account; whose theirs is, their sites say.
            attempt.hints = msgspec.structs.replace(attempt.hints, account=None)
        if attempt.sent is not None:
            self.scheduler.observe(attempt.sent, attempt.hints, self.now, answered=answer.status < 400)
            if answer.streamed and answer.status == 200:
                self._first_bytes.note(attempt.sent.ticket.pool, self.now - attempt.sent.admitted_at)
        # A head without content is kept back, as the proxy does that looks for errors before it.
        if answer.streamed and answer.reply is not None and course.shows_content:
            attempt.call.has_begun = True

    def _ended(self, attempt: _Attempt, course: Course) -> None:
        """The answer is over, whole or not."""
        if attempt.over:
            return
        answer = attempt.answer
        assert answer is not None
        profile = attempt.upstream.profile
        if course.trouble is not None:
            outcome = judge_transport(course.trouble)
        elif course.error is not None:
            outcome = judge_stream_error(profile, course.error)
        else:
            body, places = answer.error_body or None, profile.format.error
            headers, wall_now = dict(answer.headers), WALL_S + self.now
            outcome = judge_answer(profile, answer.status, headers, body, attempt.hints, wall_now, places=places)
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
        self._settle(attempt, judge_transport(TransportTrouble.STALLED), None, saw_bytes=saw_bytes)

    def _settle(self, attempt: _Attempt, outcome: Outcome, usage: Usage | None, *, saw_bytes: bool) -> None:
        if not attempt.over:
            attempt.over = True
            self._ledger.attempt_over(attempt, self.now)
        call = attempt.call
        if attempt.sent is None:
            if outcome.kind is OutcomeKind.SUCCESS:
                self._answered(call)
            else:
                curable = outcome.retryable and not saw_bytes
                self._refused(call, outcome.reason, curable=curable, retry_after_s=outcome.retry_after_s)
            return
        charged = None  # unless the provider said, what was reserved
        if usage is not None and usage.reported:
            charged = attempt.upstream.charged(usage, attempt.sent.ticket.demand)
        result = AttemptResult(
            outcome, usage, charged, client_saw_bytes=saw_bytes and outcome.kind is not OutcomeKind.SUCCESS
        )
        verdict = self.scheduler.settle(attempt.sent, result, self.now)
        if isinstance(verdict, Backoff):
            call.waits_since = self.now
            if call.kept is not None and outcome.kind is not OutcomeKind.THROTTLED:
                call.kept.backs_off_until = verdict.until
            return
        self._leave(call.id)
        if isinstance(verdict, GiveUp):
            curable = outcome.retryable and not saw_bytes
            why = f"{outcome.reason}: {verdict.reason.value}"
            self._refused(call, why, curable=curable, retry_after_s=outcome.retry_after_s)
        else:
            self._answered(call)

    # The provider's side ---------------------------------------------------------------------------------------------

    def _move_cap(self, cap: int) -> None:
        self._ledger.move_cap(cap, self.now)
        self.provider.set_concurrency(cap)

    def _neighbour(self, neighbour: Neighbour, rng: random.Random) -> None:
        answer = self.provider.begin(
            self.now,
            SimRequestFacts(
                dialect=SimDialect.MESSAGES,
                credential="sk-sim-neighbour",
                input_tokens=neighbour.input_tokens,
                latency_s=neighbour.latency_s,
            ),
        )
        if answer.reply is not None:
            self._ledger.neighbour_called(answer)
        self.agenda.after(answer.latency_s, self._neighbour_ends, answer)
        self.agenda.after(rng.expovariate(neighbour.calls_per_s), self._neighbour, neighbour, rng)

    def _neighbour_ends(self, answer: SimAnswer) -> None:
        self._ledger.neighbour_ended(answer)
        self.provider.end(self.now, answer, output_tokens=answer.reply.output_tokens if answer.reply else 0)


def _budgets(crowd: Crowd, agent: str) -> tuple[Budget, ...]:
    """The budgets that the agents file would give an agent of the crowd."""
    return () if crowd.budget_tokens is None else (Budget(Scope.AGENT, agent, tokens=crowd.budget_tokens),)
