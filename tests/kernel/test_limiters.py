"""Eleven sessions in virtual time against limiters of many kinds, written without knowing ours: no storm, no stall."""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from statistics import mean

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted
from hivemind_addon.kernel.values.ticket import AttemptResult, Demand, Dimension, Hints, Reading
from tests.kernel.samples import FAILED, SUCCESS, THROTTLED, ticket

SESSIONS = 11
WAY_S = 0.05


class Window:
    """So many requests per calendar minute."""

    def __init__(self, limit: int, window_s: float = 60.0, phase: float = 0.0) -> None:
        self.limit, self.window_s, self.phase = limit, window_s, phase
        self.used, self.number = 0, 0

    def roll(self, now: float) -> None:
        number = math.floor((now - self.phase) / self.window_s)
        if number != self.number:
            self.number, self.used = number, 0

    def room(self, now: float) -> int:
        self.roll(now)
        return self.limit - self.used

    def take(self, now: float) -> None:
        self.roll(now)
        self.used += 1

    def reset_in_s(self, now: float) -> float:
        return self.phase + (math.floor((now - self.phase) / self.window_s) + 1) * self.window_s - now

    def fits_in_s(self, now: float) -> float:
        return 0.0 if self.room(now) >= 1 else self.reset_in_s(now)


class Bucket:
    """So many per minute, refilled all the time; `burst` is its size. With a small one it is a GCRA."""

    def __init__(self, limit: int, window_s: float = 60.0, burst: int | None = None) -> None:
        self.limit, self.window_s = limit, window_s
        self.rate, self.burst = limit / window_s, burst or limit
        self.level, self.at = float(self.burst), 0.0

    def room(self, now: float) -> float:
        self.level = min(self.burst, self.level + self.rate * (now - self.at))
        self.at = now
        return self.level + 1e-9

    def take(self, now: float) -> None:
        self.room(now)
        self.level -= 1

    def reset_in_s(self, now: float) -> float:
        return (self.burst - self.room(now)) / self.rate

    def fits_in_s(self, now: float) -> float:
        return max(0.0, 1 - self.room(now)) / self.rate


class Sliding:
    """So many within any sixty seconds; `reset` is when the oldest one falls out."""

    def __init__(self, limit: int, window_s: float = 60.0) -> None:
        self.limit, self.window_s = limit, window_s
        self.log: deque[float] = deque()

    def room(self, now: float) -> int:
        while self.log and self.log[0] <= now - self.window_s:
            self.log.popleft()
        return self.limit - len(self.log)

    def take(self, now: float) -> None:
        self.log.append(now)

    def reset_in_s(self, now: float) -> float:
        self.room(now)
        return self.log[0] + self.window_s - now if self.log else 0.0

    def fits_in_s(self, now: float) -> float:
        return 0.0 if self.room(now) >= 1 else self.reset_in_s(now)


