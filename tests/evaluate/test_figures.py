from dataclasses import replace

from hivemind_addon.lab.evaluate.figures import digest, few_lost
from hivemind_addon.lab.sim.library import cases
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.policy import Policy
from hivemind_addon.lab.sim.trial import Setup, Trial


def figures(name, policy, kind=LimitKind.WINDOW):
    case = cases()[name]
    trial = Trial(Setup(case, kind if kind in case.kinds else None, headers=True, policy=policy), 0)
    return digest(trial, trial.run())


def test_time_is_told_only_where_nobody_was_lost():
    assert figures("stress", Policy.DIRECT).stretch is None
    assert 1 <= figures("stress", Policy.HIVEMIND).stretch < 1.1


def test_where_the_time_is_given_turns_are_counted_instead():
    timed = figures("changing-cap", Policy.HIVEMIND)
    assert (timed.is_timed, timed.stretch) == (True, None)
    assert timed.turns_done > figures("changing-cap", Policy.AIMD_PAUSE).turns_done


def test_lost_agents_have_wasted_all_that_they_used():
    direct, ours = figures("replay-11", Policy.DIRECT), figures("replay-11", Policy.HIVEMIND)
    assert direct.lost > 0.5
    assert direct.wasted_tokens / direct.billed_tokens > 0.5
    assert ours.wasted_tokens / ours.billed_tokens < 0.15
    assert ours.wasted_usd > 0


def test_refusals_are_429_503_and_529():
    mixed = figures("mixed-providers", Policy.SDK)
    assert mixed.refused > mixed.throttled > 0


def test_with_several_crowds_the_one_that_waits_least_is_told_too():
    light = figures("light-and-heavy", Policy.HIVEMIND)
    assert light.least_wait_p95_s < light.wait_p95_s / 2


def test_one_agent_of_a_hundred_is_hardly_an_agent():
    run = figures("replay-11", Policy.HIVEMIND)
    assert few_lost([replace(run, lost=lost) for lost in (0.0, 0.019)])
    assert not few_lost([replace(run, lost=lost) for lost in (0.0, 0.021)])
