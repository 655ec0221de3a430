"""A campaign so small that it can be run in a test, and one that is made up."""

from functools import cache

from hivemind_addon.sim.ablation import Primitive
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.policy import Policy, without
from hivemind_addon.sim.trial import Setup
from lab.evaluate.campaign import Campaign, CampaignPlan, Runs, run_campaign
from lab.evaluate.figures import Figures
from lab.evaluate.report import Setting

REPLAY = cases()["replay-11"]
SETTING = Setting("hivemind lab prove --compare", "Python 3.12", "Linux, 2 cores")


@cache
def small_campaign() -> Campaign:
    """Comparison of two scenarios, also without each primitive; one seed."""
    plan = CampaignPlan((cases()["micro-10"], REPLAY), seeds=1)
    return run_campaign(plan, workers=1, done=lambda _: None)


def figures(**changed) -> Figures:
    """One run's."""
    plain = {
        "lost": 0.0,
        "attempts": 100,
        "throttled": 0.0,
        "refused": 0.0,
        "makespan_s": 60.0,
        "stretch": 1.0,
        "is_timed": False,
        "turns_done": 88,
        "wait_mean_s": 1.0,
        "wait_p50_s": 1.0,
        "wait_p95_s": 2.0,
        "wait_p99_s": 3.0,
        "least_wait_p95_s": 2.0,
        "fairness": 1.0,
        "cost": 1.0,
        "billed_tokens": 1000,
        "wasted_tokens": 10,
        "wasted_usd": 0.01,
        "cap_used": 0.0,
        "wanted": 88,
        "latency_p50_s": 1.0,
        "latency_p95_s": 3.0,
        "turns_a_minute": 88.0,
        "wasted_lane_s": 0.0,
        "zombies": 0,
        "overspent": 0.0,
    }
    return Figures(**plain | changed)


def made_up(lost: dict[str, float], **changed) -> Campaign:
    """Replay-11 alone: shares of lost agents by policy, 0 where nothing is said; two seeds."""
    plan = CampaignPlan((REPLAY,), seeds=2)
    policies = [Policy.HIVEMIND, *map(without, Primitive)]
    runs = {
        Setup(REPLAY, kind, headers=True, policy=policy).name: (figures(lost=lost.get(policy.name, 0.0), **changed),)
        * 2
        for policy in policies
        for kind in REPLAY.kinds
    }
    return Campaign(plan, Runs(runs))
