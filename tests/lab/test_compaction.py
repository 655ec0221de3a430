from lab.compaction import FACTS, SHORT_TURNS, measure


def test_stubs_lose_nothing_and_keep_the_cache_as_warm_as_truncation():
    made = {name: one for name, (one,) in measure(SHORT_TURNS, range(1, 2)).items()}
    assert all(one.turns == SHORT_TURNS for one in made.values())
    assert {name: one.found for name, one in made.items() if one.found == FACTS} == {"nothing": FACTS, "stubs": FACTS}
    stubs, truncation, provider = made["stubs"], made["truncation"], made["provider"]
    assert stubs.recallable > FACTS / 10
    assert stubs.times <= truncation.times + 1 < provider.times
    assert stubs.read_share > truncation.read_share - 0.01 > provider.read_share
    assert stubs.recalls.micro_usd < stubs.spend.micro_usd
