import json
import re
from functools import partial

import msgspec
from msgspec import structs

from hivemind_addon.kernel.values.events import (
    BackedOff,
    CommittedStreamFailed,
    ConcurrencyChanged,
    ContextKept,
    GuardTripped,
    OddityNoted,
    PersonActed,
    Submitted,
    Superseded,
)
from hivemind_addon.kernel.values.snapshot import RequestState, TicketView
from hivemind_addon.kernel.values.ticket import OutcomeKind, Reason, Usage
from hivemind_addon.proxy.record.history import (
    ENDED,
    MOMENTS,
    PAD,
    Histories,
    TicketHistory,
    final_line,
    newest_line,
    present_line,
    usage_line,
)
from tests.proxy.record import samples
from tests.proxy.record.samples import POOL, PRICE

TICKET = structs.replace(samples.TICKET, id="t1", arrived_at=100.0, agent="agent-7", price=PRICE, parent_session="p")


def told(*events, of=TICKET):
    histories = Histories()
    for event in (Submitted(at=of.arrived_at, ticket=of), *events):
        histories(event)
    return histories.of(of.id)


held = partial(samples.held, "t1", at=100.0, position=3)
started = partial(samples.started, "t1", at=112.0, waited_s=12.0)
failed = partial(
    samples.ended, "t1", at=114.0, kind=OutcomeKind.OVERLOADED, said="529 overloaded_error", usage=None, duration_s=2.0
)
answered = partial(samples.ended, "t1", at=120.0, said="200", usage=Usage(1_345, 11_000, 0, 678, reported=True))
ended = partial(samples.over, "t1", at=120.0, reason="200", waited_s=12.0)


def backed_off(at=114.0):
    return BackedOff(at=at, ticket_id="t1", pool=POOL, attempt=1, until=at + 4, reason="529 overloaded_error")


def view(state=RequestState.QUEUED, *, reason="rate limit", position=3, attempts=0, starts_in_s=None):
    return TicketView(
        ticket=TICKET,
        state=state,
        reason=reason,
        position=position,
        attempts=attempts,
        waited_s=1.0,
        starts_in_s=starts_in_s,
        why=reason,
    )


def test_all_of_it_is_told_in_order_from_the_requests_arrival_on():
    history = told(
        held(),
        started(),
        failed(),
        backed_off(),
        held(at=114.0, reason=Reason.BACKOFF, position=1),
        started(at=118.0, attempt=2, waited_s=4.0),
    )
    assert [(moment.after_s, moment.text) for moment in history.moments] == [
        (0.0, "queued, 3rd; rate limit"),
        (12.0, "attempt 1 in flight after 12.0 s, 1 in all"),
        (14.0, "attempt 1: 529 overloaded_error, after 2.0 s"),
        (14.0, "attempt 1 failed (529 overloaded_error); again in 4.0 s"),
        (14.0, "1st; backing off"),
        (18.0, "attempt 2 in flight after 4.0 s, 1 in all"),
    ]
    assert (history.agent, history.parent_session, history.pool, history.kind) == ("agent-7", "p", str(POOL), "turn")
    assert (history.attempts, history.waited_s, history.failure) == (2, 16.0, "529 overloaded_error")


def test_it_waits_from_a_hold_to_the_next_attempt():
    assert told(held()).waits
    assert not told(held(), started()).waits
    assert told(started(), failed(), backed_off()).waits
    assert not told(held(), ended(end="shed")).waits


def test_whatever_else_concerns_the_ticket_is_a_moment_too():
    history = told(
        OddityNoted(at=101.0, pool=POOL, ticket_id="t1", what="answer: br"),
        PersonActed(at=101.0, text="moved to the front", pool=POOL, ticket_id="t1"),
        Superseded(at=101.0, ticket_id="t1", pool=POOL, by_ticket_id="t2"),
        CommittedStreamFailed(at=101.0, ticket_id="t1", pool=POOL, reason="late"),
        GuardTripped(at=101.0, ticket_id="t1", where="head", error="Boom()"),
        ContextKept(at=101.0, ticket_id="t1", pool=POOL, context_id="t1"),
    )
    assert [moment.text for moment in history.moments] == [
        "answer: br",
        "moved to the front",
        "ended: its client came back with t2",
        "failed after its keep-alives: late",
        "guard trip in head: Boom()",
        "its conversation is kept, `hivemind context show t1`",
    ]


