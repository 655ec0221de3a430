"""Commands and options that people know from hivemind-scheduler 0.2.0: each is taken, or says why not."""

import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands.index import SECTIONS
from hivemind_addon.tools.commands.mcp import mcp
from hivemind_addon.tools.commands.run import run

SHARED = ("--upstream", "--max-concurrency", "--db", "--total-budget", "--agent-budget")
PROXY = (*SHARED, "--host", "--port", "--min-concurrency", "--max-retries", "--retry-base-delay", "--retry-max-delay")
PROXY += ("--latency-target", "--aimd-increase", "--aimd-decrease")
SERVE = (*SHARED, "--max-retries", "--min-concurrency")
TAKEN = {*SHARED, "--host", "--port"}


def test_proxy_is_run_and_serve_is_mcp():
    assert main.get_command(None, "proxy") is run
    assert main.get_command(None, "serve") is mcp
    listed = {entry.name for entries in SECTIONS.values() for entry in entries}
    assert listed.isdisjoint({"proxy", "serve"})


@pytest.mark.parametrize(
    ("name", "command", "known", "cures"),
    [
        ("proxy", run, PROXY, ("extends: anthropic", "leave it out")),
        ("serve", mcp, SERVE, ("hivemind proxy --", "extends: anthropic", "leave it out")),
    ],
)
def test_each_option_of_the_peer_is_taken_or_says_why_not_and_what_to_do(name, command, known, cures):
    ours = {word for one in command.params if not getattr(one, "hidden", False) for word in one.opts}
    for option in known:
        if name == "proxy" and option in TAKEN:
            assert option in ours
            continue
        result = CliRunner().invoke(main, [name, option, "7"])
        assert result.exit_code == 2
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert line.startswith(f"Error: {option}: ")
        assert any(cure in line for cure in cures), line
        assert option not in CliRunner().invoke(main, [name, "--help"]).stdout


def test_a_slip_is_not_led_to_what_is_refused():
    result = CliRunner().invoke(main, ["proxy", "--max-retriez", "7"])
    assert "no such option: --max-retriez" in result.stderr
    assert "--max-retries" not in result.stderr
