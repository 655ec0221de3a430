from bench.decisions import Row, Timing, bytes_per_ticket, report, time_calls


def test_every_call_is_timed_and_the_queue_keeps_its_length():
    row = time_calls(20, 50)
    for timing in (row.decision, row.head):
        assert 0 < timing.mean_s <= timing.worst_s
        assert timing.p99_s <= timing.worst_s


def test_a_queued_ticket_weighs_something_and_not_much():
    assert 200 < bytes_per_ticket(500) < 20_000


def test_the_report_is_in_microseconds():
    timing = Timing.of([0.000_010] * 99 + [0.001])
    text = report([Row(1_000, timing, timing)], 1234.5)
    assert "| 1,000 | 20, 1,000, 1,000 | 20, 1,000, 1,000 |" in text
    assert "1,234 bytes" in text
