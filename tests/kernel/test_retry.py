import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hivemind_addon.kernel import retry
from hivemind_addon.kernel.limits.owner import Owner, owner_of
from hivemind_addon.kernel.retry import History, RetryPolicy, last_moment, sane_retry_after_s
from hivemind_addon.kernel.values.decision import Backoff, Finished, GiveUp
from hivemind_addon.kernel.values.events import TicketEnded
from hivemind_addon.kernel.values.ticket import AttemptResult, Outcome, OutcomeKind, Reason
from tests.kernel.samples import (
    CANCELLED,
    CUT,
    FAILED,
    IGNORED,
    OVERLOADED,
    SUCCESS,
    THROTTLED,
    Bench,
    after,
    ticket,
)

EDGE = replace(OVERLOADED, status=403, of_edge=True)
ENDLESS = replace(CUT, lacks_end=True)
SPENT = replace(IGNORED, status=429, account_block_s=300.0)
RESULTS = st.builds(
    AttemptResult,
    st.builds(
        Outcome,
        kind=st.sampled_from(list(OutcomeKind)),
        reason=st.just("made up"),
        status=st.sampled_from([None, 429, 500]),
        retryable=st.booleans(),
        ambiguous=st.booleans(),
        retry_after_s=st.sampled_from([None, 3.0]),
        of_edge=st.booleans(),
        lacks_end=st.booleans(),
    ),
    client_saw_bytes=st.booleans(),
    may_repeat=st.booleans(),
)


def judge(outcome: Outcome = FAILED, times: int = 1, now: float = 100, history: History | None = None, **more: object):
    """The verdict at the end number `times` of this kind."""
    result = AttemptResult(
        outcome, **{name: more.pop(name) for name in ("client_saw_bytes", "may_repeat") & more.keys()}
    )
    known = history or repeated(outcome, times - 1, provider_down=bool(more.get("provider_down")))
    wanted = {"shed_at": 500.0, "provider_down": False, "owner": owner_of(outcome, 400.0)} | more
    return retry.judge(RetryPolicy(), known.started(), result, now, random.Random(5), **wanted)[1]


def repeated(outcome: Outcome, times: int, *, provider_down: bool = False) -> History:
    history = History()
    for _ in range(times):
        history = history.started().ended(outcome, owner_of(outcome, 400.0), provider_down=provider_down)
    return history


@pytest.mark.parametrize(
    ("outcome", "more", "why"),
    [
        (FAILED, {"client_saw_bytes": True}, Reason.DELIVERED_BYTES),
        (IGNORED, {}, Reason.NOT_RETRYABLE),
        (IGNORED, {"may_repeat": False}, Reason.NOT_RETRYABLE),
        (THROTTLED, {"owner": Owner.REQUEST}, Reason.NOT_RETRYABLE),
        (CUT, {"may_repeat": False}, Reason.ANEW),
        (FAILED, {"stopping": True}, Reason.STOPPING),
        (after(THROTTLED, 2733), {}, Reason.LONG_WAIT),
        (replace(SPENT, account_block_s=0.0), {}, Reason.ACCOUNT_BLOCK),
        (SPENT, {"shed_at": 399.0}, Reason.ACCOUNT_BLOCK),
    ],
)
def test_the_answer_goes_to_the_client_at_once_as_it_came(outcome, more, why):
    assert judge(outcome, **more) == GiveUp(why)


def test_an_answer_and_a_client_that_left_finish_a_ticket():
    assert judge(SUCCESS) == judge(CANCELLED) == judge(SUCCESS, client_saw_bytes=True) == Finished()


@pytest.mark.parametrize("outcome", [SPENT, after(THROTTLED, 300), after(OVERLOADED, 9000)])
def test_a_client_that_outlives_a_wait_is_held_and_overload_may_end_sooner_than_told(outcome):
    assert isinstance(judge(outcome), Backoff)


@pytest.mark.parametrize(
    ("outcome", "most", "why"),
    [
        (CUT, 5, Reason.SPENT_AMBIGUOUS),
        (FAILED, 10, Reason.SPENT_ATTEMPTS),
        (EDGE, 3, Reason.SPENT_ATTEMPTS),
        (ENDLESS, 2, Reason.SPENT_AMBIGUOUS),
    ],
)
def test_a_request_that_fails_is_tried_so_often_and_no_more(outcome, most, why):
    assert isinstance(judge(outcome, most - 1), Backoff)
    assert judge(outcome, most) == GiveUp(why)


@pytest.mark.parametrize("outcome", [THROTTLED, OVERLOADED])
def test_limits_and_overload_end_only_with_the_deadline(outcome):
    assert isinstance(judge(outcome, 2000), Backoff)
    assert judge(outcome, 2000, now=500) == GiveUp(Reason.DEADLINE)


def test_a_provider_that_is_down_does_not_spend_the_ticket():
    assert isinstance(judge(FAILED, 50, provider_down=True), Backoff)


def test_billing_doubts_are_counted_even_while_the_provider_is_down():
    assert judge(CUT, 5, provider_down=True) == GiveUp(Reason.SPENT_AMBIGUOUS)


