"""Budgets of a real proxy, changed by the command as a person types it, through a death in the middle of a request."""

import json
import re
import shlex
import signal
import sqlite3
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import httpx
import pytest
from click.testing import CliRunner

from hivemind_addon.api.control import control_socket
from hivemind_addon.tools.cli import main
from tests.e2e.origin import running_origin
from tests.e2e.proxy import PATIENCE_S, body, running

pytestmark = pytest.mark.slow


@pytest.fixture
def folder():
    """Short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="hm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield folder


def ask(proxy, agent, host):
    with proxy.client(agent) as client:
        headers = {"x-api-key": "k", "content-type": "application/json"}
        return client.post(f"http://{host}/v1/messages", content=body(max_tokens=16), headers=headers)


def ask_in_vain(proxy, agent, host):
    """The proxy dies over it."""
    with suppress(httpx.HTTPError):
        ask(proxy, agent, host)


def is_journaled(folder, port):
    """Whether the disk has what is set aside for agent-2, and everyone's budget."""
    with closing(sqlite3.connect(f"file:{folder}/journal.db?mode=ro", uri=True)) as journal:
        (reserved,) = journal.execute("SELECT sum(reserved_tokens) FROM budget WHERE name = 'agent-2'").fetchone()
        orders = journal.execute("SELECT value FROM kept WHERE name = ?", (f"orders:{port}",)).fetchone()
    return reserved and orders and '"everyone"' in orders[0] and "1000" in orders[0]


def spend_all(proxy, agent, host):
    """Ask until the budget refuses; what it says."""
    for _ in range(12):
        answer = ask(proxy, agent, host)
        if answer.status_code != 200:
            assert answer.status_code == 400
            return answer.json()["error"]["message"]
    raise AssertionError("nobody refused")


def hivemind(proxy, *arguments):
    """The command in this process, which is faster; it talks by the real socket."""
    done = CliRunner(env={"COLUMNS": "120"}).invoke(main, [*arguments, "-p", str(proxy.port)])
    return done.exit_code, done.output


def accounts(proxy):
    status, text = hivemind(proxy, "budget", "--json")
    assert status == 0, text
    return {(one["holder"], one["per"]): one for one in json.loads(text)}


def test_what_a_person_changes_holds_at_once_and_a_kill_in_the_middle_forgives_nothing(folder, tmp_path):
    rules = tmp_path / "agents.yaml"
    rules.write_text("agents: {'agent-*': {budgets: [{tokens: 60, per: day}]}}")
    with running_origin() as origin, running_origin() as silent, ThreadPoolExecutor(1) as threads:
        origin.open()
        host, silent_host = (f"127.0.0.1:{one.port}" for one in (origin, silent))
        (tmp_path / "profiles").mkdir()
        (tmp_path / "profiles" / "mine.yaml").write_text(f"extends: anthropic\nhosts: ['{host}', '{silent_host}']\n")
        settings = [
            word
            for one in (
                f"hivemind_profiles={tmp_path / 'profiles'}",
                f"hivemind_agents={rules}",
                f"hivemind_journal={folder}/journal.db",
            )
            for word in ("--set", one)
        ]
        with running(tmp_path / "conf", *settings) as proxy:
            message = spend_all(proxy, "agent-1", host)
            cure = re.search(r"a person runs: hivemind ([^;]+);", message)
            assert cure is not None, message
            status, text = hivemind(proxy, *shlex.split(cure[1]))
            assert status == 0, text
            assert "added to agent agent-1" in text
            assert ask(proxy, "agent-1", host).status_code == 200, "what the refusal says helps"
            spend_all(proxy, "agent-1", host)
            assert hivemind(proxy, "budget", "reset", "agent-1")[0] == 0
            assert ask(proxy, "agent-1", host).status_code == 200
            assert ask(proxy, "free", host).status_code == 200
            status, text = hivemind(proxy, "budget", "set", "--everyone", "--tokens", "100", "--per", "hour")
            assert status == 0
            assert "everyone may spend 100 tokens per hour" in text
            assert "everyone" in spend_all(proxy, "free", host)
            status, text = hivemind(proxy, "budget", "add", "nobody", "--tokens", "5")
            assert status == 1
            assert "known: agent agent-1, everyone" in text
            assert hivemind(proxy, "budget", "set", "--everyone", "--tokens", "1k", "--per", "hour")[0] == 0
            hung = threads.submit(ask_in_vain, proxy, "agent-2", silent_host)
            silent.wait_for(len, "a request in flight")
            then = time.monotonic()
            before = accounts(proxy)
            assert before["agent agent-2", "day"]["reserved_tokens"]
            proxy.wait_for(lambda _: is_journaled(folder, proxy.port), "the journal's next batch")
            proxy.stop(signal.SIGKILL)
            hung.result(PATIENCE_S)
        with running(tmp_path / "conf", *settings, ports=proxy.ports) as proxy:
            proxy.wait_for(lambda _: control_socket(proxy.port).exists(), "the control socket")
            after, passed_s = accounts(proxy), time.monotonic() - then
            assert after.keys() == before.keys()
            for key, one in before.items():
                assert after[key]["spent_tokens"] == one["spent_tokens"] + one["reserved_tokens"], key
                assert (after[key]["reserved_tokens"], after[key]["limit_tokens"]) == (0, one["limit_tokens"])
                assert after[key]["renews_in_s"] == pytest.approx(one["renews_in_s"], abs=passed_s + 1)
            assert "60 tokens per day" in spend_all(proxy, "agent-2", host)
            assert "set by a person: everyone 1,000 tokens per hour" in hivemind(proxy, "budget")[1]
            assert hivemind(proxy, "budget", "set", "--everyone", "--per", "hour", "--auto")[0] == 0
            assert ("everyone", "hour") not in accounts(proxy)
            assert proxy.state()["guard_trips"] == 0
            assert "Traceback" not in proxy.log
            assert proxy.stop() == 0
