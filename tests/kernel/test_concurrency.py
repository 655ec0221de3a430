import heapq
import random
from collections import Counter

import pytest

from hivemind_addon.kernel.limits.sharing import LeftSlots
from hivemind_addon.kernel.limits.slots import ConcurrencySettings, Slots
from tests.cases import each

NEVER = float("inf")


def filled(limit: int, *, maximum: int = 256) -> Slots:
    slots = Slots(ConcurrencySettings(initial=limit, maximum=maximum))
    for in_flight in range(1, limit + 1):
        slots.sent(in_flight, 10.0)
    return slots


def grown(settings, *, to):
    slots = Slots(settings)
    while slots.limit < to:
        slots.passed(slots.limit, 10.0)
    return slots


def test_there_are_slots_from_the_beginning():
    slots = Slots(ConcurrencySettings(initial=4))
    assert [slots.opens_at(in_flight, 10.0) for in_flight in (0, 3)] == [10.0, 10.0]


def test_one_more_when_the_last_one_was_not_refused_for_a_moment():
    slots = filled(4)
    opens_at = slots.opens_at(4, 10.0)
    assert 10 < opens_at < 10.2
    assert slots.opens_at(4, opens_at) == opens_at
    assert slots.limit == 4, "to look changes nothing"
    slots.sent(5, opens_at)
    assert slots.limit == 5
    assert slots.opens_at(5, opens_at) > opens_at


def test_one_more_when_it_was_answered():
    slots = filled(4)
    slots.passed(3, 10.0)
    assert slots.limit == 4
    slots.passed(4, 10.0)
    assert slots.limit == 5


def test_what_does_not_fill_it_proves_nothing():
    slots = Slots(ConcurrencySettings(initial=4))
    slots.sent(2, 10.0)
    assert slots.opens_at(2, 99.0) == 99.0
    assert slots.limit == 4


def test_never_more_than_the_maximum():
    slots = filled(4, maximum=4)
    slots.passed(4, 10.0)
    assert slots.opens_at(4, 99.0) == float("inf")
    assert slots.limit == 4


def test_a_provider_that_takes_2000_at_once_gets_them():
    assert grown(ConcurrencySettings(), to=2000).limit == 2000


def test_where_it_is_crowded_one_less_and_none_more_for_a_while():
    slots = filled(8)
    slots.crowded(7, 20.0, by_others=True)
    assert slots.limit == 6
    slots.sent(6, 21.0)
    slots.passed(8, 21.0)
    assert (slots.limit, slots.opens_at(6, 21.0)) == (6, pytest.approx(25, abs=0.1))
    slots.passed(6, 26.0)
    assert slots.limit == 7


def test_the_edge_takes_a_slot_for_each_refusal_and_gives_one_back_for_each_pass():
    slots = filled(8)
    for now in (20.0, 21.0):
        slots.crowded(3, now, by_others=False)
    assert (slots.limit, slots.opens_at(6, 21.0)) == (6, float("inf"))
    slots.passed(6, 22.0)
    assert slots.limit == 7


def test_after_an_outage_half_of_what_was_proved():
    slots = filled(40)
    slots.recover(0, 0.0)
    assert slots.limit == 20
    slots = filled(3)
    slots.recover(0, 0.0)
    assert slots.limit == 2


def test_what_has_outlived_an_outage_keeps_nobody_waiting():
    slots = filled(40)
    slots.recover(30, 100.0)
    assert slots.limit == 30
    assert slots.opens_at(30, 100.0) == pytest.approx(100.05)


def test_after_a_rest_it_starts_as_at_first():
    slots = filled(4)
    for in_flight in range(4, 40):
        slots.passed(in_flight, 10.0)
    assert slots.limit == 40
    slots.rest()
    assert slots.limit == 4


class TestConfigure:
    def test_what_was_learned_stays_within_the_new_maximum(self):
        slots = grown(ConcurrencySettings(initial=2), to=8)
        slots.configure(ConcurrencySettings(initial=4, maximum=100))
        assert slots.limit == 8
        slots.configure(ConcurrencySettings(maximum=3))
        assert slots.limit == 3
        slots.passed(3, 10.0)
        assert slots.limit == 3

    def test_a_higher_maximum_lets_it_grow_again(self):
        slots = grown(ConcurrencySettings(initial=1, maximum=2), to=2)
        slots.passed(2, 10.0)
        assert slots.limit == 2
        slots.configure(ConcurrencySettings(initial=1, maximum=3))
        slots.passed(2, 10.0)
        assert slots.limit == 3

    def test_where_nothing_was_proved_it_begins_anew(self):
        slots = Slots(ConcurrencySettings(initial=1))
        slots.sent(1, now=0.0)
        slots.configure(ConcurrencySettings(initial=6))
        assert slots.limit == 6
        assert slots.opens_at(6, now=10.0) == float("inf"), "what filled one slot proves none of six"


