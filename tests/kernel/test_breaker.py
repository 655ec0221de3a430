import random

import pytest

from hivemind_addon.kernel.limits.breaker import Breaker, BreakerSettings
from hivemind_addon.kernel.values.snapshot import BreakerState
from hivemind_addon.kernel.values.ticket import OutcomeKind

ALIVE = [OutcomeKind.SUCCESS, OutcomeKind.THROTTLED, OutcomeKind.IGNORED]
DEAD = [OutcomeKind.FAILED, OutcomeKind.OVERLOADED]


def make() -> Breaker:
    return Breaker(BreakerSettings(), rng=random.Random(1))


def end(
    breaker: Breaker, kind: OutcomeKind, *, session: str = "a", admitted_at: float = 0, now: float = 0, **more: object
) -> bool:
    return breaker.attempt_ended(kind, session=session, probe=False, admitted_at=admitted_at, now=now, **more)


def end_probe(breaker: Breaker, kind: OutcomeKind, now: float) -> None:
    assert breaker.attempt_ended(kind, session="a", probe=True, admitted_at=now, now=now)


def opened() -> Breaker:
    breaker = make()
    for n in range(6):
        end(breaker, OutcomeKind.FAILED, session="ab"[n % 2])
    assert breaker.state is BreakerState.OPEN
    return breaker


@pytest.mark.parametrize("kind", DEAD)
def test_hard_failures_of_two_sessions_open_it(kind):
    breaker = make()
    assert [end(breaker, kind, session=s) for s in "aaaabbb"] == [False] * 6 + [True]


def test_one_session_never_opens_it():
    breaker = make()
    for _ in range(100):
        end(breaker, OutcomeKind.FAILED)
    assert breaker.state is BreakerState.CLOSED


def test_calls_that_hang_while_later_ones_are_answered_tell_of_no_outage():
    """They fail when their watchdog ends them, perhaps all at once; that is long ago."""
    breaker = make()
    end(breaker, OutcomeKind.SUCCESS, admitted_at=60, now=70)
    assert not any(end(breaker, OutcomeKind.FAILED, session=f"s{n}", admitted_at=n, now=120 + n) for n in range(40))
    assert any(end(breaker, OutcomeKind.FAILED, session=f"s{n}", admitted_at=200, now=201) for n in range(20))


def test_no_session_counts_for_more_than_half_of_what_is_enough():
    breaker = make()
    assert not any(end(breaker, OutcomeKind.FAILED, session=session) for session in "aaaaaaaaaaab")


def test_a_poisoned_session_among_faults_of_others_does_not_open_it():
    breaker = make()
    for n in range(400):
        assert not end(breaker, OutcomeKind.FAILED, session="poisoned")
        others = OutcomeKind.FAILED if n % 7 == 0 else OutcomeKind.SUCCESS
        assert not end(breaker, others, session=f"s{n % 9}")


@pytest.mark.parametrize("answered", [2, 4])
def test_a_lossy_provider_does_not_open_it_as_long_as_some_are_answered(answered):
    breaker = make()
    for n in range(200):
        kind = OutcomeKind.FAILED if n % answered else OutcomeKind.SUCCESS
        assert not end(breaker, kind, session="abc"[n % 3])


def test_those_that_live_on_speak_against_an_outage():
    breaker = make()
    for n in range(40):
        pending = [0.0] * 12
        dead = {"session": "abc"[n % 3], "admitted_at": n, "now": n + 0.1, "pending": [0.5, *pending]}
        assert not end(breaker, OutcomeKind.FAILED, **dead), "a call has been running since before the second failure"


def test_overload_while_others_are_worked_on_is_no_outage():
    """A provider that refuses one more, and goes on with those that it has."""
    breaker = make()
    for n in range(100):
        end(breaker, OutcomeKind.OVERLOADED, session=f"s{n}", admitted_at=n, now=n + 0.02, pending=[-30.0, n])
    assert breaker.state is BreakerState.CLOSED
    for n in range(100, 107):
        end(breaker, OutcomeKind.OVERLOADED, session=f"s{n}", admitted_at=n, now=n + 0.02, pending=[n])
    assert breaker.state is BreakerState.OPEN


def test_whose_failures_are_in_the_row():
    breaker = make()
    assert not breaker.is_one_sessions
    end(breaker, OutcomeKind.FAILED, session="a")
    assert not breaker.is_one_sessions, "one failure may be anybody's"
    end(breaker, OutcomeKind.FAILED, session="a")
    assert breaker.is_one_sessions
    end(breaker, OutcomeKind.FAILED, session="b")
    assert not breaker.is_one_sessions


def test_what_was_sent_with_the_failures_is_waited_for():
    breaker = make()
    for left in range(20, -1, -1):
        opened = end(breaker, OutcomeKind.FAILED, session=f"s{left}", now=0.02, pending=[0.0] * left)
        assert not opened or left < 10
    assert breaker.state is BreakerState.OPEN


