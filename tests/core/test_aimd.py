"""The rules one by one, and a provider with a hidden cap that changes, written without knowing them."""

import heapq
import random

import pytest

from hivemind_addon.core.aimd import AimdLimit, ConcurrencySettings


def limit_of(initial: int = 4, maximum: int = 256) -> AimdLimit:
    return AimdLimit(ConcurrencySettings(initial=initial, maximum=maximum))


def succeed(aimd: AimdLimit, now: float = 0, *, times: int = 1, in_flight: int | None = None) -> None:
    for _ in range(times):
        aimd.success(in_flight=in_flight or aimd.limit, filled=True, admitted_at=now, now=now)


def refuse(aimd: AimdLimit, now: float, *, in_flight: int | None = None, admitted_at: float | None = None) -> None:
    sent_at = now if admitted_at is None else admitted_at
    aimd.overload(in_flight=in_flight or aimd.limit, admitted_at=sent_at, now=now)


def test_slow_start_adds_one_slot_per_success():
    aimd = limit_of(4)
    succeed(aimd, times=3)
    assert aimd.limit == 7


def test_an_idle_pool_proves_nothing():
    aimd = limit_of(4)
    aimd.success(in_flight=1, filled=False, admitted_at=0, now=0)
    assert aimd.limit == 4


def test_half_the_limit_in_flight_fills_it():
    aimd = limit_of(5)
    assert not aimd.fills(2)
    assert aimd.fills(3)


def test_an_overload_at_n_shows_that_the_ceiling_is_one_less():
    aimd = limit_of(10)
    refuse(aimd, 1)
    succeed(aimd, 2, times=17)
    assert (aimd.limit, aimd.ceiling) == (9, 9)


def test_one_overload_may_be_chance_and_is_tried_again_after_a_round():
    aimd = limit_of(3)
    refuse(aimd, 1)
    succeed(aimd, 2, times=3)
    assert aimd.limit == 2
    succeed(aimd, 3)
    assert aimd.limit == 3
    succeed(aimd, 4, in_flight=3)
    assert aimd.ceiling is None


def test_a_probe_that_fails_makes_it_a_fact():
    aimd = limit_of(3)
    refuse(aimd, 1)
    succeed(aimd, 2, times=4)
    refuse(aimd, 3)
    succeed(aimd, 22, times=20)
    assert aimd.limit == 2
    succeed(aimd, 23)
    assert aimd.limit == 3


def test_what_was_sent_with_the_refused_one_and_went_through_disproves_the_ceiling():
    aimd = limit_of(4)
    refuse(aimd, 1, in_flight=1, admitted_at=0)
    assert aimd.limit == 1
    aimd.success(in_flight=4, filled=True, admitted_at=0, now=2)
    assert (aimd.limit, aimd.ceiling) == (4, None)


def test_what_was_sent_before_the_refused_one_disproves_nothing():
    aimd = limit_of(4)
    refuse(aimd, 1, in_flight=3, admitted_at=1)
    aimd.success(in_flight=4, filled=True, admitted_at=0, now=2)
    assert aimd.ceiling == 2


def test_of_one_burst_the_lowest_refusal_counts():
    aimd = limit_of(12)
    for in_flight in (12, 9, 11, 10):
        refuse(aimd, 1, in_flight=in_flight, admitted_at=0)
    assert aimd.limit == 8


def test_a_provider_that_shrinks_is_followed_by_a_factor():
    aimd = limit_of(100)
    seen = []
    for second in range(1, 6):
        refuse(aimd, second)
        seen.append(aimd.limit)
    assert seen == [99, 98, 69, 49, 35]


def test_a_success_between_overloads_makes_the_next_one_a_single_step():
    aimd = limit_of(100)
    refuse(aimd, 1)
    succeed(aimd, 20, in_flight=99)
    refuse(aimd, 40)
    assert aimd.limit == 98


def test_an_overload_far_below_what_was_proved_just_now_is_not_the_ceiling():
    aimd = limit_of(20)
    succeed(aimd, 1, in_flight=20)
    refuse(aimd, 2, in_flight=3)
    assert aimd.limit == 14
    refuse(aimd, 40, in_flight=3)
    assert aimd.limit == 2


def test_the_ceiling_is_probed_after_twenty_seconds_and_a_proof_sets_it_free():
    aimd = limit_of(5)
    refuse(aimd, 0)
    succeed(aimd, 19)
    assert aimd.limit == 4
    succeed(aimd, 20)
    assert aimd.limit == 5
    succeed(aimd, 21, in_flight=5)
    assert (aimd.limit, aimd.ceiling) == (5, None)


def test_growth_after_a_ceiling_doubles_with_each_round():
    aimd = limit_of(8)
    refuse(aimd, 0)
    succeed(aimd, 1, times=14)
    assert aimd.limit == 8
    seen = []
    for second in range(2, 7):
        succeed(aimd, second, times=aimd.limit)
        seen.append(aimd.limit)
    assert seen == [9, 11, 16, 26, 52]