def test_the_backoff_doubles_with_jitter_up_to_its_maximum():
    for failures, nominal_s in [(1, 0.5), (2, 1), (5, 8), (9, 30)]:
        verdict = judge(FAILED, failures)
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
    waits_s = [judge(THROTTLED, times).until - 100 for times in (1, 2, 3, 20)]
    for wait_s, step_s in zip(waits_s, (0.2, 0.4, 0.8, 8.0), strict=True):
        assert step_s / 2 <= wait_s <= step_s


def test_another_end_between_two_refusals_begins_their_row_anew():
    history = repeated(THROTTLED, 3).started().ended(FAILED, Owner.UNKNOWN, provider_down=False)
    assert judge(THROTTLED, history=history).until == judge(THROTTLED).until


def test_while_the_provider_is_down_the_probe_paces():
    assert judge(FAILED, provider_down=True).until == 100


@pytest.mark.parametrize("outcome", [FAILED, OVERLOADED, THROTTLED, CUT])
@pytest.mark.parametrize("provider_down", [False, True])
def test_every_backoff_ends(outcome, provider_down):
    for times in (1, 3, 9):
        verdict = judge(outcome, times, provider_down=provider_down)
        assert isinstance(verdict, GiveUp) or verdict.until <= 130


def test_a_step_takes_at_most_half_of_the_time_that_is_left():
    assert judge(FAILED, 9, shed_at=101.0).until <= 100.5
    assert judge(after(FAILED, 30), shed_at=101.0).until == 130


def test_a_backoff_may_end_after_the_ticket_is_shed():
    assert judge(after(FAILED, 1000)).until == 1100


def test_the_history_counts_resends_after_ambiguous_ends_only():
    history = repeated(CUT, 2)
    assert (history.attempts, history.ambiguous, history.ambiguous_resends) == (2, 2, 1)
    assert history.started().ambiguous_resends == 2
    assert repeated(FAILED, 3).ambiguous_resends == 0


@pytest.mark.parametrize(("service_s", "left_s"), [(0.0, 0.25), (0.2, 0.55), (1.0, 1.75), (60.0, 5.0)])
def test_a_provider_that_answers_fast_leaves_a_held_ticket_more_time(service_s, left_s):
    held = ticket(at=100, patience_s=115)  # its client waits five seconds longer
    assert held.deadline_at - last_moment(held, service_s) == pytest.approx(left_s)


def test_a_lone_agent_outlives_an_outage_that_may_as_well_be_its_requests_fault():
    def after_failures(times: int, *, alone: bool) -> object:
        history = History()
        for _ in range(times):
            history, verdict = retry.judge(
                RetryPolicy(max_failures=10),
                history.started(),
                AttemptResult(FAILED),
                0.0,
                random.Random(0),
                owner=Owner.UNKNOWN,
                shed_at=600.0,
                provider_down=False,
                nobody_answered=alone,
            )
        return verdict

    assert isinstance(after_failures(19, alone=True), Backoff)
    assert after_failures(19, alone=False) == GiveUp(Reason.SPENT_ATTEMPTS)
    assert after_failures(39, alone=True) == GiveUp(Reason.SPENT_ATTEMPTS), "a request that can never succeed ends"


@given(RESULTS, st.integers(0, 2**16), st.integers(1, 12))
def test_whoever_knows_how_the_pool_stands_judges_as_the_scheduler_does(result, seed, times):
    """For as many attempts of one ticket; nothing was measured of the provider, so nobody waits for longer."""
    bench = Bench(seed=seed)
    bench.submit("t")
    history, rng = History(), random.Random(seed)
    for _ in range(times):
        attempt = bench.running.pop("t")
        answer = bench.scheduler.settle(attempt, result, bench.now)
        told = bench.scheduler.pools_told()[0]
        if told.provider_down:
            return  # the breaker drew a number in between
        history, mine = retry.judge(
            bench.settings.retry,
            history.started(),
            result,
            bench.now,
            rng,
            owner=owner_of(result.outcome, 600.0),
            shed_at=attempt.ticket.shed_at,
            provider_down=False,
            nobody_answered=told.nobody_answered,
            believes_told=bench.scheduler._pools[told.key].capacity.believes_told(result.outcome.kind, attempt.demand),
        )
        assert mine == answer
        if not isinstance(answer, Backoff):
            return
        bench.poll()
        while not bench.running and not bench.scheduler.is_idle:
            bench.advance_to_wakeup()
        if not bench.running:
            return


@given(
    RESULTS,
    st.sampled_from([Finished(), Backoff(7.0, "elsewhere"), *(GiveUp(why) for why in (Reason.ANEW, Reason.DEADLINE))]),
)
def test_what_was_judged_elsewhere_is_done_whatever_the_scheduler_thinks(result, judged):
    bench = Bench()
    bench.scheduler.submit(replace(ticket("t"), idempotency_key="k"), bench.settings, 0.0)
    bench.poll()
    assert bench.scheduler.settle(bench.running.pop("t"), result, 0.0, judged=judged) is judged
    bench.poll()
    if isinstance(judged, Backoff):
        assert bench.advance(6.9) == []
        assert bench.advance(5.0) == ["t"]
        assert bench.running["t"].number == 2
        bench.settle("t")
    assert [event.ticket_id for event in bench.of(TicketEnded)] == ["t"]
    assert bench.scheduler.is_idle
