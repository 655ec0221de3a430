"""The scheduler against its goals, in virtual time: fewer seeds than `hivemind prove` runs, and the same limits."""

from functools import cache
from statistics import median

import pytest

from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.proof import Proof, cost, light_p95_s, prove, share_of_429, worst_stretch
from hivemind_addon.sim.workload import (
    BIG_CONTEXTS,
    BURSTS,
    CAPS,
    FAN_OUT,
    HANGS,
    INCIDENT,
    LIGHT_AND_HEAVY,
    NEIGHBOUR,
    PAPER,
    POISON,
)
from hivemind_addon.sim.world import Policy

SEEDS = 2
KINDS = list(LimitKind)

TWO_WINDOWS = pytest.mark.xfail(
    # Of 20 seeds some lose an agent (`hivemind prove`); of the few that run here mostly none does.
    strict=False,
    reason="the clients' patience is two windows, and each is used up: who fails twice at an end has one second left",
)


def paper(*, missed: tuple[str, ...] = ()):
    return [
        pytest.param(scenario, id=scenario.name, marks=[TWO_WINDOWS] if scenario.name in missed else [])
        for scenario in PAPER
    ]


@cache
def proof_of(name: str) -> Proof:
    return prove(seeds=SEEDS, only=[name], policies=False)


def series_of(*scenarios, **which):
    return [one for scenario in scenarios for one in proof_of(scenario.name).of(scenario, **which)]


@pytest.mark.parametrize("scenario", paper(missed=("stress",)))
def test_the_seven_lose_nobody(scenario):
    assert [(one.kind, run.deaths) for one in series_of(scenario) for run in one.runs if run.lost] == []


@pytest.mark.parametrize("scenario", paper())
def test_none_of_the_seven_takes_much_longer_than_any_schedule_must(scenario):
    assert worst_stretch(series_of(scenario)) <= 1.10


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_the_seven_mostly_take_hardly_longer_than_any_schedule_must(kind):
    assert median(run.stretch for one in series_of(*PAPER, kind=kind) for run in one.runs) <= 1.05


def test_almost_nothing_is_refused_with_headers():
    assert share_of_429(series_of(*PAPER)) <= 0.005


def test_few_calls_are_refused_without_headers():
    assert share_of_429(series_of(*PAPER, headers=False)) <= 0.1


@pytest.mark.parametrize("scenario", paper(missed=("stress",)))
def test_nobody_is_lost_without_headers(scenario):
    assert sum(one.lost for one in series_of(scenario, headers=False)) == 0


def test_a_neighbour_costs_no_more_than_what_it_takes():
    series = series_of(NEIGHBOUR)
    assert sum(one.lost for one in series) == 0
    assert max(run.shared_stretch for one in series for run in one.runs) <= 1.2


def test_five_minutes_of_529_are_survived_and_ended_at_once():
    series = series_of(INCIDENT)
    assert sum(one.lost for one in series) == 0
    assert worst_stretch(series) <= 1.1
    assert max(run.statuses[529] for one in series for run in one.runs) <= 60


def test_a_hidden_burst_limit_is_found():
    series = series_of(BURSTS)
    assert sum(one.lost for one in series) == 0
    assert worst_stretch(series) <= 1.1
    assert share_of_429(series) <= 0.1


def test_a_changing_cap_is_used_and_rarely_exceeded():
    series = series_of(CAPS)
    assert sum(one.lost for one in series) == 0
    assert min(run.cap_used for one in series for run in one.runs) >= 0.85
    assert sum(one.status(529) for one in series) <= 0.03 * sum(one.attempts for one in series)


def test_a_fan_out_writes_its_shared_prefix_once():
    series = series_of(FAN_OUT)
    assert sum(one.lost for one in series) == 0
    assert max(one.worst_of(cost) for one in series) <= 1.02


def test_big_private_contexts_stay_in_the_cache():
    series = series_of(BIG_CONTEXTS)
    assert sum(one.lost for one in series) == 0
    assert max(one.worst_of(cost) for one in series) <= 1.1
    assert worst_stretch(series) <= 1.5


def test_light_agents_hardly_wait_for_heavy_ones():
    (ours,) = series_of(LIGHT_AND_HEAVY, kind=LimitKind.BUCKET)
    (theirs,) = series_of(LIGHT_AND_HEAVY, kind=LimitKind.BUCKET, policy=Policy.FIFO)
    assert ours.lost == 0
    for run, fifo in zip(ours.runs, theirs.runs, strict=True):
        assert light_p95_s(run) <= 0.05 * light_p95_s(fifo)


def test_light_agents_wait_for_no_more_than_a_windows_reset():
    (ours,) = series_of(LIGHT_AND_HEAVY, kind=LimitKind.WINDOW)
    assert ours.lost == 0
    assert ours.worst_of(light_p95_s) <= 60


def test_hanging_upstreams_lose_nobody():
    assert sum(one.lost for one in series_of(HANGS)) == 0


def test_one_poisoned_agent_hurts_nobody_else():
    series = series_of(POISON)
    assert sum(one.lost for one in series) == 0
    assert worst_stretch(series) <= 1.1
    assert [run.breaker_opened for one in series for run in one.runs] == [0] * len(KINDS) * SEEDS
