"""What is run, once each, and that the same plan gives the same figures."""

from collections import Counter

from hivemind_addon.lab.evaluate.campaign import CampaignPlan, full_plan, quick_plan, run_campaign, size
from hivemind_addon.lab.sim.ablation import Primitive
from hivemind_addon.lab.sim.library import cases
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.policy import COMPARED, Policy, only, without
from tests.evaluate.samples import REPLAY, small_campaign

MICRO = cases()["micro-10"]


def test_every_trial_is_done_once():
    for plan in (full_plan(10), quick_plan(2)):
        names = Counter((trial.setup.name, trial.seed) for trial in plan.trials())
        assert set(names.values()) == {1}
        assert size(plan) == len(names)


def test_the_full_plan_compares_all_and_takes_pairs_away_where_a_scenario_says_so():
    plan = full_plan(4)
    assert plan.cases == plan.ablated == tuple(cases().values())
    assert [case.name for case in plan.paired] == ["replay-11", "stress", "changing-cap", "fan-out"]
    policies = {trial.setup.policy for trial in plan.trials() if trial.setup.case is REPLAY}
    assert len(policies) == len(COMPARED) + 2 * 9 + 2 * 36 + 1
    seeds = Counter(
        trial.setup.policy.name
        for trial in plan.trials()
        if (trial.setup.case, trial.setup.kind) == (REPLAY, LimitKind.BUCKET)
    )
    assert (seeds["hivemind"], seeds["direct"], seeds["only-retry"]) == (4, 4, 4)


def test_primitives_are_taken_away_from_enough_agents():
    plan = full_plan(20)
    runs = {case.name: plan.seeds_without(case) for case in plan.ablated}
    assert (runs["stress"], runs["changing-cap"], runs["two-hundred"]) == (20, 10, 5)


def test_figures_are_kept_by_scenario_limits_policy_and_seed():
    campaign = small_campaign()
    assert len(campaign.of(MICRO, LimitKind.BUCKET, Policy.DIRECT)) == 1
    assert campaign.of(MICRO, LimitKind.BUCKET, only()) == ()
    assert len(campaign.of_all_kinds(REPLAY, Policy.HIVEMIND)) == 2
    ((ours, theirs),) = campaign.paired(REPLAY, LimitKind.WINDOW, without(Primitive.RETRY))
    assert ours.lost == 0 < theirs.lost


def test_one_plan_gives_one_campaign():
    plan = CampaignPlan((MICRO,), seeds=2, ablation_seeds=1, ablated=(), paired=())
    told = []
    once = run_campaign(plan, workers=1, done=told.append)
    assert len(told) == size(plan)
    assert run_campaign(plan, workers=1, done=lambda _: None) == once
