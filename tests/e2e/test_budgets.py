"""Budgets and priorities of a real proxy, through deaths; what a spent budget stopped; and what everything came to."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime

import httpx
import pytest
from click.testing import CliRunner
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from prometheus_client.parser import text_string_to_metric_families

from hivemind_addon.plugins.contexts.store import ContextStore
from hivemind_addon.proxy.api.control import control_socket
from hivemind_addon.sim.faults import OK, ErrorStatus, Slow, StreamCut
from hivemind_addon.tools.cli import main
from lab.running_server import running_server
from tests.e2e.origin import PLAIN, running_origin
from tests.e2e.proxy import PATIENCE_S, body, for_host, options, profiles, running
from tests.proxy.journal.samples import asked
from tests.tools.mcp.stage import given

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("budgets")]


@pytest.fixture
def folder(runtime_dir, tmp_path):
    """Of one test; control sockets have theirs."""
    return tmp_path


def hivemind(proxy, *arguments):
    """The command in this process, which is faster; it talks by the real socket. Its exit status and output."""
    done = CliRunner(env={"COLUMNS": "120"}).invoke(main, [*arguments, "-p", str(proxy.port)])
    return done.exit_code, done.output


def told(proxy, *arguments):
    """What it says when all is well."""
    status, text = hivemind(proxy, *arguments)
    assert status == 0, text
    return text


def ask(proxy, agent, host, words="x", headers=()):
    return proxy.ask(f"http://{host}/v1/messages", agent, words, headers=headers, max_tokens=16)


def ask_in_vain(proxy, agent, host):
    """The proxy dies over it."""
    with suppress(httpx.HTTPError):
        ask(proxy, agent, host)


def is_journaled(journal, port):
    """Whether the disk has what is set aside for agent-2, of its own budget and of everyone's, and everyone's budget."""
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as database:
        query = (
            "SELECT count(*) FROM budget WHERE name = 'agent-2' AND reserved_tokens OR per = 'hour' AND reserved_tokens"
        )
        (reserved,) = database.execute(query).fetchone()
        orders = database.execute("SELECT value FROM kept WHERE name = ?", (f"orders:{port}",)).fetchone()
    return reserved == 2 and orders and '"everyone"' in orders[0] and "1000" in orders[0]


def spend_all(proxy, agent, host):
    """Ask until the budget refuses, in the provider's shape; what it says."""
    for _ in range(12):
        answer = ask(proxy, agent, host)
        if answer.status_code != 200:
            assert answer.status_code == 400
            assert answer.headers["x-should-retry"] == "false"
            assert answer.json()["error"]["type"] == "invalid_request_error"
            return answer.json()["error"]["message"]
    raise AssertionError("nobody refused")


def accounts(proxy):
    return {(one["holder"], one["per"]): one for one in json.loads(told(proxy, "budget", "--json"))}


