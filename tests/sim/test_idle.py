"""The idle meter, by hand and in runs: who sleeps is caught, who is kept by the provider is not."""

import random

import pytest

from hivemind_addon.api.ticket import Demand, Dimension
from hivemind_addon.lab.sim.call import SimRequestFacts
from hivemind_addon.lab.sim.dialect import SimDialect
from hivemind_addon.lab.sim.idle import IdleMeter
from hivemind_addon.lab.sim.limits import Limit, LimitKind
from hivemind_addon.lab.sim.policy import Policy
from hivemind_addon.lab.sim.provider import ProviderSettings, ProviderWall, SimProvider
from hivemind_addon.lab.sim.workload import Crowd, Neighbour, Scenario
from hivemind_addon.lab.sim.world import run
from hivemind_addon.proxy.core.scheduler import Scheduler
from tests.cases import over

REQUEST = SimRequestFacts(dialect=SimDialect.MESSAGES, credential="sk-sim-a", input_tokens=100)
DEMAND = Demand(input_tokens=100, output_tokens=50, total_tokens=150)
REQUESTS, OUTPUT = Dimension.REQUESTS, Dimension.OUTPUT_TOKENS


def at_provider(**settings):
    provider = SimProvider(ProviderSettings(**settings), random.Random(0))
    meter = IdleMeter(provider, coarse_tokens=0)
    return provider, meter, meter.keep(REQUEST, DEMAND)


def test_who_waits_before_a_provider_without_limits_waits_for_nothing():
    _, meter, kept = at_provider()
    meter.sent(10)
    meter.pass_time(10, 35, waiting=[kept], in_flight=[])
    meter.pass_time(35, 40, waiting=[kept], in_flight=[])
    assert meter.longest_s == 30


def test_an_attempt_ends_it_and_where_nobody_waits_there_is_none():
    _, meter, kept = at_provider()
    meter.pass_time(0, 10, waiting=[kept], in_flight=[])
    meter.sent(10)
    meter.pass_time(10, 15, waiting=[kept], in_flight=[])
    meter.pass_time(15, 100, waiting=[], in_flight=[kept])
    meter.pass_time(100, 101, waiting=[kept], in_flight=[])
    assert meter.longest_s == 10


@over(("kind", "longest_s"), [(LimitKind.BUCKET, 70), (LimitKind.WINDOW, 40)])
def test_while_a_limit_is_used_up_nobody_waits_for_nothing(kind, longest_s):
    """Two requests a minute: a bucket has the next after 30 s, a window after 60."""
    provider, meter, kept = at_provider(limits=(Limit(REQUESTS, 2, 60, kind),))
    for _ in range(2):
        provider.end(0, provider.begin(0, REQUEST))
    meter.sent(0)
    meter.pass_time(0, 100, waiting=[kept], in_flight=[])
    assert meter.longest_s == pytest.approx(longest_s)


def test_a_full_cap_keeps_everybody_and_a_free_slot_nobody():
    provider, meter, kept = at_provider(concurrency=1)
    answer = provider.begin(0, REQUEST)
    meter.pass_time(0, 50, waiting=[kept], in_flight=[kept])
    assert meter.longest_s == 0
    provider.end(50, answer)
    meter.pass_time(50, 75, waiting=[kept], in_flight=[])
    assert meter.longest_s == 25


def test_an_outage_is_no_idleness_and_ends_the_one_before_it():
    provider, meter, kept = at_provider(walls=(ProviderWall(20, 80),))
    provider.end(0, provider.begin(0, REQUEST))
    meter.pass_time(0, 110, waiting=[kept], in_flight=[])
    assert meter.longest_s == 30
    meter.pass_time(110, 115, waiting=[kept], in_flight=[])
    assert meter.longest_s == 35


def test_what_open_calls_will_be_charged_is_not_there():
    """50 of 100 tokens are promised: 50 are left, which is just enough for one, and not for a longer one."""
    provider, meter, kept = at_provider(limits=(Limit(OUTPUT, 100, 60, LimitKind.WINDOW),))
    provider.begin(0, REQUEST)
    longer = meter.keep(REQUEST, Demand(output_tokens=51))
    meter.pass_time(0, 30, waiting=[longer], in_flight=[kept])
    assert meter.longest_s == 0
    meter.pass_time(30, 50, waiting=[kept], in_flight=[kept])
    assert meter.longest_s == 20


def test_what_rounded_headers_hide_is_not_there():
    provider = SimProvider(ProviderSettings(limits=(Limit(OUTPUT, 5000, 60, LimitKind.WINDOW),)), random.Random(0))
    meter = IdleMeter(provider, coarse_tokens=1000)
    answer = provider.begin(0, REQUEST)
    provider.end(0, answer, output_tokens=4000)
    meter.pass_time(0, 59, waiting=[meter.keep(REQUEST, Demand(output_tokens=1))], in_flight=[])
    assert meter.longest_s == 0