def test_no_network_opens_it_for_the_only_session():
    breaker = make()
    assert [end(breaker, OutcomeKind.FAILED, unreached=True) for _ in range(6)] == [False] * 5 + [True]


def test_a_lost_connection_now_and_then_does_not():
    breaker = make()
    for n in range(100):
        assert not end(breaker, OutcomeKind.FAILED, unreached=n % 3 != 0)
        end(breaker, OutcomeKind.SUCCESS, session="b")


@pytest.mark.parametrize("kind", [*ALIVE, OutcomeKind.CANCELLED])
def test_any_answer_of_a_living_provider_ends_the_row_and_a_cancelled_attempt_does_not(kind):
    breaker = make()
    for session in "ababa":
        end(breaker, OutcomeKind.FAILED, session=session)
    end(breaker, kind)
    assert end(breaker, OutcomeKind.FAILED, session="b") is (kind not in ALIVE)


def test_the_first_probe_goes_after_a_second_more_or_less():
    assert 0.75 <= opened().passes_at <= 1.25


def test_a_closed_one_always_passes_and_a_probe_shuts_the_door():
    breaker = make()
    assert breaker.passes_at == float("-inf")
    breaker = opened()
    breaker.probe_started("a", 1)
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.passes_at == 2


def test_a_probe_that_lives_for_long_closes_it():
    breaker = opened()
    breaker.probe_started("a", 1)
    assert not breaker.look_at_probe(1.9)
    assert breaker.look_at_probe(2)
    assert breaker.state is BreakerState.CLOSED


def test_where_failures_take_long_a_probe_is_waited_for_as_long():
    breaker = make()
    for n in range(6):
        end(breaker, OutcomeKind.FAILED, session="ab"[n % 2], now=30)
    breaker.probe_started("a", 40)
    assert breaker.passes_at > 40 + 2 * 30


def test_the_interval_doubles_with_each_failed_probe_up_to_its_maximum():
    breaker = opened()
    waits = []
    for now in range(100, 700, 100):
        breaker.probe_started("a", now)
        end_probe(breaker, OutcomeKind.OVERLOADED, now)
        waits.append(breaker.passes_at - now)
    for wait_s, nominal_s in zip(waits, [2, 4, 8, 15, 15, 15], strict=True):
        assert 0.75 * nominal_s <= wait_s <= 1.25 * nominal_s


@pytest.mark.parametrize("kind", ALIVE)
def test_a_probe_that_is_answered_closes_it(kind):
    breaker = opened()
    breaker.probe_started("a", 1)
    end_probe(breaker, kind, 2)
    assert breaker.state is BreakerState.CLOSED


def test_a_cancelled_probe_is_followed_by_another_at_once():
    breaker = opened()
    breaker.probe_started("a", 1)
    end_probe(breaker, OutcomeKind.CANCELLED, 2)
    assert breaker.state is BreakerState.OPEN
    assert breaker.passes_at == 2


def test_while_it_is_open_failures_teach_nothing_and_an_answer_closes_it():
    breaker = opened()
    assert not end(breaker, OutcomeKind.FAILED, now=5)
    assert end(breaker, OutcomeKind.SUCCESS, now=6)
    assert breaker.state is BreakerState.CLOSED


def test_an_answer_to_what_was_sent_before_the_failures_began_proves_nothing():
    breaker = make()
    for n in range(6):
        end(breaker, OutcomeKind.FAILED, session="ab"[n % 2], admitted_at=10, now=10)
    assert not end(breaker, OutcomeKind.SUCCESS, admitted_at=9, now=11)
    assert breaker.state is BreakerState.OPEN


def test_it_opens_again_with_the_first_interval():
    breaker = opened()
    breaker.probe_started("a", 1)
    end_probe(breaker, OutcomeKind.FAILED, 2)
    breaker.probe_started("a", 5)
    end_probe(breaker, OutcomeKind.SUCCESS, 5)
    for session in "ababab":
        end(breaker, OutcomeKind.FAILED, session=session, admitted_at=6, now=7)
    assert 7.75 <= breaker.passes_at <= 8.25


def test_other_settings_bring_the_next_probe_nearer_and_never_farther():
    breaker = opened()
    while breaker.passes_at < 30:
        now = breaker.passes_at
        breaker.probe_started("a", now)
        end_probe(breaker, OutcomeKind.FAILED, now)
    due_at = breaker.passes_at
    breaker.configure(BreakerSettings(first_probe_s=60.0, max_probe_s=120.0), now=now)
    assert breaker.passes_at == due_at
    breaker.configure(BreakerSettings(max_probe_s=0.5), now=now)
    assert now < breaker.passes_at <= now + 0.5 * 1.25
    assert breaker.state is BreakerState.OPEN


def test_a_closed_one_opens_by_its_new_settings():
    breaker = make()
    breaker.configure(BreakerSettings(failures_to_open=2), now=0)
    assert [end(breaker, OutcomeKind.FAILED, session=session) for session in "ab"] == [False, True]
