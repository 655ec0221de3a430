"""What fleets are made of, without their agents; whole fleets are in tests/e2e/test_fleets.py."""

import asyncio
import os
import select
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hivemind_addon.sim.call import Truth, TruthPart
from hivemind_addon.sim.task import SimTask
from lab.fleets.agent import Agent, Exit, Launch, Scheduled, Straight, launch, run
from lab.fleets.endurance import HELD, Case, Endured, Manner, cases
from lab.fleets.endurance import PAGE as ENDURANCE
from lab.fleets.endurance import parts as endurance_parts
from lab.fleets.fleet import MIXED, Book, Ended, FleetResult, FleetSettings, Route, experiments
from lab.fleets.kinds import Program
from lab.fleets.page import parts, summary
from lab.fleets.programs import AIDER, CLAUDE_CODE, NODE, NotInstalled, Programs, install
from lab.fleets.tunnel import Tunnel
from lab.markdown import markdown_filled
from tests.cases import each

PAGE = Path(__file__).parents[2] / "docs" / "fleets.md"
TASK = SimTask("claude-1", 2, "result.txt")
TRUTH = Truth(
    attempts=10,
    by_status={200: 7, 429: 2, 529: 1},
    refused=2,
    overloaded=1,
    failed=0,
    completed=6,
    cut=1,
    abandoned=0,
    in_flight=0,
    peak_in_flight=3,
    input_tokens=600,
    cached_tokens=0,
    output_tokens=60,
    wasted_input_tokens=100,
    wasted_output_tokens=5,
    faults={},
    agents={
        "claude-1": TruthPart(attempts=6, completed=4, input_tokens=400, output_tokens=40),
        "codex-1": TruthPart(attempts=4, completed=2, input_tokens=200, output_tokens=20),
    },
    dialects={
        "anthropic-messages": TruthPart(attempts=6, completed=4, input_tokens=400, output_tokens=40),
        "openai-responses": TruthPart(attempts=4, completed=2, input_tokens=200, output_tokens=20),
    },
)
BOOKS = {"anthropic-messages": Book(6, 4, 440), "openai-responses": Book(3, 2, 220)}
RESULT = FleetResult(
    route=Route.HIVEMIND,
    seed=7,
    agents=[
        Ended("claude-1", Program.CLAUDE, True, Exit(0, 12.0, "done")),
        Ended("codex-1", Program.CODEX, False, Exit(1, 17.0, "ERROR: exceeded retry limit\ntokens used\n20")),
    ],
    truths={"api.anthropic.com": TRUTH},
    books=BOOKS,
    guard_trips=0,
    back_after_s=None,
    elapsed_s=17.2,
)


def test_tokens_of_lost_agents_are_wasted():
    assert (RESULT.finished, RESULT.attempts, RESULT.limited, RESULT.overloaded) == (1, 10, 2, 1)
    assert (RESULT.tokens, RESULT.completed_tokens) == (765, 660)
    assert RESULT.wasted_tokens == 765 - 440
    assert not RESULT.kept_its_promise


def test_the_page_says_who_was_lost_and_why():
    text = parts({"hivemind": [RESULT]})["hivemind"]
    assert "| seed 7 | **1 of 2** | 10 | 2 (20.0%) | 1 | 325 (42%) | 0 | 17 s |" in text
    assert "- seed 7: codex-1: exit status 1, `ERROR: exceeded retry limit`" in text
    messages, responses = "6 calls, 4 complete, 440 tokens", "calls, 2 complete, 220 tokens"
    assert f"| seed 7 | anthropic-messages | {messages} | {messages} | equal |" in text
    assert f"| seed 7 | openai-responses | 3 {responses} | 4 {responses} | **not equal** |" in text
    assert "Finished: Claude Code 1 of 1, Codex 0 of 1." in text
    assert "1 of 2 finished (lost: codex-1)" in summary(RESULT)


def test_the_page_says_how_long_a_killed_proxy_was_away():
    text = parts({"hivemind": [replace(RESULT, books=None, back_after_s=1.26)]})["hivemind"]
    assert "seed 7: another process served after 1.3 s" in text


