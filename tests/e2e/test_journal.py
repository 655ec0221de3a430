"""The journal of a real proxy that is killed in the middle of a fleet, and of the one that comes after it."""

import json
import select
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import httpx
import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from tests.e2e.origin import running_origin
from tests.e2e.proxy import body, running
from tests.journal.samples import asked

pytestmark = pytest.mark.slow

AGENTS, CALLS = 6, 3
KEY, PROMPT = "sk-ant-nobody-may-read-this", "words that nobody may read"
TIMEOUT_S = 180
"""Of the whole: two proxies start in it, on a machine that may be busy."""
LIMIT = 1234


def until(condition, what):
    """Wait for another process: there is no clock to advance."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        select.select([], [], [], 0.02)


class Fleet:
    """Agents that make their calls one after the other, and make one again where the proxy has gone."""

    def __init__(self, host):
        self.host = host
        self.proxy = None
        self.is_up = threading.Event()

    def run(self, number):
        answered = 0
        deadline = time.monotonic() + TIMEOUT_S
        while answered < CALLS and time.monotonic() < deadline:
            assert self.is_up.wait(TIMEOUT_S)
            try:
                with self.proxy.client(f"agent-{number}") as client:
                    headers = {"x-api-key": KEY, "content-type": "application/json"}
                    content = body(max_tokens=16, messages=[{"role": "user", "content": f"{PROMPT} {answered}"}])
                    answer = client.post(f"http://{self.host}/v1/messages", content=content, headers=headers)
                answered += answer.status_code == 200
            except httpx.TransportError:
                continue
        return answered


def limits_of(proxy):
    """The meters of its one pool, as its report tells them."""
    with httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client:
        (pool,) = client.get(f"http://127.0.0.1:{proxy.port}/report.json").json()["snapshot"]["pools"]
    return pool["meters"]


def test_a_proxy_that_is_killed_in_the_middle_of_a_fleet_forgets_and_forgives_nothing(tmp_path):
    journal = tmp_path / "state" / "journal.db"
    delivered = "SELECT * FROM ticket WHERE \"end\" = 'delivered'"
    (tmp_path / "agents.yaml").write_text("agents: {'agent-*': {budgets: [{tokens: 100000, per: run}]}}")
    (tmp_path / "profiles").mkdir()
    with running_origin() as origin, ThreadPoolExecutor(AGENTS) as threads:
        (tmp_path / "profiles" / "mine.yaml").write_text(
            f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\nconcurrency: {{initial: {AGENTS}}}\n"
        )
        settings = ("profiles", tmp_path / "profiles"), ("agents", tmp_path / "agents.yaml"), ("journal", journal)
        arguments = [word for name, value in settings for word in ("--set", f"hivemind_{name}={value}")]
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
            until(lambda: len(asked(journal, delivered)) == AGENTS, "the end of the first calls in the journal")
            running_now = "SELECT * FROM attempt WHERE outcome = ''"
            until(lambda: len(asked(journal, running_now)) == AGENTS, "the second calls in the journal")
            kept = "SELECT value FROM kept WHERE name = 'learned'"
            until(lambda: any(str(LIMIT) in row["value"] for row in asked(journal, kept)), "the limit in the journal")
            fleet.is_up.clear()
            proxy.stop(signal.SIGKILL)
        left = b"".join(file.read_bytes() for file in journal.parent.iterdir())
        assert b"agent-1" in left
        assert KEY.encode() not in left
        assert PROMPT.encode() not in left

        with running(tmp_path / "conf", *arguments, ports=proxy.ports) as proxy:
            fleet.proxy = proxy
            fleet.is_up.set()
            origin.wait_for_calls(2 * AGENTS + 1)
            (meter,) = limits_of(proxy)
            assert (meter["name"], meter["limit"]) == ("requests", LIMIT), "known before it has said anything again"
            origin.open()
            assert [agent.result(TIMEOUT_S) for agent in agents] == [CALLS] * AGENTS
            until(lambda: len(asked(journal, delivered)) == AGENTS * CALLS, "all answers in the journal")
            assert proxy.state()["guard_trips"] == 0
            assert proxy.stop() == 0

    first, second = asked(journal, "SELECT * FROM run ORDER BY id")
    assert first["ended"] is None
    assert second["ended"] is not None
    told = CliRunner().invoke(main, ["history", "limits", "--journal", str(journal), "--json"])
    assert {(one["meter"], one["limit"]) for one in json.loads(told.stdout)} == {("requests", LIMIT)}
    ends = asked(journal, 'SELECT run, "end", count(*) AS n FROM ticket GROUP BY run, "end" ORDER BY run, "end"')
    assert [tuple(row.values()) for row in ends] == [
        (first["id"], "delivered", AGENTS),
        (first["id"], "lost", AGENTS),
        (second["id"], "delivered", AGENTS * (CALLS - 1)),
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
        assert spent["tokens"] > CALLS * 11, "what was in flight may have been billed"
        assert (account["spent_tokens"], account["reserved_tokens"]) == (spent["tokens"], 0)