class World:
    """Closed loops of turns; `limiters` must all agree, only `told` speak in headers."""

    def __init__(
        self,
        limiters: list,
        *,
        seed: int = 0,
        turns: int = 20,
        told: list | None = None,
        says_retry_after: bool = True,
        age_s: Callable[[random.Random], float] = lambda _: 0.0,
        neighbour_per_s: float = 0.0,
        faults: float = 0.0,
        changes: dict[float, Callable[[], None]] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(rng=random.Random(seed))
        self.settings = PoolSettings(concurrency=ConcurrencySettings(initial=4))
        self.limiters, self.told = limiters, limiters if told is None else told
        self.turns, self.says_retry_after, self.age_s, self.faults = turns, says_retry_after, age_s, faults
        self.now = 0.0
        self.agenda: list = []
        self.serial = 0
        self.refused: list[float] = []
        self.sent = self.attempts = 0
        self.finished_at = 0.0
        self.heads: deque[tuple[float, tuple[Reading, ...]]] = deque(maxlen=500)
        self.neighbour_per_s = neighbour_per_s
        for at, change in (changes or {}).items():
            self.at(at, change)

    def at(self, instant: float, do, *args) -> None:
        self.serial += 1
        heapq.heappush(self.agenda, (instant, self.serial, do, args))

    def submit(self, session: int, turn: int) -> None:
        wanted = ticket(f"{session}.{turn}", session=f"s{session}", at=self.now, patience_s=1e6, demand=Demand())
        self.scheduler.submit(wanted, self.settings, self.now)

    def readings(self) -> tuple[Reading, ...]:
        told = tuple(
            Reading(
                meter=f"m{number}",
                dimension=Dimension.REQUESTS,
                window_s=60,
                limit=getattr(limiter, "said_limit", limiter.limit),
                remaining=max(0, math.floor(limiter.room(self.now))),
                reset_in_s=limiter.reset_in_s(self.now),
            )
            for number, limiter in enumerate(self.told)
        )
        self.heads.append((self.now, told))
        written_at = self.now - self.age_s(self.rng)
        return next((old for at, old in reversed(self.heads) if at <= written_at), told)

    def arrive(self, attempt) -> None:
        self.attempts += 1
        if self.rng.random() < self.faults:
            self.at(self.now + WAY_S, self.end, attempt, FAILED)
            return
        fits_in_s = max(limiter.fits_in_s(self.now) for limiter in self.limiters)
        if fits_in_s > 0:
            self.refused.append(self.now)
            word_s = math.ceil(fits_in_s) if self.says_retry_after else None
            self.at(self.now + WAY_S, self.head, attempt, self.readings(), False)
            self.at(self.now + WAY_S, self.end, attempt, replace(THROTTLED, retry_after_s=word_s))
            return
        for limiter in self.limiters:
            limiter.take(self.now)
        self.sent += 1
        self.at(self.now + self.rng.uniform(0.1, 0.5), self.head, attempt, self.readings(), True)
        self.at(self.now + self.rng.uniform(0.6, 3.0), self.end, attempt, SUCCESS)

    def head(self, attempt, readings, answered) -> None:
        self.scheduler.observe(attempt, Hints(readings=readings), self.now, answered=answered)

    def end(self, attempt, outcome) -> None:
        self.scheduler.settle(attempt, AttemptResult(outcome), self.now)
        self.finished_at = self.now
        session, turn = map(int, attempt.ticket.id.split("."))
        if outcome is SUCCESS and turn < self.turns:
            self.at(self.now + self.rng.uniform(0.1, 0.5), self.submit, session, turn + 1)

    def neighbour(self) -> None:
        if max(limiter.fits_in_s(self.now) for limiter in self.limiters) <= 0:
            for limiter in self.limiters:
                limiter.take(self.now)
        if not self.is_over:
            self.at(self.now + self.rng.expovariate(self.neighbour_per_s), self.neighbour)

    @property
    def is_over(self) -> bool:
        return self.sent >= SESSIONS * self.turns and self.scheduler.is_idle

    def run(self) -> "World":
        for session in range(SESSIONS):
            self.submit(session, 1)
        if self.neighbour_per_s:
            self.at(0.01, self.neighbour)
        while not self.is_over:
            for decision in self.scheduler.poll(self.now):
                assert isinstance(decision, Admitted)
                self.at(self.now + WAY_S, self.arrive, decision.attempt)
            wakeup_at = self.scheduler.next_wakeup()
            assert self.agenda or wakeup_at is not None, "stall"
            if self.agenda and (wakeup_at is None or self.agenda[0][0] <= wakeup_at):
                self.now, _, do, args = heapq.heappop(self.agenda)
                do(*args)
            else:
                self.now = wakeup_at
        return self

    @property
    def refused_share(self) -> float:
        return len(self.refused) / self.attempts


def said(limiter, limit: int):
    """A limiter whose headers state another limit than it has."""
    limiter.said_limit = limit
    return limiter


def beside(hidden) -> dict:
    """A window that headers tell of, and a limit that they do not."""
    told = Window(30)
    return {"limiters": [told, hidden], "told": [told]}


TRUTHFUL = {
    "a window": lambda: {"limiters": [Window(30)]},
    "a bucket": lambda: {"limiters": [Bucket(30)]},
}
OF_NO_KIND = {
    "a sliding window": lambda: {"limiters": [Sliding(30)]},
    "a GCRA": lambda: {"limiters": [Bucket(30, burst=5)]},
    "sub-windows of 10 s": lambda: {"limiters": [said(Window(5, 10.0), 30)]},
    "sub-windows of one request": lambda: {"limiters": [said(Window(1, 2.0), 30)]},
    "a hidden burst limit of 1 s": lambda: beside(Window(1, 1.0)),
    "a hidden burst limit of 5 s": lambda: beside(Window(3, 5.0)),
    "a hidden spacing": lambda: beside(Bucket(60, burst=1)),
}
WITHOUT_HEADERS = {
    "a window": lambda: {"limiters": [Window(30, phase=-17.0)], "told": []},
    "a bucket": lambda: {"limiters": [Bucket(30)], "told": []},
    "a sliding window": lambda: {"limiters": [Sliding(30)], "told": []},
}
SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("faults", [0.0, 0.1])
@pytest.mark.parametrize("kind", TRUTHFUL)
def test_truthful_headers_lead_to_no_refusal(kind, faults, seed):
    world = World(**TRUTHFUL[kind](), seed=seed, faults=faults).run()
    assert world.refused == []
    assert world.finished_at <= 440


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", OF_NO_KIND)
def test_a_limiter_of_no_known_kind_is_paced_without_storm_or_stall(kind, seed):
    world = World(**OF_NO_KIND[kind](), seed=seed).run()
    assert world.refused_share <= 0.14
    assert world.finished_at <= 1.1 * 440


@pytest.mark.parametrize("kind", OF_NO_KIND)
def test_its_pace_once_learned_is_kept(kind):
    world = World(**OF_NO_KIND[kind](), turns=60).run()
    late = [at for at in world.refused if at > world.finished_at / 2]
    assert len(late) <= 0.06 * world.sent


@pytest.mark.parametrize("says_retry_after", [True, False])
@pytest.mark.parametrize("kind", WITHOUT_HEADERS)
def test_without_headers_refusals_teach(kind, says_retry_after):
    worlds = [World(**WITHOUT_HEADERS[kind](), seed=seed, says_retry_after=says_retry_after).run() for seed in SEEDS]
    assert mean(world.refused_share for world in worlds) <= 0.14
    assert max(world.finished_at for world in worlds) <= 1.4 * 440


def test_a_window_without_headers_is_learned_from_one_burst():
    worlds = [World(**WITHOUT_HEADERS["a window"](), seed=seed).run() for seed in SEEDS]
    assert mean(len(world.refused) for world in worlds) <= 9, "one in each minute: nobody waits a minute for a guess"


@pytest.mark.parametrize("kind", TRUTHFUL)
@pytest.mark.parametrize("ages", [(3.0,), (0.0, 4.0)], ids=["all stale", "two shards"])
def test_stale_headers_cost_little(kind, ages):
    worlds = [World(**TRUTHFUL[kind](), seed=seed, age_s=lambda rng: rng.choice(ages)).run() for seed in SEEDS]
    assert mean(world.refused_share for world in worlds) <= 0.08
    assert max(world.finished_at for world in worlds) <= 1.4 * 440


@pytest.mark.parametrize("kind", TRUTHFUL)
def test_a_neighbour_on_the_same_key_is_left_room(kind):
    worlds = [World(**TRUTHFUL[kind](), seed=seed, neighbour_per_s=0.25).run() for seed in range(8)]
    assert mean(world.refused_share for world in worlds) <= 0.08
    assert max(world.finished_at for world in worlds) <= 1.1 * 2 * 380


@pytest.mark.parametrize(("limit", "longest_s"), [(15, 740), (60, 275)])
@pytest.mark.parametrize("kind", [Window, Bucket])
def test_a_limit_that_changes_in_mid_run_is_followed(kind, limit, longest_s):
    limiter = kind(30)

    def change() -> None:
        limiter.room(100.0)
        limiter.limit = limit
        if kind is Bucket:
            limiter.rate, limiter.burst = limit / 60, limit
            limiter.level = min(limiter.level, limit)

    world = World([limiter], changes={100.0: change}).run()
    assert len(world.refused) <= 3
    assert world.finished_at <= longest_s
