import random

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.retry import (
    Backoff,
    GiveUp,
    History,
    RetryPolicy,
    decide,
    last_moment,
    sane_retry_after_s,
)
from hivemind_addon.kernel.values.ticket import Outcome, Reason
from tests.kernel.samples import CUT, FAILED, IGNORED, OVERLOADED, THROTTLED, after, ticket

POLICY = RetryPolicy()


def judge(outcome: Outcome = FAILED, history: History | None = None, now: float = 100, **more: object):
    known = history or History().started().ended(outcome, provider_down=bool(more.get("provider_down")))
    wanted = {"shed_at": 500.0, "provider_down": False} | more
    return decide(POLICY, known, outcome, now, random.Random(5), **wanted)


def repeated(outcome: Outcome, times: int, *, provider_down: bool = False) -> History:
    history = History()
    for _ in range(times):
        history = history.started().ended(outcome, provider_down=provider_down)
    return history


def test_what_ends_it_at_once():
    assert judge(client_saw_bytes=True) == GiveUp(Reason.DELIVERED_BYTES)
    assert judge(IGNORED) == GiveUp(Reason.NOT_RETRYABLE)
    assert judge(stopping=True) == GiveUp(Reason.STOPPING)


def test_four_ambiguous_resends_ten_failed_attempts_and_no_more():
    for outcome, most, why in ((CUT, 4, Reason.SPENT_AMBIGUOUS), (FAILED, 9, Reason.SPENT_ATTEMPTS)):
        assert isinstance(judge(outcome, repeated(outcome, most)), Backoff)
        assert judge(outcome, repeated(outcome, most + 1)) == GiveUp(why)


@pytest.mark.parametrize("outcome", [THROTTLED, OVERLOADED])
def test_limits_and_overload_end_only_with_the_deadline(outcome):
    assert isinstance(judge(outcome, repeated(outcome, 2000)), Backoff)
    assert judge(outcome, repeated(outcome, 2000), now=500) == GiveUp(Reason.DEADLINE)


def test_a_provider_that_is_down_does_not_spend_the_ticket():
    history = repeated(FAILED, 50, provider_down=True)
    assert isinstance(judge(FAILED, history, provider_down=True), Backoff)


def test_billing_doubts_are_counted_even_while_the_provider_is_down():
    history = repeated(CUT, 5, provider_down=True)
    assert judge(CUT, history, provider_down=True) == GiveUp(Reason.SPENT_AMBIGUOUS)


def test_the_backoff_doubles_with_jitter_up_to_its_maximum():
    for failures, nominal_s in [(1, 0.5), (2, 1), (5, 8), (9, 30)]:
        verdict = judge(FAILED, repeated(FAILED, failures))
        assert 100 + nominal_s / 2 <= verdict.until <= 100 + nominal_s


def test_retry_after_is_the_floor():
    assert judge(after(FAILED, 12)).until == 112


@pytest.mark.parametrize("outcome", [THROTTLED, OVERLOADED])
def test_a_retry_after_that_is_not_believed_is_no_floor(outcome):
    assert judge(after(outcome, 60), believes_told=False).until <= 100.5


@pytest.mark.parametrize("absurd", [float("nan"), float("inf"), -1.0, None])
def test_an_impossible_retry_after_is_none(absurd):
    assert sane_retry_after_s(absurd) == 0
    assert judge(replace(FAILED, retry_after_s=absurd)).until <= 100.5


def test_a_rate_limits_own_step_is_short_and_doubles_with_each_in_a_row():
    waits_s = [judge(THROTTLED, repeated(THROTTLED, times)).until - 100 for times in (1, 2, 3, 20)]
    for wait_s, step_s in zip(waits_s, (0.2, 0.4, 0.8, 30.0), strict=True):
        assert step_s / 2 <= wait_s <= step_s


def test_another_end_between_two_refusals_begins_their_row_anew():
    history = repeated(THROTTLED, 3).started().ended(FAILED, provider_down=False)
    again = history.started().ended(THROTTLED, provider_down=False)
    assert judge(THROTTLED, again).until == judge(THROTTLED, repeated(THROTTLED, 1)).until


def test_while_the_provider_is_down_the_probe_paces():
    assert judge(FAILED, provider_down=True).until == 100


@pytest.mark.parametrize("outcome", [FAILED, OVERLOADED, THROTTLED, CUT])
@pytest.mark.parametrize("provider_down", [False, True])
def test_every_backoff_ends(outcome, provider_down):
    for times in (1, 3, 9):
        verdict = judge(outcome, repeated(outcome, times, provider_down=provider_down), provider_down=provider_down)
        assert isinstance(verdict, GiveUp) or verdict.until <= 130


def test_a_step_takes_at_most_half_of_the_time_that_is_left():
    assert judge(FAILED, repeated(FAILED, 9), shed_at=101.0).until <= 100.5
    assert judge(after(FAILED, 30), shed_at=101.0).until == 130


def test_a_backoff_may_end_after_the_ticket_is_shed():
    assert judge(after(FAILED, 1000)).until == 1100


def test_the_history_counts_resends_after_ambiguous_ends_only():
    history = repeated(CUT, 2)
    assert (history.attempts, history.ambiguous, history.ambiguous_resends) == (2, 2, 1)
    assert history.started().ambiguous_resends == 2
    assert repeated(FAILED, 3).ambiguous_resends == 0


@pytest.mark.parametrize(("service_s", "left_s"), [(0.0, 1.0), (0.2, 1.6), (1.0, 4.0), (60.0, 5.0)])
def test_a_provider_that_answers_fast_leaves_a_held_ticket_more_time(service_s, left_s):
    held = ticket(at=100, patience_s=115)  # its client waits five seconds longer
    assert held.deadline_at - last_moment(held, service_s) == pytest.approx(left_s)


def test_a_lone_agent_outlives_an_outage_that_may_as_well_be_its_requests_fault():
    policy = RetryPolicy(max_failures=10)

    def after_failures(times: int, *, alone: bool) -> object:
        history = History()
        for _ in range(times):
            history = history.started().ended(FAILED, provider_down=False, nobody_answered=alone)
        return decide(policy, history, FAILED, 0.0, random.Random(0), shed_at=600.0, provider_down=False)

    assert isinstance(after_failures(19, alone=True), Backoff)
    assert after_failures(19, alone=False) == GiveUp(Reason.SPENT_ATTEMPTS)
    assert after_failures(39, alone=True) == GiveUp(Reason.SPENT_ATTEMPTS), "a request that can never succeed ends"
