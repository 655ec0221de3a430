"""Eleven sessions against limiters that know nothing of ours: nothing is refused and nothing is wasted."""

import heapq
import math
import random

import pytest

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted
from hivemind_addon.kernel.values.ticket import AttemptResult, Demand, Dimension, Hints, Reading
from tests.kernel.samples import SUCCESS, THROTTLED, ticket

SESSIONS = 11
TURNS = 12
LARGEST = 3000
"""Tokens of the largest ticket."""
WAY_S = 0.05
"""From here to the provider, and back."""


class FixedWindow:
    """So many units per calendar minute."""

    def __init__(self, limit: int, now: float) -> None:
        self.limit, self.window_s = limit, 60.0
        self.phase = now
        self.used, self.number = 0, 0

    def take(self, units: int, now: float) -> bool:
        number = math.floor((now - self.phase) / self.window_s)
        if number != self.number:
            self.number, self.used = number, 0
        if self.used + units > self.limit:
            return False
        self.used += units
        return True

    def headers(self, now: float) -> tuple[float, float]:
        return self.limit - self.used, self.phase + (self.number + 1) * self.window_s - now

    def bound_s(self, total: int) -> float:
        return (math.ceil(total / self.limit) - 1) * self.window_s


class TokenBucket:
    """So many units per minute, refilled all the time, full at first."""

    def __init__(self, limit: int, now: float) -> None:
        self.limit, self.window_s = limit, 60.0
        self.rate = limit / self.window_s
        self.level, self.at = float(limit), now

    def take(self, units: int, now: float) -> bool:
        self.level = min(self.limit, self.level + self.rate * (now - self.at))
        self.at = now
        if self.level + 1e-9 < units:
            return False
        self.level -= units
        return True

    def headers(self, now: float) -> tuple[float, float]:
        return max(0, math.floor(self.level)), (self.limit - self.level) / self.rate

    def bound_s(self, total: int) -> float:
        return max(0.0, (total - self.limit) / self.rate)


class World:
    """Closed loops of turns in virtual time; a heap of what happens next."""

    def __init__(self, requests, tokens, *, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(rng=random.Random(seed))
        self.settings = PoolSettings(concurrency=ConcurrencySettings(initial=4))
        self.limits = {Dimension.REQUESTS: requests, Dimension.INPUT_TOKENS: tokens}
        self.now = 0.0
        self.agenda: list = []
        self.refused: list[float] = []
        self.first_contact_at: float | None = None
        self.tokens_sent = 0
        self.sent = 0
        self.finished_at = 0.0

    def at(self, instant: float, do, *args) -> None:
        heapq.heappush(self.agenda, (instant, len(self.agenda) + self.rng.random(), do, args))

    def submit(self, session: int, turn: int) -> None:
        units = self.rng.randrange(500, LARGEST)
        wanted = ticket(
            f"{session}.{turn}",
            session=f"s{session}",
            at=self.now,
            patience_s=1e6,
            demand=Demand(input_tokens=units),
        )
        self.scheduler.submit(wanted, self.settings, self.now)

    def arrive(self, attempt) -> None:
        demand = attempt.ticket.demand
        spare = {dimension: limit.headers(self.now)[0] for dimension, limit in self.limits.items()}
        for dimension, limit in self.limits.items():
            limit.take(0, self.now)
            spare[dimension] = limit.headers(self.now)[0]
        accepted = all(spare[dimension] >= demand.of(dimension) for dimension in self.limits)
        if accepted:
            for dimension, limit in self.limits.items():
                assert limit.take(demand.of(dimension), self.now)
            self.tokens_sent += demand.input_tokens
            self.sent += 1
        else:
            self.refused.append(self.now)
        readings = []
        for dimension, limit in self.limits.items():
            remaining, reset_in_s = limit.headers(self.now)
            readings.append(
                Reading(
                    meter=dimension.value,
                    dimension=dimension,
                    window_s=limit.window_s,
                    limit=limit.limit,
                    remaining=remaining,
                    reset_in_s=reset_in_s,
                )
            )
        think_s = self.rng.uniform(0.2, 1.0)
        self.at(self.now + think_s + WAY_S, self.head, attempt, tuple(readings), accepted)

    def head(self, attempt, readings, accepted) -> None:
        if self.first_contact_at is None:
            self.first_contact_at = self.now
        self.scheduler.observe(attempt, Hints(readings=readings), self.now)
        if accepted:
            self.at(self.now + self.rng.uniform(0.5, 3.0), self.end, attempt)
        else:
            self.scheduler.settle(attempt, AttemptResult(THROTTLED, charged=Demand(requests=0)), self.now)

    def end(self, attempt) -> None:
        self.scheduler.settle(attempt, AttemptResult(SUCCESS), self.now)
        self.finished_at = self.now
        session, turn = map(int, attempt.ticket.id.split("."))
        if turn < TURNS:
            self.at(self.now + self.rng.uniform(0.1, 1.0), self.submit, session, turn + 1)

    def run(self) -> None:
        for session in range(SESSIONS):
            self.submit(session, 1)
        while True:
            for decision in self.scheduler.poll(self.now):
                assert isinstance(decision, Admitted)
                self.at(self.now + WAY_S, self.arrive, decision.attempt)
            wakeup_at = self.scheduler.next_wakeup()
            if not self.agenda and wakeup_at is None:
                return
            if self.agenda and (wakeup_at is None or self.agenda[0][0] <= wakeup_at):
                self.now, _, do, args = heapq.heappop(self.agenda)
                do(*args)
            else:
                self.now = wakeup_at


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("limiter", [FixedWindow, TokenBucket])
@pytest.mark.parametrize(("requests", "tokens"), [(30, 10**6), (10**4, 60_000), (30, 60_000)])
def test_eleven_sessions_are_never_refused_and_lose_no_time(limiter, requests, tokens, seed):
    world = World(limiter(requests, 0.0), limiter(tokens, 0.0), seed=seed)
    world.run()
    assert world.scheduler.is_idle
    assert world.sent == SESSIONS * TURNS
    assert [at for at in world.refused if at > world.first_contact_at] == []
    # What a window has left for a ticket that is larger is lost, in every order that starves no large ticket.
    lost = math.ceil(world.tokens_sent / tokens) * LARGEST if limiter is FixedWindow else 0
    bound_s = max(
        world.limits[Dimension.REQUESTS].bound_s(world.sent),
        world.limits[Dimension.INPUT_TOKENS].bound_s(world.tokens_sent + lost),
    )
    # The last calls take their time after the last admission, in every schedule.
    assert world.finished_at <= 1.1 * (bound_s + 3.0 + 1.0 + 2 * WAY_S)


class WholeSeconds(FixedWindow):
    """Tells its reset without the fraction, and so up to a second too early."""

    def headers(self, now: float) -> tuple[float, float]:
        remaining, reset_in_s = super().headers(now)
        return remaining, math.floor(reset_in_s)


@pytest.mark.parametrize("seed", range(3))
def test_a_provider_that_cuts_its_resets_refuses_once_and_never_again(seed):
    world = World(WholeSeconds(30, 0.3), WholeSeconds(60_000, 0.3), seed=seed)
    world.run()
    assert world.sent == SESSIONS * TURNS
    assert len(world.refused) <= SESSIONS
    assert max(world.refused) - min(world.refused) < 1
