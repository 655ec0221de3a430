"""Agents in closed loops before limiters: through the scheduler, and as an oracle would send that may ask the limiters.

    agent thinks ──► asks ──► is sent ──► gateway: refused, struck by chance, or answered ──► agent thinks …

Chance is drawn for each agent alone, and only for requests that no limiter refuses: both ways of sending meet the same
strokes. Pure and repeatable.
"""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import override

from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, Demand, Hints, Outcome, PoolKey, Ticket
from hivemind_addon.sim.agenda import Agenda
from lab.gateway import SUCCESS, Chance, Gateway, GatewayNeighbour
from lab.limiters import Cap, RateLimiter

_REFUSAL_S = 0.03
"""The provider needs so long to refuse."""
_POOL = PoolKey(host="api.zoo", account="key-zoo", model_group="zoo-1")
_STORM = 20
"""A run ends when the attempts are so many times the turns; agents that still run are lost."""
_LATE = 30
"""A run also ends when it takes so many times as long as the oracle's, and a client's patience more."""
_INSTANT_S = 1e-6
"""Nobody looks again sooner: sums of instants lose digits."""
_NEIGHBOURS = Demand(input_tokens=1_000, total_tokens=1_000)
"""Each of the neighbour's calls takes this."""


@dataclass(frozen=True, slots=True)
class ClosedCrowd:
    """Equal agents, each of which does a turn after the other."""

    agents: int = 20
    turns: int = 20
    service_s: tuple[float, float] = (1.0, 3.0)
    think_s: tuple[float, float] = (0.1, 0.5)
    tokens: tuple[int, ...] = (1_000,)
    """Sizes of requests."""
    patience_s: float = 3_600.0
    starts_s: float = 0.0
    """Each begins at some instant within so long."""
    way_s: float = 0.02
    """From the scheduler to the provider, and back."""
    jitter_s: float = 0.0
    """Up to so much longer, by chance, an attempt is on the way to the provider."""
    long_share: float = 0.0
    """Of the answers: these take ten times as long as the others."""


@dataclass(frozen=True, slots=True)
class LoopTurn:
    """One request of an agent."""

    think_s: float
    head_s: float
    service_s: float
    tokens: int

    @property
    def demand(self) -> Demand:
        """Units that the request takes of every limit."""
        return Demand(input_tokens=self.tokens, total_tokens=self.tokens)


@dataclass(slots=True, eq=False)
class _Agent:
    name: str
    turns: list[LoopTurn]
    ahead_s: list[float]
    """From each turn on: the seconds that are left, were there no limits."""
    starts_at: float
    chances: random.Random
    number: int = -1
    asked_at: float = 0.0
    ended_at: float | None = None

    @property
    def turn(self) -> LoopTurn:
        return self.turns[self.number]

    @property
    def left_s(self) -> float:
        return self.ahead_s[self.number]


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of a run."""

    time_s: float
    """Until the last agent that was not lost had ended."""
    agents: int
    lost: int
    delivered: int
    """Turns."""
    longest_s: float
    """From an agent's request to the delivery, at the most."""
    attempts: int
    refused: int
    """Attempts that a limiter refused."""
    struck: int
    """Attempts that chance took."""
    over_cap: int
    """Of the refused: while the cap was taken."""
    used: float | None
    """Mean share of the cap that was taken while there was enough to fill it; None: there is no cap."""


