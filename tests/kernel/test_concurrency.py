import pytest

from hivemind_addon.kernel.limits.slots import ConcurrencySettings, Slots


def filled(limit: int, *, maximum: int = 256) -> Slots:
    slots = Slots(ConcurrencySettings(initial=limit, maximum=maximum))
    for in_flight in range(1, limit + 1):
        slots.sent(in_flight, 10.0)
    return slots


def grown(settings, *, to):
    slots = Slots(settings)
    while slots.limit < to:
        slots.passed(slots.limit, 10.0)
    return slots


def test_there_are_slots_from_the_beginning():
    slots = Slots(ConcurrencySettings(initial=4))
    assert [slots.opens_at(in_flight, 10.0) for in_flight in (0, 3)] == [10.0, 10.0]


def test_one_more_when_the_last_one_was_not_refused_for_a_moment():
    slots = filled(4)
    opens_at = slots.opens_at(4, 10.0)
    assert 10 < opens_at < 10.2
    assert slots.opens_at(4, opens_at) == opens_at
    assert slots.limit == 4, "to look changes nothing"
    slots.sent(5, opens_at)
    assert slots.limit == 5
    assert slots.opens_at(5, opens_at) > opens_at


def test_one_more_when_it_was_answered():
    slots = filled(4)
    slots.passed(3, 10.0)
    assert slots.limit == 4
    slots.passed(4, 10.0)
    assert slots.limit == 5


def test_what_does_not_fill_it_proves_nothing():
    slots = Slots(ConcurrencySettings(initial=4))
    slots.sent(2, 10.0)
    assert slots.opens_at(2, 99.0) == 99.0
    assert slots.limit == 4


def test_never_more_than_the_maximum():
    slots = filled(4, maximum=4)
    slots.passed(4, 10.0)
    assert slots.opens_at(4, 99.0) == float("inf")
    assert slots.limit == 4


def test_a_provider_that_takes_2000_at_once_gets_them():
    assert grown(ConcurrencySettings(), to=2000).limit == 2000


def test_where_it_is_crowded_one_less_and_none_more_for_a_while():
    slots = filled(8)
    slots.crowded(7, 20.0, by_others=True)
    assert slots.limit == 6
    slots.sent(6, 21.0)
    slots.passed(8, 21.0)
    assert (slots.limit, slots.opens_at(6, 21.0)) == (6, 25.0)
    slots.passed(6, 26.0)
    assert slots.limit == 7


def test_the_edge_takes_a_slot_for_each_refusal_and_gives_one_back_for_each_pass():
    slots = filled(8)
    for now in (20.0, 21.0):
        slots.crowded(3, now, by_others=False)
    assert (slots.limit, slots.opens_at(6, 21.0)) == (6, float("inf"))
    slots.passed(6, 22.0)
    assert slots.limit == 7


def test_after_an_outage_half_of_what_was_proved():
    slots = filled(40)
    slots.recover(0, 0.0)
    assert slots.limit == 20
    slots = filled(3)
    slots.recover(0, 0.0)
    assert slots.limit == 2


def test_what_has_outlived_an_outage_keeps_nobody_waiting():
    slots = filled(40)
    slots.recover(30, 100.0)
    assert slots.limit == 30
    assert slots.opens_at(30, 100.0) == pytest.approx(100.05)


def test_after_a_rest_it_starts_as_at_first():
    slots = filled(4)
    for in_flight in range(4, 40):
        slots.passed(in_flight, 10.0)
    assert slots.limit == 40
    slots.rest()
    assert slots.limit == 4


class TestConfigure:
    def test_what_was_learned_stays_within_the_new_maximum(self):
        slots = grown(ConcurrencySettings(initial=2), to=8)
        slots.configure(ConcurrencySettings(initial=4, maximum=100))
        assert slots.limit == 8
        slots.configure(ConcurrencySettings(maximum=3))
        assert slots.limit == 3
        slots.passed(3, 10.0)
        assert slots.limit == 3

    def test_a_higher_maximum_lets_it_grow_again(self):
        slots = grown(ConcurrencySettings(initial=1, maximum=2), to=2)
        slots.passed(2, 10.0)
        assert slots.limit == 2
        slots.configure(ConcurrencySettings(initial=1, maximum=3))
        slots.passed(2, 10.0)
        assert slots.limit == 3

    def test_where_nothing_was_proved_it_begins_anew(self):
        slots = Slots(ConcurrencySettings(initial=1))
        slots.sent(1, now=0.0)
        slots.configure(ConcurrencySettings(initial=6))
        assert slots.limit == 6
        assert slots.opens_at(6, now=10.0) == float("inf"), "what filled one slot proves none of six"
