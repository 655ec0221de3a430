"""Each level against limiters worked out by hand, and the stump that finds the amount."""

import pytest

from hivemind_addon.kernel.inference.limiter_models import (
    AttemptHistory,
    BucketLevel,
    ConcurrencyLevel,
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


def counted(attempt: Sent) -> bool:
    return not attempt.refused


def history(*attempts: Sent, first: int = 0) -> AttemptHistory:
    return AttemptHistory(attempts, counted, first)


@pytest.mark.parametrize(
    ("level", "instants", "found"),
    [
        (SlidingLevel(0, 10), (0, 1, 9, 10, 12), (1, 2, 3, 3, 3)),
        (WindowLevel(0, 10, (7, 17)), (0, 6.9, 7, 16.9, 17, 26.9, 27), (1, 2, 1, 2, 1, 2, 1)),
        (WindowLevel(0, 10, (10.05,)), (0, 3, 10.02, 10.06), (1, 2, 3, 1)),
        (WindowLevel(0, 10, (7, 12)), (5, 8, 11, 12.5), (1, 1, 2, 1)),
        (BucketLevel(0, 0.5), (0, 0, 2, 10), (1, 2, 2, 1)),
    ],
)
def test_each_attempt_finds_what_the_earlier_attempts_left(level, instants, found):
    assert level.found(history(*map(sent, instants))) == pytest.approx(found)
    assert level.found(history(*map(sent, instants), first=2)) == pytest.approx(found[2:])


@pytest.mark.parametrize(
    ("level", "instants", "amount", "now", "opens_at"),
    [
        (SlidingLevel(0, 10), (0, 1, 9, 10, 12), 3, 12, 19),
        (SlidingLevel(0, 10), (0, 1, 9, 10, 12), 4, 12, 12),
        (WindowLevel(0, 10, (7,)), (8, 9), 2, 12, 17),
        (WindowLevel(0, 10, (7,)), (8, 9), 2, 17, 17),
        (BucketLevel(0, 0.5), (0, 0, 2, 10), 1, 10, 12),
        (BucketLevel(0, 0.5), (0, 0, 2, 10), 2, 10, 10),
    ],
)
def test_a_level_opens_when_the_amount_has_room_again(level, instants, amount, now, opens_at):
    assert level.opens_at(history(*map(sent, instants)), 1, amount, 0, now) == pytest.approx(opens_at)


@pytest.mark.parametrize("level", [SlidingLevel(0, 10), WindowLevel(0, 10, (20,)), BucketLevel(0, 0.1)])
def test_a_level_opens_to_the_attempt_that_goes_at_that_instant(level):
    """The sum of an instant and a window is rounded: the attempt still finds the room that it was sent for."""
    log = history(*(sent(13.1 + number / 7) for number in range(3)))
    for _ in range(40):
        at = level.opens_at(log, 1, 3, 0, log.sent_at[-1])
        log.add(sent(at))
        assert level.found(log)[-1] <= 3 + 1e-6


def test_turns_are_known_where_many_attempts_pass_at_once():
    assert SlidingLevel(0, 10).turns_at(history(sent(0), sent(9)), 12) == 19
    assert SlidingLevel(0, 10).turns_at(history(sent(0)), 12) is None
    assert WindowLevel(0, 10, (7,)).turns_at(history(sent(0)), 12) == 17


def test_what_was_refused_does_not_count():
    refused = sent(1)
    refused.refused = True
    log = history(sent(0), refused, sent(2))
    assert [level.found(log) for level in (SlidingLevel(0, 10), BucketLevel(0, 0.001))] == [
        [1, 2, 2],
        pytest.approx([1, 2, 2], abs=0.01),
    ]


def test_a_bucket_of_a_known_amount_is_set_right_by_each_verdict():
    refused, told, passed = sent(0), sent(10), sent(20)
    refused.refused, told.refused, passed.refused = True, True, False
    told.told_at = 14
    level = BucketLevel(0, 0.25, 8)
    assert level.found(history(refused)) == [1], "it was thought to be empty"
    assert level.opens_at(history(refused), 1, 8, 0, 0) == 2, "it lacks half an attempt"
    assert level.opens_at(history(refused, told), 1, 8, 0, 10) == 14
    busy = history(refused, told, *(sent(20) for _ in range(4)))
    assert level.opens_at(busy, 1, 8, 0, 20) > 20
    busy.add(passed)
    assert level.opens_at(busy, 0, 8, 0, 20) == 20, "it took one more: it is full, and no more than that"


def test_tokens_are_counted_where_they_are_the_measure():
    assert SlidingLevel(1, 10).found(history(sent(0, 700))) == [700]
    assert BucketLevel(2, 100).found(history(sent(0, 700))) == [700]


def test_more_than_the_whole_amount_goes_when_nothing_else_is_there():
    for level in (SlidingLevel(1, 10), BucketLevel(1, 10), WindowLevel(1, 10, (7,))):
        assert level.opens_at(history(), 500, 100, 0, 3) == 3


def test_slots_may_linger():
    level = ConcurrencyLevel(2)
    log = history(sent(0, in_flight=1, ended_at=5), sent(6, in_flight=1))
    assert level.found(log) == [1, 2], "the first one's slot is taken until 7"
    assert level.opens_at(log, 1, 2, 1, 6.5) == 7
    assert level.opens_at(log, 1, 2, 1, 7.5) == 7.5
    assert level.opens_at(log, 1, 2, 2, 7.5) == NEVER


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
