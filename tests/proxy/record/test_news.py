"""What the log and the report tell; the words are in test_event_text.py."""

import logging

import pytest

from hivemind_addon.kernel.values import events
from hivemind_addon.proxy.record.history import Histories
from hivemind_addon.proxy.record.news import BURST, EVERY_S, LINES, NOTICE, News, Repeats
from tests.proxy.record.samples import POOL, make


def told(*made):
    """The lines of the report."""
    histories = Histories()
    news = News(histories.agent_of)
    for event in made:
        news(event)
        histories(event)
    return news.lines(1000.0)


def texts(*made):
    return [line.text for line in told(*made)]


def test_a_line_says_how_old_it_is_and_what_it_is_about():
    submitted = make(events.Submitted, at=0.0)
    routine = [make(events.AttemptStarted), make(events.AttemptEnded), make(events.TicketEnded, ticket_id="other")]
    (line, stranger) = told(
        submitted,
        *routine,
        make(events.TicketEnded, at=5.0, end="gave up"),
        make(events.TicketEnded, at=5.0, end="gave up"),
    )
    assert (line.level, line.ticket_id, line.pool, line.ago_s) == ("WARNING", "ticket-1", POOL, 995.0)
    assert (line.agent, stranger.agent) == ("agent-1", ""), "forgotten: nothing is kept of what has ended"


def test_a_long_outage_is_two_lines():
    def breaker(before, state, at):
        return make(events.BreakerChanged, at=at, before=before, state=state)

    probes = [
        event
        for at in range(10, 3600, 15)
        for event in (breaker("open", "half-open", at), breaker("half-open", "open", at + 1))
    ]
    end = [breaker("open", "half-open", 3600), breaker("half-open", "closed", 3601)]
    lines = texts(breaker("closed", "open", 0), *probes, *end)
    assert [line.split(": ")[1].split(" (")[0] for line in lines] == [
        "breaker open",
        "breaker closed, the provider answers again",
    ]


def test_of_a_crowd_the_first_are_told_and_the_others_counted():
    crowd = [make(events.TicketEnded, at=0.0, ticket_id=f"ticket-{number}", end="shed") for number in range(100)]
    lines = texts(*crowd, make(events.Submitted, at=300.0))
    assert len(lines) == 6
    assert lines[-1] == "host.test/key-1/model: 95 more requests shed within 5 min"


def test_a_request_that_failed_once_or_twice_is_nobodys_news():
    lines = texts(*(make(events.BackedOff, at=60.0 * attempt, attempt=attempt) for attempt in range(1, 24)))
    assert [line.split(" failed")[0] for line in lines] == [f"ticket-1: attempt {attempt}" for attempt in (3, 6, 12)]


def test_a_limit_is_told_when_it_is_first_seen_and_when_it_has_moved():
    seen = [("unknown", 50.0), ("bucket", 50.0), ("window", 52.0), ("window", 100.0)]
    lines = texts(*(events.MeterLearned(1.0, POOL, "requests", kind, limit) for kind, limit in seen))
    assert [line.split("learned: ")[1] for line in lines] == ["requests 50", "requests 100 (window)"]


def test_a_meter_that_flips_leaves_room_for_other_lines():
    flips = [events.MeterLearned(n, POOL, "requests", "bucket", 50 + 50 * (n % 2)) for n in range(999)]
    lines = texts(make(events.TicketEnded, at=0.0, end="gave up"), *flips)
    assert "gave up" in lines[0]
    assert len(lines) < 30
    assert any("more changes of requests within" in line for line in lines)


def test_the_newest_lines_are_kept():
    assert len(texts(*(make(events.PersonActed, text=str(number)) for number in range(LINES + 5)))) == LINES


@pytest.mark.parametrize(("level", "lines"), [(logging.DEBUG, 3), (logging.INFO, 2), (logging.WARNING, 1)])
def test_each_line_goes_to_the_log_at_its_level(caplog, level, lines):
    news = News()
    with caplog.at_level(level, logger="hivemind"):
        news(make(events.PoolBlocked, at=0.0, until=1.0))
        news(make(events.PoolBlocked, at=1.0, until=31.0))
        news(make(events.PersonActed, at=2.0, pool=None, ticket_id=None))
    assert len(caplog.records) == lines
    assert (caplog.records[-1].levelno, caplog.messages[-1]) == (logging.WARNING, "hivemind: paused by a person")
    assert {record.levelno for record in caplog.records} <= {logging.DEBUG, NOTICE, logging.WARNING}
    assert logging.INFO < NOTICE < logging.WARNING, "above what mitmproxy says of every connection"


def test_a_log_for_everything_has_everything_but_known_oddities_and_the_report_only_what_is_news(caplog):
    requests = [make(kind, at=0.0) for kind in (events.Submitted, events.TicketEnded) for _ in range(20)]
    crowd = [make(events.TicketEnded, at=0.0, end="shed") for _ in range(20)]
    with caplog.at_level(logging.DEBUG, logger="hivemind"):
        lines = texts(*requests, *crowd, *[make(events.OddityNoted, at=0.0, ticket_id=None)] * 20)
    assert len(caplog.records) == 61
    assert len(lines) == 6


def test_what_every_request_brings_is_asked_for_only_by_a_log_for_everything(caplog):
    news = News()
    with caplog.at_level(logging.INFO, logger="hivemind"):
        assert {events.Submitted, events.AttemptStarted, events.AttemptEnded, events.Held}.isdisjoint(news.hears)
        assert {events.TicketEnded, events.OddityNoted} <= news.hears
    with caplog.at_level(logging.DEBUG, logger="hivemind"):
        assert news.hears is None


def test_the_end_of_a_delivered_request_is_not_worded(caplog, monkeypatch):
    monkeypatch.setattr("hivemind_addon.proxy.record.news.text_of", None)
    with caplog.at_level(logging.INFO, logger="hivemind"):
        News()(make(events.TicketEnded, end="delivered"))


def test_a_line_about_a_ticket_has_its_agents_name_in_the_log(caplog):
    with caplog.at_level(logging.INFO, logger="hivemind"):
        told(make(events.Submitted), make(events.TicketEnded, end="gave up"))
    assert caplog.messages[0].startswith("hivemind: agent-1: ticket-1: gave up")


def test_the_first_few_are_told_and_the_others_counted():
    repeats = Repeats()
    assert [repeats.lets("a", 0) for _ in range(BURST + 3)] == [True] * BURST + [False] * 3
    assert repeats.lets("b", 0), "each kind for itself"
    assert repeats.over(EVERY_S - 1) == []
    assert repeats.over(EVERY_S) == [("a", 3, EVERY_S)]
    assert repeats.over(EVERY_S) == [], "once"
    assert repeats.lets("a", EVERY_S)


def test_a_kind_that_was_told_in_full_is_not_told_again():
    repeats = Repeats()
    repeats.lets("a", 0)
    assert repeats.over(1e6) == []


def test_kinds_without_end_are_told_rather_than_kept():
    repeats = Repeats()
    for number in range(3000):
        assert repeats.lets(number, 0)
    assert len(repeats._crowds) <= 1000