def test_what_is_of_no_ticket_or_of_an_unknown_one_is_nobodys_history():
    histories = Histories()
    histories(ConcurrencyChanged(at=1.0, pool=POOL, limit=3, reason="trial"))
    histories(OddityNoted(at=1.0, pool=POOL, ticket_id=None, what="x"))
    histories(held())
    assert histories.of("t1") is None


def test_a_long_history_keeps_its_beginning_and_its_newest_moments():
    history = told(held(), *[started(at=200.0 + n, attempt=n + 1) for n in range(300)])
    assert len(history.moments) == MOMENTS
    assert history.moments[0].text == "queued, 3rd; rate limit"
    assert history.moments[-1].text.startswith("attempt 300 in flight")


def test_ended_histories_are_kept_a_while_for_who_has_not_read_them():
    histories = Histories()
    for number in range(ENDED + 1):
        one = structs.replace(TICKET, id=f"t{number}")
        histories(Submitted(at=0.0, ticket=one))
        histories(msgspec.structs.replace(ended(), ticket_id=one.id))
    assert histories.of("t0") is None
    assert histories.of("t1").end == histories.of(f"t{ENDED}").end == "delivered"


def columns(line):
    """As a person sees them."""
    return [text for text in re.split(f"{PAD}+", line) if text]


def test_the_present_in_columns():
    cases = (
        (view(), ["agent-7", "queued, 3rd", "rate limit [t1]"]),
        (view(starts_in_s=11.2), ["agent-7", "queued, 3rd", "in 15 s", "rate limit [t1]"]),
        (
            view(
                RequestState.BACKING_OFF,
                reason="backing off: attempt 1 failed",
                position=1,
                attempts=1,
                starts_in_s=3.4,
            ),
            ["agent-7", "backing off, 1st", "in 4 s", "attempt 1 failed (529 overloaded_error) [t1]"],
        ),
        (view(RequestState.IN_FLIGHT, position=0, attempts=1), ["agent-7", "in flight", "after 15 s", "[t1]"]),
        (
            view(RequestState.IN_FLIGHT, position=0, attempts=2),
            ["agent-7", "in flight", "after 15 s", "attempt 2 [t1]"],
        ),
    )
    history = told(started(), failed())
    assert [(seen, line) for seen, line in cases if columns(present_line(history, seen)) != line] == []
    starts = {present_line(history, seen).index(line[-1]) for seen, line in cases}
    assert len(starts) == 1, "the last column begins at one place"


def test_a_long_name_moves_its_columns_and_loses_nothing():
    history = structs.replace(told(held()), agent="a" * 40)
    assert present_line(history, view()).startswith(f"{'a' * 40}{PAD}queued, 3rd")


def test_the_newest_moment_in_columns():
    assert columns(newest_line(told(held()))) == ["agent-7", "queued, 3rd", "rate limit [t1]"]
    assert columns(newest_line(told(started(attempt=2, waited_s=0.0)))) == ["agent-7", "in flight", "attempt 2 [t1]"]
    assert newest_line(told()) == ""


def test_the_end_in_columns():
    usage = Usage(input_tokens=10)
    history = told(held(), started(), failed(usage=usage), backed_off(), answered(attempt=2), ended(attempts=2))
    assert columns(final_line(history)) == [
        "agent-7",
        "delivered",
        "after 15 s",
        "12,355 in (11,000 cached) + 678 out, $0.0175, 2 attempts [t1]",
    ]
    assert not history.is_lost
    assert columns(final_line(told(ended(waited_s=0.1)))) == ["agent-7", "delivered", "[t1]"]
    shed = told(held(), ended(end="shed", reason="client about to give up", attempts=0))
    assert columns(final_line(shed)) == ["agent-7", "shed", "after 15 s", "client about to give up [t1]"]
    assert shed.is_lost


def test_usage_names_what_the_cache_took_and_costs_only_what_has_a_price():
    unpriced = told(answered(), of=structs.replace(TICKET, price=None))
    assert usage_line(unpriced) == "12,345 in (11,000 cached) + 678 out"
    assert usage_line(told(held())) == ""
    written = told(answered(usage=Usage(cache_write_tokens=100, output_tokens=1)))
    assert usage_line(written) == "100 in (100 written to the cache) + 1 out, $0.0004"


def test_a_history_is_plain_json_and_back():
    history = told(held(), started(), answered(), ended())
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(history))), TicketHistory) == history
