"""`hivemind mcp` as it is used: the real Claude Code and Codex ask it, through a real proxy, led by a scripted model."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from fleets.programs import NotInstalled, install
from tests.e2e.machine import machine
from tests.e2e.proxy import PATIENCE_S
from tests.mcp.stage import given
from tests.processes import is_alive

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]

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

    def __init__(self, authority):
        self.requests = []
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
        self._server.shutdown()
        self._server.server_close()

    def _handler(model):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                data = model.answer(request)
                self.send_response(200)
                self.send_header("content-type", "text/event-stream" if request.get("stream") else "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

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

    def answer(self, request):
        self.requests.append(request)
        if outputs(request):
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


@pytest.fixture(scope="module")
def programs():
    try:
        return install()
    except NotInstalled as error:
        if os.environ.get("HIVEMIND_REQUIRE_AGENTS") == "1":
            pytest.fail(str(error))
        pytest.skip(f"Claude Code and Codex do not run: {error}")


def test_claude_code_asks_when_its_next_call_would_run(programs, authority):
    with Model(authority) as model, machine(model, authority) as mine:
        servers = {"hivemind": {"command": sys.executable, "args": ["-P", "-m", "hivemind_addon", "mcp"]}}
        (mine.home / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        claude = [str(programs.claude), "-p", "When would your next call run?", "--dangerously-skip-permissions"]
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
            codex = [str(programs.codex), "exec", "--skip-git-repo-check"]
            server = ("required=true", f"startup_timeout_sec={PATIENCE_S}")
            settings = [f"mcp_servers.hivemind.{one}" for one in server]
            settings += ["check_for_update_on_startup=false", "analytics.enabled=false"]
            codex += [word for setting in settings for word in ("-c", setting)]
            keys = dict.fromkeys(("OPENAI_API_KEY", "CODEX_API_KEY"), "sk-sim-mcp")
            codex += ["When would your next call run?"]
            done = mine.run("exec", "--agent", "asker", "--", *codex, CODEX_HOME=str(mine.home / "codex"), **keys)
            assert "I know enough." in done.stdout, done
            assert [one["agent"] for one in json.loads(mine.run("agents", "--json").stdout)] == ["asker"]
        (said,) = outputs(model.requests[-1])
    text = json.dumps(said)
    assert "asker: api.openai.com" in text, text
    assert "mcp__hivemind__lease_acquire" in text
    assert "mcp__hivemind__submit" not in text, "nobody has allowed it"


@contextmanager
def runners_ended(mine):
    """The one in the background would wait for a minute for more tasks."""
    try:
        yield
    finally:
        for file in mine.state.glob("fleets/*/runner.json"):
            pid = json.loads(file.read_text())["pid"]
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            mine.wait_for(lambda pid=pid: not is_alive(pid), "the end of the runner")


async def test_an_agent_that_is_trusted_has_tasks_run_and_steers(mine):
    with mine.started("run"), runners_ended(mine):
        mine.wait_for(mine.report, "the start")
        command = mine.hivemind("mcp", "--agent", "lead", "--allow", "all", "--allow-commands")
        server = StdioServerParameters(command=command[0], args=command[1:], env=mine.environment, cwd=mine.home)
        async with stdio_client(server) as streams, ClientSession(*streams) as client:
            await client.initialize()
            call = [{"command": mine.model_call(), "name": "call"}]
            after = [{"command": ["sh", "-c", "echo I am $HIVEMIND_AGENT"], "name": "after", "depends_on": ["call"]}]
            ids = (await given(client, "batch", tasks=call + after))["ids"]
            told = await given(client, "task_wait", seconds=PATIENCE_S)
            assert [one["id"] for one in told["tasks"]] == sorted(ids)
            assert told["over"], told
            results = {one["id"].partition("/")[2]: one["result"] for one in told["tasks"]}
            assert '"stop_reason":"end_turn"' in results["call"], told
            name = results["after"].removeprefix("I am ").strip()
            assert name
            assert name != "lead", "it has a name of its own"
            await given(client, "budget_set", holder="everyone", per="day", usd=100)
            assert [one["holder"] for one in (await given(client, "budget_list"))["budgets"]] == ["everyone"]
            await given(client, "set_priority", agent="night-*", priority="high")
            options = {one["name"]: one for one in (await given(client, "config_list"))["options"]}
            assert options["hivemind_control"]["default"] == ""
            done = await asyncio.to_thread(mine.run, "exec", "--agent", "lead", "--", *mine.model_call())
            assert done.returncode == 0, done
            async with asyncio.timeout(PATIENCE_S):  # its row is written a moment later
                while (await given(client, "history"))["text"] != "It ran once.":
                    pass
            metrics = await given(client, "metrics")
            assert metrics["since"].startswith("midnight")
            assert (metrics["requests"], metrics["delivered"]) == (1, 1)
            status = await given(client, "status")
            assert status["pools"][0]["pool"].startswith("api.anthropic.com/")
        report = mine.report()
        assert [one["agent"] for one in report["snapshot"]["priorities"]] == ["night-*"]


PARENT = """
import asyncio, os, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main():
    words = ["-P", "-m", "hivemind_addon", "mcp", "--allow", "submit", "--allow-commands"]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams) as client:
        await client.initialize()
        for tool, arguments in (
            ("submit", {"command": ["sh", "-c", "echo child of $HIVEMIND_TASK"]}),
            ("task_wait", {"seconds": 600}),
        ):
            told = await client.call_tool(tool, arguments)
            assert not told.isError, told
    (task,) = told.structuredContent["tasks"]
    print(sys.argv[1], task["state"], task["result"])

asyncio.run(main())
"""


def test_a_task_that_waits_for_its_child_lends_it_the_only_place(mine):
    (mine.home / "parent.py").write_text(PARENT)
    tasks = {"one": {"command": [sys.executable, "parent.py", "one"]}}
    (mine.home / "night.yaml").write_text(json.dumps({"at_most": 1, "tasks": tasks}))
    with mine.started("run"):
        mine.wait_for(mine.report, "the start")
        done = subprocess.run(
            [sys.executable, "-P", "-m", "hivemind_addon", "fleet", "run", "night.yaml", "--json"],
            capture_output=True,
            text=True,
            cwd=mine.home,
            env=mine.environment | {"HIVEMIND_PORT": str(mine.port)},
            timeout=2 * PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, done
    ended = {task["id"].partition("/")[2]: task for task in json.loads(done.stdout)["tasks"]}
    assert len(ended) == 2
    assert ended["one"]["result"].startswith("one done child of "), ended
