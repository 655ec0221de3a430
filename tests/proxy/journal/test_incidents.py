import json

import pytest

from hivemind_addon.proxy.journal.tables import HappeningRow
from hivemind_addon.tools.history.history import RunRecord
from hivemind_addon.tools.history.incidents import AttemptEnd, IncidentKind, failure_rows, incidents, timeline

POOL, OTHER = "api.anthropic.com/k/opus", "api.openai.com/k/gpt"
LIVE = RunRecord(id=1, began=0.0, seen=1e6, ended=None, pid=7, version="1")


def happened(event, at, pool=POOL, run=1, text="", **fields) -> HappeningRow:
    return HappeningRow(run, at, event, pool, "", text or f"{pool}: {event}", json.dumps({"at": at, **fields}))


def breaker(state, at, before="closed", **values) -> HappeningRow:
    return happened("BreakerChanged", at, state=state, before=before, reason="529", **values)


def found(*happenings, runs=(LIVE,), rows=(), now=1e5, is_orphaned=False):
    live = 0 if is_orphaned else runs[-1].id
    return incidents(happenings, runs, rows, now=now, live=live)


def test_a_breaker_is_an_incident_until_it_closes():
    [one] = found(
        breaker("open", 100),
        breaker("half-open", 101, "open"),
        breaker("open", 102, "half-open"),
        breaker("closed", 130, "half-open"),
    )
    assert (one.pool, one.began, one.ended, one.kinds) == (POOL, 100, 130, (IncidentKind.BREAKER,))
    assert one.ending == "the provider answered again"


def test_a_breaker_that_is_open_is_not_over():
    [one] = found(breaker("open", 100))
    assert one.ended is None
    assert one.ending == ""


@pytest.mark.parametrize(
    ("run", "is_orphaned", "ended", "ending"),
    [
        (RunRecord(id=1, began=0.0, seen=150.0, ended=160.0, pid=7, version="1"), False, 160, "the proxy was stopped"),
        (RunRecord(id=1, began=0.0, seen=150.0, ended=None, pid=7, version="1"), True, None, ""),
    ],
)
def test_no_breaker_outlives_its_proxy(run, is_orphaned, ended, ending):
    [one] = found(breaker("open", 100), runs=[run], is_orphaned=is_orphaned)
    assert (one.ended, one.ending) == (ended, ending)


def test_troubles_of_one_pool_are_one_incident_while_they_follow_each_other():
    one, other, later = found(
        breaker("open", 100),
        breaker("closed", 130),
        happened("PoolBlocked", 110, OTHER, until=150, reason="retry-after"),
        happened("PoolBlocked", 180, until=240, reason="retry-after"),
        breaker("open", 400),
        breaker("closed", 410),
    )
    assert (one.pool, one.began, one.ended, one.kinds) == (POOL, 100, 240, (IncidentKind.BREAKER, IncidentKind.PAUSE))
    assert one.ending == "the pause was over"
    assert (other.pool, other.began, other.ended) == (OTHER, 110, 150)
    assert (later.began, later.ended) == (400, 410)


def test_a_short_pause_is_none():
    assert found(happened("PoolBlocked", 110, until=139, reason="x")) == []


def test_a_pause_that_goes_on_is_not_over():
    [one] = found(happened("PoolBlocked", 110, until=1110, reason="x"), now=200)
    assert one.ended is None


def test_a_wall_until_it_opens_or_its_end_has_come():
    hit, again = (
        happened("AccountBlocked", 100, until=4000, reason="5h"),
        happened("AccountBlocked", 150, until=5000, reason="5h"),
    )
    [one] = found(hit, again, happened("AccountUnblocked", 5010))
    assert (one.began, one.ended, one.kinds) == (100, 5010, (IncidentKind.ACCOUNT_BLOCK,))
    [one] = found(hit)
    assert (one.ended, one.ending) == (4000, "its end had come")
    [one] = found(hit, now=3000)
    assert one.ended is None


def test_a_death_lasts_until_the_next_start():
    died = RunRecord(id=1, began=0.0, seen=500.0, ended=None, pid=7, version="1")
    back = RunRecord(id=2, began=502.0, seen=900.0, ended=None, pid=8, version="1")
    [one] = found(runs=[died, back])
    assert (one.pool, one.began, one.ended, one.kinds) == ("", 500, 502, (IncidentKind.DEATH,))
    assert one.ending == "the next one started 2 s later"


def test_a_death_without_a_next_start_is_not_over():
    died = RunRecord(id=1, began=0.0, seen=500.0, ended=None, pid=7, version="1")
    [one] = found(runs=[died], is_orphaned=True)
    assert one.ended is None
    assert found(runs=[died]) == []


def test_a_clean_end_is_no_incident():
    stopped = RunRecord(id=1, began=0.0, seen=500.0, ended=500.0, pid=7, version="1")
    assert found(runs=[stopped], is_orphaned=True) == []


