from lab.bench.compaction import FACTS, SHORT_TURNS, STRATEGIES, Session


def test_stubs_lose_nothing_and_keep_the_cache_as_warm_as_truncation():
    made = {name: Session(1, SHORT_TURNS, strategy) for name, strategy in STRATEGIES.items()}
    assert all(one.turns == SHORT_TURNS for one in made.values())
    assert {name for name, one in made.items() if one.kept + one.recallable == FACTS} == {"nothing", "stubs"}
    stubs, truncation, provider = made["stubs"], made["truncation"], made["provider"]
    assert stubs.recallable > FACTS / 10
    assert stubs.times <= truncation.times + 1 < provider.times
    assert stubs.read_share > truncation.read_share - 0.01 > provider.read_share
    assert stubs.recalls_usd < stubs.usd
