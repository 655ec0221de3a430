from dataclasses import dataclass

from hivemind_addon.formats.base import memo
from hivemind_addon.formats.base.memo import REMEMBERED_CHARS, by_text, by_thing, by_thing_and_text

LONG = "x" * (REMEMBERED_CHARS + 1)


@dataclass(frozen=True)
class Thing:
    """Not hashable, as a profile is not."""

    names: list[str]


def test_a_text_s_answer_is_worked_out_once_and_a_long_one_s_each_time():
    asked = []
    answer = by_text(lambda text: asked.append(text) or text.upper())
    assert [answer("a"), answer("a"), answer("b")] == ["A", "A", "B"]
    assert answer(LONG) == answer(LONG) == LONG.upper()
    assert asked == ["a", "b", LONG, LONG]


def test_equal_things_have_answers_of_their_own_and_each_is_worked_out_once():
    asked = []
    one, other = Thing(["a"]), Thing(["a"])
    answer = by_thing(lambda thing: asked.append(thing) or len(asked))
    assert [answer(one), answer(other), answer(one)] == [1, 2, 1]


def test_a_thing_and_a_text_have_an_answer_together():
    asked = []
    one, other = Thing(["a"]), Thing(["b"])
    answer = by_thing_and_text(lambda thing, text: asked.append(text) or thing.names[0] + text)
    assert [answer(one, "x"), answer(other, "x"), answer(one, "y"), answer(one, "x")] == ["ax", "bx", "ay", "ax"]
    answer(one, LONG), answer(one, LONG)
    assert asked == ["x", "x", "y", LONG, LONG]


def test_things_that_come_and_go_are_never_taken_for_each_other(monkeypatch):
    monkeypatch.setattr(memo, "_MOST", 3)
    of_thing, of_both = by_thing(lambda thing: thing.names[0]), by_thing_and_text(lambda thing, text: thing.names[0])
    for number in range(50):
        thing = Thing([str(number)])
        assert of_thing(thing) == of_both(thing, "x") == str(number)
