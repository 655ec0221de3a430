"""When tickets will go, as told when they come, beside when they went."""

import heapq
import random

import pytest

from hivemind_addon.kernel.forecast import Forecast, ForecastSlots, Supply
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.order.entry import QueueEntry
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import SetLimit, SetPriority
from hivemind_addon.kernel.values.decision import Admitted
from hivemind_addon.kernel.values.snapshot import CONCURRENCY
from hivemind_addon.kernel.values.ticket import AttemptResult, Demand, Dimension, Priority, Reading
from hivemind_addon.proxy.api.pool_words import with_words
from tests.kernel.samples import (
    FAILED,
    OVERLOADED,
    SUCCESS,
    THROTTLED,
    Bench,
    after,
    hints,
    requests_reading,
    ticket,
)

NEVER = float("inf")


def places(*not_before):
    made = [QueueEntry(ticket=ticket(f"t{number}"), wait_began_at=0.0) for number in range(len(not_before))]
    for place, at in zip(made, not_before, strict=True):
        place.not_before = at
    return made


def starts(waiting, *, supplies=(), slots=None, first_at=0.0, others_at=0.0):
    slots = slots or ForecastSlots(limit=1, service_s=10.0)
    found = Forecast([slots, *supplies], first_at=first_at, others_at=others_at).play(waiting)
    return [found[place.ticket.id].at if place.ticket.id in found else None for place in waiting]


NO_LIMIT = {"limit": 1000, "service_s": 1.0}


class TestQueue:
    def test_one_slot_is_handed_on(self):
        assert starts(places(0, 0, 0)) == [0, 10, 20]

    def test_what_runs_comes_first_and_what_overran_is_not_over(self):
        slots = ForecastSlots(limit=2, service_s=10.0, ran_s=[4, 30])
        assert starts(places(0, 0, 0), slots=slots) == [2.5, 6, 12.5]

    def test_above_a_limit_that_was_lowered_several_have_to_end(self):
        slots = ForecastSlots(limit=1, service_s=10.0, ran_s=[0, 2, 4])
        assert starts(places(0), slots=slots) == [10]

    def test_a_full_pool_of_which_no_time_is_known_tells_nothing(self):
        assert starts(places(0, 0), slots=ForecastSlots(limit=1, service_s=None)) == [0, None]

    def test_one_that_backs_off_lets_others_pass_until_it_is_due(self):
        assert starts(places(15, 0, 0, 0, 0)) == [30, 0, 10, 20, 40]
        assert starts(places(NEVER, 0, 100)) == [None, 0, 100]

    def test_after_a_probe_the_others_wait_for_its_answer(self):
        slots = ForecastSlots(**NO_LIMIT)
        assert starts(places(0, 0, 0), slots=slots, first_at=5, others_at=6) == [5, 6, 6]
        assert starts(places(0, 0), slots=ForecastSlots(**NO_LIMIT), first_at=5, others_at=NEVER) == [5, None]


class TestSupply:
    def test_a_bucket_refills(self):
        bucket = Supply("requests", Dimension.REQUESTS, limit=2, level=2, at=0, per_s=0.5)
        assert starts(places(0, 0, 0, 0), supplies=[bucket], slots=ForecastSlots(**NO_LIMIT)) == [0, 0, 2, 4]

    def test_a_window_turns_and_turns_again(self):
        window = Supply("requests", Dimension.REQUESTS, limit=2, level=1, at=0, turns_at=7, window_s=60)
        told = starts(places(*[0] * 6), supplies=[window], slots=ForecastSlots(**NO_LIMIT))
        assert told == [0, 7, 7, 67, 67, 127]

    def test_more_than_the_whole_limit_waits_for_all_of_it(self):
        bucket = Supply("requests", Dimension.REQUESTS, limit=0.5, level=0, at=0, per_s=0.5)
        assert starts(places(0, 0), supplies=[bucket], slots=ForecastSlots(**NO_LIMIT)) == [1, 3]


