"""The fleet before simulated services: what `python -m lab.bench.tools` measures over more seeds."""

from lab.tool_fleet import direct, scheduled


def test_a_fleet_of_twenty_loses_nothing_that_it_would_lose_alone():
    alone, queued = direct(0), scheduled(0)
    assert alone.lost_share > 0.4
    assert queued.wanted == alone.wanted
    assert queued.lost_share <= 0.01
    assert queued.refused_there.total() <= 0.01 * queued.sent.total()
