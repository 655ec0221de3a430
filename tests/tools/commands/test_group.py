"""Commands that are loaded when they are asked for."""

import subprocess
import sys

import click
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands.group import CalmGroup, CommandEntry, ListGroup
from hivemind_addon.tools.commands.index import SECTIONS
from lab.generators.command_help import every_command, help_of


def test_everything_in_the_index_is_there_and_listed_once():
    names = [entry.name for entries in SECTIONS.values() for entry in entries]
    assert len(set(names)) == len(names)
    for entries in SECTIONS.values():
        for entry in entries:
            assert entry.load().name == entry.name
            assert len(entry.about) <= 55, "80 columns are all that some have"


def test_a_slip_is_told_with_what_was_meant():
    result = CliRunner().invoke(main, ["stattus"])
    assert result.exit_code == 2
    assert "No such command 'stattus'. Did you mean 'status'?" in result.stderr
    assert "Did you mean" not in CliRunner().invoke(main, ["xyzzy"]).stderr


def test_what_is_registered_beside_the_index_is_listed_last():
    group = CalmGroup("hivemind", index={"See": [CommandEntry("eta", "tools.commands.eta:eta", "When it goes on")]})

    @group.command()
    def extra() -> None:
        """Something of its own."""

    @group.command(hidden=True)
    def inner() -> None:
        """For nobody."""

    printed = CliRunner().invoke(group, ["--help"]).output
    assert printed.index("\nSee:\n  eta    When it goes on\n") < printed.index(
        "\nMore:\n  extra  Something of its own\n"
    )
    assert "For nobody" not in printed
    assert [path for path, _ in every_command(group)] == ["hivemind eta", "hivemind extra", "hivemind inner"]


def test_groups_within_are_walked_and_help_is_as_it_is_printed():
    found = dict(every_command(main))
    assert isinstance(found["hivemind capture"], click.Group)
    printed = CliRunner().invoke(main, ["capture", "stop", "--help"], prog_name="hivemind", terminal_width=100)
    assert help_of("hivemind capture stop", found["hivemind capture stop"]) == printed.output.rstrip()


def test_the_first_help_loads_no_command():
    """It took 0.7 s when it did."""
    script = """
import sys
from hivemind_addon.tools.cli import main
try:
    main(["--help"])
except SystemExit:
    ours = {name for name in sys.modules if name.startswith("hivemind_addon.")}
    print(ours - {"hivemind_addon.tools", "hivemind_addon.tools.cli", "hivemind_addon.tools.commands"} == {
        "hivemind_addon.tools.commands.group", "hivemind_addon.tools.commands.index"}, "asyncio" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("True False\n"), done.stdout


def test_commands_that_steer_load_little():
    script = """
import sys
import hivemind_addon.tools.commands.steering
print([name for name in ("mitmproxy", "yaml", "rich", "textual", "tiktoken", "hivemind_addon.kernel.pool") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


LISTS = ListGroup("g")


@LISTS.command(name="list")
@click.option("--agent", default="")
@click.option("--json", "as_json", is_flag=True)
def list_(agent: str, *, as_json: bool) -> None:
    click.echo(f"list {agent} {as_json}")


@LISTS.command()
@click.option("--agent", default="")
@click.argument("name", default="")
def show(agent: str, name: str) -> None:
    click.echo(f"show {agent} {name}")


def test_a_group_that_lists_takes_options_before_its_subcommands_and_needs_none():
    answers = {
        "": "list  False",
        "--agent x --json": "list x True",
        "--agent show": "list show False",
        "list --agent x": "list x False",
        "show --agent x y": "show x y",
        "--agent x show y": "show x y",
        "--agent show show y": "show show y",
        "--agent=show show list": "show show list",
    }
    runner = CliRunner()
    assert {words: runner.invoke(LISTS, words.split()).output.strip() for words in answers} == answers
    assert "Commands:\n  list" in runner.invoke(LISTS, ["--help"]).output
    assert "No such command 'shwo'" in runner.invoke(LISTS, ["shwo"]).output


def test_a_shell_completes_what_a_group_lists_by():
    completed = ShellComplete(LISTS, {}, "g", "_G").get_completions
    assert [item.value for item in completed([], "--")] == ["--agent", "--json", "--help"]
    assert [item.value for item in completed([], "")] == ["list", "show"]
    assert [item.value for item in completed(["--json", "show"], "--")] == ["--agent", "--help"]


def test_addon_is_short_for_setup_addon():
    short, long = (CliRunner().invoke(main, words) for words in (["addon"], ["setup", "addon"]))
    assert (short.exit_code, short.stdout, short.stderr) == (0, long.stdout, "")
    assert "hivemind addon" not in dict(every_command(main))
