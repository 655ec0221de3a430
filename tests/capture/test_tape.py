from hivemind_addon.api.ticket import Attempt, AttemptResult, Demand, Outcome, OutcomeKind, Usage
from hivemind_addon.proxy.capture.model import MAX_CHUNKS
from hivemind_addon.proxy.capture.recording import Tape
from tests.core.samples import ticket as make_ticket

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
