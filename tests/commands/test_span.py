import click
import pytest

from hivemind_addon.commands.span import SPAN


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
        ("250ms", 0.25),
        (7, 7),
        ("0", 0),
    ],
)
def test_a_span_is_seconds(text, seconds):
    assert SPAN.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 weeks", "-5s", "1h30", "nan", "inf", "9" * 400 + "s"])
def test_what_is_no_span_is_named(text):
    with pytest.raises(click.BadParameter, match="no span of time"):
        SPAN.convert(text, None, None)