def test_agents_may_be_lost_only_where_nothing_could_save_them():
    demands = {name: one.demands for name, one in experiments(FleetSettings(), 3).items()}
    assert [name for name, demanded in demands.items() if not demanded] == [
        "direct",
        "stream",
        "key-direct",
        "counted-direct",
    ]


def test_what_is_not_run_anew_stays_on_the_page():
    old = markdown_filled(PAGE.read_text(), parts({name: [RESULT] for name in experiments(FleetSettings(), 1)}))
    new = markdown_filled(old, parts({"stream": [replace(RESULT, seed=8)]}))
    changed = {(one, other) for one, other in zip(old.splitlines(), new.splitlines(), strict=True) if one != other}
    assert {one.replace("seed 7", "seed 8") for one, _ in changed} == {other for _, other in changed}
    assert len(changed) == 4


def test_a_mixed_fleet_has_thirty_agents_of_every_kind():
    assert set(MIXED) == set(Program)
    assert sum(MIXED.values()) == 30


@each(
    ("content", "finished"),
    [
        (TASK.content, True),
        (None, False),
        ("claude-1 line 1\n", False),
        ("claude-1 line 1\nclaude-1 line 1\nclaude-1 line 2\n", False),
    ],
)
def test_a_task_is_done_when_each_line_is_there_once(content, finished, tmp_path):
    agent = Agent(Program.CLAUDE, TASK, tmp_path)
    result = tmp_path / "work" / "result.txt"
    result.parent.mkdir(exist_ok=True)
    result.unlink(missing_ok=True)
    if content is not None:
        result.write_text(content)
    assert agent.has_finished is finished


PROGRAMS = Programs({NODE: Path("/node")} | {program.value.package: Path("/agents") for program in Program})


@each("program", list(Program))
def test_an_agent_has_a_home_and_a_name_of_its_own(program, tmp_path):
    agent = Agent(program, TASK, tmp_path)
    programs = PROGRAMS
    straight = launch(agent, Straight(8000, tmp_path / "ca.pem"), programs)
    assert straight.environment["HTTPS_PROXY"] == "http://127.0.0.1:8000"
    assert straight.environment["HOME"] == str(tmp_path / "home")
    assert straight.folder.is_dir()
    assert TASK.prompt in straight.command
    assert straight.command[0] == f"/agents/{program.value.package.command}"
    assert straight.environment["PATH"].startswith(f"/node{os.pathsep}")
    assert all((tmp_path / "home" / file).is_file() for file in program.value.files)
    patient = launch(agent, Straight(8000, tmp_path / "ca.pem", patient=True), programs)
    assert patient.environment != straight.environment


@each("program", list(Program))
@each("patient", [True, False])
def test_behind_the_proxy_everything_is_set_by_exec(program, patient, tmp_path):
    agent = Agent(program, TASK, tmp_path)
    programs = PROGRAMS
    way = Scheduled(8000, {"XDG_RUNTIME_DIR": "/run/fleet"}, "whole", patient)
    scheduled = launch(agent, way, programs)
    split = scheduled.command.index("--")
    ours, its = scheduled.command[:split], scheduled.command[split + 1 :]
    assert ours[3:6] == ("hivemind_addon", "exec", "--port")
    assert ("--no-patience" in ours) is not patient
    assert ours[ours.index("--agent") + 1] == "claude-1"
    assert ours[ours.index("--delivery") + 1] == "whole"
    assert its == launch(agent, Straight(8000, tmp_path / "ca.pem"), programs).command
    assert scheduled.environment["XDG_RUNTIME_DIR"] == "/run/fleet"
    assert not any(name.endswith(("S_PROXY", "_CERTS", "_FILE")) for name in scheduled.environment)


def test_without_npm_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NotInstalled, match="install Node"):
        install([CLAUDE_CODE])