def test_each_probe_that_fails_doubles_the_time_to_the_next():
    aimd = limit_of(5)
    refuse(aimd, 0)
    now, waits = 0, []
    while len(waits) < 6:
        began = now
        while aimd.limit == 4:
            now += 1
            aimd.success(in_flight=4, filled=(now - began) % 10 == 0, admitted_at=now, now=now)
            aimd._successes = 0
        waits.append(now - began)
        refuse(aimd, now)
    assert waits == [20, 20, 40, 80, 160, 300]


def test_many_successes_bring_the_next_probe_forward():
    aimd = limit_of(5)
    refuse(aimd, 0)
    succeed(aimd, 20)
    refuse(aimd, 20)
    succeed(aimd, 39, times=100)
    assert aimd.limit == 4
    succeed(aimd, 40)
    assert aimd.limit == 5


def test_it_never_falls_below_one_nor_rises_above_the_maximum():
    aimd = limit_of(2, maximum=3)
    for second in range(5):
        refuse(aimd, second)
    assert aimd.limit == 1
    for second in range(100, 5000, 10):
        succeed(aimd, second)
    assert aimd.limit == 3


def test_after_an_outage_it_starts_at_two_and_grows_fast():
    aimd = limit_of(50)
    refuse(aimd, 1)
    aimd.recover()
    assert aimd.limit == 2
    succeed(aimd, 2)
    assert aimd.limit == 3


def test_after_an_outage_a_limit_of_one_stays_one():
    aimd = limit_of(1)
    aimd.recover()
    assert aimd.limit == 1


def test_a_resumed_ceiling_is_reached_by_slow_start_and_then_probed():
    aimd = limit_of(4)
    aimd.resume(6)
    seen = []
    for _ in range(4):
        seen.append(aimd.limit)
        succeed(aimd, 1, in_flight=4)
    assert seen == [4, 5, 6, 7]
    assert aimd.ceiling == 6


def test_a_resumed_ceiling_below_the_start_counts_at_once():
    aimd = limit_of(4)
    aimd.resume(2)
    assert aimd.limit == 2


def test_after_a_rest_it_grows_again_from_the_start():
    aimd = limit_of(4)
    succeed(aimd, times=20)
    aimd.rest()
    assert aimd.limit == 4


@pytest.mark.parametrize(("mine", "its", "limit", "ceiling"), [(None, None, 9, None), (5, None, 9, None), (5, 9, 9, 9)])
def test_of_two_pools_the_larger_limit_is_proved(mine, its, limit, ceiling):
    one, other = limit_of(5), limit_of(9)
    one.ceiling, other.ceiling = mine, its
    one.absorb(other)
    assert (one.limit, one.ceiling) == (limit, ceiling)


class HiddenCap:
    """Always thirty who want to go; the provider takes 8, from 120 s on 3, from 300 s on 20."""

    def __init__(self, seed: int, service_s: float) -> None:
        self.rng = random.Random(seed)
        self.service_s = service_s
        self.aimd = limit_of(4)
        self.mine = 0
        self.theirs = 0
        self.refusals = self.attempts = 0
        self.agenda: list = []

    def cap(self, now: float) -> int:
        return 8 if now < 120 else 3 if now < 300 else 20

    def run(self, until: float) -> float:
        """Mean in flight as a share of the cap."""
        now, used, possible, serial = 0.0, 0.0, 0.0, 0
        while now < until:
            while self.mine < self.aimd.limit:
                self.mine += 1
                self.attempts += 1
                serial += 1
                heapq.heappush(self.agenda, (now + 0.05, serial, "arrive", now, self.mine, self.aimd.fills(self.mine)))
            at, _, what, sent_at, in_flight, filled = heapq.heappop(self.agenda)
            used += min(self.theirs, self.cap(now)) * (at - now)
            possible += self.cap(now) * (at - now)
            now = at
            serial += 1
            if what == "arrive":
                taken = self.theirs < self.cap(now)
                self.theirs += taken
                took_s = self.service_s * self.rng.uniform(0.5, 1.5) if taken else 0.03
                heapq.heappush(
                    self.agenda, (now + took_s, serial, "end" if taken else "no", sent_at, in_flight, filled)
                )
            elif what == "end":
                self.mine -= 1
                self.theirs -= 1
                self.aimd.success(in_flight=in_flight, filled=filled, admitted_at=sent_at, now=now)
            else:
                self.mine -= 1
                self.refusals += 1
                self.aimd.overload(in_flight=in_flight, admitted_at=sent_at, now=now)
        return used / possible


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("service_s", [1.0, 2.0, 4.0])
def test_a_hidden_cap_that_changes_is_used_to_85_percent_with_3_percent_refused(seed, service_s):
    provider = HiddenCap(seed, service_s)
    assert provider.run(until=600) >= 0.85
    assert provider.refusals <= 0.03 * provider.attempts
