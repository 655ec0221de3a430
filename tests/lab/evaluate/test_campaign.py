"""What is run, once each; that the same plan gives the same figures; and what is said follows from these alone."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from hivemind_addon.sim.ablation import Primitive
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.policy import COMPARED, Policy, only, without
from hivemind_addon.sim.trial import Setup, Trial
from lab.evaluate.campaign import CampaignPlan, run_campaign
from lab.evaluate.figures import Mean, Spread, digest, few_lost
from lab.evaluate.findings import ASPECTS, changes, harm, worth
from tests.lab.evaluate.samples import REPLAY, figures, made_up, small_campaign

MICRO = cases()["micro-10"]
EVERYTHING = tuple(cases().values())
METERS, RETRY = Primitive.METERS, Primitive.RETRY


def test_every_trial_is_done_once():
    names = Counter((trial.setup.name, trial.seed) for trial in CampaignPlan(EVERYTHING, 10).trials())
    assert set(names.values()) == {1}


def test_the_full_plan_compares_all_and_takes_each_primitive_away_from_all():
    plan = CampaignPlan(EVERYTHING, 4)
    policies = {trial.setup.policy for trial in plan.trials() if trial.setup.case is REPLAY}
    assert policies == {*COMPARED, *map(without, Primitive)}
    seeds = Counter(
        trial.setup.policy.name
        for trial in plan.trials()
        if (trial.setup.case, trial.setup.kind) == (REPLAY, LimitKind.BUCKET)
    )
    assert (seeds["hivemind"], seeds["direct"], seeds["hivemind-without-retry"]) == (4, 4, 4)


def test_primitives_are_taken_away_from_enough_agents():
    plan = CampaignPlan(EVERYTHING, 20)
    runs = {case.name: plan.seeds_without(case) for case in plan.cases}
    assert (runs["stress"], runs["changing-cap"], runs["two-hundred"]) == (20, 10, 5)


def test_figures_are_kept_by_scenario_limits_policy_and_seed():
    campaign = small_campaign()
    assert len(campaign.runs.of(MICRO, LimitKind.BUCKET, Policy.DIRECT)) == 1
    assert campaign.runs.of(MICRO, LimitKind.BUCKET, only()) == ()
    assert len(campaign.runs.of_all_kinds(REPLAY, Policy.HIVEMIND)) == 2
    ((ours, theirs),) = campaign.runs.paired(REPLAY, LimitKind.WINDOW, without(Primitive.RETRY))
    assert ours.lost == 0 < theirs.lost


def test_one_plan_gives_one_campaign():
    plan = CampaignPlan((MICRO,), 2, primitives=())
    told = []
    once = run_campaign(plan, workers=1, done=told.append)
    assert len(told) == len(plan.trials())
    assert run_campaign(plan, workers=1, done=lambda _: None) == once


# Findings


def test_what_does_nothing_is_said_to_do_nothing():
    assert worth(made_up({}), METERS) == "taking it away changes nothing noteworthy in any of these scenarios."


def test_what_costs_agents_is_said_with_its_interval():
    campaign = made_up({without(RETRY).name: 0.9})
    assert worth(campaign, RETRY) == (
        "without it `replay-11` (bucket): agents lost +90 (+90 to +90); "
        "`replay-11` (window): agents lost +90 (+90 to +90)."
    )
    assert harm(campaign.runs, REPLAY, LimitKind.BUCKET, without(RETRY)).aspect.letter == "L"
    assert harm(campaign.runs, REPLAY, LimitKind.BUCKET, without(METERS)) is None


def test_what_gets_better_without_it_is_said_too():
    campaign = made_up({"hivemind": 0.5})
    assert "agents lost -50" in worth(campaign, METERS)
    assert harm(campaign.runs, REPLAY, LimitKind.BUCKET, without(METERS)).by.mean == pytest.approx(-50)


def test_real_runs_show_that_retries_keep_agents_alive():
    campaign = small_campaign()
    assert harm(campaign.runs, REPLAY, LimitKind.WINDOW, without(RETRY)).aspect.name == "agents lost"
    assert harm(campaign.runs, REPLAY, LimitKind.WINDOW, without(Primitive.CACHE)) is None
    assert {
        change.aspect.letter for change in changes(campaign.runs, REPLAY, LimitKind.WINDOW, without(METERS))
    } == set("LRTCW")


def test_turns_are_compared_where_the_time_is_given():
    (work,) = (aspect for aspect in ASPECTS if aspect.letter == "D")
    ours, theirs = figures(is_timed=True, turns_done=200), figures(is_timed=True, turns_done=150)
    assert work.worse_by(ours, theirs) == 25
    assert work.worse_by(figures(), figures()) is None


# Figures


def run_of(name, policy, kind=LimitKind.WINDOW):
    case = cases()[name]
    trial = Trial(Setup(case, kind if kind in case.kinds else None, headers=True, policy=policy), 0)
    return digest(trial, trial.run())


def test_time_is_told_only_where_nobody_was_lost():
    assert run_of("replay-11", Policy.DIRECT).stretch is None
    assert 1 <= run_of("replay-11", Policy.HIVEMIND).stretch < 1.12


def test_where_the_time_is_given_turns_are_counted_instead():
    timed = run_of("changing-cap", Policy.HIVEMIND)
    assert (timed.is_timed, timed.stretch) == (True, None)
    assert timed.turns_done > run_of("changing-cap", Policy.AIMD_PAUSE).turns_done


def test_lost_agents_have_wasted_all_that_they_used():
    direct, ours = run_of("replay-11", Policy.DIRECT), run_of("replay-11", Policy.HIVEMIND)
    assert direct.lost > 0.5
    assert direct.wasted_tokens / direct.billed_tokens > 0.5
    assert ours.wasted_tokens / ours.billed_tokens < 0.15
    assert ours.wasted_usd > 0


def test_refusals_are_429_503_and_529():
    mixed = run_of("mixed-providers", Policy.SDK)
    assert mixed.refused > mixed.throttled > 0


def test_with_several_crowds_the_one_that_waits_least_is_told_too():
    light = run_of("light-and-heavy", Policy.HIVEMIND)
    assert light.least_wait_p95_s < light.wait_p95_s / 2


def test_one_agent_of_a_hundred_is_hardly_an_agent():
    run = run_of("replay-11", Policy.HIVEMIND)
    assert few_lost([replace(run, lost=lost) for lost in (0.0, 0.019)])
    assert not few_lost([replace(run, lost=lost) for lost in (0.0, 0.021)])


def test_a_spread_is_median_least_and_most():
    assert Spread.of([3, 1, 2, 9]) == Spread(2.5, 1, 9)


def test_the_interval_holds_the_mean_and_is_the_same_each_time():
    values = [random.Random(1).gauss(10, 2) for _ in range(1)] + [8.0, 9.0, 11.0, 12.0, 10.0]
    mean = Mean.of(values)
    assert mean.low < mean.mean < mean.high
    assert Mean.of(values) == mean


def test_equal_values_leave_no_doubt():
    assert Mean.of([4.0, 4.0]) == Mean(4.0, 4.0, 4.0)
    assert Mean.of([4.0]).is_sure
    assert not Mean.of([0.0, 0.0]).is_sure


def test_a_mean_is_sure_when_zero_is_outside():
    for values, sure in (([5, 6, 7, 5, 6], True), ([-5, 6, -7, 5, 1], False), ([-3, -4, -5], True)):
        assert Mean.of([float(value) for value in values]).is_sure is sure


def test_the_interval_covers_the_truth_mostly():
    rng = random.Random(3)
    inside = 0
    for _ in range(60):
        mean = Mean.of([rng.gauss(0, 1) for _ in range(20)])
        inside += mean.low <= 0 <= mean.high
    assert inside >= 50