class _Loop(ABC):
    """Agents, provider and book of both ways of sending."""

    def __init__(self, gateway: Gateway, crowd: ClosedCrowd, *, seed: str) -> None:
        self.agenda = Agenda()
        self.gateway = gateway
        self._crowd = crowd
        self._seed = seed
        self.agents = [self._agent(number) for number in range(crowd.agents)]
        self._outstanding = 0
        """Turns that are asked for and not delivered."""
        self._neighbours = 0
        """Of the neighbour's calls, those that run."""
        self._neighbours_waiting = 0
        self._neighbours_look_at = math.inf
        self._delivered = self._attempts = self._refused = self._struck = self._over_cap = 0
        self._lost = 0
        self._longest_s = 0.0
        self._taken_s = self._fillable_s = self._booked_at = 0.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.now:.1f} s, {self._delivered} delivered>"

    @property
    def now(self) -> float:
        """The instant of the run."""
        return self.agenda.now

    def _agent(self, number: int) -> _Agent:
        rng = random.Random(f"{self._seed} agent {number}")
        turns = []
        for _ in range(self._crowd.turns):
            service_s = rng.uniform(*self._crowd.service_s)
            if self._crowd.long_share and rng.random() < self._crowd.long_share:
                service_s *= 10
            turns.append(
                LoopTurn(
                    think_s=rng.uniform(*self._crowd.think_s),
                    head_s=rng.uniform(0.1, 0.5) * service_s,
                    service_s=service_s,
                    tokens=rng.choice(self._crowd.tokens),
                )
            )
        ahead_s = [0.0]
        for turn in reversed(turns):
            ahead_s.append(ahead_s[-1] + turn.think_s + turn.service_s + 2 * self._crowd.way_s)
        chances = random.Random(f"{self._seed} chances {number}")
        return _Agent(f"agent-{number}", turns, ahead_s[:0:-1], rng.uniform(0, self._crowd.starts_s), chances)

    def run(self, until: float = math.inf) -> Run:
        """Until all agents have ended, nothing can happen any more, or the time is over."""
        for agent in self.agents:
            self.agenda.at(agent.starts_at, self._next_turn, agent)
        for at, limiter, limit in self.gateway.changes:
            self.agenda.at(at, self._change, limiter, limit)
        if self.gateway.neighbour is not None:
            self.agenda.at(0.0, self._neighbour_calls, self.gateway.neighbour, random.Random(f"{self._seed} neighbour"))
        most = _STORM * self._crowd.agents * self._crowd.turns
        while any(agent.ended_at is None for agent in self.agents) and self._attempts < most:
            if not self.agenda.step(min(self._neighbours_look_at, self._wakes_at()), until=until, before=self._book):
                break
            self._start_neighbours()
            self._after_each()
        return Run(
            time_s=max((agent.ended_at for agent in self.agents if agent.ended_at is not None), default=self.now),
            agents=len(self.agents),
            lost=self._lost + sum(agent.ended_at is None for agent in self.agents),
            delivered=self._delivered,
            longest_s=self._longest_s,
            attempts=self._attempts,
            refused=self._refused,
            struck=self._struck,
            over_cap=self._over_cap,
            used=None if self.gateway.cap is None else self._taken_s / max(self._fillable_s, 1e-9),
        )

    @abstractmethod
    def _wakes_at(self) -> float:
        """When something may be sent, if nothing happens before."""

    @abstractmethod
    def _after_each(self) -> None:
        """Something has happened: send all that may be sent."""

    @abstractmethod
    def _wants(self, agent: _Agent) -> None:
        """An agent asks for its turn."""

    def _book(self, instant: float) -> None:
        cap = self.gateway.cap
        if cap is not None and self._outstanding + self._neighbours >= cap.slots:
            passed_s = instant - self._booked_at
            self._fillable_s += passed_s
            self._taken_s += passed_s * min(1.0, cap.taken(self._booked_at) / cap.slots)
        self._booked_at = instant

    def _change(self, limiter: RateLimiter | Cap, limit: float) -> None:
        limiter.resize(limit, self.now)

    # Agents ----------------------------------------------------------------------------------------------------------

    def _next_turn(self, agent: _Agent) -> None:
        agent.number += 1
        if agent.number == len(agent.turns):
            agent.ended_at = self.now
            return
        self.agenda.after(agent.turn.think_s, self._ask, agent)

    def _ask(self, agent: _Agent) -> None:
        agent.asked_at = self.now
        self._outstanding += 1
        self._wants(agent)

    def _deliver(self, agent: _Agent) -> None:
        self._delivered += 1
        self._longest_s = max(self._longest_s, self.now - agent.asked_at)
        self._outstanding -= 1
        self._next_turn(agent)

    def _lose(self, agent: _Agent) -> None:
        self._lost += 1
        self._outstanding -= 1
        agent.ended_at = self.now

    # The gateway -----------------------------------------------------------------------------------------------------

    def _draw(self, agent: _Agent) -> Chance | None:
        """The stroke of chance that hits this attempt, which no limiter refuses; None: none does."""
        chance = self.gateway.strike(agent.chances)
        self._struck += chance is not None
        return chance

    def _neighbour_calls(self, neighbour: GatewayNeighbour, rng: random.Random) -> None:
        self._neighbours_waiting += 1
        self.agenda.after(rng.expovariate(neighbour.calls_per_s), self._neighbour_calls, neighbour, rng)

    def _start_neighbours(self) -> None:
        """The neighbour's calls that fit go first."""
        self._neighbours_look_at = math.inf
        while self._neighbours_waiting and self.gateway.neighbour is not None:
            wait_s = self.gateway.wait_s(self.now, _NEIGHBOURS)
            if wait_s > 0:
                self._neighbours_look_at = self.now + max(wait_s, _INSTANT_S)
                return
            self.gateway.take(self.now, _NEIGHBOURS)
            self._neighbours_waiting -= 1
            self._neighbours += 1
            self.agenda.after(self.gateway.neighbour.service_s, self._neighbour_ends)

    def _neighbour_ends(self) -> None:
        self._neighbours -= 1
        self.gateway.end(self.now)


