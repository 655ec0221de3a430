"""Agents through real proxies: Claude Code and Codex themselves, and fleets of simulated ones."""

import asyncio
import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from base64 import b64decode
from contextlib import AsyncExitStack
from http.client import parse_headers
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner

from hivemind_addon.sim.agents import HOST, Route
from hivemind_addon.sim.certificate import write_certificates
from hivemind_addon.sim.demo import FAULTS
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.limits import LimitKind
from hivemind_addon.sim.live import LiveFleet
from hivemind_addon.sim.mitmdump import running_mitmdump
from hivemind_addon.sim.provider import Latency, ProviderSettings
from hivemind_addon.sim.server import SimServer
from hivemind_addon.sim.task import SimTask
from hivemind_addon.sim.workload import Crowd, Scenario
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.launch.environment import proxy_url
from lab.fleets.agent import Agent, Scheduled, launch, run
from lab.fleets.fleet import FleetSettings, run_fleet
from lab.fleets.fleet import Route as FleetRoute
from lab.fleets.kinds import ANTHROPIC_HOST, OPENAI_HOST, Program
from lab.fleets.programs import CLAUDE_CODE, CODEX
from lab.fleets.proxy import running_proxy
from lab.fleets.stage import running_stage
from lab.live import compare, scaled
from tests.e2e.machine import machine
from tests.e2e.proxy import PATIENCE_S

pytestmark = pytest.mark.slow
real = pytest.mark.xdist_group("real agents")
simulated = pytest.mark.xdist_group("simulated agents")

# A scripted model leads the real programs to ask `hivemind mcp` ----------------------------------------------------------

TOOL = "mcp__hivemind__wait_estimate"
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",  # as root it skips no permissions otherwise
    "ENABLE_TOOL_SEARCH": "false",  # all tools are told to the model at once
    "MCP_TIMEOUT": str(PATIENCE_S * 1000),  # how long a server may take to start
    "ANTHROPIC_API_KEY": "sk-sim-mcp",
}