class TestBackfilling:
    SMALL = ("small0", "small1", "small2", "small3", "small4")

    @pytest.mark.parametrize(
        ("future", "before"),
        [
            pytest.param({"turns_at": 40, "window_s": 60}, 5, id="units that end with the window delay nobody"),
            pytest.param({"per_s": 10}, 4, id="a bucket refills a tenth of the wait later at most"),
        ],
    )
    def test_small_ones_go_before_a_huge_one_within_its_slack(self, future, before):
        tokens = Supply("tokens", Dimension.INPUT_TOKENS, limit=1000, level=500, at=0, **future)
        sizes = {"huge": 900, **dict.fromkeys(self.SMALL, 10)}
        waiting = [
            QueueEntry(ticket=ticket(name, demand=Demand(input_tokens=size)), wait_began_at=0.0)
            for name, size in sizes.items()
        ]
        found = Forecast([ForecastSlots(**NO_LIMIT), tokens], first_at=0.0, others_at=0.0).play(waiting)
        assert list(found) == [*self.SMALL[:before], "huge", *self.SMALL[before:]]
        assert [found[name].at for name in self.SMALL[:before]] == [0] * before
        assert 40 <= found["huge"].at <= 44

    def test_a_view_shows_them_before_it_where_they_wait_for_a_slot(self):
        bench = Bench(slots=1)
        bench.submit("first", demand=Demand(input_tokens=10))
        bench.advance(4)
        tokens = Reading("input-tokens", Dimension.INPUT_TOKENS, 300, limit=1000, remaining=500, reset_in_s=100)
        bench.observe("first", tokens)
        bench.settle("first")
        bench.submit("runs", demand=Demand(input_tokens=10))
        bench.submit("huge", demand=Demand(input_tokens=900))
        bench.submit(*self.SMALL, demand=Demand(input_tokens=10))
        told = {view.ticket.id: view.starts_in_s for view in bench.pool.tickets if view.position}
        assert list(told) == [*self.SMALL, "huge"]
        assert [told[name] for name in self.SMALL] == [4, 8, 12, 16, 20]
        assert told["huge"] > 30


class World:
    """One pool in virtual time: a limiter that tells its level in headers, attempts of a random length."""

    def __init__(self, *, slots, service_s, reading=None, take=None, seed=0, initial=None):
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(rng=self.rng)
        self.settings = PoolSettings(concurrency=ConcurrencySettings(initial=initial or slots, maximum=slots))
        self.now = 0.0
        self.service_s = service_s
        self.ends = []
        self.reading = reading or (lambda world: None)
        self.take = take or (lambda world: None)
        self.told = {}
        self.waited = {}

    def submit(self, count, prefix):
        for number in range(count):
            name = f"{prefix}{number}"
            made = ticket(name, session=name, at=self.now, patience_s=1e6)
            self.scheduler.submit(made, self.settings, self.now)
        self.poll()

    def look(self):
        for view in self.scheduler.snapshot(self.now).pools[0].tickets:
            if view.state != "in flight":
                self.told[view.ticket.id] = (self.now, view.starts_in_s)

    def poll(self):
        for decision in self.scheduler.poll(self.now):
            assert isinstance(decision, Admitted)
            attempt = decision.attempt
            if told := self.told.get(attempt.ticket.id):
                self.waited[attempt.ticket.id] = (told[1], self.now - told[0])
            self.take(self)
            if reading := self.reading(self):
                self.scheduler.observe(attempt, hints(reading), self.now)
            end = self.now + self.service_s * self.rng.uniform(0.6, 1.4)
            heapq.heappush(self.ends, (end, attempt.ticket.id, attempt))
        self.scheduler.drain_events()

    def run(self, until=1e9):
        while self.now < until:
            wakeup_at = self.scheduler.next_wakeup()
            end_at = self.ends[0][0] if self.ends else None
            coming = [at for at in (wakeup_at, end_at) if at is not None]
            if not coming or self.scheduler.is_idle:
                return
            self.now = min(coming)
            while self.ends and self.ends[0][0] <= self.now:
                _, _, attempt = heapq.heappop(self.ends)
                self.scheduler.settle(attempt, AttemptResult(SUCCESS), self.now)
            self.poll()

    def check(self, *, factor, slack_s):
        assert len(self.waited) >= 20
        for name, (told, waited) in self.waited.items():
            assert told is not None, name
            assert waited / factor - slack_s <= told <= waited * factor + slack_s, (name, told, waited)


def warm(world, count=5):
    """Some requests before, from which limits and times are known."""
    world.submit(count, "warm")
    world.run()