def test_what_a_person_changes_holds_at_once_and_a_kill_in_the_middle_forgives_nothing(folder):
    rules, journal = folder / "agents.yaml", folder / "journal.db"
    rules.write_text("agents: {'agent-*': {budgets: [{tokens: 60, per: day}]}}")
    with running_origin() as origin, running_origin() as silent, ThreadPoolExecutor(1) as threads:
        origin.open()
        host, silent_host = (f"127.0.0.1:{one.port}" for one in (origin, silent))
        settings = profiles(folder, mine=for_host(origin.port), silent=for_host(silent.port))
        settings += options(agents=rules, journal=journal)
        with running(folder / "conf", *settings) as proxy:
            message = spend_all(proxy, "agent-1", host)
            assert "agent agent-1" in message
            assert "of 60 tokens per day" in message
            assert str(rules) in message
            cure = re.search(r"a person runs: hivemind ([^;]+);", message)
            assert cure is not None, message
            assert "added to agent agent-1" in told(proxy, *shlex.split(cure[1]))
            assert ask(proxy, "agent-1", host).status_code == 200, "what the refusal says helps"
            spend_all(proxy, "agent-1", host)
            told(proxy, "budget", "reset", "agent-1")
            assert ask(proxy, "agent-1", host).status_code == 200
            assert ask(proxy, "free", host).status_code == 200, "no budget at all"
            text = told(proxy, "budget", "set", "--everyone", "--tokens", "100", "--per", "hour")
            assert "everyone may spend 100 tokens per hour" in text
            counted_in = lambda _: accounts(proxy).get(("everyone", "hour"), {}).get("spent_tokens")  # noqa: E731
            proxy.wait_for(counted_in, "what the journal knows to have been spent before")
            assert "everyone" in spend_all(proxy, "free", host)
            status, text = hivemind(proxy, "budget", "add", "nobody", "--tokens", "5")
            assert status == 1
            assert "known: agent agent-1, everyone" in text
            told(proxy, "budget", "set", "--everyone", "--tokens", "1k", "--per", "hour")
            hung = threads.submit(ask_in_vain, proxy, "agent-2", silent_host)
            silent.wait_for(len, "a request in flight")
            then = time.monotonic()
            before = accounts(proxy)
            assert before["agent agent-2", "day"]["reserved_tokens"]
            proxy.wait_for(lambda _: is_journaled(journal, proxy.port), "the journal's next batch")
            proxy.stop(signal.SIGKILL)
            hung.result(PATIENCE_S)
        assert journal.stat().st_mode & 0o777 == 0o600
        with running(folder / "conf", *settings, ports=proxy.ports) as proxy:
            proxy.wait_for(lambda _: control_socket(proxy.port).exists(), "the control socket")
            after, passed_s = accounts(proxy), time.monotonic() - then
            assert after.keys() == before.keys()
            for key, one in before.items():
                assert after[key]["spent_tokens"] == one["spent_tokens"] + one["reserved_tokens"], key
                assert (after[key]["reserved_tokens"], after[key]["limit_tokens"]) == (0, one["limit_tokens"])
                assert after[key]["renews_in_s"] == pytest.approx(one["renews_in_s"], abs=passed_s + 1)
            assert "60 tokens per day" in spend_all(proxy, "agent-2", host)
            assert "set by a person: everyone 1,000 tokens per hour" in told(proxy, "budget")
            told(proxy, "budget", "set", "--everyone", "--per", "hour", "--auto")
            assert ("everyone", "hour") not in accounts(proxy)
            rules.write_text("agents: {'agent-*': {budgets: [{tokens: 60000, per: day}]}}")
            raised = lambda _: ask(proxy, "agent-2", host).status_code == 200  # noqa: E731
            proxy.wait_for(raised, "a raise by the agents file, without a restart")
            proxy.settled()
            assert "Traceback" not in proxy.log
            assert proxy.stop() == 0


def test_a_request_may_lower_its_priority_and_raise_it_only_with_a_grant(folder):
    rules = folder / "agents.yaml"
    rules.write_text("agents: {boss: {max_priority: high}}")
    with running_origin() as origin:
        origin.open()
        settings = profiles(folder, mine=for_host(origin.port)) + options(agents=rules)
        with running(folder / "conf", *settings) as proxy:
            for agent, words, headers, priority in [
                ("worker", "x", {}, "NORMAL"),
                ("worker", "x,prio-low", {}, "LOW"),
                ("worker", "x,prio-critical", {}, "NORMAL"),
                ("worker", "x", {"x-hivemind-priority": "low"}, "LOW"),
                ("boss", "x", {}, "NORMAL"),
                ("boss", "prio-low", {"x-hivemind-priority": "high"}, "HIGH"),
                ("boss", "prio-critical", {}, "HIGH"),
            ]:
                assert ask(proxy, agent, f"127.0.0.1:{origin.port}", words, headers).status_code == 200
                submitted = [event for event in proxy.state()["events"] if event.startswith("Submitted")]
                assert f"<Priority.{priority}:" in submitted[-1]
        assert all("x-hivemind-priority" not in request.headers for request in origin.arrived)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is what people send it with")
