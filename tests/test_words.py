import pytest

from hivemind_addon.words import about, failing, lasting, plain


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 min"),
        (-5, "0 min"),
        (1, "1 min"),
        (60, "1 min"),
        (3_600, "1 h 0 min"),
        (7_501, "2 h 6 min"),
        (86_400, "1 d 0 h"),
        (540_000, "6 d 6 h"),
    ],
)
def test_a_span_of_time_is_said_in_its_two_largest_units(seconds, words):
    assert lasting(seconds) == words


def test_a_failure_is_one_line_of_bounded_length():
    assert failing(ValueError("a\n  b")) == "ValueError: a b"
    assert len(failing(ValueError("x" * 1000))) == 200


def test_what_is_no_text_is_replaced_and_the_rest_cut():
    assert plain("a\udcffb") == "a?b"
    assert plain("abc", 2) == "ab"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "1 s"), (0.2, "1 s"), (4, "4 s"), (10, "10 s"), (11, "15 s"), (31, "35 s"), (55, "55 s"), (56, "1 min")],
)
def test_a_guess_is_said_coarsely(seconds, words):
    assert about(seconds) == words
