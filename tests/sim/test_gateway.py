"""What a gateway answers, tells in headers, and leaves to chance."""

import math
import random

import pytest

from hivemind_addon.api.ticket import Demand, Dimension, Reading
from hivemind_addon.lab.sim.gateway import (
    BAD_GATEWAY,
    OVERLOADED,
    RATE_LIMITED,
    Chance,
    Gateway,
    Header,
    RetryAfter,
    Rule,
    capped,
    several,
    telling,
)
from hivemind_addon.lab.sim.limiters import Bucket, Cap, Window
from tests.cases import over

ONE = Demand(input_tokens=500)


@over(
    ("says", "word"),
    [
        (RetryAfter.EXACT, 2.5),
        (RetryAfter.ROUNDED_UP, 3),
        (RetryAfter.ROUNDED_DOWN, 2),
        (RetryAfter.MISSING, None),
        (RetryAfter.SHORT, 0.75),
        (RetryAfter.LONG, 25),
        (RetryAfter.ALWAYS_60, 60),
    ],
)
def test_what_a_refusal_says_of_when_to_come_back(says, word):
    assert says.of(2.5) == word
    assert says.of(math.inf) == (60 if says is RetryAfter.ALWAYS_60 else None)


def test_the_first_limiter_that_does_not_fit_refuses():
    gateway = Gateway([Rule(Cap(1), OVERLOADED), Rule(Window(1, 10), retry_after=RetryAfter.ROUNDED_UP)])
    assert gateway.refusal(0, ONE) is None
    gateway.take(0, ONE)
    assert gateway.refusal(0, ONE) == OVERLOADED
    assert gateway.wait_s(0, ONE) == math.inf
    gateway.end(3.5)
    refusal = gateway.refusal(3.5, ONE)
    assert (refusal.reason, refusal.retry_after_s) == (RATE_LIMITED.reason, 7)
    assert gateway.wait_s(3.5, ONE) == 6.5


def test_limits_count_requests_or_tokens():
    gateway = Gateway([Rule(Bucket(600, 60, counts=Dimension.INPUT_TOKENS))])
    gateway.take(0, ONE)
    assert gateway.wait_s(0, ONE) == 40


def test_headers_tell_of_the_limiter_that_they_are_told_of():
    enforced, stated = Window(10, 10), Window(60, 60)
    gateway = Gateway([Rule(enforced)], headers=[Header(stated), Header(enforced, window_s=60, on_refusals=False)])
    gateway.take(0, ONE)
    first = Reading("meter-0", Dimension.REQUESTS, window_s=60, limit=60, remaining=59, reset_in_s=58)
    second = Reading("meter-1", Dimension.REQUESTS, window_s=60, limit=10, remaining=9, reset_in_s=8)
    assert gateway.readings(2, refused=False) == (first, second)
    assert gateway.readings(2, refused=True) == (first,)


def test_stale_headers_tell_what_was_true():
    window = Window(10, 60)
    gateway = Gateway([Rule(window)], headers=[Header(window, age_s=3)])
    told = []
    for at in (0, 2, 4):
        gateway.take(at, ONE)
        (reading,) = gateway.readings(at, refused=False)
        told.append((reading.remaining, reading.reset_in_s))
    assert told == [(9, 60), (9, 58), (9, 56)]
    assert gateway.readings(6, refused=False)[0].remaining == 8


def test_chance_strikes_its_share():
    gateway = Gateway(chances=[Chance(0.1, OVERLOADED), Chance(0.2, BAD_GATEWAY, late=True)])
    rng = random.Random(1)
    struck = [gateway.strike(rng) for _ in range(10_000)]
    assert struck.count(gateway.chances[0]) == pytest.approx(1_000, rel=0.1)
    assert struck.count(gateway.chances[1]) == pytest.approx(2_000, rel=0.1)
    assert struck.count(None) == pytest.approx(7_000, rel=0.05)


def test_headers_that_lie_of_a_window_have_its_phase():
    def window(limit):
        return lambda rng: Window(limit, 60, begins_at=-rng.uniform(0, 60))

    gateway = telling(window(60), says=window(90))(random.Random(7))
    gateway.take(0, ONE)
    (reading,) = gateway.readings(0, refused=False)
    assert (reading.limit, reading.remaining) == (90, 89)
    for _ in range(59):
        gateway.take(0, ONE)
    assert gateway.refusal(0, ONE).retry_after_s == math.ceil(reading.reset_in_s)


def test_of_several_limits_the_first_may_be_told():
    gateway = several(lambda _: Rule(Window(9, 60)), lambda _: Rule(Cap(2)), told=1)(random.Random(0))
    assert [reading.limit for reading in gateway.readings(0, refused=False)] == [9]
    assert gateway.cap.slots == 2


def test_a_limit_moves_at_its_instants():
    (at, limiter, limit), *more = capped(4, moves=[(60, 12), (90, 2)])(random.Random(0)).changes
    assert (at, limiter.slots, limit, len(more)) == (60, 4, 12, 1)
