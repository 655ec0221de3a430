"""Each level against limiters worked out by hand, and the stump that finds the amount."""

import pytest

from hivemind_addon.kernel.inference.limiter_models import (
    BucketLevel,
    ConcurrencyLevel,
    CounterLevel,
    Fit,
    Sent,
    SlidingLevel,
    WindowLevel,
    fit,
    fit_chance,
)

NEVER = float("inf")


def sent(at: float, units: float = 1.0, *, in_flight: int = 1, ended_at: float = NEVER) -> Sent:
    return Sent(stamp=0, sent_at=at, units=(1.0, units, units), in_flight=in_flight, ended_at=ended_at)


def test_a_span_counts_what_was_sent_within_it():
    level = SlidingLevel(0, 10)
    assert [level.add(sent(at)) for at in (0, 1, 9, 10, 12)] == [1, 2, 3, 3, 3]
    assert level.opens_at(1, 3, 0, 12) == 19
    assert level.opens_at(1, 4, 0, 12) == 12
    assert level.turns_at(12) == 19


def test_what_was_refused_does_not_count():
    level = SlidingLevel(0, 10)
    level.add(sent(0))
    refused = sent(1)
    level.add(refused)
    level.take_back(refused)
    assert level.add(sent(2)) == 2


def test_a_window_begins_with_the_first_after_its_end():
    level = WindowLevel(0, 10, (), is_tiled=False)
    assert [level.add(sent(at)) for at in (3, 5, 12.9, 13, 20)] == [1, 2, 3, 1, 2]
    assert level.opens_at(1, 2, 0, 20) == 23
    assert level.turns_at(20) == 23


def test_a_window_whose_ends_were_told_follows_them():
    level = WindowLevel(0, 10, (7, 17), is_tiled=True)
    assert [level.add(sent(at)) for at in (0, 6.9, 7, 16.9, 17, 26.9, 27)] == [1, 2, 1, 2, 1, 2, 1]


def test_a_counter_weighs_the_last_window_by_what_is_left_of_it():
    level = CounterLevel(0, 10, 3)
    assert [level.add(sent(at)) for at in (-6, 0, 4, 8, 8)] == [1, 2, pytest.approx(2 * 0.9 + 1), 3, 4]
    assert level.opens_at(1, 5, 0, 8) == 8
    assert level.opens_at(1, 4, 0, 8) == 13, "half of the two before count, and all three since"
    assert level.opens_at(1, 3, 0, 8) == pytest.approx(13 + 10 / 3), "in the next window, when two thirds count"
    assert level.add(sent(33)) == 1, "a whole window later nothing is left"


def test_a_counter_takes_back_from_the_window_that_it_was_in():
    level = CounterLevel(0, 10, 0)
    last, this = sent(5), sent(15)
    assert level.replay([sent(4), last, this], [True, True, True]) == [1, 2, 2]
    level.take_back(last)
    assert level.add(sent(15)) == 2.5
    level.take_back(this)
    assert level.add(sent(15)) == 2.5


def test_a_bucket_drains():
    level = BucketLevel(0, 0.5)
    assert [level.add(sent(at)) for at in (0, 0, 2, 10)] == [1, 2, 2, 1]
    assert level.opens_at(1, 1, 0, 10) == 12
    assert level.opens_at(1, 2, 0, 10) == 10


def test_a_bucket_of_a_known_amount_is_set_right_by_each_verdict():
    refused, told, passed = sent(0), sent(10), sent(20)
    refused.refused, told.refused, passed.refused = True, True, False
    told.told_at = 14
    level = BucketLevel(0, 0.25, 8)
    assert level.replay([refused], [False]) == [1], "it was thought to be empty"
    assert level.opens_at(1, 8, 0, 0) == 2, "it lacks half an attempt"
    level.replay([told], [False])
    assert level.opens_at(1, 8, 0, 10) == 14
    level.replay([sent(20) for _ in range(4)], [True] * 4)
    assert level.opens_at(1, 8, 0, 20) > 20
    level.replay([passed], [True])
    assert level.opens_at(0, 8, 0, 20) == 20, "it took one more: it is full, and no more than that"


def test_what_was_taken_is_set_right_while_it_counts():
    level = SlidingLevel(1, 10)
    one = sent(0, 100)
    level.add(one)
    level.correct(one, 700)
    one.units = (1.0, 700, 700)
    assert level.add(sent(9, 1)) == 701
    assert level.add(sent(10, 1)) == 2
    for another in (BucketLevel(1, 0.5), WindowLevel(1, 10, (), is_tiled=False)):
        another.add(sent(0, 100))
        another.correct(sent(0, 100), 700)
        assert another.add(sent(0, 1)) == 701


def test_tokens_are_counted_where_they_are_the_measure():
    assert SlidingLevel(1, 10).add(sent(0, 700)) == 700
    assert BucketLevel(2, 100).add(sent(0, 700)) == 700


def test_more_than_the_whole_amount_goes_when_nothing_else_is_there():
    assert SlidingLevel(1, 10).opens_at(500, 100, 0, 3) == 3
    assert BucketLevel(1, 10).opens_at(500, 100, 0, 3) == 3


def test_slots_may_linger():
    level = ConcurrencyLevel(2)
    assert level.add(sent(0, in_flight=1, ended_at=5)) == 1
    assert level.add(sent(6, in_flight=1)) == 2, "the first one's slot is taken until 7"
    assert level.opens_at(1, 2, 1, 6.5) == 7
    assert level.opens_at(1, 2, 1, 7.5) == 7.5
    assert level.opens_at(1, 2, 2, 7.5) == NEVER


def fitted(levels: list[tuple[float, bool]]) -> Fit:
    """The fit of these levels; True: refused."""
    return fit([level for level, _ in levels], [level for level, is_refused in levels if is_refused], step=1)


@pytest.mark.parametrize("amount", [3, 8, 20])
def test_the_amount_is_found_among_chance(amount):
    levels = [(float(level), level > amount or (level + run) % 13 == 0) for run in range(12) for level in range(1, 30)]
    found = fitted(levels)
    assert amount <= found.amount < amount + 1
    assert found.chance < 0.15
    assert found.score > fit_chance(sum(refused for _, refused in levels), len(levels)).score + 20


def test_chance_is_no_amount():
    levels = [(float(number % 17), number % 7 == 3) for number in range(170)]
    assert fitted(levels).amount == NEVER


def test_nothing_was_refused():
    assert fitted([(1.0, False), (2.0, False)]).amount == NEVER
    assert fitted([]).amount == NEVER
