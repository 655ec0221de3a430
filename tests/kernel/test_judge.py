"""One rule says what follows an attempt's end, whoever asks: the scheduler, or a process that has the client."""

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hivemind_addon.kernel.retry import Backoff, Finished, GiveUp, History, RetryPolicy, judge
from hivemind_addon.kernel.values.events import TicketEnded
from hivemind_addon.kernel.values.ticket import AttemptResult, Outcome, OutcomeKind, Reason
from tests.kernel.samples import CANCELLED, CUT, FAILED, IGNORED, SUCCESS, THROTTLED, Bench, ticket

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
    ),
    client_saw_bytes=st.booleans(),
    may_repeat=st.booleans(),
)


def verdict(outcome: Outcome, **more: bool):
    result, started = AttemptResult(outcome, **more), History().started()
    wanted = {"shed_at": 500.0, "provider_down": False}
    return judge(RetryPolicy(), started, result, 100.0, random.Random(5), **wanted)[1]


def test_what_ends_a_ticket_and_what_is_tried_again():
    assert verdict(SUCCESS) == verdict(CANCELLED) == verdict(SUCCESS, client_saw_bytes=True) == Finished()
    assert verdict(CUT, may_repeat=False) == GiveUp(Reason.ANEW)
    assert verdict(IGNORED, may_repeat=False) == GiveUp(Reason.NOT_RETRYABLE)
    assert verdict(FAILED, client_saw_bytes=True) == GiveUp(Reason.DELIVERED_BYTES)
    assert isinstance(verdict(THROTTLED), Backoff)


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
        history, mine = judge(
            bench.settings.retry,
            history.started(),
            result,
            bench.now,
            rng,
            shed_at=attempt.ticket.shed_at,
            provider_down=False,
            nobody_answered=told.nobody_answered,
            believes_told=bench.scheduler._pools[told.key]._capacity.believes_told(result.outcome.kind, attempt.demand),
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
