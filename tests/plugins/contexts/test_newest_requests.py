import math

import pytest

from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.plugins.contexts.newest_requests import HeldRequest, Holding
from hivemind_addon.plugins.contexts.policy import IDLE_S, KeepPolicy, parse_policy
from tests.cases import each

LANE = ("agent-1", "s-1")


def request(what, at=0.0, *, lane=LANE, opening=1, size=10):
    return HeldRequest(lane, opening, what, size, at, Spend(1, 2))


def taken(requests):
    return [one.what for one in requests]


def holding(policy="idle", most_bytes=1000):
    return Holding(parse_policy(policy), most_bytes=most_bytes)


def test_the_newest_of_a_conversation_is_kept_once_it_was_silent():
    held = holding()
    for at, what in enumerate("abc"):
        assert taken(held.hold(request(what, float(at)))) == []
    assert held.next_at() == 2 + IDLE_S
    assert taken(held.take_due(2 + IDLE_S - 0.1)) == []
    (due,) = held.take_due(2 + IDLE_S)
    assert (due.what, due.spent, due.turns) == ("c", Spend(3, 6), 3)
    assert held.next_at() is None
    assert len(held) == 0


def test_conversations_of_one_session_and_sessions_do_not_take_each_other_s_place():
    held = holding()
    for at, (lane, opening) in enumerate([(LANE, 1), (LANE, 2), (("agent-1", "s-2"), 1)]):
        assert taken(held.hold(request((lane, opening), float(at), lane=lane, opening=opening))) == []
    assert taken(held.take_lane(LANE)) == [(LANE, 1), (LANE, 2)]
    assert taken(held.take_lane(LANE)) == []
    assert taken(held.take_all()) == [(("agent-1", "s-2"), 1)]


def test_what_is_used_again_is_the_last_to_be_due():
    held = holding()
    for at, opening in enumerate([1, 2, 1]):
        list(held.hold(request(f"{opening} at {at}", float(at), opening=opening)))
    assert taken(held.take_due(1 + IDLE_S)) == ["2 at 1"]
    assert taken(held.take_due(math.inf)) == ["1 at 2"]


def test_every_so_many_requests_one_is_kept_and_the_rest_at_the_end():
    held = holding("every:3")
    assert [taken(held.hold(request(number))) for number in range(7)] == [[], [], [2], [], [], [5], []]
    assert taken(held.take_all()) == [6]
    assert taken(holding("turn").hold(request("a"))) == ["a"]


def test_where_too_much_is_held_the_oldest_is_kept_first():
    held = holding(most_bytes=25)
    assert [taken(held.hold(request(number, opening=number))) for number in range(4)] == [[], [], [0], [1]]
    assert taken(held.hold(request("large", opening=9, size=100))) == [2, 3, "large"]
    assert held.next_at() is None


@each(
    ("text", "policy"),
    [
        ("turn", KeepPolicy("turn", 1, math.inf)),
        ("every:5", KeepPolicy("every 5", 5)),
        (" Every : 12", KeepPolicy("every 12", 12)),
        ("idle", KeepPolicy("idle", silent_s=IDLE_S)),
        ("end", KeepPolicy("end")),
        ("off", None),
    ],
)
def test_a_policy_is_a_word(text, policy):
    assert parse_policy(text) == policy


@each("text", ["every", "every:0", "every:-1", "every:1.5", "always", "idle:30"])
def test_no_other_word_is_one(text):
    with pytest.raises(ValueError, match=text):
        parse_policy(text)
