import msgspec
from msgspec import structs
from msgspec.structs import replace

from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.learned import LearnedPool
from hivemind_addon.kernel.values.events import ConcurrencyChanged, MeterLearned, PoolsMerged, TicketEnded
from hivemind_addon.kernel.values.snapshot import Counters, MeterView, PoolView, RequestState, Snapshot, TicketView
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    Demand,
    Dimension,
    Outcome,
    OutcomeKind,
    PoolKey,
    Usage,
)
from hivemind_addon.plugins.captures.model import MAX_CHUNKS
from hivemind_addon.plugins.captures.recording import Circumstances, Merge, Recording, Served, Tape, unnamed
from tests.kernel.samples import ticket as make_ticket

POOL = PoolKey("api.anthropic.com", "key-1", "sonnet")
OTHER = PoolKey("api.anthropic.com", "org-1", "sonnet")
KNOWN = PoolView(
    key=POOL,
    account_name=None,
    in_flight=0,
    bypassing=0,
    limit=7,
    queued=0,
    breaker="closed",
    blocked_for_s=0.0,
    meters=(MeterView("requests", "bucket", 50.0, 50.0, 0.0, window_s=60.0, dimension=Dimension.REQUESTS),),
    tickets=(),
)
SERVED = Served("anthropic", "anthropic", "stream")


def make_recording(*pools, learned=()):
    snapshot = Snapshot(at=100.0, stopping=False, pools=pools, counters=Counters())
    return Recording(snapshot, learned, began_wall=1e9, proxy_version="1", profiles=("anthropic",), content=True)


def ended(ticket, at=105.0, *, pool=POOL, end="delivered"):
    return TicketEnded(
        at=at, ticket_id=ticket.id, pool=pool, end=end, reason="", attempts=1, ambiguous_resends=0, waited_s=0.5
    )


def test_a_call_is_what_its_ticket_its_tape_and_its_end_say():
    recording, ticket = make_recording(), make_ticket(at=101.0, patience_s=595.0)
    tape = recording.begin(ticket)
    outcome = Outcome(OutcomeKind.SUCCESS, "200", status=200)
    tape.settled(Attempt(ticket, 1, 101.5), AttemptResult(outcome), 105.0)
    recording(ended(ticket))
    call = recording.end(ticket, SERVED, request_bytes=9)
    assert (call.at_s, call.ended_s, call.end, call.waited_s, call.patience_s) == (1.0, 5.0, "delivered", 0.5, 600.0)
    assert (call.agent, call.session, call.profile) == (ticket.agent, ticket.session, "anthropic")
    assert len(call.attempts) == 1


def test_of_a_call_that_had_begun_before_the_rest_is_recorded():
    recording, ticket = make_recording(), make_ticket(at=90.0, patience_s=60.0)
    tape = recording.begin(ticket)
    tape.chunk(5, 103.0)
    tape.settled(Attempt(ticket, 2, 95.0), AttemptResult(Outcome(OutcomeKind.SUCCESS, "200", status=200)), 105.0)
    recording(ended(ticket))
    call = recording.end(ticket, SERVED, request_bytes=9)
    (rest,) = call.attempts
    assert (call.at_s, call.ended_s, call.patience_s) == (0.0, 5.0, 55.0)
    assert (rest.at_s, rest.waited_s, rest.status, rest.head_after_s, rest.ended_after_s) == (0.0, 0.0, 200, 0.0, 5.0)


def test_what_the_scheduler_knew_is_recorded_with_the_levels_of_the_begin():
    limit = HiddenLimit(0, 8.0, 10.0)
    learned = LearnedPool(host=OTHER.host, account="org-1", model_group="sonnet", meters=(), throttles=limit)
    flying = TicketView(make_ticket(), RequestState.IN_FLIGHT, "", 0, 1, 0.0)
    hidden = MeterView("hidden limit", "window", 8.0, 2.0, 7.0, window_s=10.0, dimension=Dimension.REQUESTS)
    pool = replace(KNOWN, key=OTHER, tickets=(flying,), learned=learned.views(hidden, None))
    told = make_recording(pool, learned=[learned]).circumstances()
    again = msgspec.convert(msgspec.to_builtins(told), Circumstances)
    assert again == told
    assert [(one.meter, one.left, one.full_in_s) for one in told.limits] == [
        ("requests", 50.0, 0.0),
        ("hidden limit", 3.0, 7.0),
    ]
    assert {one.pool for one in told.limits} == {one.key for one in told.learned} == {unnamed(OTHER)}
    assert told.learned[0].throttles == limit


def test_a_call_that_nobody_began_to_record_or_that_never_was_the_schedulers_is_not_in_it():
    recording, early, bypassing = make_recording(), make_ticket("early"), make_ticket("bypassing")
    recording(ended(early))
    recording.begin(bypassing)
    assert recording.end(early, SERVED, request_bytes=9) is None
    assert recording.end(bypassing, SERVED, request_bytes=9) is None