def test_a_request_that_a_budget_stopped_is_kept_once_and_can_be_sent_again_as_it_was(folder):
    rules = folder / "agents.yaml"
    rules.write_text("everyone: {budgets: [{tokens: 1, per: day}]}")
    contexts, names = folder / "contexts", set()
    with running_origin() as origin:
        origin.open()
        settings = profiles(folder, mine=for_host(origin.port)) + options(agents=rules, journal=folder / "journal.db")
        for _ in range(2):  # a restart makes no new one of the same request
            with running(folder / "conf", *settings) as proxy:
                for _ in range(3):
                    version = {"anthropic-version": "2023-06-01"}
                    refused = ask(proxy, "agent-1", f"127.0.0.1:{origin.port}", headers=version)
                    assert refused.status_code == 400
                    # A slow disk tells none.
                    names.update(re.findall(r"hivemind context show (\w+) -p \d+\.", refused.text))
                proxy.wait_for(lambda _: ContextStore(contexts).heads(), "the context on the disk")
                events = proxy.settled()["events"]
                assert sum("ContextKept" in event and "reason=''" in event for event in events) <= 1
        (kept,) = ContextStore(contexts).heads()
        assert names == {kept.id}
        assert (kept.version, len(ContextStore(contexts).versions(kept.id))) == (1, 1)
        assert "x-api-key" not in ContextStore(contexts).read(kept.id).headers
        arguments = ("--as", "api", "-o", str(folder / "a body.json"), "--folder", str(contexts), "--json")
        exported = CliRunner().invoke(main, ["context", "export", names.pop(), *arguments])
        assert exported.exit_code == 0, exported.output
        environment = {"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": "my-own"}
        command = ["sh", "-c", json.loads(exported.stdout)["command"]]
        sent = subprocess.run(command, capture_output=True, env=environment, timeout=PATIENCE_S, check=True)
    assert sent.stdout == PLAIN
    (arrived,) = origin.arrived
    assert bytes(arrived.body) == body(max_tokens=16).encode()
    assert (arrived.headers["x-api-key"], arrived.headers["anthropic-version"]) == ("my-own", "2023-06-01")


# The journal of a proxy that is killed in the middle of a fleet, and of the one that comes after it -----------------------

AGENTS, EACH = 6, 3
KEY, PROMPT = "sk-ant-nobody-may-read-this", "words that nobody may read"
LIMIT = 1234


class Fleet:
    """Agents that make their calls one after the other, and make one again where the proxy has gone."""

    def __init__(self, host):
        self.host = host
        self.proxy = None
        self.is_up = threading.Event()

    def run(self, number):
        answered = 0
        deadline = time.monotonic() + PATIENCE_S
        while answered < EACH and time.monotonic() < deadline:
            assert self.is_up.wait(PATIENCE_S)
            try:
                messages = [{"role": "user", "content": f"{PROMPT} {at}"} for at in range(answered + 1)]
                url = f"http://{self.host}/v1/messages"
                answer = self.proxy.ask(url, f"agent-{number}", key=KEY, max_tokens=16, messages=messages)
                answered += answer.status_code == 200
            except httpx.TransportError:
                continue
        return answered


def limits_of(proxy):
    """The meters of its one pool, as its report tells them."""
    with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
        (pool,) = client.get(f"http://127.0.0.1:{proxy.port}/report.json").json()["snapshot"]["pools"]
    return pool["meters"]


