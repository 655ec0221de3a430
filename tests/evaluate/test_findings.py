"""What is said follows from the figures alone."""

import pytest

from hivemind_addon.lab.evaluate import findings
from hivemind_addon.lab.evaluate.findings import alone, changes, harm, interactions, pair_matrix, synergies, worth
from hivemind_addon.lab.sim.ablation import Primitive
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.policy import without
from tests.evaluate.samples import REPLAY, figures, made_up, small_campaign

METERS, RETRY, HIDDEN = Primitive.METERS, Primitive.RETRY, Primitive.HIDDEN_LIMITS


def test_what_does_nothing_is_said_to_do_nothing():
    assert worth(made_up({}), METERS) == "taking it away changes nothing noteworthy in any of these scenarios."


def test_what_costs_agents_is_said_with_its_interval():
    campaign = made_up({without(RETRY).name: 0.9})
    assert worth(campaign, RETRY) == (
        "without it `replay-11` (bucket): agents lost +90 (+90 to +90); "
        "`replay-11` (window): agents lost +90 (+90 to +90)."
    )
    assert harm(campaign, REPLAY, LimitKind.BUCKET, RETRY).aspect.letter == "L"
    assert harm(campaign, REPLAY, LimitKind.BUCKET, METERS) is None


def test_what_gets_better_without_it_is_said_too():
    campaign = made_up({"hivemind": 0.5})
    assert "agents lost -50" in worth(campaign, METERS)
    assert harm(campaign, REPLAY, LimitKind.BUCKET, METERS).by.mean == pytest.approx(-50)


def test_real_runs_show_that_retries_keep_agents_alive():
    campaign = small_campaign()
    assert harm(campaign, REPLAY, LimitKind.WINDOW, RETRY).aspect.name == "agents lost"
    assert harm(campaign, REPLAY, LimitKind.WINDOW, Primitive.CACHE) is None
    assert {change.aspect.letter for change in changes(campaign, REPLAY, LimitKind.WINDOW, without(METERS))} == set(
        "LRTCW"
    )


def test_turns_are_compared_where_the_time_is_given():
    (work,) = (aspect for aspect in findings.ASPECTS if aspect.letter == "D")
    ours, theirs = figures(is_timed=True, turns_done=200), figures(is_timed=True, turns_done=150)
    assert work.worse_by(ours, theirs) == 25
    assert work.worse_by(figures(), figures()) is None


def test_two_that_stand_in_for_each_other_are_told_from_two_that_add_up():
    lost = {without(METERS).name: 0.05, without(HIDDEN).name: 0.0, without(METERS, HIDDEN).name: 0.6}
    campaign = made_up(lost)
    first = interactions(campaign, REPLAY)[0]
    assert {first.one, first.other} == {METERS, HIDDEN}
    assert first.beyond_sum == pytest.approx(55)
    assert next(synergies(campaign, REPLAY)) == (
        "meters and hidden-limits stand in for each other: +5.0 and +0.0 points without either, +60.0 without both"
    )


def test_two_that_cost_the_same_agents_overlap():
    lost = dict.fromkeys((without(METERS).name, without(RETRY).name, without(METERS, RETRY).name), 0.9)
    told = list(synergies(made_up(lost), REPLAY))
    assert "meters and retry overlap: +90.0 and +90.0 points without either, +90.0 without both" in told


def test_where_everything_adds_up_that_is_said():
    assert list(synergies(made_up({}), REPLAY)) == [
        "every two primitives add up: without both it is, within 2 points, the sum of what each one costs"
    ]


def test_the_matrix_has_pairs_taken_away_above_and_pairs_alone_below():
    lost = {without(METERS).name: 0.1, without(METERS, HIDDEN).name: 0.2, "only-meters+hidden-limits": 0.3}
    matrix = pair_matrix(made_up(lost), REPLAY)
    assert matrix[0][:2] == pytest.approx([10, 20])
    assert matrix[1][0] == pytest.approx(30)
    assert len(matrix) == len(matrix[0]) == len(Primitive)


def test_alone_goes_from_nothing_to_everything():
    rows = alone(made_up({"only-nothing": 1.0, "only-retry": 0.4}), REPLAY)
    assert rows[0] == ("nothing", 100.0)
    assert ("retry", 40.0) in rows
    assert rows[-1] == ("everything", 0.0)
