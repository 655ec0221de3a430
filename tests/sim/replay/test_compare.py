"""Captures as regression tests: schedules, how they differ, and expectations."""

import json
from dataclasses import replace

import pytest

from hivemind_addon.plugins.captures.model import Capture, encode
from hivemind_addon.sim.replay.compare import (
    BadExpectation,
    Decision,
    ReplaySettings,
    Schedule,
    Totals,
    Unlike,
    accept,
    check,
    difference,
    expectation_of,
    from_text,
    in_words,
    schedule_of,
    to_text,
)
from hivemind_addon.sim.replay.limits import given_limit
from hivemind_addon.sim.replay.reconstruct import reconstruct
from tests.cases import each
from tests.sim.replay.nights import call, capture, fleet


def sent(at_s, agent, call, how="attempt 1"):
    return Decision(at_s, agent, call, "sent", how)


ROWS = tuple(sent(float(n), f"agent-{n % 3}", f"c{n}") for n in range(12))
TOTALS = Totals(3, 0, 14.0, 12, 0, {"agent-0": 12.0, "agent-1": 13.0, "agent-2": 14.0})
EXPECTED = Schedule(ReplaySettings(), TOTALS, ROWS)


def changed(place, *rows, drop=1):
    return replace(EXPECTED, decisions=(*ROWS[:place], *rows, *ROWS[place + drop :]))


def words(now):
    found = difference(EXPECTED, now)
    assert found is not None
    return in_words(found)


def test_a_schedule_does_not_differ_from_itself():
    assert difference(EXPECTED, EXPECTED) is None


def test_another_machines_rounding_is_no_other_decision():
    assert difference(EXPECTED, changed(4, sent(4.001, "agent-1", "c4"))) is None
    waited = replace(EXPECTED, decisions=(sent(1, "a", "c", "attempt 1, waited 1.500 s: rate limit"),))
    rounded = replace(EXPECTED, decisions=(sent(1, "a", "c", "attempt 1, waited 1.501 s: rate limit"),))
    assert difference(waited, rounded) is None


def test_a_later_admission_is_shown_with_the_lines_around_it():
    text = words(changed(4, sent(4.75, "agent-1", "c4", "attempt 1, waited 0.750 s: rate limit")))
    assert text.splitlines() == [
        "the schedule first differs at 4.000 s, in decision 5 of 12 (- expected, + now):",
        "      1.000 s  agent-1  c1  sent (attempt 1)",
        "      2.000 s  agent-2  c2  sent (attempt 1)",
        "      3.000 s  agent-0  c3  sent (attempt 1)",
        "-     4.000 s  agent-1  c4  sent (attempt 1)",
        "+     4.750 s  agent-1  c4  sent (attempt 1, waited 0.750 s: rate limit)",
        "      5.000 s  agent-2  c5  sent (attempt 1)",
        "      6.000 s  agent-0  c6  sent (attempt 1)",
        "      7.000 s  agent-1  c7  sent (attempt 1)",
        "in all: 1 of 12 decisions are gone or otherwise, 1 are new",
    ]


FIRST, SECOND = sent(4, "agent-1", "c4"), sent(4, "agent-2", "c5")


@each(
    ("now", "line", "counts"),
    [
        (changed(4, sent(4, "agent-1", "c4", "attempt 2")), "agent-1  c4  sent (attempt 2)", (1, 1)),
        (changed(4, SECOND, FIRST, drop=2), "+     4.000 s  agent-2  c5", (1, 1)),
        (changed(4), "-     4.000 s  agent-1  c4", (1, 0)),
        (replace(EXPECTED, decisions=(*ROWS, sent(12, "agent-0", "c12"))), "+    12.000 s  agent-0  c12", (0, 1)),
    ],
)
def test_what_is_otherwise_gone_or_new_is_shown_and_counted(now, line, counts):
    assert line in words(now)
    assert "in all: {} of 12 decisions are gone or otherwise, {} are new".format(*counts) in words(now)


def test_what_came_of_it_is_compared_too():
    totals = Totals(3, 1, 16.0, 12, 2, {"agent-0": 12.0, "agent-1": 15.5})
    lines = words(replace(EXPECTED, totals=totals)).splitlines()
    assert lines == [
        "all decisions are the same, but not what came of them",
        "  agents lost: 0 → 1",
        "  refused by rate limits: 0 → 2",
        "  all over: 14.000 s → 16.000 s",
        "  agents that end at another time: 0 → 1 later, 0 earlier; farthest agent-1, +2.500 s",
    ]


# Schedule -------------------------------------------------------------------------------------------------------------