def test_a_proxy_that_is_killed_in_the_middle_of_a_fleet_forgets_and_forgives_nothing(tmp_path):
    journal, rules = tmp_path / "state" / "journal.db", tmp_path / "agents.yaml"
    delivered = "SELECT * FROM ticket WHERE \"end\" = 'delivered'"
    rules.write_text("agents: {'agent-*': {budgets: [{tokens: 100000, per: run}]}}")
    with running_origin() as origin, ThreadPoolExecutor(AGENTS) as threads:
        arguments = profiles(tmp_path, mine=for_host(origin.port, more=f"concurrency: {{initial: {AGENTS}}}\n"))
        arguments += options(agents=rules, journal=journal, contexts="turn")
        reset = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat()
        said = {"limit": str(LIMIT), "remaining": str(LIMIT - 1), "reset": reset}
        origin.says = {f"anthropic-ratelimit-requests-{what}": value for what, value in said.items()}
        fleet = Fleet(f"127.0.0.1:{origin.port}")
        with running(tmp_path / "conf", *arguments) as proxy:
            fleet.proxy = proxy
            fleet.is_up.set()
            agents = [threads.submit(fleet.run, number) for number in range(AGENTS)]
            origin.wait_for_calls(AGENTS)
            for request in origin.arrived[:AGENTS]:
                request.go.set()
            origin.wait_for_calls(2 * AGENTS)
            proxy.wait_for(
                lambda _: len(asked(journal, delivered)) == AGENTS, "the end of the first calls in the journal"
            )
            running_now = "SELECT * FROM attempt WHERE outcome = ''"
            proxy.wait_for(lambda _: len(asked(journal, running_now)) == AGENTS, "the second calls in the journal")
            kept = "SELECT value FROM kept WHERE name = 'learned'"
            proxy.wait_for(
                lambda _: any(str(LIMIT) in row["value"] for row in asked(journal, kept)), "the limit in the journal"
            )
            contexts = ContextStore(journal.parent / "contexts")
            proxy.wait_for(lambda _: len(contexts.heads()) == AGENTS, "the contexts of the first calls")
            fleet.is_up.clear()
            proxy.stop(signal.SIGKILL)
        assert {(head.agent, head.version, head.messages) for head in contexts.heads()} == {
            (f"agent-{number}", 1, 1) for number in range(AGENTS)
        }
        left = b"".join(file.read_bytes() for file in journal.parent.glob("journal*"))
        assert b"agent-1" in left
        assert PROMPT.encode() not in left
        assert KEY.encode() not in left + b"".join(file.read_bytes() for file in contexts.folder.iterdir())

        with running(tmp_path / "conf", *arguments, ports=proxy.ports) as proxy:
            fleet.proxy = proxy
            fleet.is_up.set()
            origin.wait_for_calls(2 * AGENTS + 1)
            (meter,) = limits_of(proxy)
            assert (meter["name"], meter["limit"]) == ("requests", LIMIT), "known before it has said anything again"
            origin.open()
            assert [agent.result(PATIENCE_S) for agent in agents] == [EACH] * AGENTS
            proxy.wait_for(lambda _: len(asked(journal, delivered)) == AGENTS * EACH, "all answers in the journal")
            assert proxy.state()["guard_trips"] == 0
            assert proxy.stop() == 0

    first, second = asked(journal, "SELECT * FROM run ORDER BY id")
    assert first["ended"] is None
    assert second["ended"] is not None
    for head in contexts.heads():
        assert (head.version, head.reason, head.messages) == (EACH, "turn", EACH)
        kept = contexts.read(head.id)
        said = [message["content"] for message in json.loads(bytes(kept.body))["messages"]]
        assert said == [f"{PROMPT} {at}" for at in range(EACH)]
        assert kept.answer == PLAIN
        assert head.spent.tokens >= EACH
    told = CliRunner().invoke(main, ["history", "limits", "--journal", str(journal), "--json"])
    assert {(one["meter"], one["limit"]) for one in json.loads(told.stdout)} == {("requests", LIMIT)}
    ends = asked(journal, 'SELECT run, "end", count(*) AS n FROM ticket GROUP BY run, "end" ORDER BY run, "end"')
    assert [tuple(row.values()) for row in ends] == [
        (first["id"], "delivered", AGENTS),
        (first["id"], "lost", AGENTS),
        (second["id"], "delivered", AGENTS * (EACH - 1)),
    ]
    assert len(asked(journal, "SELECT * FROM attempt WHERE outcome = 'lost' AND ambiguous")) == AGENTS
    for number in range(AGENTS):
        agent = f"agent-{number}"
        (spent,) = asked(
            journal,
            "SELECT sum(CASE outcome WHEN 'lost' THEN expected_tokens ELSE tokens END) AS tokens"
            " FROM attempt JOIN ticket ON ticket = ticket.id WHERE agent = ?",
            agent,
        )
        (account,) = asked(journal, "SELECT * FROM budget WHERE name = ?", agent)
        assert spent["tokens"] > EACH * 11, "what was in flight may have been billed"
        assert (account["spent_tokens"], account["reserved_tokens"]) == (spent["tokens"], 0)


