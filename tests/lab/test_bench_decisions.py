from lab.bench.decisions import Row, bytes_per_ticket, report, time_calls
from lab.bench.timing import Timing


def test_every_call_is_timed_and_the_queue_keeps_its_length():
    row = time_calls(20, 50)
    for timing in (row.decision, row.head):
        assert 0 < timing.mean_s <= timing.max_s
        assert timing.p99_s <= timing.max_s


def test_a_queued_ticket_weighs_something_and_not_much():
    assert 200 < bytes_per_ticket(500) < 20_000


def test_the_report_is_in_microseconds():
    timing = Timing.of([0.000_010] * 98 + [0.001] * 2)
    text = report([Row(1_000, timing, timing)], 1234.5)
    assert "| 1,000 | 30, 1,000, 1,000 | 30, 1,000, 1,000 |" in text
    assert "1,234 bytes" in text