class Model:
    """Asks for one tool once, then is content. Keeps the requests that tell it of tools."""

    hosts = ("api.anthropic.com",)

    def __init__(self, authority, *, odd=False):
        """`odd`: streams are labelled as JSON, miss their last byte, and are left open."""
        self.requests, self.odd, self.over = [], odd, threading.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*self.hosts).configure_cert(context)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(model):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                data = model.answer(request)
                streamed = request.get("stream", False)
                odd = model.odd and streamed
                self.send_response(200)
                self.send_header("content-type", "text/event-stream" if streamed and not odd else "application/json")
                self.send_header("content-length", str(len(data) + odd))
                self.end_headers()
                self.wfile.write(data)
                if odd:
                    model.over.wait(PATIENCE_S)

            def do_GET(self):  # settings and policies, which it would ask for again and again
                self.send_response(404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        return Handler

    def answer(self, request):
        return b"".join(_events(self._block(request), streamed=request.get("stream", False)))

    def _block(self, request):
        names = [tool.get("name") for tool in request.get("tools", [])]
        if not names:
            return {"type": "text", "text": "A title"}
        self.requests.append(request)
        if TOOL in names and not results(request):
            return {"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": {"input_tokens": 1000}}
        return {"type": "text", "text": "I know enough."}


class CodexModel(Model):
    """The same for Codex, whose models write programs that call tools."""

    hosts = ("api.openai.com", "chatgpt.com")  # the latter is asked for a list of models

    def outputs(self, request):
        """What the tools that it asked for have said."""
        return outputs(request)

    def answer(self, request):
        self.requests.append(request)
        if self.outputs(request):
            item = {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I know enough.", "annotations": []}],
            }
        else:
            item = {
                "type": "custom_tool_call",
                "call_id": "call_1",
                "name": "exec",
                "namespace": "functions",
                "input": f"text(await tools.{TOOL}({{input_tokens: 1000}})); text(ALL_TOOLS.map(tool => tool.name))",
            }
        item |= {"id": "item_1", "status": "completed"}
        usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
        response = {"id": "resp_1", "object": "response", "model": request["model"], "output": []}
        events = (
            {"type": "response.created", "response": response | {"status": "in_progress"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response | {"status": "completed", "usage": usage}},
        )
        return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


class TalkingModel(CodexModel):
    """It knows enough at once."""

    outputs = staticmethod(lambda _: True)


def outputs(request):
    """What the tools that it asked Codex for have said."""
    return [item["output"] for item in request["input"] if item["type"] == "custom_tool_call_output"]


def _events(block, *, streamed):
    usage = {"input_tokens": 100, "output_tokens": 10}
    stop = "tool_use" if block["type"] == "tool_use" else "end_turn"
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "stop_sequence": None,
    }
    if not streamed:
        yield json.dumps(message | {"content": [block], "stop_reason": stop, "usage": usage}).encode()
        return
    if stop == "tool_use":
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        begun = block | {"input": {}}
    else:
        delta, begun = {"type": "text_delta", "text": block["text"]}, block | {"text": ""}
    for event in (
        {"type": "message_start", "message": message | {"content": [], "stop_reason": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ):
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def results(request):
    """The tool results in a request."""
    return [
        block
        for message in request["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]


@real
def test_claude_code_asks_when_its_next_call_would_run(programs, authority):
    with Model(authority) as model, machine(model, authority) as mine:
        servers = {"hivemind": {"command": sys.executable, "args": ["-P", "-m", "hivemind_addon", "mcp"]}}
        (mine.home / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        claude = [
            programs.executable(CLAUDE_CODE),
            "-p",
            "When would your next call run?",
            "--dangerously-skip-permissions",
        ]
        claude += ["--mcp-config", str(mine.home / "mcp.json"), "--strict-mcp-config"]
        done = mine.run("exec", "--agent", "asker", "--", *claude, **QUIET)
        assert "I know enough." in done.stdout, done
        last = model.requests[-1]
    tools = {tool["name"] for tool in last["tools"] if tool["name"].startswith("mcp__hivemind__")}
    assert {"mcp__hivemind__status", "mcp__hivemind__lease_acquire"} <= tools
    assert "mcp__hivemind__submit" not in tools, "nobody has allowed it"
    (result,) = results(last)
    assert not result.get("is_error"), result
    text = json.dumps(result["content"])
    assert "asker: api.anthropic.com" in text, "it knows who asks, and what the asker used before"


@real
def test_an_odd_answer_is_asked_for_once_by_real_agents(programs, authority):
    keys = dict.fromkeys(("OPENAI_API_KEY", "CODEX_API_KEY"), "sk-sim-odd")
    codex = [programs.executable(CODEX), "exec", "--skip-git-repo-check", "-c", "analytics.enabled=false"]
    for model_of, command, variables in (
        (Model, [programs.executable(CLAUDE_CODE), "-p"], QUIET),
        (TalkingModel, [*codex, "-c", "check_for_update_on_startup=false"], keys),
    ):
        with model_of(authority, odd=True) as model, machine(model, authority) as mine:
            mine.configure(
                hivemind_redirect=[f"{host}=127.0.0.1:{model.port}" for host in model.hosts],
                ssl_verify_upstream_trusted_ca=str(mine.home / "upstream.pem"),
            )
            folder = {"CODEX_HOME": str(mine.home)}
            done = mine.run("exec", "--agent", "asker", "--", *command, "What do you know?", **variables, **folder)
            assert "I know enough." in done.stdout, done
            assert len(model.requests) == 1


class ForgetfulModel(Model):
    """Reads one file after the other until what the first one said is gone from its context; then asks for it."""

    def answer(self, request):
        # Of answers with one name Claude Code makes one message.
        return super().answer(request).replace(b'"msg_1"', b'"msg_%d"' % len(self.requests))

    def _block(self, request):
        if RECALL not in [tool.get("name") for tool in request.get("tools", [])]:
            return {"type": "text", "text": "A title"}
        self.requests.append(request)
        said = [json.dumps(one["content"]) for one in results(request)]
        number = len(said) + 1
        if found := [text for text in said if FACT in text and "total_chars" in text]:
            return {"type": "text", "text": f"It said: {found[0]}"}
        if gone := [text for text in said if "hivemind context recall" in text]:
            name = gone[0].partition("hivemind context recall ")[2][:12]
            return {"type": "tool_use", "id": f"toolu_{number}", "name": RECALL, "input": {"id": name}}
        assert number < 20, "nothing was taken out"
        command = f"echo 'file {number}: {FACT if number == 1 else 'nothing'}'; head -c 20000 /dev/zero | tr '\\0' x"
        return {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"command": command}}


RECALL = "mcp__hivemind__recall"
FACT = "the port is 4711"


@real
def test_claude_code_recalls_what_was_taken_out_of_its_context(programs, authority):
    with ForgetfulModel(authority) as model, machine(model, authority) as mine:
        rules = mine.home / "agents.yaml"
        rules.write_text("agents: {reader: {compaction: {window_tokens: 80000, at: 0.7, to: 0.5, keep: 1, by: stubs}}}")
        mine.configure(
            hivemind_redirect=[f"api.anthropic.com=127.0.0.1:{model.port}"],
            hivemind_agents=str(rules),
            ssl_verify_upstream_trusted_ca=str(mine.home / "upstream.pem"),
        )
        servers = {"hivemind": {"command": sys.executable, "args": ["-P", "-m", "hivemind_addon", "mcp"]}}
        (mine.home / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        claude = [programs.executable(CLAUDE_CODE), "-p", "Which port?", "--dangerously-skip-permissions"]
        claude += ["--mcp-config", str(mine.home / "mcp.json"), "--strict-mcp-config"]
        done = mine.run("exec", "--agent", "reader", "--", *claude, **QUIET)
        assert "It said: " in done.stdout, done
        assert FACT in done.stdout, done
        first, *_, last = (results(request) for request in model.requests if results(request))
        name = json.dumps(last[0]["content"]).partition("hivemind context recall ")[2][:12]
        before, after = ([one["content"] for one in results(request)] for request in model.requests[-2:])
        assert after[: len(before)] == before, "the same stubs, so that the provider's cache is read"
        assert FACT in json.dumps(first[0]["content"])
        assert FACT not in json.dumps(last[0]["content"])
        read = mine.run("context", "recall", name)
        assert FACT in read.stdout.splitlines()[0], read


@real
def test_codex_calls_what_setup_wrote_and_is_known_by_the_name_that_exec_gave_it(programs, authority):
    with CodexModel(authority) as model, machine(model, authority) as mine:
        mine.configure(
            hivemind_redirect=[f"{host}=127.0.0.1:{model.port}" for host in model.hosts],
            ssl_verify_upstream_trusted_ca=str(mine.home / "upstream.pem"),
        )
        with mine.started("run"):
            mine.wait_for(mine.report, "the start")
            written = mine.run("setup", "codex", "--write", CODEX_HOME=str(mine.home / "codex"))
            assert written.returncode == 0, written
            codex = [programs.executable(CODEX), "exec", "--skip-git-repo-check"]
            server = ("required=true", f"startup_timeout_sec={PATIENCE_S}")
            settings = [f"mcp_servers.hivemind.{one}" for one in server]
            settings += ["check_for_update_on_startup=false", "analytics.enabled=false"]
            codex += [word for setting in settings for word in ("-c", setting)]
            keys = dict.fromkeys(("OPENAI_API_KEY", "CODEX_API_KEY"), "sk-sim-mcp")
            codex += ["When would your next call run?"]
            done = mine.run("exec", "--agent", "asker", "--", *codex, CODEX_HOME=str(mine.home / "codex"), **keys)
            assert "I know enough." in done.stdout, done
            assert [one["agent"] for one in json.loads(mine.run("status", "agents", "--json").stdout)] == ["asker"]
        (said,) = outputs(model.requests[-1])
    text = json.dumps(said)
    assert "asker: api.openai.com" in text, text
    assert "mcp__hivemind__lease_acquire" in text
    assert "mcp__hivemind__submit" not in text, "nobody has allowed it"


# What `hivemind setup --write` writes is read by them, and what `exec` and fleets set outdoes it --------------------------


class Door:
    """A proxy that takes CONNECT, shows a certificate of its CA and refuses what comes: who came, to where, asking what."""

    def __init__(self, ca):
        self.ca = ca
        self.seen = set()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def close(self):
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)  # wakes `accept`, which might go on with another's listener
        self.thread.join(PATIENCE_S)
        self.server.close()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.server.accept()
                threading.Thread(target=self.answer, args=(client,), daemon=True).start()

    def answer(self, client):
        with contextlib.suppress(OSError, IndexError), client:
            client.settimeout(PATIENCE_S)
            head = client.recv(65536).decode()
            host = head.split()[1].partition(":")[0]
            named = [line.split()[-1] for line in head.splitlines() if line.lower().startswith("proxy-authorization")]
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.ca.issue_cert(host).configure_cert(context)
            with context.wrap_socket(client, server_side=True) as inside:
                stream = inside.makefile("rb")
                path = stream.readline().decode().split()[1]
                # All of it: who still writes when the connection is closed hears of no 400, and tries for minutes.
                stream.read(int(parse_headers(stream).get("content-length", 0)))
                self.seen.add((b64decode(named[0]).decode(), host, path.partition("?")[0]))
                body = b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}'
                inside.sendall(
                    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
                    b"content-length: %d\r\n\r\n%b" % (len(body), body)
                )


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    (home / ".mitmproxy").mkdir(parents=True)
    return home


@pytest.fixture
def door(home):
    ca = trustme.CA()
    ca.cert_pem.write_to_path(home / ".mitmproxy" / "mitmproxy-ca-cert.pem")
    door = Door(ca)
    yield door
    door.close()


def named_by_exec(door):
    """The variables that say the way, in both spellings, as `hivemind exec` sets them."""
    return dict.fromkeys(("HTTPS_PROXY", "https_proxy"), proxy_url(door.port, agent="night.one", words=["whole"]))


@real
def test_what_setup_writes_is_read_by_both_and_outdone_by_exec(programs, home, door):
    """So that names and budgets of their own are kept."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment = {**kept, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}

    async def typed(*command, **more):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        words = map(str, command)
        process = await asyncio.create_subprocess_exec(*words, env=environment | more, cwd=home, **pipes)
        async with asyncio.timeout(2 * PATIENCE_S):
            said, _ = await process.communicate()
        return said.decode()

    async def claude():
        words = (programs.executable(CLAUDE_CODE), "-p", "hello", "--model", "claude-sonnet-4-5")
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        for way in ({}, named_by_exec(door)):
            await typed(*words, ANTHROPIC_API_KEY="sk-ant-none", **quiet, **way)
        return await typed(programs.executable(CLAUDE_CODE), "mcp", "get", "hivemind")

    async def codex():
        keys = dict.fromkeys(("OPENAI_API_KEY", "CODEX_API_KEY"), "sk-none")
        for way in ({}, named_by_exec(door)):
            await typed(programs.executable(CODEX), "exec", "--skip-git-repo-check", "hello", **keys, **way)
        return await typed(programs.executable(CODEX), "mcp", "get", "hivemind")

    async def both():
        setup = (sys.executable, "-m", "hivemind_addon.tools.cli", "setup", "--write", "-p", door.port)
        await typed(*setup, "claude-code")
        await typed(*setup, "codex")
        return await asyncio.gather(claude(), codex())

    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text('# mine\nmodel = "gpt-5.1-codex"\n')
    listed_by_claude, listed_by_codex = asyncio.run(both())
    assert "Scope: User config" in listed_by_claude
    assert f"Args: mcp -p {door.port}" in listed_by_claude
    assert f"args: mcp -p {door.port}" in listed_by_codex
    assert "XDG_RUNTIME_DIR" in listed_by_codex
    seen = set(door.seen)
    by_claude = {who for who, host, path in seen if (host, path) == ("api.anthropic.com", "/v1/messages")}
    assert by_claude == {"claude-code:x", "night.one:whole"}
    assert {who for who, host, _ in seen if host == "api.openai.com"} == {"codex:x", "night.one:whole"}


# Conversations that a budget or a kill stopped go on in the real programs, also on another machine ------------------------

QUICK = ProviderSettings(latency=Latency(median_s=0.01, sigma=0.1), interval_s=0.0)
LIMIT_S = 240
LINES = 8
OPTIONS = {
    Program.CLAUDE: ["--dangerously-skip-permissions"],
    Program.CODEX: [
        *("--dangerously-bypass-approvals-and-sandbox", "-c", "check_for_update_on_startup=false"),
        *("-c", "analytics.enabled=false"),
    ],
}


def hivemind(*arguments, **variables):
    """A command of ours, as a person types it; its answer as JSON."""
    done = CliRunner().invoke(main, [*map(str, arguments), "--json"], env=variables)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def newest(agent, proxy):
    """Its context's id: a program that was resumed has a session of its own."""
    return hivemind("context", "list", "--agent", agent.name, "-p", proxy.port, **proxy.variables)[0]["id"]


def resumed(agent, proxy, programs, home, context_id, *more):
    """`hivemind context resume`, in a home in which nothing is of the agent before."""
    way = Scheduled(proxy.port, proxy.variables, "stream")
    new = launch(dataclasses.replace(agent, folder=agent.folder / home), way, programs)
    folders = [str(Path(programs.executable(package)).parent) for package in (CLAUDE_CODE, CODEX)]
    command = [sys.executable, "-P", "-m", "hivemind_addon", "context", "resume", context_id, "-p", str(proxy.port)]
    command += [*more, "--cwd", str(agent.folder / "work"), "--say", "Go on.", "--", *OPTIONS[agent.program]]
    environment = dict(new.environment) | {"PATH": os.pathsep.join([*folders, new.environment["PATH"]])}
    return dataclasses.replace(new, command=tuple(command), environment=environment)


async def killed(agent, launched, log, lines):
    """Run it until its file has so many lines, then kill it and all that it started, as `kill -9` does."""
    file = agent.folder / "work" / agent.task.file
    running = asyncio.create_task(run(launched, log, LIMIT_S))
    while not running.done() and (not file.is_file() or len(file.read_text().splitlines()) < lines):
        await asyncio.sleep(0.01)
    assert not running.done(), running.result()
    running.cancel()
    await asyncio.wait((running,))


async def stopped_three_times(agent, proxy, programs):
    """By its budget, by a kill, and by a move to another machine; how it ended there."""
    way = Scheduled(proxy.port, proxy.variables, "stream")
    first = await run(launch(agent, way, programs), agent.folder / "first.log", LIMIT_S)
    spent = newest(agent, proxy)
    assert f"context show {spent}" in first.output
    assert not agent.has_finished
    written = len((agent.folder / "work" / agent.task.file).read_text().splitlines())
    more = hivemind("budget", "add", agent.name, "--tokens", "10M", "-p", proxy.port, **proxy.variables)
    assert more["done"], more

    again = resumed(agent, proxy, programs, "again", spent)
    await killed(agent, again, agent.folder / "second.log", written + 2)
    assert not agent.has_finished

    bundle, there = agent.folder / "moved.contexts", agent.folder / "there"
    there.mkdir()
    moved = newest(agent, proxy)
    assert moved != spent, "kept under its new session's name"
    hivemind("context", "export", moved, "--as", "bundle", "-o", bundle, "-p", proxy.port, **proxy.variables)
    (taken,) = hivemind("context", "import", bundle, "--folder", there, **proxy.variables)
    assert taken["id"] == moved
    last = resumed(agent, proxy, programs, "third", moved, "--folder", str(there))
    return await run(last, agent.folder / "third.log", LIMIT_S)


@real
async def test_conversations_that_a_budget_and_a_kill_stopped_go_on_in_the_real_programs(tmp_path, programs):
    rules = tmp_path / "agents.yaml"
    rules.write_text("agents: {claude: {budgets: [{tokens: 30000}]}, codex: {budgets: [{tokens: 40000}]}}")
    agents = [
        Agent(program, SimTask(name, LINES, "result.txt"), tmp_path / name)
        for program, name in ((Program.CLAUDE, "claude"), (Program.CODEX, "codex"))
    ]
    providers = dict.fromkeys((ANTHROPIC_HOST, OPENAI_HOST), QUICK)
    settings = (f"hivemind_agents={rules}", "hivemind_contexts=turn")
    async with (
        running_stage(tmp_path, providers, seed=5) as stage,
        running_proxy(tmp_path, (*stage.proxy_settings, *settings)) as proxy,
    ):
        ends = await asyncio.gather(*(stopped_three_times(agent, proxy, programs) for agent in agents))
        # The provider counts the tool results in what it is sent, and looks where one was not recorded: it led each
        # agent on from where it was stopped, and not one line is missing or there twice.
        assert [(agent.name, agent.has_finished) for agent in agents] == [("claude", True), ("codex", True)], ends
        assert proxy.guard_trips == 0


# A small fleet of both finishes its tasks -------------------------------------------------------------------------------

SMALL = FleetSettings(
    agents={Program.CLAUDE: 2, Program.CODEX: 1},
    faults=FAULTS,
    lines=3,
    tokens_per_minute=90_000,
    concurrency=2,
    latency_s=0.1,
    interval_s=0.005,
    agent_max_s=240,
)
"""Strict enough that it would be refused if it did not wait, and too small for more than a minute."""


@real
async def test_a_small_fleet_finishes(programs):
    result = await run_fleet(SMALL, FleetRoute.WHOLE, programs, seed=3)
    lost = {agent.name: agent.exit.output for agent in result.agents if not agent.finished}
    assert not lost
    assert len(result.agents) == 3
    assert result.guard_trips == 0
    assert result.limited <= 2
    assert result.books == result.truth


# Simulated agents that say that they run headless, behind a bare mitmdump: no cut kills one of them ------------------------

CUTS = {"stream-close": 0.05, "stream-reset": 0.05}
CLIENTS = {
    "claude-p": {"user-agent": "claude-cli/2.1.330 (external, sdk-cli)", "x-app": "cli"},
    "codex-exec": {"user-agent": "codex_exec/0.169.0 (Debian 12.0.0; x86_64) unknown", "originator": "codex_exec"},
    "claude": {"user-agent": "claude-cli/2.1.330 (external, cli)", "x-app": "cli"},
}
EACH = 10
HEADLESS_LONGEST_S = 240
HEADLESS = Scenario(
    "headless",
    tuple(
        Crowd(
            name,
            EACH,
            turns=8,
            think_s=(0.0, 0.05),
            latency_s=0.02,
            output_tokens=(200, 500),
            tokens_per_s=12_000,
            opening_tokens=(250, 250),
            streamed=True,
            timeout_s=600,
            retries=2,
        )
        for name in CLIENTS
    ),
    ProviderSettings(faults=CUTS, tokens_per_chunk=25),
)


@simulated
async def test_one_answer_in_ten_is_cut_and_no_headless_agent_is_lost(tmp_path):
    certificates = write_certificates(tmp_path, HOST)
    tls = (str(certificates.certificate), str(certificates.key))
    server = SimServer(HEADLESS.provider, seed="cuts", tls=tls)
    await server.start()
    confdir = tmp_path / "mitmproxy"
    sets = [
        f"hivemind_redirect={HOST}={server.host}:{server.port}",
        f"ssl_verify_upstream_trusted_ca={certificates.authority}",
    ]
    fleet = LiveFleet(HEADLESS, 1)
    try:
        async with running_mitmdump(confdir, sets) as mitmdump, AsyncExitStack() as stack:
            trust = ssl.create_default_context(cafile=confdir / "mitmproxy-ca-cert.pem")
            route = Route(trust, proxy=f"127.0.0.1:{mitmdump.port}")
            routes = {name: dataclasses.replace(route, says=says) for name, says in CLIENTS.items()}
            connecting = (agent.connected(routes[agent.crowd.name], stack) for agent in fleet.agents)
            await fleet.run(await asyncio.gather(*connecting), HEADLESS_LONGEST_S)
            guard_trips = mitmdump.guard_trips
    finally:
        await server.stop()
    result = fleet.result(server.truth(), 0)
    lost = {name: crowd.lost for name, crowd in result.crowds.items()}
    assert (lost["claude-p"], lost["codex-exec"], guard_trips) == (0, 0, 0), result.deaths
    assert lost["claude"] > 0, "nobody is watched over a cut, or there was none"
    assert sum(server.truth().faults.get(name, 0) for name in CUTS) >= EACH


# Small versions of the scenarios: the socket does what virtual time says at the same scale ---------------------------------

FACTOR = 5.0
SIZES = {"replay-11": (11, 8), "fan-out": (12, 4)}
"""Agents and turns."""
LONGEST_S = 300
TIME_APART = 3.0
"""Share: other tests keep the machine busy. How much time it takes is for `hivemind lab prove --live` to say."""
TIMEOUT_S = 600
"""Of the agents, before it is scaled: what too little patience costs is for `hivemind lab prove --live` to say, too."""


def small(name):
    scenario = cases()[name].scenario
    agents, turns = SIZES[name]
    (crowd,) = scenario.crowds
    crowd = dataclasses.replace(crowd, agents=agents, turns=turns, timeout_s=TIMEOUT_S)
    return scaled(dataclasses.replace(scenario, crowds=(crowd,)), FACTOR)


CASES = [("replay-11", LimitKind.BUCKET), ("fan-out", LimitKind.BUCKET)]
"""`hivemind lab prove --live` compares more, at full size. How often windows refuse depends on how busy the machine is."""


@pytest.fixture(scope="module")
def compared():
    """All of them at the same time: they mostly wait for their limits."""

    async def run():
        async with asyncio.timeout(LONGEST_S), asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(compare(small(name), kind, seed=1)) for name, kind in CASES}
        return {name: task.result() for name, task in tasks.items()}

    return asyncio.run(run())


@simulated
@pytest.mark.parametrize("name", SIZES)
def test_the_socket_agrees_with_virtual_time(compared, name):
    agents, turns = SIZES[name]
    one = compared[name]
    live, virtual = one.live, one.virtual
    assert (live.lost, live.agents, live.sheds, one.guard_trips) == (0, agents, 0, 0), live.deaths
    (crowd,) = live.crowds.values()
    assert crowd.turns_done == live.statuses[200] == agents * turns
    # Faults are drawn call by call, and every turn needs one call without: their number is the same to one.
    assert {status: live.statuses[status] for status in (0, 502)} == {
        status: virtual.statuses[status] for status in (0, 502)
    }
    assert abs(live.ideal_cost / virtual.ideal_cost - 1) < 0.01, "the agents wanted something else"
    assert list(one.disagreements(time_apart=TIME_APART)) == []


# A small demo, as `make demo` runs it --------------------------------------------------------------------------------------

HIVEMIND = Path(sys.executable).parent / "hivemind"


def processes_of(parent):
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@simulated
def test_all_agents_survive_through_the_proxy():
    done = subprocess.run(
        [HIVEMIND, "demo", "--agents", "6", "--turns", "1", "--seed", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 3,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    direct, hivemind = result["direct"], result["hivemind"]
    assert (hivemind["alive"], hivemind["deaths"], hivemind["guard_trips"]) == (6, {}, 0)
    assert (hivemind["turns_done"], hivemind["failed"], hivemind["requests"]) == (6, 0, 6)
    assert hivemind["faults"], "the provider was not faulty"
    assert hivemind["attempts"] == 6 + hivemind["refused"] + sum(hivemind["faults"].values())
    assert direct["failed"] > 0
    assert "agents: " in done.stderr


@simulated
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are looked up in /proc")
def test_ctrl_c_at_the_demo_stops_its_mitmdump_too():
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    # As a script has it in the background: with SIGINT ignored.
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", HIVEMIND, "demo", "--agents", "1", "--turns", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as run:
        assert run.stdout is not None
        assert any(line.startswith("hivemind:") for line in run.stdout)
        (mitmdump,) = processes_of(run.pid)
        gone = os.pidfd_open(mitmdump)
        run.send_signal(signal.SIGINT)
        assert run.wait(PATIENCE_S) != 0
        assert select.select([gone], [], [], PATIENCE_S)[0], "its mitmdump runs on"
        os.close(gone)