def _scheduler(rng: random.Random) -> Scheduler:
    return Scheduler(rng=rng)


class Scheduled(_Loop):
    """The real scheduler sends."""

    def __init__(
        self,
        gateway: Gateway,
        crowd: ClosedCrowd,
        *,
        seed: str,
        settings: PoolSettings | None = None,
        admission: Callable[[random.Random], Scheduler] = _scheduler,
    ) -> None:
        super().__init__(gateway, crowd, seed=seed)
        self.scheduler = admission(random.Random(f"{seed} scheduler"))
        self._settings = settings or PoolSettings()
        self._by_ticket: dict[str, _Agent] = {}
        self._ways = random.Random(f"{seed} ways")

    @override
    def _wakes_at(self) -> float:
        wakeup_at = self.scheduler.next_wakeup()
        return math.inf if wakeup_at is None else wakeup_at

    @override
    def _after_each(self) -> None:
        for decision in self.scheduler.poll(self.now):
            if isinstance(decision, Admitted):
                way_s = self._crowd.way_s + self._ways.uniform(0, self._crowd.jitter_s)
                self.agenda.after(way_s, self._arrive, decision.attempt)
            else:
                self._lose(self._by_ticket.pop(decision.ticket.id))
        self.scheduler.drain_events()

    @override
    def _wants(self, agent: _Agent) -> None:
        patience_s = self._crowd.patience_s
        ticket = Ticket(
            id=f"{agent.name} {agent.number}",
            pool=_POOL,
            agent=agent.name,
            session=agent.name,
            model="zoo-1",
            demand=agent.turn.demand,
            arrived_at=self.now,
            deadline_at=self.now + patience_s,
            shed_at=self.now + 0.95 * patience_s,
        )
        self._by_ticket[ticket.id] = agent
        self.scheduler.submit(ticket, self._settings, self.now)

    def _arrive(self, attempt: Attempt) -> None:
        agent = self._by_ticket[attempt.ticket.id]
        turn, gateway, now = agent.turn, self.gateway, self.now
        self._attempts += 1
        refusal = gateway.refusal(now, turn.demand)
        if refusal is not None:
            self._refused += 1
            self._over_cap += gateway.cap is not None and gateway.cap.wait_s(now, 1) > 0
            gateway.refuse(now, turn.demand)
            self._fail(attempt, refusal)
            return
        chance = self._draw(agent)
        if chance is not None and not chance.late:
            self._fail(attempt, chance.outcome)
            return
        gateway.take(now, turn.demand)
        if chance is not None:
            self.agenda.after(turn.head_s, self._cut, attempt, chance.outcome)
            return
        self.agenda.after(turn.head_s, self._write_head, attempt)
        self.agenda.after(turn.service_s, gateway.end, now + turn.service_s)
        self.agenda.after(turn.service_s + self._crowd.way_s, self._settle, attempt, SUCCESS)

    def _fail(self, attempt: Attempt, outcome: Outcome) -> None:
        back_s = _REFUSAL_S + self._crowd.way_s
        if outcome.status is not None:
            hints = Hints(self.gateway.readings(self.now, refused=True), retry_after_s=outcome.retry_after_s)
            self.agenda.after(back_s, self._observe, attempt, hints, False)
        self.agenda.after(back_s, self._settle, attempt, outcome)

    def _cut(self, attempt: Attempt, outcome: Outcome) -> None:
        self.gateway.end(self.now)
        self._fail(attempt, outcome)

    def _write_head(self, attempt: Attempt) -> None:
        hints = Hints(self.gateway.readings(self.now, refused=False))
        self.agenda.after(self._crowd.way_s, self._observe, attempt, hints, True)

    def _observe(self, attempt: Attempt, hints: Hints, answered: bool) -> None:
        self.scheduler.observe(attempt, hints, self.now, answered=answered)

    def _settle(self, attempt: Attempt, outcome: Outcome) -> None:
        verdict = self.scheduler.settle(attempt, AttemptResult(outcome), self.now)
        if isinstance(verdict, Backoff):
            return
        agent = self._by_ticket.pop(attempt.ticket.id)
        if isinstance(verdict, Finished):
            self._deliver(agent)
        else:
            self._lose(agent)