def test_a_second_proxy_on_one_journal_says_whose_it_is_and_leaves_its_own_beside_it_when_it_is_killed(tmp_path):
    journal = tmp_path / "journal.db"

    def agents(file):
        with suppress(sqlite3.OperationalError):  # it is being made, or moved
            return file.exists() and {row["agent"] for row in asked(file, "SELECT agent FROM ticket")}

    with running_origin() as origin:
        origin.open()
        host = f"127.0.0.1:{origin.port}"
        settings = profiles(tmp_path, mine=for_host(origin.port)) + options(journal=journal, contexts="turn")
        contexts = ContextStore(tmp_path / "contexts")
        with running(tmp_path / "first", *settings) as first, running(tmp_path / "second", *settings) as second:
            for proxy, agent in ((first, "early"), (second, "late")):
                assert ask(proxy, agent, host).status_code == 200
            first.wait_for(lambda _: agents(journal) == {"early"}, "the first one's ticket")
            second.wait_for(lambda _: list(tmp_path.glob("journal-*.db")), "a journal of its own")
            (beside,) = tmp_path.glob("journal-*.db")
            second.wait_for(lambda _: agents(beside) == {"late"}, "the second one's ticket")
            assert str(first.process.pid) in second.log, "it says whose the journal is"
            first.wait_for(lambda _: len(contexts.heads()) == 2, "the contexts of both, in one file")
            second.stop(signal.SIGKILL)
            assert first.settled()["snapshot"]["counters"]["delivered"] == 1
            assert first.stop() == 0
    assert agents(journal) == {"early"}
    told = CliRunner().invoke(main, ["history", "agents", "--journal", str(beside), "--json"])
    (row,) = json.loads(told.stdout)
    assert "late" in row.values()
    assert {(head.agent, contexts.read(head.id).answer) for head in contexts.heads()} == {
        ("early", PLAIN),
        ("late", PLAIN),
    }


# What one proxy's requests came to, asked wherever it is told -----------------------------------------------------------

MODEL = "claude-sonnet-4-5"
"""It has a price."""
CALLS = [
    ("plain", "/v1/messages", {"stream": False}, "x", [OK]),
    ("retried", "/v1/messages", {"stream": True}, "whole", [StreamCut(), OK]),
    ("refused", "/v1/messages", {"stream": True}, "x", [ErrorStatus(529), OK]),
    ("cut", "/v1/messages", {"stream": True}, "x", [StreamCut(5)]),
    ("counted", "/v1/chat/completions", {"stream": True}, "x", [OK]),
    ("left", "/v1/messages", {"stream": False}, "x", [Slow(60)]),
]
"""Agent, path, what is asked for, words of the proxy's password, and what befalls its attempts."""


def call_once(proxy, server, agent, path, asked, words, faults):
    server.script(f"sk-{agent}", faults)
    request = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "hello " * 200}]} | asked
    headers = {"authorization": f"Bearer sk-{agent}", "content-type": "application/json"}
    patience_s = 1.0 if agent == "left" else PATIENCE_S
    with proxy.client(agent, words) as client, suppress(httpx.HTTPError):
        client.post(f"{server.url}{path}", content=json.dumps(request), headers=headers, timeout=patience_s)


def of_rows(rows, tokens="tokens", usd="usd", wasted_tokens="wasted_tokens", wasted_usd="wasted_usd", scale=1e6):
    """Tokens, micro-dollars, and what of both came to nothing, of all rows."""
    names = (tokens, usd, wasted_tokens, wasted_usd)
    total = [sum(row[name] for row in rows) for name in names]
    return total[0], round(total[1] * scale), total[2], round(total[3] * scale)


