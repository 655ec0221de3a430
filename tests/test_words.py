import pytest

from hivemind_addon.words import lasting, took


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


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (723.4, "12 min 3 s"),
        (7_501, "2 h 5 min"),
    ],
)
def test_what_something_took_is_said_as_exactly_as_matters(seconds, words):
    assert took(seconds) == words
