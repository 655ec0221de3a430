import random

from hivemind_addon.api.ticket import PoolKey
from hivemind_addon.lab.sim.actor import Actor, SdkBackoff, SimUpstream
from hivemind_addon.lab.sim.limits import Prefix
from hivemind_addon.lab.sim.provider import ProviderSettings
from hivemind_addon.lab.sim.workload import Crowd, PlannedTurn, Site


def actor(**crowd):
    site = SimUpstream(Site("", PoolKey("x", "y", "z"), ProviderSettings()), random.Random(0), None)
    made = Actor(0, "a-0", "a-0", Crowd("a", 1, 2, **crowd), site, iter(()), random.Random(0))
    made.turn = PlannedTurn(think_s=0, latency_s=1, generation_s=0, prompt_tokens=100, output_tokens=10)
    made.number = 2
    return made


def test_a_prompt_is_all_that_was_said_and_what_is_new():
    talker = actor(shared_tokens=1000)
    talker.said = 500
    assert talker.prompt_tokens == 1600


def test_marks_go_from_the_shared_prefix_to_the_present_request():
    talker = actor(shared_tokens=1000, caches=True)
    talker.said, talker.marked = 500, 1200
    assert talker.prefixes == (Prefix("a", 1000), Prefix("a-0 1", 1200), Prefix("a-0 2", 1600))
    assert actor().prefixes == ()


def test_output_is_guessed_high_at_first_and_closer_with_each_answer():
    talker = actor()
    assert talker.likely_output_tokens == talker.upstream.profile.charge.default_output_tokens
    guesses = []
    for _ in range(20):
        talker.learn(100)
        guesses.append(talker.likely_output_tokens)
    assert guesses[0] == 200
    assert 100 <= guesses[-1] < 105


def test_a_retry_after_is_obeyed_up_to_a_minute():
    rng = random.Random(1)
    assert SdkBackoff().wait_s(0, 7.0, rng) == 7.0
    assert SdkBackoff().wait_s(0, 60.0, rng) == 60.0
    for useless in (None, 0.0, -3.0, 61.0, float("nan"), float("inf")):
        assert SdkBackoff().wait_s(0, useless, rng) <= SdkBackoff().first_s


def test_backoff_doubles_up_to_its_maximum_with_a_quarter_of_jitter():
    for retry, most in enumerate((0.5, 1, 2, 4, 8, 8)):
        waits = [SdkBackoff().wait_s(retry, None, random.Random(seed)) for seed in range(50)]
        assert 0.75 * most <= min(waits) < max(waits) <= most
