import json

import pytest

from hivemind_addon.lab.replay.limits import given_limit
from hivemind_addon.lab.replay.reconstruct import reconstruct
from hivemind_addon.lab.replay.schedule import BadExpectation, ReplaySettings, from_text, schedule_of, to_text
from tests.cases import over
from tests.replay.nights import call, capture, fleet


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


@over("text", ["", "{}", "[]", '{"version": 1, "asked": {}, "totals": 3, "decisions": []}', "\0"])
def test_what_is_no_expectation_is_refused_with_the_cure(text):
    with pytest.raises(BadExpectation, match="--hivemind-accept"):
        from_text(text)


def test_an_expectation_of_another_version_is_refused():
    text = to_text(schedule(fleet(1, 1))).replace('"version": 1', '"version": 99')
    with pytest.raises(BadExpectation, match="of version 99"):
        from_text(text)
