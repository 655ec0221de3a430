"""Agents run into their budgets. What is kept of them is sent again as it was, and resumed by the real programs."""

import asyncio
import dataclasses
import json
import os
import re
import shutil
import subprocess

import pytest
from click.testing import CliRunner

from fleets.agent import ANTHROPIC_HOST, OPENAI_HOST, Agent, Program, Scheduled, launch
from fleets.process import run
from fleets.programs import NotInstalled, install
from fleets.proxy import running_proxy
from fleets.stage import running_stage
from hivemind_addon.lab.sim.provider import Latency, ProviderSettings
from hivemind_addon.lab.sim.task import SimTask
from hivemind_addon.tools.cli import main
from tests.e2e.origin import PLAIN, running_origin
from tests.e2e.proxy import PATIENCE_S, body
from tests.e2e.test_grants import ask, house

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]

QUICK = ProviderSettings(latency=Latency(median_s=0.01, sigma=0.1), interval_s=0.0)
LIMIT_S = 240


@pytest.fixture(scope="module")
def programs():
    try:
        return install()
    except NotInstalled as error:
        if os.environ.get("HIVEMIND_REQUIRE_AGENTS") == "1":
            pytest.fail(str(error))
        pytest.skip(f"Claude Code and Codex do not run: {error}")


def hivemind(*arguments, **variables):
    """A command of ours, as a person types it; its answer as JSON."""
    done = CliRunner().invoke(main, [*map(str, arguments), "--json"], env=variables)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is what people send it with")
def test_a_request_that_a_budget_stopped_is_kept_once_and_can_be_sent_again_as_it_was(tmp_path):
    rules = tmp_path / "agents.yaml"
    rules.write_text("everyone: {budgets: [{tokens: 1, per: day}]}")
    settings = (f"hivemind_agents={rules}", f"hivemind_journal={tmp_path / 'journal.db'}")
    folder, told = tmp_path / "checkpoints", set()
    with running_origin() as origin:
        origin.open()
        for _ in range(2):  # a restart makes no new one of the same request
            with house(tmp_path, origin.port, *settings) as proxy:
                for _ in range(3):
                    refused = ask(proxy, host=f"127.0.0.1:{origin.port}", headers={"anthropic-version": "2023-06-01"})
                    assert refused.status_code == 400
                    told.update(
                        re.findall(r"hivemind checkpoint show (\w+) -p \d+\.", refused.text)
                    )  # a slow disk tells none
                proxy.wait_for(lambda _: list(folder.glob("*.checkpoint")), "the checkpoint on the disk")
                assert proxy.state()["guard_trips"] == 0
                assert sum("CheckpointKept" in event and "reason=''" in event for event in proxy.state()["events"]) <= 1
        (kept,) = folder.iterdir()
        assert told == {kept.name.removesuffix(".checkpoint")}
        assert b'"k"' not in kept.read_bytes()
        arguments = ("--as", "api", "-o", tmp_path / "a body.json", "--folder", folder)
        command = hivemind("checkpoint", "export", told.pop(), *arguments)["command"]
        environment = {"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": "my-own"}
        sent = subprocess.run(
            ["sh", "-c", command], capture_output=True, env=environment, timeout=PATIENCE_S, check=True
        )
    assert sent.stdout == PLAIN
    (arrived,) = origin.arrived
    assert bytes(arrived.body) == body(max_tokens=16).encode()
    assert (arrived.headers["x-api-key"], arrived.headers["anthropic-version"]) == ("my-own", "2023-06-01")


def go_on(agent, way, programs, session):
    """The same agent again, in its project, with a home in which nothing is of the first one."""
    again = launch(dataclasses.replace(agent, folder=agent.folder / "again"), way, programs)
    command = [word for word in again.command if word != agent.task.prompt]
    command += ["--resume", session, "Go on."] if agent.program is Program.CLAUDE else ["resume", session, "Go on."]
    return dataclasses.replace(again, command=tuple(command), folder=agent.folder / "work")


async def interrupted(agent, way, programs, proxy):
    """Run it into its budget, and export its conversation to where it will look for it; the session's name."""
    first = await run(launch(agent, way, programs), agent.folder / "first.log", LIMIT_S)
    assert "checkpoint show" in first.output
    assert not agent.has_finished

    (head,) = hivemind("checkpoint", "list", "--agent", agent.name, **proxy.variables)
    assert head["id"] in first.output
    home = agent.folder / "again" / "home"
    form = "claude-code" if agent.program is Program.CLAUDE else "codex"
    written = hivemind(
        *("checkpoint", "export", head["id"], "--as", form, "--write", "--cwd", agent.folder / "work"),
        **{"CLAUDE_CONFIG_DIR": str(home / ".claude"), "CODEX_HOME": str(home / ".codex")} | proxy.variables,
    )
    return written["session"]


async def test_conversations_that_budgets_stopped_go_on_in_the_real_programs(tmp_path, programs):
    rules = tmp_path / "agents.yaml"
    rules.write_text("agents: {claude: {budgets: [{tokens: 30000}]}, codex: {budgets: [{tokens: 40000}]}}")
    agents = [
        Agent(program, SimTask(name, 4, "result.txt"), tmp_path / name)
        for program, name in ((Program.CLAUDE, "claude"), (Program.CODEX, "codex"))
    ]
    providers = dict.fromkeys((ANTHROPIC_HOST, OPENAI_HOST), QUICK)
    async with (
        running_stage(tmp_path, providers, seed=5) as stage,
        running_proxy(tmp_path, (*stage.proxy_settings, f"hivemind_agents={rules}")) as proxy,
    ):
        way = Scheduled(proxy.port, proxy.variables, "stream")
        sessions = await asyncio.gather(*(interrupted(agent, way, programs, proxy) for agent in agents))
        for agent in agents:
            more = hivemind("budget", "add", agent.name, "--tokens", "1M", "-p", proxy.port, **proxy.variables)
            assert more["done"], more
        resumed = await asyncio.gather(
            *(
                run(go_on(agent, way, programs, session), agent.folder / "second.log", LIMIT_S)
                for agent, session in zip(agents, sessions, strict=True)
            )
        )
        # The provider counts the tool results in what it is sent: it led each agent on from where it was stopped, and
        # not one line is missing or there twice.
        assert [(agent.name, agent.has_finished) for agent in agents] == [("claude", True), ("codex", True)], resumed
        assert proxy.guard_trips == 0