def test_what_is_left_may_be_kept_for_one_that_needs_more():
    provider, meter, kept = at_provider(limits=(Limit(Dimension.INPUT_TOKENS, 1000, 100, LimitKind.BUCKET),))
    provider.end(0, provider.begin(0, SimRequestFacts(SimDialect.MESSAGES, "sk-sim-a", input_tokens=800)))
    large = meter.keep(SimRequestFacts(SimDialect.MESSAGES, "sk-sim-b", input_tokens=600), Demand(input_tokens=600))
    meter.pass_time(0, 50, waiting=[kept, large], in_flight=[])
    assert meter.longest_s == pytest.approx(10)


def test_one_ticket_may_back_off_while_others_are_served_and_two_may_not():
    _, meter, kept = at_provider()
    others = [meter.keep(REQUEST, DEMAND), meter.keep(REQUEST, DEMAND)]
    others[0].backs_off_until = others[1].backs_off_until = 40
    meter.pass_time(0, 40, waiting=others[:1], in_flight=[kept])
    assert meter.longest_s == 0
    meter.pass_time(40, 45, waiting=others[:1], in_flight=[kept])
    assert meter.longest_s == 5
    meter.sent(45)
    others[0].backs_off_until = others[1].backs_off_until = 90
    meter.pass_time(45, 70, waiting=others, in_flight=[kept])
    assert meter.longest_s == 25
    meter.sent(70)
    meter.pass_time(70, 96, waiting=others[:1], in_flight=[])
    assert meter.longest_s == 26


# In runs ---------------------------------------------------------------------------------------------------------------


class Sleepy(Scheduler):
    """Sleeps between two instants, whoever waits."""

    is_asleep = False

    def poll(self, now):
        self.is_asleep = 10 <= now < 70
        return [] if self.is_asleep else super().poll(now)

    def next_wakeup(self):
        return 70.0 if self.is_asleep else super().next_wakeup()


SLEEPY = Policy("sleepy", "sleeps a minute", lambda rng: Sleepy(rng=rng))
CHAT = Scenario("chat", (Crowd("agent", 4, 30, latency_s=1.0, timeout_s=600),), ProviderSettings())


def test_a_policy_that_sleeps_is_caught():
    assert run(CHAT, seed=0).idle_s < 2
    assert run(CHAT, seed=0, policy=SLEEPY).idle_s == pytest.approx(59, abs=1.5)


@over(
    "provider",
    [
        ProviderSettings(limits=(Limit(REQUESTS, 20, 60, LimitKind.WINDOW),)),
        ProviderSettings(limits=(Limit(REQUESTS, 1, 30, LimitKind.BUCKET),)),
        ProviderSettings(walls=(ProviderWall(5, 60),)),
    ],
)
def test_one_that_is_kept_by_the_provider_is_not(provider):
    crowd = Crowd("agent", 4, 10, latency_s=1.0, timeout_s=3600)
    result = run(Scenario("kept", (crowd,), provider), seed=0)
    assert result.lost == 0
    assert result.makespan_s > 60
    assert result.idle_s < 15


def test_what_a_neighbour_takes_is_not_there():
    """It leaves nothing most of the time; what is refused tells that it was so."""
    limits = (Limit(REQUESTS, 1, 30, LimitKind.BUCKET),)
    crowd = Crowd("agent", 1, 3, latency_s=1.0, timeout_s=3600)
    neighbour = Neighbour(calls_per_s=1.0)
    result = run(Scenario("taken", (crowd,), ProviderSettings(limits=limits), neighbour=neighbour), seed=0)
    assert result.refused > 0
    assert result.idle_s < 5


def test_nobody_keeps_anybody_where_nobody_admits():
    assert run(CHAT, seed=0, policy=Policy.SDK).idle_s == 0


def test_a_refusal_is_a_limits_or_the_caps_no_faults_and_no_outages():
    crowd = Crowd("agent", 4, 10, latency_s=1.0, timeout_s=3600)
    chance = run(Scenario("chance", (crowd,), ProviderSettings(faults={"429": 0.3, "529": 0.2})), seed=0)
    assert chance.statuses[429] > 0
    assert chance.refused == 0
    down = run(Scenario("down", (crowd,), ProviderSettings(walls=(ProviderWall(0, 30),))), seed=0)
    assert down.statuses[529] > 0
    assert down.refused == 0
    capped = run(Scenario("capped", (crowd,), ProviderSettings(concurrency=1)), seed=0)
    assert capped.refused == capped.statuses[529] > 0
