"""What people type at a running proxy, typed: every example of what sees and steers, and each `--json` read again."""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from hivemind_addon.api.control import control_socket, read_report
from hivemind_addon.lab.sim.faults import Stall
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands.group import every_command
from tests.commands.test_help import examples
from tests.e2e.conftest import Call
from tests.e2e.proxy import PATIENCE_S, running
from tests.shell_lines import calls

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("commands")]

HOST = "h1.narrow.test"
"""Has one slot: one request runs, the next one waits."""
EXECUTED = (
    "hivemind status",
    "hivemind top",
    "hivemind agents",
    "hivemind pools",
    "hivemind wait",
    "hivemind limit",
    "hivemind priority",
    "hivemind pause",
    "hivemind resume",
    "hivemind config",
    "hivemind config get",
    "hivemind config set",
    "hivemind config files",
    "hivemind capture start",
    "hivemind capture stop",
    "hivemind env",
    "hivemind completion",
    "hivemind front",
    "hivemind cancel",
)
"""In this order: what they do to the proxy has to leave the next one something to do."""


@pytest.fixture(scope="module")
def home():
    """A home of its own, and a short folder for sockets."""
    with tempfile.TemporaryDirectory(prefix="hm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        patch.setenv("HOME", folder)
        patch.setenv("COLUMNS", "120")
        patch.chdir(folder)
        (Path(folder) / "agents.yaml").write_text("agents:\n  reviewer-1: {budgets: [{tokens: 5000000, per: day}]}\n")
        yield Path(folder)


@pytest.fixture(scope="module")
def proxy(providers, proxy_arguments, home, tmp_path_factory):
    """Where `reviewer-1` runs and `nightly` waits."""
    with running(tmp_path_factory.mktemp("commands"), *proxy_arguments) as served, ThreadPoolExecutor(4) as threads:

        def post(key, agent):
            with served.client(agent, timeout=3600) as http:
                return http.send(Call(key).request(f"https://{HOST}"))

        assert post("sk-sim-first", "reviewer-1").status_code == 200
        providers.script("sk-sim-busy", [], then=Stall(3600))
        answers = [threads.submit(post, "sk-sim-busy", "reviewer-1")]
        served.wait_for(lambda _: tickets(served, "in flight"), "a request in flight")
        answers.append(threads.submit(post, "sk-sim-busy", "nightly"))
        served.wait_for(lambda _: tickets(served, "queued"), "a request that waits")
        yield served
        for ticket_id in tickets(served, "in flight", "queued", "backing off"):
            run("cancel", ticket_id, port=served.port)
        assert {answer.result(PATIENCE_S).status_code for answer in answers} == {400}
        assert "Traceback" not in served.log, served.log


def run(*arguments, port):
    return CliRunner().invoke(main, arguments, env={"HIVEMIND_PORT": str(port), "HIVEMIND_AGENT": "reviewer-1"})


def tickets(proxy, *states):
    report = read_report(control_socket(proxy.port), timeout_s=PATIENCE_S)
    return [view.ticket.id for pool in report.snapshot.pools for view in pool.tickets if view.state in states]


def test_every_example_does_what_it_says(proxy, home):
    every = dict(every_command(main))
    for path in EXECUTED:
        for line in examples(every[path]):
            queued = tickets(proxy, "queued")
            typed = line.replace("api.anthropic.com", HOST).replace("api.openai.com", HOST).replace("-p 9090", "")
            typed = typed.replace("3f9c01ab2e", queued[0] if queued else "none").replace("/claude-opus*", "/*")
            for name, *arguments in calls(typed):
                if name != "hivemind":
                    continue
                if path == "hivemind resume":
                    assert run("pause", port=proxy.port).exit_code == 0
                if "--snapshot" in arguments:
                    Path("report.json").write_text(run("status", "--json", port=proxy.port).stdout)
                result = run(*arguments, port=proxy.port)
                assert result.exit_code == 0, f"{line}: {result.output}"
                if "--json" in arguments:
                    json.loads(result.stdout)
    assert "night.jsonl" not in run("config", "get", "log", port=proxy.port).stdout
    proxy.wait_for(lambda _: (home / "night.jsonl").read_text().count("\n") > 0, "the log's first line")
    assert (home / ".zshrc").exists()


@pytest.mark.parametrize(
    "command", ["status", "agents", "pools", "top --once", "wait nightly", "config", "config files", "env", "doctor"]
)
def test_json_is_all_there_is_on_standard_output(proxy, command):
    result = run(*command.split(), "--json", port=proxy.port)
    assert json.loads(result.stdout)
    assert len(result.stdout) > 50


def test_what_it_tells_is_true(proxy):
    """And by the program itself, as it is installed."""
    command = [sys.executable, "-m", "hivemind_addon", "agents", "reviewer-1", "--json", "-p", str(proxy.port)]
    (row,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout)
    assert (row["agent"], row["delivered"]) == ("reviewer-1", 1)
    pools = {row["pool"]: row for row in json.loads(run("pools", HOST, "--json", port=proxy.port).stdout)}
    assert sum(row["in_flight"] for row in pools.values()) == len(tickets(proxy, "in flight"))
    waits = json.loads(run("wait", "reviewer-1", "--json", port=proxy.port).stdout)
    assert {row["pool"] for row in waits} <= set(pools)


def test_another_port_names_this_one(proxy):
    result = run("status", "-p", "1", port=proxy.port)
    assert (result.exit_code, result.stderr) == (
        1, f"Error: no proxy serves port 1; one serves port {proxy.port}: add `-p {proxy.port}`\n",
    )  # fmt: skip