def of_journal(rows):
    return of_rows(rows, usd="micro_usd", wasted_usd="wasted_micro_usd", scale=1)


def of_metrics(text):
    sums = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    names = ("booked_tokens", "cost_dollars", "wasted_tokens", "wasted_dollars")
    told = [sums[f"hivemind_{name}_total"] for name in names]
    return int(told[0]), round(told[1] * 1e6), int(told[2]), round(told[3] * 1e6)


async def of_mcp(proxy, agents):
    async def of(agent):
        words = ["-P", "-m", "hivemind_addon", "mcp", "--agent", agent, "-p", str(proxy.port)]
        environment = {"XDG_RUNTIME_DIR": str(control_socket(proxy.port).parent.parent), "PATH": ""}
        server = StdioServerParameters(command=sys.executable, args=words, env=environment)
        async with stdio_client(server) as streams, ClientSession(*streams) as client:
            await client.initialize()
            return await given(client, "metrics")

    return of_rows(await asyncio.gather(*map(of, agents)))


async def test_every_surface_tells_the_same_sum(folder):
    with running_server() as server:
        mine = for_host(server.port, more="paths: ['/*']\nretry: {first_backoff_s: 0.02}\n")
        settings = profiles(folder, mine=mine) + options(journal=folder / "journal.db")
        with running(folder / "conf", *settings) as proxy:
            for call in CALLS:
                call_once(proxy, server, *call)
            proxy.wait_for(lambda state: not state["live"], "the end of every request")
            for holder in (["--everyone"], ["counted"]):  # set after it was spent
                told(proxy, "budget", "set", *holder, "--usd", "100", "--tokens", "1m", "--per", "day")

            def budgets():
                return {one["holder"]: one for one in json.loads(told(proxy, "budget", "--json"))}

            proxy.wait_for(lambda _: budgets()["agent counted"]["spent_tokens"], "the journal's answer")
            report = json.loads(told(proxy, "status", "--json"))
            agents = json.loads(told(proxy, "status", "agents", "--json"))
            with httpx.Client(trust_env=False, timeout=PATIENCE_S) as plain:
                page = plain.get(f"http://127.0.0.1:{proxy.port}/report.json").json()
                metrics = plain.get(f"http://127.0.0.1:{proxy.port}/metrics").text
            sums = {
                "agents": of_rows(agents),
                "pools": of_rows(json.loads(told(proxy, "status", "pools", "--json"))),
                "status, its agents": of_journal(report["stats"]["sessions"]),
                "status, its pools": of_journal(report["stats"]["pools"]),
                "page": of_journal(page["stats"]["pools"]),
                "history": of_journal(json.loads(told(proxy, "history", "agents", "--json"))),
                "history, by model": of_journal(
                    json.loads(told(proxy, "history", "agents", "--by", "model", "--json"))
                ),
                "metrics": of_metrics(metrics),
                "MCP": await of_mcp(proxy, [call[0] for call in CALLS]),
            }
            assert len(set(sums.values())) == 1, sums
            ((tokens, micro_usd, wasted_tokens, wasted_usd),) = set(sums.values())
            everyone = budgets()["everyone"]
            assert (everyone["spent_tokens"], everyone["spent_micro_usd"]) == (tokens, micro_usd)
            mine = {one["agent"]: one for one in agents}
            wasted = {name: one["wasted_usd"] for name, one in mine.items() if one["wasted_usd"]}
            assert wasted.keys() == {"retried", "cut", "left"}
            assert 0 < wasted_tokens < tokens
            assert wasted_usd == round(sum(wasted.values()) * 1e6) < micro_usd
            assert mine["cut"]["usd"] == mine["cut"]["wasted_usd"], "all of it was in vain"
            counted = budgets()["agent counted"]
            assert counted["spent_micro_usd"] == round(mine["counted"]["usd"] * 1e6) > 0
            assert "in vain" in told(proxy, "status", "agents")
            assert "in vain" in told(proxy, "status")
            assert "In vain" in told(proxy, "history", "agents")
