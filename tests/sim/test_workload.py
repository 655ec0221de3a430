import math
import random
from itertools import islice

from hivemind_addon.lab.sim.library import cases
from hivemind_addon.lab.sim.limits import LimitKind
from hivemind_addon.lab.sim.workload import Crowd, turns

BURSTS = cases()["bursts"].scenario


def test_one_seed_wants_the_same_twice():
    crowd = Crowd("agent", 1, 5, spike_rate=0.5)
    assert list(turns(crowd, random.Random("7"))) == list(turns(crowd, random.Random("7")))
    assert list(turns(crowd, random.Random("7"))) != list(turns(crowd, random.Random("8")))


def test_a_crowd_without_a_number_of_turns_has_no_end():
    assert len(list(islice(turns(Crowd("agent", 1), random.Random(0)), 500))) == 500


def test_spikes_come_as_often_and_as_high_as_they_should():
    crowd = Crowd("agent", 1, 2000, latency_s=0.1, latency_sigma=0.0, spike_rate=0.2, spike_factor=5)
    latencies = [turn.latency_s for turn in turns(crowd, random.Random(1))]
    spikes = [latency_s for latency_s in latencies if latency_s > 0.3]
    assert all(math.isclose(latency_s, 0.5) for latency_s in spikes)
    assert 0.16 < len(spikes) / len(latencies) < 0.24


def test_an_answers_generation_takes_as_long_as_its_tokens():
    crowd = Crowd("agent", 1, 1, output_tokens=(121, 121), tokens_per_s=60)
    (turn,) = turns(crowd, random.Random(0))
    assert turn.generation_s == 2.0
    assert turn.service_s == turn.latency_s + 2.0


def test_a_scenario_changes_its_kind_of_limits_and_nothing_else():
    windows = BURSTS.on(LimitKind.WINDOW)
    assert {limit.kind for limit in windows.provider.limits} == {LimitKind.WINDOW}
    assert [limit.amount for limit in windows.provider.limits] == [limit.amount for limit in BURSTS.provider.limits]
    assert windows.on(LimitKind.BUCKET) == BURSTS
    assert not BURSTS.without_headers().provider.rate_limit_headers


def test_a_scenario_with_several_providers_changes_all_of_them():
    mixed = cases()["mixed-providers"].scenario
    providers = [one.provider for one in mixed.on(LimitKind.WINDOW).sites] + [mixed.on(LimitKind.WINDOW).provider]
    assert {limit.kind for provider in providers for limit in provider.limits} == {LimitKind.WINDOW}
    blind = mixed.without_headers()
    assert not blind.provider.rate_limit_headers
    assert not any(site.provider.rate_limit_headers for site in blind.sites)
