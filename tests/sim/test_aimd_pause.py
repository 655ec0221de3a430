"""The field's way: what it halves, how long it pauses, when it gives up."""

import random

import pytest

from hivemind_addon.api.ticket import AttemptResult, Demand, Outcome, OutcomeKind, PoolKey, Ticket
from hivemind_addon.lab.sim.aimd_pause import AimdPause
from hivemind_addon.proxy.core.pool import PoolSettings
from hivemind_addon.proxy.core.retry import Backoff, Finished, GiveUp

POOL = PoolKey("api.sim", "key", "sim-1")
OK = Outcome(OutcomeKind.SUCCESS, "status 200", status=200)
BUSY = Outcome(OutcomeKind.OVERLOADED, "status 529", status=529, retryable=True)


def throttled(after_s):
    return Outcome(OutcomeKind.THROTTLED, "status 429", status=429, retryable=True, retry_after_s=after_s)


def ticket(name, pool=POOL):
    return Ticket(
        id=name,
        pool=pool,
        agent="a",
        session="a",
        model="sim-1",
        demand=Demand(),
        arrived_at=0,
        deadline_at=600,
        shed_at=590,
    )


@pytest.fixture
def field():
    return AimdPause(rng=random.Random(0))


def submit(field, *names, now=0.0):
    for name in names:
        field.submit(ticket(name), PoolSettings(), now)


def sent(field, now):
    return [admitted.attempt for admitted in field.poll(now)]


def test_five_go_at_once_and_the_next_when_one_is_over(field):
    submit(field, *"abcdefg")
    reservations = sent(field, 0)
    assert [attempt.ticket.id for attempt in reservations] == list("abcde")
    assert isinstance(field.settle(reservations[0], AttemptResult(OK), 1.0), Finished)
    assert [attempt.ticket.id for attempt in sent(field, 1.0)] == ["f"]


def test_a_refusal_halves_what_may_go_once_a_round(field):
    submit(field, *"abcdefghij")
    for attempt in sent(field, 0):
        assert isinstance(field.settle(attempt, AttemptResult(BUSY), 1.0), Backoff)
    assert len(sent(field, 1.5)) == 2


def test_nobody_goes_while_a_pause_lasts(field):
    submit(field, "a", "b")
    first, second = sent(field, 0)
    field.settle(first, AttemptResult(throttled(20.0)), 1.0)
    field.settle(second, AttemptResult(OK), 1.0)
    submit(field, "c", now=1.0)
    assert sent(field, 20.9) == []
    assert field.next_wakeup() == 21.0
    assert [attempt.ticket.id for attempt in sent(field, 21.0)] == ["c", "a"]


def test_the_fourth_failure_is_the_last(field):
    submit(field, "a")
    now, verdicts = 0.0, []
    for _ in range(4):
        (attempt,) = sent(field, now)
        verdicts.append(field.settle(attempt, AttemptResult(BUSY), now))
        now += 20
    assert [type(verdict) for verdict in verdicts] == [Backoff, Backoff, Backoff, GiveUp]
    assert field.is_idle


def test_what_waiting_cannot_cure_is_given_up_at_once(field):
    submit(field, "a")
    (attempt,) = sent(field, 0)
    wrong = Outcome(OutcomeKind.IGNORED, "status 400", status=400)
    assert isinstance(field.settle(attempt, AttemptResult(wrong), 0.1), GiveUp)


def test_a_client_that_goes_leaves_nothing_behind_while_it_waits_or_backs_off(field):
    submit(field, *"abcdef")
    reservations = sent(field, 0)
    assert field.cancel("f", 1.0)
    field.settle(reservations[0], AttemptResult(BUSY), 1.0)
    assert field.cancel("a", 1.5)
    assert not field.cancel("b", 1.5), "it is in flight"
    for attempt in reservations[1:]:
        field.settle(attempt, AttemptResult(OK), 2.0)
    assert sent(field, 30.0) == []
    assert field.is_idle
    assert field.next_wakeup() is None
    ends = {event.ticket_id: event.end for event in field.drain_events() if hasattr(event, "end")}
    assert ends == {"a": "cancelled", "f": "cancelled"} | dict.fromkeys("bcde", "delivered")


def test_pools_do_not_wait_for_each_other(field):
    submit(field, *"abcde")
    field.submit(ticket("x", PoolKey("other", "key", "sim-1")), PoolSettings(), 0)
    assert len(sent(field, 0)) == 6
