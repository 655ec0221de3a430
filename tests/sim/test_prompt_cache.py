from hivemind_addon.lab.sim.limits import Prefix, SimPromptCache

SHORT, LONG = Prefix("system", 1000), Prefix("system and history", 5000)


def test_nothing_is_read_before_the_writers_answer_has_begun():
    cache = SimPromptCache(300)
    cache.write([SHORT], 0.0, usable_at=2.0)
    assert cache.cached_tokens([SHORT], 1.9) == 0
    assert cache.cached_tokens([SHORT], 2.0) == 1000


def test_the_longest_known_beginning_counts():
    cache = SimPromptCache(300)
    cache.write([SHORT], 0.0, usable_at=0.0)
    assert cache.cached_tokens([SHORT, LONG], 1.0) == 1000
    cache.write([SHORT, LONG], 1.0, usable_at=2.0)
    assert cache.cached_tokens([SHORT, LONG], 3.0) == 5000


def test_an_entry_lives_from_the_start_of_the_last_call_that_used_it():
    cache = SimPromptCache(300)
    cache.write([SHORT], 0.0, usable_at=1.0)
    cache.write([SHORT], 200.0, usable_at=205.0)
    assert cache.cached_tokens([SHORT], 201.0) == 1000
    assert cache.cached_tokens([SHORT], 499.0) == 1000
    assert cache.cached_tokens([SHORT], 500.0) == 0


def test_an_expired_entry_is_written_again():
    cache = SimPromptCache(300)
    cache.write([SHORT], 0.0, usable_at=1.0)
    cache.write([SHORT], 400.0, usable_at=403.0)
    assert cache.cached_tokens([SHORT], 402.0) == 0
    assert cache.cached_tokens([SHORT], 403.0) == 1000