def test_a_start_that_never_listened_is_no_death_and_ends_none():
    died = RunRecord(id=1, began=0.0, seen=500.0, ended=None, pid=7, version="1")
    killed = RunRecord(id=2, began=501.0, seen=501.0, ended=None, pid=8, version="1", listened=False)
    back = RunRecord(id=3, began=502.0, seen=1e6, ended=None, pid=9, version="1", listened=False)
    assert [(one.began, one.ended) for one in found(runs=[died, killed, back])] == [(500, 502)]
    assert found(runs=[killed], is_orphaned=True) == []


def test_a_death_in_an_outage_is_a_part_of_it():
    died = RunRecord(id=1, began=0.0, seen=130.0, ended=None, pid=7, version="1")
    back = RunRecord(id=2, began=132.0, seen=900.0, ended=None, pid=8, version="1")
    [one] = found(breaker("open", 100), breaker("open", 140, run=2), breaker("closed", 150, run=2), runs=[died, back])
    assert (one.pool, one.began, one.ended) == (POOL, 100, 150)
    assert one.kinds == (IncidentKind.BREAKER, IncidentKind.DEATH)


def test_a_sleep_ends_when_it_is_noticed():
    [one] = found(happened("MachineSlept", 5000, "", slept_s=3600))
    assert (one.began, one.ended, one.kinds) == (1400, 5000, (IncidentKind.CLOCK,))


def test_a_guard_trip_is_an_instant():
    [one] = found(happened("GuardTripped", 10, where="settle", error="KeyError"))
    assert (one.began, one.ended, one.kinds) == (10, 10, (IncidentKind.GUARD,))


def test_pools_that_prove_to_be_one():
    merged = happened(
        "PoolsMerged", 110, OTHER, merged={"host": "api.anthropic.com", "account": "k", "model_group": "opus"}
    )
    [one] = found(breaker("open", 100), merged)
    assert (one.ended, one.ending) == (110, f"its pool is {OTHER} now")


def test_what_was_cut_is_no_reason_to_fail():
    cut = HappeningRow(1, 10, "PoolBlocked", POOL, "", "told to wait", '{"at": 10, "unt')
    odd = HappeningRow(1, 10, "AccountBlocked", POOL, "", "wall", '{"at": null, "until": "x"}')
    [one] = found(cut, odd)
    assert (one.began, one.ended, one.kinds) == (10, 10, (IncidentKind.ACCOUNT_BLOCK,))


def ends(outcomes: str, pool=POOL, every_s=1.0):
    names = {"f": "failed", "o": "overloaded", "s": "success", "c": "cancelled", "t": "throttled"}
    return [AttemptEnd(i * every_s, pool, names[letter], letter) for i, letter in enumerate(outcomes)]


def test_rows_of_failures():
    cases = (
        ("f" * 9 + "s", []),
        ("f" * 5 + "o" * 5 + "s", [(0, 10, "an attempt was answered")]),
        ("f" * 10, [(0, 9, "the last of 10 failures in a row")]),
        ("fffffcfffff", [(0, 10, "the last of 10 failures in a row")]),
        ("fffffsfffff", []),
        ("ffffftfffff", []),
        (
            "s" + "f" * 10 + "s" + "f" * 12,
            [(1, 11, "an attempt was answered"), (12, 23, "the last of 12 failures in a row")],
        ),
    )
    assert [
        (outcomes, rows)
        for outcomes, rows in cases
        if [(one.began, one.ended, one.ending) for one in failure_rows(ends(outcomes))] != rows
    ] == []


def test_failures_that_are_far_apart_are_no_row():
    assert list(failure_rows(ends("f" * 10, every_s=61))) == []


def test_rows_are_each_pools_own():
    mixed = sorted([*ends("f" * 10), *ends("fs" * 10, OTHER)], key=lambda end: end.ended)
    assert [one.pool for one in failure_rows(mixed)] == [POOL]


def test_the_timeline_tells_of_repeats_the_first_and_the_last():
    told = [breaker("open", 100, text=f"{POOL}: breaker open (529)")]
    told += [breaker("half-open", 100 + n, "open", text=f"{POOL}: probe {n}") for n in range(1, 6)]
    told += [breaker("closed", 130, text=f"{POOL}: breaker closed"), happened("PoolBlocked", 105, OTHER)]
    [one] = found(*told[:-1])
    lines = timeline(one, sorted(told, key=lambda one: one.at), 40)
    assert [(line.at, line.text) for line in lines] == [
        (100, "breaker open (529)"),
        (101, "probe 1"),
        (105, "… 4 times more until here, the last: probe 5"),
        (130, "breaker closed"),
    ]


def test_the_timeline_tells_deaths_and_rows_and_is_bounded():
    died = RunRecord(id=1, began=0.0, seen=500.0, ended=None, pid=7, version="1")
    back = RunRecord(id=2, began=502.0, seen=900.0, ended=None, pid=8, version="1")
    [one] = found(runs=[died, back])
    assert [line.text for line in timeline(one, [], 40)] == [
        "proxy died: process 7 ended without a word",
        "the next one started 2 s later",
    ]
    busy = [happened(f"Event{n}", n) for n in range(100)]
    [one] = found(breaker("open", 0), breaker("closed", 99))
    lines = timeline(one, busy, 10)
    assert len(lines) == 11
    assert lines[5].text == "… 90 more lines"
