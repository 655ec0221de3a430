import random

from hivemind_addon.api.ticket import Demand, PoolKey, Usage
from hivemind_addon.lab.sim.actor import SimUpstream, bill_of, usual_price
from hivemind_addon.lab.sim.dialect import Reply, SimDialect
from hivemind_addon.lab.sim.provider import ProviderSettings
from hivemind_addon.lab.sim.workload import Site
from hivemind_addon.proxy.core.pool import PoolSettings

POOL = PoolKey("x.sim", "key", "sim-1")
USAGE = Usage(input_tokens=100, cache_read_tokens=900, output_tokens=50)


def upstream(settings=None, **site):
    return SimUpstream(Site("x", POOL, ProviderSettings(), **site), random.Random(0), settings)


def test_the_profile_says_what_a_limit_counts():
    reserved = Demand(input_tokens=1, output_tokens=4096, total_tokens=1)
    assert upstream().charged(USAGE, reserved) == Demand(input_tokens=100, output_tokens=50, total_tokens=150)
    openai = upstream(profile="openai", dialect=SimDialect.CHAT).charged(USAGE, reserved)
    assert openai.input_tokens == 1000, "cached tokens count there"


def test_a_model_waits_where_the_profiles_groups_put_it():
    assert upstream().pool_of("sim-1") is POOL
    assert upstream().pool_of("claude-opus-4-5") == PoolKey("x.sim", "key", "claude-opus-4*")
    assert upstream().pool_of("other") == PoolKey("x.sim", "key", "other")


def test_settings_of_the_scenario_go_before_the_profiles():
    mine = PoolSettings()
    assert upstream(mine).pool_settings is mine
    assert upstream().pool_settings == upstream().profile.pool_settings


def test_a_bill_knows_caches():
    reply = Reply(
        dialect=SimDialect.MESSAGES,
        request_id="id",
        attempt=1,
        digest="",
        model="sim-1",
        input_tokens=1_000_000,
        cached_tokens=1_000_000,
        written_tokens=1_000_000,
        output_tokens=5,
        tokens_per_delta=1,
        truncated=False,
        include_usage=False,
    )
    bill = bill_of(reply, output_tokens=1_000_000, price=usual_price())
    assert bill.tokens == 4_000_000
    assert bill.micro_usd == (3 + 3.75 + 0.3 + 15) * 1_000_000
    unpriced = bill_of(reply, output_tokens=1_000_000, price=None)
    assert (unpriced.tokens, unpriced.micro_usd) == (4_000_000, 0)
