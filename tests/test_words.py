import pytest

from hivemind_addon.words import lasting


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