class TestBesideWhatHappened:
    """Within a quarter and one service time."""

    @pytest.mark.parametrize("seed", range(3))
    def test_where_slots_are_the_limit(self, seed):
        world = World(slots=4, service_s=5, seed=seed)
        warm(world, 20)
        world.submit(60, "t")
        world.look()
        world.run()
        world.check(factor=1.25, slack_s=5)

    def test_where_a_person_holds_the_limit_down(self):
        world = World(slots=64, service_s=5)
        warm(world, 10)
        world.scheduler.command(SetLimit(limit=3), world.now)
        world.submit(60, "t")
        world.look()
        world.run()
        world.check(factor=1.25, slack_s=5)

    def test_where_a_bucket_is_the_limit(self):
        level = {"at": 0.0, "level": 10.0}

        def refill(world):
            level["level"] = min(10.0, level["level"] + (world.now - level["at"]) * 10 / 60)
            level["at"] = world.now

        def take(world):
            refill(world)
            level["level"] -= 1

        def reading(world):
            left = max(0.0, level["level"])
            return requests_reading(limit=10, remaining=int(left), reset_in_s=(10 - left) * 6)

        world = World(slots=50, service_s=2, take=take, reading=reading)
        warm(world, 8)
        world.submit(40, "t")
        world.look()
        world.run()
        world.check(factor=1.25, slack_s=8)

    def test_where_a_window_is_the_limit(self):
        used = {}

        def take(world):
            used[world.now // 60] = used.get(world.now // 60, 0) + 1

        def reading(world):
            return requests_reading(limit=20, remaining=20 - used[world.now // 60], reset_in_s=60 - world.now % 60)

        world = World(slots=50, service_s=2, take=take, reading=reading)
        warm(world, 8)
        world.submit(70, "t")
        world.look()
        world.run()
        world.check(factor=1.25, slack_s=5)


class TestViews:
    def test_the_view_shows_what_may_still_be_taken(self):
        bench = Bench()
        bench.submit("a", "b")
        bench.observe("a", requests_reading(limit=60, remaining=30, reset_in_s=30))
        (meter,) = bench.pool.meters
        assert (meter.name, meter.kind, meter.limit, meter.level) == ("requests", "bucket", 60, 29)
        assert meter.full_in_s == pytest.approx(31)

    def test_the_view_lists_every_ticket_with_its_state_and_place(self):
        bench = Bench(slots=2)
        bench.submit("a", "b", "c", "d")
        bench.settle("a", after(FAILED, 100))
        seen = [(view.ticket.id, view.state, view.position) for view in bench.pool.tickets]
        assert seen == [("b", "in flight", 0), ("c", "in flight", 0), ("d", "queued", 1), ("a", "backing off", 2)]
        assert [view.reason for view in bench.pool.tickets][2:] == ["concurrency limit", "backing off"]

    def test_of_those_that_wait_only_the_next_ones_are_shown_and_the_others_counted(self):
        bench = Bench(slots=1)
        bench.submit("a", "b", "c", "d")
        (pool,) = bench.scheduler.snapshot(bench.now, most_queued=2).pools
        assert [view.ticket.id for view in pool.tickets] == ["a", "b", "c"]
        assert pool.queued == 3

    def test_a_ticket_is_shown_in_the_class_that_a_person_put_it_in(self):
        bench = Bench(slots=1)
        bench.submit("a", "b")
        bench.scheduler.command(SetPriority("b", Priority.LOW), bench.now)
        assert [view.ticket.priority for view in bench.pool.tickets] == [Priority.NORMAL, Priority.LOW]

    def told(self, bench):
        return [view.starts_in_s for view in bench.pool.tickets if view.state != "in flight"]

    def test_what_waits_starts_after_what_runs(self):
        bench = Bench(slots=1)
        bench.submit("first")
        bench.advance(4)
        bench.settle("first")
        bench.submit("runs", "a", "b")
        assert [view.starts_in_s for view in bench.pool.tickets] == [None, 4, 8]

    def test_a_backoff_is_waited_for(self):
        bench = Bench()
        bench.submit("a")
        bench.settle("a", after(FAILED, 30))
        assert self.told(bench) == [pytest.approx(30, abs=1)]

    def test_the_providers_pause_is_waited_for(self):
        bench = Bench()
        bench.submit("a")
        bench.settle("a", after(THROTTLED, 3))
        bench.submit("b")
        assert min(self.told(bench)) == pytest.approx(3, abs=0.5)

    def test_an_open_breaker_is_tried_at_its_time_and_the_others_follow(self):
        bench = Bench(slots=8)
        bench.submit(*"abcdefgj")
        bench.settle("a")
        for ticket_id in "bcdefgj":
            bench.settle(ticket_id, OVERLOADED)
        bench.advance(0.1)
        bench.submit("h", "i")
        told = self.told(bench)
        assert bench.pool.breaker == "open"
        assert min(told) == pytest.approx(bench.pool.breaker_tries_in_s, abs=0.01)

    def test_a_hidden_limit_spaces_them(self):
        bench = Bench(slots=50)
        bench.submit(*(f"t{number}" for number in range(10)))
        bench.settle("t0")
        for number in (7, 8, 9):
            bench.settle(f"t{number}", THROTTLED)
        rate = bench.scheduler.snapshot(bench.now).pools[0].learned
        assert [view.name for view in rate] == ["rate limit"]
        bench.submit(*(f"x{number}" for number in range(60)))
        told = self.told(bench)
        assert max(told) > min(told)

    def test_ten_thousand_are_all_told(self):
        bench = Bench(slots=4)
        bench.submit("first")
        bench.settle("first")
        tokens = Reading(
            meter="tokens", dimension=Dimension.TOTAL_TOKENS, window_s=60, limit=1e6, remaining=1e6, reset_in_s=0
        )
        bench.submit("second")
        bench.observe("second", requests_reading(limit=50, remaining=40, reset_in_s=12), tokens)
        for number in range(10_000):
            made = ticket(f"t{number}", session=f"s{number % 100}", demand=Demand(total_tokens=100))
            bench.scheduler.submit(made, bench.settings, 0.0)
        bench.poll()
        told = self.told(bench)
        assert len(told) > 9_990
        assert None not in told
        assert told == sorted(told)


class TestLimits:
    def of(self, waiting, *, supplies, slots=None):
        found = Forecast([slots or ForecastSlots(**NO_LIMIT), *supplies], first_at=0.0, others_at=0.0).play(waiting)
        return [found[place.ticket.id].by for place in waiting]

    def test_the_limit_that_comes_last_decides_and_those_behind_wait_for_the_same(self):
        requests = Supply("requests", Dimension.REQUESTS, limit=9, level=1, at=0, per_s=1)
        tokens = Supply("input-tokens", Dimension.INPUT_TOKENS, limit=900, level=900, at=0, per_s=1)
        assert self.of(places(0, 0, 0), supplies=[requests, tokens]) == ["", "requests", "requests"]
        window = Supply("requests", Dimension.REQUESTS, limit=2, level=0, at=0, turns_at=7, window_s=60)
        assert self.of(places(0, 0, 0), supplies=[window]) == ["requests"] * 3

    def test_slots_are_a_limit_too(self):
        slots = ForecastSlots(limit=1, service_s=10.0)
        assert self.of(places(0, 0), supplies=(), slots=slots) == ["", CONCURRENCY]

    def test_a_view_says_what_is_needed_and_what_is_left(self):
        bench = Bench()
        bench.submit("a", demand=Demand(input_tokens=300))
        bench.observe("a", Reading("input-tokens", Dimension.INPUT_TOKENS, 60.0, 1000, 500, 30))
        bench.submit("b", demand=Demand(input_tokens=700))
        bench.submit("c", demand=Demand(input_tokens=100))
        held, behind = (view for view in with_words(bench.pool).tickets if view.state != "in flight")
        assert (held.reason, behind.reason) == ("rate limit", "rate limit")
        assert (held.limit.name, held.limit.needs, behind.limit.needs) == ("input-tokens", 700, 100)
        assert 0 <= held.limit.left == behind.limit.left < 700
        assert held.why.startswith("input tokens: needs 700, ")
        assert behind.why == f"input tokens: needs 100, {int(behind.limit.left)} left, after 1 other"
        assert held.starts_in_s == pytest.approx(bench.scheduler.next_wakeup() - bench.now, abs=0.01)
