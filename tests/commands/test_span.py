import click
import pytest

from hivemind_addon.tools.commands.span import SOME_TIME, SPAN


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("5m", 300),
        ("5 min", 300),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("1h30m", 5400),
        ("1 d 2 h", 93_600),
        ("250ms", 0.25),
        (7, 7),
        ("0", 0),
    ],
)
def test_a_span_is_seconds(text, seconds):
    assert SPAN.convert(text, None, None) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "5 weeks", "-5s", "1h30", "30 1h", "1h 5weeks", "nan", "inf", "9" * 400 + "s"]
)
def test_what_is_no_span_is_named(text):
    with pytest.raises(click.BadParameter, match="no span of time"):
        SPAN.convert(text, None, None)


@pytest.mark.parametrize("text", ["0", "0s", "0h0m"])
def test_where_some_time_is_needed_none_is_named(text):
    assert SOME_TIME.convert("1h", None, None) == 3600
    with pytest.raises(click.BadParameter, match="is no time at all: try"):
        SOME_TIME.convert(text, None, None)
