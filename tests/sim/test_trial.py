"""Trials on one core and on several, and what a case is run on."""

from dataclasses import replace

from hivemind_addon.lab.sim.expectation import Expectation
from hivemind_addon.lab.sim.library import cases
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.policy import Policy
from hivemind_addon.lab.sim.trial import Setup, Trial, run_series, run_trials, setups

MICRO = cases()["micro-5"]


def makespan(trial, result):
    return trial.seed, result.makespan_s


def test_several_processes_give_the_same_in_the_same_order():
    setup = Setup(MICRO, LimitKind.BUCKET, headers=True, policy=Policy.HIVEMIND)
    trials = [Trial(setup, seed) for seed in range(10)]
    alone = run_trials(trials, makespan)
    done = []
    assert run_trials(trials, makespan, workers=2, done=done.append) == alone
    assert [seed for seed, _ in alone] == list(range(10))
    assert done == trials


def test_a_case_is_run_on_its_kinds_and_without_headers_where_that_is_judged():
    names = [setup.name for setup in setups(MICRO, [Policy.DIRECT, Policy.HIVEMIND])]
    assert names == [
        "micro-5, bucket, direct",
        "micro-5, bucket, hivemind",
        "micro-5, bucket, no headers, hivemind",
        "micro-5, window, direct",
        "micro-5, window, hivemind",
        "micro-5, window, no headers, hivemind",
    ]
    assert [setup.limits for setup in setups(MICRO, [Policy.DIRECT], [LimitKind.WINDOW])] == ["window"]


def test_first_come_first_served_runs_where_something_is_compared_with_it():
    mixed = [(setup.limits, setup.policy.name) for setup in setups(cases()["light-and-heavy"], [Policy.HIVEMIND])]
    assert mixed == [("bucket", "hivemind"), ("bucket", "fifo"), ("window", "hivemind")]


def test_limits_are_named():
    assert [setup.limits for setup in setups(cases()["changing-cap"], [Policy.HIVEMIND])] == ["none"]
    assert [setup.limits for setup in setups(cases()["mixed-providers"], [Policy.HIVEMIND])] == ["as stated"]


def test_a_series_sums_its_runs_and_is_judged_by_its_case():
    (series,) = run_series([Setup(MICRO, LimitKind.BUCKET, headers=True, policy=Policy.HIVEMIND)], seeds=3)
    assert (len(series.runs), series.agents, series.lost, series.attempts) == (3, 15, 0, 120)
    assert series.status(200, 429) == 120
    assert series.worst_of(lambda run: run.stretch) >= series.median_of(lambda run: run.stretch)
    assert {verdict.what for verdict in series.verdicts([series])} >= {"agents lost", "time ÷ bound, worst"}


def test_it_does_so_without_headers_too():
    case = replace(MICRO, expect=(Expectation(lost=0), Expectation(headers=False, time_to_fifo=1.05)))
    names = [setup.name for setup in setups(case, [Policy.HIVEMIND], [LimitKind.BUCKET])]
    assert names == [
        "micro-5, bucket, hivemind",
        "micro-5, bucket, no headers, hivemind",
        "micro-5, bucket, no headers, fifo",
    ]
