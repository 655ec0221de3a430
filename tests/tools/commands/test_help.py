"""Every command, also those of tomorrow: it has a help text, with examples that its own parser takes."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands.index import SECTIONS
from lab.generators.command_help import every_command, help_of
from tests.shell_lines import accept, calls

EVERY = dict(every_command(main))
_OTHERS = {"mitmdump", "mitmweb"}
"""What examples may begin with besides."""


def examples(command: click.Command) -> list[str]:
    """The lines below `Examples:`."""
    below = (command.help or "").partition("Examples:\n")[2]
    return [line.strip() for line in below.splitlines() if line.strip()]


@pytest.fixture(autouse=True)
def no_files(monkeypatch):
    """Examples name files that are not here."""
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, _param, _ctx: Path(value))


def test_help_is_printed_with_examples_that_can_be_typed_and_says_what_each_option_does():
    wrong = {path: list(faults(path, command)) for path, command in EVERY.items()}
    assert {path: found for path, found in wrong.items() if found} == {}


def test_every_help_fits_a_terminal_and_no_list_is_cut():
    found = [
        f"{path}: {line}"
        for path, command in EVERY.items()
        for line in help_of(path, command, width=80).splitlines()
        if len(line) > 80 or (line.endswith("...") and "Usage:" not in line)
    ]
    assert found == []


def test_there_are_about_thirty_commands_at_the_top():
    """Forty were too many to be looked through."""
    assert len(main.list_commands(click.Context(main))) <= 31


def faults(path, command):
    result = CliRunner().invoke(main, [*path.split()[1:], "--help"])
    if result.exit_code or "Examples:\n" not in result.output:
        yield result.output
    if not all(option.help for option in command.params if isinstance(option, click.Option)):
        yield "an option says nothing"
    try:
        called = [call for line in examples(command) for call in calls(line)]
        ours = [call[1:] for call in called if call[0] == "hivemind"]
        taken = {id(accept(main, arguments)) for arguments in ours}
    except click.UsageError as error:
        yield f"an example cannot be typed: {error.format_message()}"
        return
    if not ours and not {call[0] for call in called} & _OTHERS:
        yield "there are no examples"
    if not isinstance(command, click.Group) and ours and id(command) not in taken:
        yield "its examples are another command's"


def test_the_first_help_lists_every_command_under_what_people_want():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for heading, entries in SECTIONS.items():
        assert f"\n{heading}:\n" in result.output
        for entry in entries:
            assert re.search(rf"^  {entry.name} +{re.escape(entry.about)}$", result.output, re.MULTILINE)
    assert max(map(len, result.output.splitlines())) <= 80


def test_an_example_that_cannot_be_typed_is_found():
    with pytest.raises(click.UsageError):
        accept(main, ["pause", "--nonsense"])
    with pytest.raises(click.UsageError):
        accept(main, ["pausse"])
    with pytest.raises(click.UsageError):
        accept(main, ["capture", "begin", "x.flow"])


def test_what_the_environment_gives_may_be_left_out():
    assert accept(main, ["eta"]) is EVERY["hivemind eta"]
    with pytest.raises(click.UsageError):
        accept(main, ["priority"])