def schedule(night, *limits):
    given = [given_limit(text) for text in limits]
    return schedule_of(reconstruct(night, given=given), ReplaySettings(limits=limits))


def test_every_admission_is_a_decision_with_its_wait_and_why():
    told = schedule(capture(call("1", 0), call("2", 3, agent="b")), "requests=1/min")
    first, second = told.decisions
    assert (first.at_s, first.agent, first.call, first.what, first.how) == (0.0, "a", "1", "sent", "attempt 1")
    assert (second.agent, second.call, second.what) == ("b", "2", "sent")
    assert second.how == f"attempt 1, waited {second.at_s - 3:.3f} s: rate limit"
    assert second.at_s > 59
    assert told.totals.ends_s["b"] > 61


def test_retries_and_sheds_are_decisions():
    kinds = {decision.what for decision in schedule(fleet(12, 6)).decisions}
    assert kinds == {"sent", "backs off"}
    impatient = capture(call("1", 0), call("2", 3, agent="b", patience_s=20))
    what = [one.what for one in schedule(impatient, "requests=1/10min").decisions if one.agent == "b"]
    assert what == ["shed", "shed", "shed"]  # its client came back twice


def test_the_file_says_all_of_it_one_decision_a_line():
    told = schedule(fleet(5, 4), "requests=20/min")
    text = to_text(told)
    assert from_text(text) == told
    assert json.loads(text)["asked"] == {"agents": 1, "limits": ["requests=20/min"], "seed": 0}
    assert sum('"sent"' in line for line in text.splitlines()) == told.totals.attempts


def test_two_replays_write_the_same_file():
    assert to_text(schedule(fleet(5, 4))) == to_text(schedule(fleet(5, 4)))


def test_a_run_in_which_everybody_was_lost_can_be_written():
    told = schedule(capture(call("1", 0, patience_s=30), call("2", 3, agent="b", patience_s=1)), "input_tokens=5/min")
    assert told.totals.ends_s == {}
    assert from_text(to_text(told)) == told


@each("text", ["", "{}", "[]", '{"version": 1, "asked": {}, "totals": 3, "decisions": []}', "\0"])
def test_what_is_no_expectation_is_refused_with_the_cure(text):
    with pytest.raises(BadExpectation, match="--hivemind-accept"):
        from_text(text)


def test_an_expectation_of_another_version_is_refused():
    text = to_text(schedule(fleet(1, 1))).replace('"version": 1', '"version": 99')
    with pytest.raises(BadExpectation, match="of version 99"):
        from_text(text)


# Regression -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def night(tmp_path):
    file = tmp_path / "night.hivemind"
    file.write_bytes(encode(fleet(4, 4)))
    return file


def test_a_missing_expectation_fails_with_the_cure(night):
    with pytest.raises(Unlike, match=r"night.expected.json is missing[^$]*--hivemind-accept"):
        check(night)


def test_what_was_accepted_is_expected(night):
    assert "wrote" in accept(night).change
    assert check(night) == ()
    assert accept(night).change == ""


def test_how_it_is_replayed_is_the_expectations_and_stays(night):
    accept(night)
    file = expectation_of(night)
    file.write_text(file.read_text().replace('"limits": []', '"limits": ["requests=9/min"]'))
    with pytest.raises(Unlike, match="the schedule first differs at"):
        check(night)
    accept(night)
    assert check(night) == ()
    assert '"limits": ["requests=9/min"]' in file.read_text()


def test_an_expectation_that_cannot_be_read_is_named_and_can_be_written_anew(night):
    expectation_of(night).write_text("{}")
    with pytest.raises(Unlike, match=r"night.expected.json: it is no expectation"):
        check(night)
    accept(night)
    assert check(night) == ()


def test_a_limit_that_nobody_understands_names_the_file(night):
    accept(night)
    file = expectation_of(night)
    file.write_text(file.read_text().replace('"limits": []', '"limits": ["nonsense"]'))
    with pytest.raises(Unlike, match=r"night.expected.json: limit 'nonsense' cannot be read"):
        check(night)


def test_a_capture_without_calls_or_that_is_none_fails_in_words(night):
    accept(night)
    night.write_bytes(encode(Capture()))
    with pytest.raises(Unlike, match="holds no call that has ended"):
        check(night)
    night.write_text("hello")
    with pytest.raises(Unlike, match=r"night.hivemind"):
        check(night)


def test_damage_is_told(night):
    night.write_bytes(encode(replace(fleet(4, 4), damage=("the file ends at byte 99",))))
    assert accept(night).told == ("damaged: the file ends at byte 99; what precedes it is replayed",)
