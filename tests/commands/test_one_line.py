import click
import pytest

from hivemind_addon.tools.commands.one_line import in_one_line


class Expected(Exception):
    pass


@in_one_line(Expected)
def fails(error):
    """Says what it does."""
    raise error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Expected("why, and the cure"), "why, and the cure"),
        (FileNotFoundError(2, "No such file or directory", "/a/b"), "/a/b: No such file or directory"),
        (OSError("told in words"), "told in words"),
    ],
)
def test_what_is_expected_is_one_line_each_time(error, line):
    for _ in range(2):
        with pytest.raises(click.ClickException) as caught:
            fails(error)
        assert caught.value.message == line


@pytest.mark.parametrize("error", [ValueError("a defect"), BrokenPipeError(32, "Broken pipe")])
def test_what_is_not_goes_on(error):
    with pytest.raises(type(error)):
        fails(error)


def test_a_command_keeps_its_help():
    assert (fails.__name__, fails.__doc__) == ("fails", "Says what it does.")