def test_what_is_installed_is_installed_once(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for package in (NODE, AIDER):
        package.folder.mkdir(parents=True)
        (package.folder / ".ready").touch()
    found = install([AIDER])
    assert found.executable(AIDER) == str(tmp_path / "hivemind" / "agents" / "aider-chat-0.86.2" / "bin" / "aider")


def command(script: str, folder) -> Launch:
    return Launch((sys.executable, "-c", script), dict(os.environ), folder)


async def test_a_process_is_heard_to_its_end(tmp_path):
    ended = await run(command("print('so far'); raise SystemExit(3)", tmp_path), tmp_path / "log", 120)
    assert (ended.status, ended.last_words) == (3, "so far")
    assert Exit(1, 1.0, "\x1b[91mError: \x1b[0mgone\nbye\n").last_words == "Error: gone"


async def test_what_takes_too_long_is_ended_with_all_it_started(tmp_path):
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    child = "held = open('alive', 'w'); held.write('here'); held.flush(); input()"
    script = (
        "import subprocess, sys;"
        f"subprocess.run([sys.executable, '-c', {child!r}], stdin=subprocess.Popen(['sleep', '600'], stdout=-1).stdout)"
    )
    try:
        for limit_s in (2, 20, 200):  # a busy machine needs longer to start all of it
            ended = await run(command(script, tmp_path), tmp_path / "log", limit_s)
            assert ended.status is None
            if select.select([alive], [], [], 0)[0] and os.read(alive, 100) == b"here":
                break
        else:
            pytest.fail("the child never began")
        assert select.select([alive], [], [], 120)[0], "the child still has it open"
        assert os.read(alive, 100) == b""
    finally:
        os.close(alive)


async def test_the_tunnel_knows_few_hosts():
    async def echo(reader, writer):
        writer.write(await reader.readexactly(4))
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(120), server, Tunnel({"known.test": port}) as tunnel:
        heard = {}
        for host in ("known.test", "unknown.test"):
            reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
            writer.write(f"CONNECT {host}:443 HTTP/1.1\r\n\r\nping".encode())
            heard[host] = await reader.read()
            writer.close()
    assert heard["known.test"] == b"HTTP/1.1 200 Connection established\r\n\r\nping"
    assert heard["unknown.test"].startswith(b"HTTP/1.1 403")


def test_every_agent_is_held_in_every_manner_that_it_can_be():
    chosen = list(cases(HELD))
    assert len({case.name for case in chosen}) == len(chosen)
    assert {case.program for case in chosen} == set(HELD)
    assert {case.program for case in chosen if case.manner is Manner.PINGS} == {Program.CLAUDE}
    assert Case(Program.AIDER, True, Manner.SILENT) not in chosen
    assert {case.manner for case in chosen if case.program is Program.MINI} == {
        Manner.SILENT,
        Manner.LIMITED,
        Manner.OVERLOADED,
    }


def test_the_endurance_page_says_who_died_of_what():
    case = Case(Program.CODEX, False, Manner.SILENT)
    alive = Endured(case, True, Exit(0, 61, "done"), [0, 55.2])
    dead = Endured(replace(case, patient=True), False, Exit(1, 40.4, "ERROR: timed out | gone"), [0, 10, 20])
    waiting = Endured(replace(case, manner=Manner.LIMITED), False, Exit(None, 420, ""), list(range(0, 80, 10)))
    text = endurance_parts([alive, dead, waiting], 600)["codex"]
    assert (
        "| silent | bears it, sent 1 times more, after 55 s | "
        "**dead** after 40 s, sent 2 times more, after 10, 20 s: ERROR: timed out \\| gone |" in text
    )
    assert "| 429s | still waiting after 420 s, sent 7 times more, after 10, 20, 30, 40, …, 70 s |  |" in text
    assert text.endswith("held for 10 minutes.\n")
    page = ENDURANCE.read_text()
    held = [Endured(replace(case, program=program), True, Exit(0, 61, "done"), [0]) for program in HELD]
    assert markdown_filled(page, endurance_parts(held, 600)).count("\n| silent | bears it |  |\n") == len(HELD)