class Server:
    """Closed loop: so many agents ask at once, whenever the slots let them. `time_s`: of an answer that found n."""

    def __init__(self, slots, agents, time_s, *, at_once=None):
        self.slots, self.agents, self.time_s, self.at_once = slots, agents, time_s, at_once
        self.now, self.answers, self.levels = 0.0, 0, Counter()
        self.flying = []

    def run(self, until):
        rng = random.Random(1)
        while self.now < until:
            while len(self.flying) < self.agents and self.slots.opens_at(len(self.flying), self.now) <= self.now:
                found = len(self.flying) + 1
                self.slots.sent(found, self.now)
                begins = self.now
                if self.at_once and found > self.at_once:
                    begins = sorted(end for end, *_ in self.flying)[found - 1 - self.at_once]
                heapq.heappush(self.flying, (begins + self.time_s(found, rng), rng.random(), self.now, found))
            opens_at = self.slots.opens_at(len(self.flying), self.now) if len(self.flying) < self.agents else NEVER
            if opens_at < self.flying[0][0]:
                self.now = opens_at
                continue
            self.now, _, sent_at, found = heapq.heappop(self.flying)
            self.slots.ended(len(self.flying), self.now, found=found, took_s=self.now - sent_at)
            self.answers += self.now > until / 2
            self.levels[len(self.flying) + 1] += self.now > until / 2
        return self


@each(
    ("agents", "at_once", "most"),
    [(24, 2, 4), (40, 8, 11), (60, 1, 3)],
)
def test_taken_back_is_what_only_waits_in_the_providers_own_queue(agents, at_once, most):
    server = Server(Slots(ConcurrencySettings()), agents, lambda _, rng: rng.uniform(1.5, 2.5), at_once=at_once)
    server.run(1200)
    assert server.levels.most_common(1)[0][0] <= most
    assert server.answers >= 0.95 * 600 * at_once / 2


def test_taken_back_is_what_slows_all_down():
    server = Server(Slots(ConcurrencySettings()), 40, lambda n, rng: rng.uniform(1.5, 2.5) * max(1, n / 24) ** 2)
    server.run(1200)
    assert 20 <= server.levels.most_common(1)[0][0] <= 30
    assert server.answers >= 0.88 * 600 * 24 / 2


@each("sigma", [0.05, 0.4, 1.0])
@each("agents", [3, 24, 100])
def test_nothing_is_taken_back_where_an_answers_time_does_not_depend_on_the_others(agents, sigma):
    server = Server(Slots(ConcurrencySettings()), agents, lambda _, rng: rng.lognormvariate(0, sigma)).run(600)
    free = Server(Slots(ConcurrencySettings(agents, agents)), agents, server.time_s)
    free.slots.ended = lambda *_, **__: None
    assert server.answers >= 0.95 * free.run(600).answers


def test_it_grows_again_when_the_provider_does():
    server = Server(Slots(ConcurrencySettings()), 24, lambda _, rng: rng.uniform(0.9, 1.1), at_once=2).run(300)
    assert server.slots.limit <= 4
    server.at_once = None
    server.run(3000)
    assert server.slots.limit >= 20


def test_who_waits_is_due_though_every_slot_is_held_for_long():
    server = Server(Slots(ConcurrencySettings()), 24, lambda _, rng: rng.uniform(0.9, 1.1), at_once=2).run(300)
    slots, flying, now = server.slots, len(server.flying), server.now
    for in_flight in range(flying, 24):
        opens_at = slots.opens_at(in_flight, now)
        assert opens_at < now + 60
        now = max(now, opens_at)
        slots.sent(in_flight + 1, now)


def test_slots_of_clients_that_left_are_free_until_a_refusal_says_that_they_are_not():
    left = LeftSlots()
    for now in (100.0, 101.0, 102.0):
        left.left(now - 1, 10.0, now)
    assert left.held(102.0) == 0
    assert not left.explain(11, 10, 10.0, 103.0), "beyond the known limit"
    assert not left.explain(7, 10, 10.0, 103.0), "three more are within the limit, too"
    assert left.held(103.0) == 0
    assert left.explain(9, 10, 10.0, 103.0)
    assert left.held(103.0) == 2, "with the eight others they fill the limit of ten"
    assert left.opens_at(103.0) == 110.0
    assert not left.explain(9, 10, 10.0, 104.0), "an attempt beyond the limit, held slots counted, teaches the limit"
    assert left.held(125.0) == 0
    left.left(500.0, 10.0, 505.0)
    assert left.held(505.0) == 0, "the provider may have changed"


def test_nothing_is_tried_where_some_answers_take_hundreds_of_times_as_long():
    server = Server(Slots(ConcurrencySettings()), 10, lambda _, rng: 600.0 if rng.random() < 0.02 else 1.0).run(6000)
    free = Server(Slots(ConcurrencySettings(10, 10)), 10, server.time_s)
    free.slots.ended = lambda *_, **__: None
    assert server.answers >= 0.95 * free.run(6000).answers
