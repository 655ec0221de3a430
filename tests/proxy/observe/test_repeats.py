from hivemind_addon.proxy.observe.news import BURST, EVERY_S, Repeats


def test_the_first_few_are_told_and_the_others_counted():
    repeats = Repeats()
    assert [repeats.lets("a", 0) for _ in range(BURST + 3)] == [True] * BURST + [False] * 3
    assert repeats.lets("b", 0), "each kind for itself"
    assert repeats.over(EVERY_S - 1) == []
    assert repeats.over(EVERY_S) == [("a", 3, EVERY_S)]
    assert repeats.over(EVERY_S) == [], "once"
    assert repeats.lets("a", EVERY_S)


def test_a_kind_that_was_told_in_full_is_not_told_again():
    repeats = Repeats()
    repeats.lets("a", 0)
    assert repeats.over(1e6) == []


def test_kinds_without_end_are_told_rather_than_kept():
    repeats = Repeats()
    for number in range(3000):
        assert repeats.lets(number, 0)
    assert len(repeats._crowds) <= 1000