class Order(Enum):
    """How the oracle chooses among the agents that wait. With OLDEST small requests cannot starve a large request."""

    LEFT = "most left to do first, smaller ones pass where it does not fit"
    LEFT_STRICT = "most left to do first, and nobody passes it"
    OLDEST = "who asked first, smaller ones pass where it does not fit"


class Oracle(_Loop):
    """Sends each request at the instant at which it passes: the oracle may ask the limiters, knows all latencies."""

    def __init__(self, gateway: Gateway, crowd: ClosedCrowd, *, seed: str, order: Order) -> None:
        super().__init__(gateway, crowd, seed=seed)
        self._order = order
        self._waiting: list[_Agent] = []
        self._look_at = math.inf

    @override
    def _wakes_at(self) -> float:
        return self._look_at

    @override
    def _wants(self, agent: _Agent) -> None:
        self.agenda.after(self._crowd.way_s, self._arrive, agent)

    def _arrive(self, agent: _Agent) -> None:
        """Each request arrives when it passes; until then it waits at the provider's."""
        self._waiting.append(agent)
        if self._order is not Order.OLDEST:
            self._waiting.sort(key=lambda one: -one.left_s)

    @override
    def _after_each(self) -> None:
        still: list[_Agent] = []
        earliest_s = math.inf
        waits_s: dict[Demand, float] = {}
        for index, agent in enumerate(self._waiting):
            demand = agent.turn.demand
            if demand not in waits_s:
                waits_s[demand] = self.gateway.wait_s(self.now, demand)
            wait_s = waits_s[demand]
            if wait_s <= 0:
                self._start(agent)
                waits_s.clear()
                continue
            still.append(agent)
            earliest_s = min(earliest_s, wait_s)
            if self._order is Order.LEFT_STRICT:
                still += self._waiting[index + 1 :]
                break
        self._waiting = still
        self._look_at = self.now + max(earliest_s, _INSTANT_S)

    def _start(self, agent: _Agent) -> None:
        self._attempts += 1
        turn, gateway = agent.turn, self.gateway
        chance = self._draw(agent)
        if chance is not None and not chance.late:
            self.agenda.after(_REFUSAL_S + 2 * self._crowd.way_s, self._arrive, agent)
            return
        gateway.take(self.now, turn.demand)
        if chance is not None:
            self.agenda.after(turn.head_s, gateway.end, self.now + turn.head_s)
            self.agenda.after(turn.head_s + _REFUSAL_S + 2 * self._crowd.way_s, self._arrive, agent)
            return
        self.agenda.after(turn.service_s, gateway.end, self.now + turn.service_s)
        self.agenda.after(turn.service_s + self._crowd.way_s, self._deliver, agent)


def compare(
    make: Callable[[random.Random], Gateway],
    crowd: ClosedCrowd,
    *,
    seed: int,
    admission: Callable[[random.Random], Scheduler] = _scheduler,
) -> tuple[Run, Run]:
    """A run through the scheduler that `admission` makes, and the best of an oracle before the same provider."""

    def fresh() -> Gateway:
        return make(random.Random(f"{seed} provider"))

    oracle = min(
        (Oracle(fresh(), crowd, seed=str(seed), order=order).run() for order in Order), key=lambda run: run.time_s
    )
    until = _LATE * oracle.time_s + crowd.patience_s
    return Scheduled(fresh(), crowd, seed=str(seed), admission=admission).run(until), oracle
