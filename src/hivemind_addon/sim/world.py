"""Virtual time: agents, the scheduler and the simulated providers on one heap of events. Repeatable.

    agent ──ask──► scheduler ──Admitted──► Attempts.send ──head──► observe ──end──► settle ──► agent
                       └──Shed──► agent                                               └──Backoff──► scheduler

The scheduler is the same object that the proxy drives, called in the same order: after each call a poll, and a wakeup
at `next_wakeup`. Other policies take the scheduler's place, or nothing does (`policy.py`). What happens to an attempt
is in `attempts.py`, what others take of the limits in `neighbours.py`.
"""

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

import msgspec.structs

from hivemind_addon.formats.profile.model import OutputCharge
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
from hivemind_addon.sim.actor import Actor, ScriptedActor, SdkBackoff, SimAttempt, SimCall, SimUpstream
from hivemind_addon.sim.agenda import Agenda
from hivemind_addon.sim.attempts import Attempts
from hivemind_addon.sim.neighbours import Neighbours
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.result import Result, RunLedger
from hivemind_addon.sim.workload import Crowd, PlannedTurn, Scenario, ScriptedCall, Site, drawn, drawn_s, turns

if TYPE_CHECKING:
    from hivemind_addon.sim.idle import KnownRequest

_POOL = PoolKey(host="api.sim", account="key-sim", model_group="sim-1")
_COME_BACK_MAX_S = 30
_BACKOFF = SdkBackoff()
_GONE = AttemptResult(Outcome(OutcomeKind.CANCELLED, "client gone"))


