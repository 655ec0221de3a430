import time
from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner

from hivemind_addon.tools.commands.times import (
    SOME_TIME,
    SPAN,
    BadInstant,
    Instant,
    day,
    hour,
    iso,
    read_instant,
    shown,
)

NOW = datetime(2026, 3, 29, 12, 0, 30, tzinfo=UTC).timestamp()
"""14:00:30 in Berlin, on the day on which its clocks went forward."""


@pytest.fixture(autouse=True)
def _in_berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def utc(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()


def test_what_people_write():
    instants = {
        "now": NOW,
        "today": utc(2026, 3, 28, 23),
        "Yesterday": utc(2026, 3, 27, 23),
        "90s": NOW - 90,
        "30m": NOW - 1800,
        "2h ago": NOW - 7200,
        "1.5h": NOW - 5400,
        " 3d ": NOW - 3 * 86_400,
        "1w": NOW - 7 * 86_400,
        "13:15": utc(2026, 3, 29, 11, 15),
        "1:15:20": utc(2026, 3, 29, 0, 15, 20),
        "2026-01-31": utc(2026, 1, 30, 23),
        "2026-01-31T14:30": utc(2026, 1, 31, 13, 30),
        "2026-01-31 14:30:05": utc(2026, 1, 31, 13, 30, 5),
        "2026-01-31T14:30+05:30": utc(2026, 1, 31, 9),
        "2026-01-31T14:30Z": utc(2026, 1, 31, 14, 30),
    }
    assert {text: read_instant(text, NOW) for text in instants} == instants


def test_what_is_no_instant():
    for text in ["", "soon", "2x", "-3d", "25:00", "12:60", "2026-02-30", "0000-01-01", "9" * 40 + "d", "nan"]:
        with pytest.raises(BadInstant, match="is no instant; there are today, yesterday"):
            read_instant(text, NOW)


def test_a_bad_instant_is_one_line_of_its_option():
    @click.command()
    @click.option("--since", type=Instant())
    def ask(since: float) -> None:
        click.echo(since)

    told = CliRunner().invoke(ask, ["--since", "soon"])
    assert told.exit_code == 2
    assert "'--since': 'soon' is no instant" in told.output
    assert float(CliRunner().invoke(ask, ["--since", "2026-01-31T14:30Z"]).output) == utc(2026, 1, 31, 14, 30)


def test_what_people_read():
    assert shown(NOW - 5, NOW) == "14:00:25"
    assert shown(utc(2026, 3, 7, 9, 5, 9), NOW) == "Mar  7 10:05"
    assert shown(utc(2025, 12, 31, 12), NOW) == "2025-12-31 13:00"
    assert shown(None, NOW) == ""
    assert (day(NOW, NOW), day(utc(2026, 3, 7, 9), NOW), day(None, NOW)) == ("today", "Mar  7", "")
    assert hour(NOW) == "14:00:30"


def test_what_machines_read():
    assert iso(NOW + 0.1234) == "2026-03-29T14:00:30.123+02:00"
    assert iso(None) is None


def test_a_clock_that_was_set_wildly_is_no_reason_to_fail():
    for wild in (1e18, float("inf"), float("nan")):
        assert (iso(wild), shown(wild, NOW), hour(wild), day(wild, NOW)) == (None, "", "", "")


def test_a_span_is_seconds():
    spans = {
        "90": 90,
        "90s": 90,
        "5m": 300,
        "5 min": 300,
        "1.5h": 5400,
        "2d": 172_800,
        "1w": 604_800,
        "1h30m": 5400,
        "1 d 2 h": 93_600,
        "250ms": 0.25,
        7: 7,
        "0": 0,
    }
    assert {text: SPAN.convert(text, None, None) for text in spans} == spans


def test_what_is_no_span_is_named():
    for text in ["", "soon", "5 weeks", "-5s", "1h30", "30 1h", "1h 5weeks", "nan", "inf", "9" * 400 + "s"]:
        with pytest.raises(click.BadParameter, match="no span of time"):
            SPAN.convert(text, None, None)


def test_where_some_time_is_needed_none_is_named():
    assert SOME_TIME.convert("1h", None, None) == 3600
    for text in ("0", "0s", "0h0m"):
        with pytest.raises(click.BadParameter, match="is no time at all: try"):
            SOME_TIME.convert(text, None, None)