def test_a_call_is_recorded_once_and_then_forgotten():
    recording, ticket = make_recording(), make_ticket()
    recording.begin(ticket)
    recording(ended(ticket))
    assert recording.end(ticket, SERVED, request_bytes=9) is not None
    assert recording.end(ticket, SERVED, request_bytes=9) is None
    assert repr(recording) == "<Recording, 0 calls not yet in it>"


def test_its_pool_is_the_one_that_it_ended_in():
    recording, ticket = make_recording(), make_ticket()
    recording.begin(ticket)
    recording(ended(ticket, pool=OTHER))
    pool = recording.end(ticket, SERVED, request_bytes=9).pool
    assert pool == unnamed(OTHER)


def test_limits_known_at_the_begin_and_each_piece_of_news_are_told_once():
    recording = make_recording(KNOWN)
    recording(MeterLearned(at=103.0, pool=POOL, meter="pace", kind="per second", limit=2.5, window_s=1.0))
    recording(ConcurrencyChanged(at=104.0, pool=POOL, limit=5, reason="529"))
    recording(PoolsMerged(at=104.5, pool=OTHER, merged=POOL))
    told = recording.circumstances()
    assert [(one.at_s, one.meter, one.limit) for one in told.limits] == [(0.0, "requests", 50.0), (3.0, "pace", 2.5)]
    assert [(one.at_s, one.limit) for one in told.moves] == [(0.0, 7), (4.0, 5)]
    assert told.merges == (Merge(unnamed(OTHER), POOL),)
    again = recording.circumstances()
    assert (again.limits, again.moves, again.merges) == ((), (), ())
    assert again.began_wall == told.began_wall == 1e9


def test_an_organisations_name_is_in_nothing_that_is_told():
    named = PoolKey("api.openai.com", "acme-corp", "gpt")
    known = structs.replace(KNOWN, key=named)
    recording, ticket = make_recording(known), make_ticket()
    recording.begin(ticket)
    recording(MeterLearned(at=103.0, pool=named, meter="pace", kind="per second", limit=2.5))
    recording(ConcurrencyChanged(at=104.0, pool=named, limit=5, reason="529"))
    recording(PoolsMerged(at=104.5, pool=named, merged=POOL))
    recording(ended(ticket, pool=named))
    assert "acme" not in repr((recording.end(ticket, SERVED, request_bytes=9), recording.circumstances()))
    assert unnamed(named) == unnamed(named) != unnamed(OTHER)


GOOD = Outcome(OutcomeKind.SUCCESS, "200", status=200)
USAGE = Usage(input_tokens=9, output_tokens=2, reported=True)


def sent(attempt, at):
    return Attempt(make_ticket(), attempt, at)


def test_instants_count_from_the_captures_begin_and_the_attempts_own():
    tape = Tape(arrived_at=105.0, began_at=100.0)
    tape.head(200, 107.5)
    tape.chunk(10, 107.5)
    tape.chunk(20, 108.0)
    tape.settled(sent(1, 106.0), AttemptResult(GOOD, USAGE, Demand(input_tokens=9)), 108.5)
    (attempt,) = tape.attempts
    assert (attempt.at_s, attempt.waited_s, attempt.head_after_s, attempt.ended_after_s) == (6.0, 1.0, 1.5, 2.5)
    assert [(chunk.after_s, chunk.size) for chunk in attempt.chunks] == [(1.5, 10), (2.0, 20)]
    assert (attempt.status, attempt.usage, attempt.charged) == (200, USAGE, Demand(input_tokens=9))
    assert tape.ended_s == 8.5


def test_an_attempt_knows_nothing_of_the_one_before_but_its_end():
    tape = Tape(arrived_at=0.0, began_at=0.0)
    tape.head(529, 1.0)
    tape.chunk(99, 1.0)
    tape.settled(sent(1, 0.5), AttemptResult(Outcome(OutcomeKind.OVERLOADED, "529", status=529)), 1.0)
    tape.settled(sent(2, 3.0), AttemptResult(Outcome(OutcomeKind.FAILED, "cannot connect")), 3.5)
    first, second = tape.attempts
    assert (first.status, first.chunks[0].size) == (529, 99)
    assert (second.status, second.head_after_s, second.chunks, second.waited_s) == (None, None, (), 2.0)


def test_a_long_stream_keeps_its_bytes_and_its_course_in_few_chunks():
    tape = Tape(arrived_at=0.0, began_at=0.0)
    tape.head(200, 0.0)
    for number in range(10_000):
        tape.chunk(3, number / 100)
    tape.settled(sent(1, 0.0), AttemptResult(GOOD), 100.0)
    chunks = tape.attempts[0].chunks
    assert len(chunks) <= MAX_CHUNKS
    assert sum(chunk.size for chunk in chunks) == 30_000
    came = 0
    for chunk in chunks:
        came += chunk.size
        assert came / 3 / 100 <= chunk.after_s + 0.011  # no byte before its time
    assert chunks[-1].after_s == 99.99