def run(scenario: Scenario, *, seed: int, policy: Policy = Policy.HIVEMIND) -> Result:
    """A run of a scenario."""
    return World(scenario, seed=seed, policy=policy).run()


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
        self._own = SimUpstream(Site(scenario.provider, pool=_POOL), random.Random(f"{seed} provider"), settings)
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
        self._guess = random.Random(f"{seed} guess")
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
        self._waiting: dict[str, SimCall] = {}
        """By ticket: calls that the scheduler has."""
        self._calls = 0
        self._ledger = RunLedger(scenario, own=self._own, upstreams=tuple(self._upstreams.values()), equal=self._equal)
        self._neighbours = Neighbours(
            scenario.neighbours, seed=seed, agenda=self.agenda, ledger=self._ledger, upstreams=self._upstreams
        )
        self._attempts = Attempts(
            scenario,
            seed=seed,
            policy=policy,
            agenda=self.agenda,
            ledger=self._ledger,
            own=self._own,
            observe=self._observe,
            settle=self._settle,
            before_arrival=self._neighbours.go_first,
        )

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
            agent.starts_s = drawn_s(agent.crowd.starts_s, rng)
            self._open(agent, agent.crowd.works_at(0.0))
        for at, cap in self._scenario.caps:
            self.agenda.at(at, self._move_cap, cap)
        ends_at = self._scenario.duration_s
        while self._running and self.agenda.step(self.scheduler.next_wakeup(), until=ends_at, before=self._let_pass):
            self._turn()
        if self._running and math.isfinite(ends_at):
            self._let_pass(ends_at)
            self.agenda.now = ends_at
        return self._ledger.result(self._agents, self.now)

    def _turn(self) -> None:
        """As the driver does after each call: poll, and hand the decisions out."""
        for decision in self.scheduler.poll(self.now):
            match decision:
                case Admitted(sent) if sent.ticket.id not in self._waiting:  # the decision before this ended its agent
                    self.scheduler.settle(sent, _GONE, self.now)
                case Admitted(sent):
                    call = self._waiting[sent.ticket.id]
                    call.waited_s += self.now - call.waits_since
                    if sent.ticket.endpoints:
                        call.upstream = self._at(sent.ticket.pool)
                    self._attempts.send(call, sent)
                case Shed(ticket) | Refused(ticket) if ticket.id not in self._waiting:
                    pass
                case Shed(ticket, reason, come_back_s):
                    self._ledger.shed()
                    told_s = float(min(max(1, math.ceil(come_back_s)), _COME_BACK_MAX_S))
                    call = self._unqueued(ticket.id)
                    self._refused(call, f"shed: {reason.value}", curable=True, retry_after_s=told_s)
                case Refused(ticket, cause):
                    call = self._unqueued(ticket.id)
                    if isinstance(cause, Shortage) and not isinstance(call.agent, ScriptedActor):
                        call.agent.is_stopped = True
                        self._close(call)
                        self._end(call.agent)
                    else:
                        self._refused(call, "refused", curable=False)
                case _:
                    assert_never(decision)
        if isinstance(self.scheduler, Scheduler):  # other policies say nothing beside their decisions
            for event in map(in_words, self.scheduler.drain_events()):
                self._heard(event)

    def _heard(self, event: Event) -> None:
        self._listen(event)
        match event:
            case Submitted(ticket=ticket) if ticket.endpoints and ticket.id in self._waiting:
                self._waiting[ticket.id].upstream = self._at(ticket.pool)
            case Moved(ticket_id=name, pool=pool) if name in self._waiting:
                self._waiting[name].upstream = self._at(pool)
            case BreakerChanged():
                self._ledger.breaker_changed(event)

    def _unqueued(self, ticket_id: str) -> SimCall:
        """A call that waited for the scheduler, and does so no more."""
        call = self._waiting.pop(ticket_id)
        call.agent.waits_s.append(call.waited_s + self.now - call.waits_since)
        return call

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
        agent.awaited = 1
        if not agent.waits_for:
            self.agenda.at(agent.call.turn.think_s, self._ask, agent, agent.call.turn)

    def _release(self, agent: ScriptedActor) -> None:
        """A scripted call is over: calls that waited for this alone begin to think, and ask."""
        for follower in agent.followers:
            follower.waits_for -= 1
            follower.path_s = max(follower.path_s, agent.path_s)
            if not follower.waits_for and follower.ended_at is None:
                self.agenda.after(follower.call.turn.think_s, self._ask, follower, follower.call.turn)

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

    def _open(self, agent: Actor, opens_at: float) -> None:
        """An agent will begin a conversation."""
        agent.is_new = True
        self.agenda.at(opens_at + agent.starts_s, self._next_turn, agent)

    def _next_turn(self, agent: Actor) -> None:
        agent.turn = turn = next(agent.turns, None)
        asks_at = self.now + (turn.think_s if turn else 0.0)
        works_at = agent.crowd.works_at(asks_at, is_done=turn is None)
        if works_at > asks_at:
            if math.isinf(works_at):
                self._end(agent)
            else:
                agent.turns = turns(agent.crowd, random.Random(f"{self._seed} {agent.name} at {works_at:g}"))
                self._open(agent, works_at)
            return
        assert turn is not None
        agent.number += 1
        agent.asked_at = None
        if agent.is_new:
            agent.path_s = self.now
        if agent.is_new or not agent.crowd.remembers:
            agent.said = drawn(agent.crowd.opening_tokens, agent.jitter)
            agent.marked = 0
            agent.is_new = False
        agent.awaited = 1 + len(turn.beside)
        for one in (turn, *turn.beside):
            self.agenda.at(asks_at, self._ask, agent, one)

    def _ask(self, agent: Actor, turn: PlannedTurn, retry: int = 0) -> None:
        """An agent sends a call, or sends it again."""
        if agent.ended_at is not None:
            return
        self._calls += 1
        if agent.asked_at is None:
            agent.asked_at = self.now
        agent.wanted += not retry
        call = SimCall(f"{agent.index}.{self._calls}", agent, turn, retry, agent.upstream, waits_since=self.now)
        agent.calls.append(call)
        self.agenda.after(agent.crowd.timeout_s, self._time_out, call)
        if self._policy.is_scheduled:
            self._waiting[call.id] = call
            ticket = self._ticket(call)
            call.kept = agent.upstream.idle.keep(call.request(), ticket.demand)
            self.scheduler.submit(ticket, agent.upstream.pool_settings, self.now)
        else:
            self._attempts.send(call, None)

    def _ticket(self, call: SimCall) -> Ticket:
        agent, crowd = call.agent, call.agent.crowd
        if isinstance(agent, ScriptedActor):
            return self._scripted_ticket(call.id, agent.call.ticket)
        patience = agent.upstream.profile.patience
        timeout_s = crowd.timeout_s if crowd.announces_timeout else patience.default_s
        cached_tokens = agent.marked if crowd.caches else 0
        error = self._guess.lognormvariate(0, self._scenario.input_error)
        into = max(1, round((agent.prompt_tokens(call.turn) - cached_tokens) * error))
        out = agent.likely_output_tokens
        if crowd.max_tokens is not None:
            is_reserved = agent.upstream.profile.charge.output is OutputCharge.MAX_TOKENS
            out = crowd.max_tokens if is_reserved else min(out, crowd.max_tokens)
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

    def _time_out(self, call: SimCall) -> None:
        """The client's patience is over."""
        if not call.over and not call.has_begun:
            self._leave(call)
            self._refused(call, "timeout", curable=True)

    def _leave(self, call: SimCall) -> None:
        """The client waits no more, whether for the scheduler or for an answer."""
        attempt = call.attempt
        if attempt is not None and not attempt.over:
            self._attempts.abandon(attempt)
            if attempt.sent is not None:
                self.scheduler.settle(attempt.sent, _GONE, self.now)
                self._over(call)
        elif self._policy.is_scheduled:
            self.scheduler.cancel(call.id, self.now)
            self._unqueued(call.id)

    def _refused(self, call: SimCall, why: str, *, curable: bool, retry_after_s: float | None = None) -> None:
        """The client got something else than an answer."""
        agent = call.agent
        retries = agent.crowd.retries if self._policy.resends is None else self._policy.resends
        if curable and call.retry < retries:
            self._close(call)
            wait_s = _BACKOFF.wait_s(call.retry, retry_after_s, agent.jitter)
            self.agenda.after(wait_s, self._ask, agent, call.turn, call.retry + 1)
        elif call.turn.is_refused:
            self._go_on(call)
        else:
            agent.death = why
            self._close(call)
            self._end(agent)

    def _answered(self, call: SimCall) -> None:
        agent, turn = call.agent, call.turn
        self._ledger.book_turn(agent, call.upstream, turn)
        agent.learn(turn.output_tokens)
        agent.served_s.append(turn.service_s + 2 * self._scenario.way_s)
        assert agent.asked_at is not None
        agent.latencies_s.append(self.now - agent.asked_at)
        agent.answered_at.append(self.now)
        call.upstream.taken[agent.crowd.model].service_s += turn.service_s
        self._go_on(call)

    def _close(self, call: SimCall) -> None:
        """The client has done with a call."""
        call.over = True
        call.agent.calls.remove(call)

    def _go_on(self, call: SimCall) -> None:
        """A call needs no more attention of its agent, which goes on if that was the last one of its turn."""
        self._close(call)
        agent = call.agent
        agent.awaited -= 1
        if not agent.awaited:
            agent.book_turn()
            agent.remember()
            self._next_turn(agent)

    def _end(self, agent: Actor) -> None:
        for call in agent.calls:
            call.over = True
            self._leave(call)
        agent.calls.clear()
        agent.book_turn()
        agent.ended_at = self.now
        self._running -= 1
        if isinstance(agent, ScriptedActor):
            if agent.death is None or not agent.call.is_vital:
                self._release(agent)
            else:
                self._forsake(agent)

    # Attempts --------------------------------------------------------------------------------------------------------

    def _observe(self, sent: Attempt, hints: Hints, answered: bool) -> None:
        self.scheduler.observe(sent, hints, self.now, answered=answered)

    def _settle(self, attempt: SimAttempt, outcome: Outcome, usage: Usage | None, saw_bytes: bool) -> None:
        """An attempt is over."""
        call, sent = attempt.call, attempt.sent
        why = outcome.reason
        if sent is not None:
            charged = None  # unless the provider said, what was reserved
            if usage is not None and usage.reported:
                charged = attempt.upstream.charged(usage, sent.ticket.demand)
            result = AttemptResult(
                outcome,
                usage,
                charged,
                client_saw_bytes=saw_bytes and outcome.kind is not OutcomeKind.SUCCESS,
            )
            verdict = self.scheduler.settle(sent, result, self.now)
            if isinstance(verdict, Backoff):
                call.waits_since = self.now
                if call.kept is not None and outcome.kind is not OutcomeKind.THROTTLED:
                    call.kept.backs_off_until = verdict.until
                return
            self._over(call)
            if isinstance(verdict, GiveUp):
                why = f"{why}: {verdict.reason.value}"
        if outcome.kind is OutcomeKind.SUCCESS:
            self._answered(call)
        else:
            curable = outcome.retryable and not saw_bytes
            self._refused(call, why, curable=curable, retry_after_s=outcome.retry_after_s)

    def _over(self, call: SimCall) -> None:
        """The scheduler has done with a call that was sent."""
        del self._waiting[call.id]
        call.agent.waits_s.append(call.waited_s)

    # The provider's side ---------------------------------------------------------------------------------------------

    def _move_cap(self, cap: int) -> None:
        self._ledger.move_cap(cap, self.now)
        self.provider.set_concurrency(cap)


def _budgets(crowd: Crowd, agent: str) -> tuple[Budget, ...]:
    """The budgets that the agents file would give an agent of the crowd."""
    return () if crowd.budget_tokens is None else (Budget(Scope.AGENT, agent, tokens=crowd.budget_tokens),)
