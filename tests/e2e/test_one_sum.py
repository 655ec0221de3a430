"""What one proxy's requests came to, asked wherever it is told: all say the same, and the same came to nothing."""

import asyncio
import json
import sys
import tempfile
from contextlib import suppress

import httpx
import pytest
from click.testing import CliRunner
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from prometheus_client.parser import text_string_to_metric_families

from hivemind_addon.api.control import control_socket
from hivemind_addon.lab.sim.faults import OK, ErrorStatus, Slow, StreamCut
from hivemind_addon.lab.sim.server import running_server
from hivemind_addon.tools.cli import main
from tests.e2e.proxy import PATIENCE_S, running
from tests.mcp.stage import given

pytestmark = pytest.mark.slow

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


@pytest.fixture
def folder():
    """Short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="hm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield folder


def ask(proxy, server, agent, path, asked, words, faults):
    server.script(f"sk-{agent}", faults)
    request = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "hello " * 200}]} | asked
    headers = {"authorization": f"Bearer sk-{agent}", "content-type": "application/json"}
    patience_s = 1.0 if agent == "left" else PATIENCE_S
    with proxy.client(agent, words) as client, suppress(httpx.HTTPError):
        client.post(f"{server.url}{path}", content=json.dumps(request), headers=headers, timeout=patience_s)


def asked(proxy, *arguments):
    done = CliRunner(env={"COLUMNS": "120"}).invoke(main, [*arguments, "-p", str(proxy.port)])
    assert done.exit_code == 0, done.output
    return done.output


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

    return of_rows(await asyncio.gather(*map(of, agents)), usd="cost_usd")


async def test_every_surface_tells_the_same_sum(folder, tmp_path):
    settings = (f"hivemind_profiles={tmp_path / 'profiles'}", f"hivemind_journal={folder}/journal.db")
    options = [word for one in settings for word in ("--set", one)]
    (tmp_path / "profiles").mkdir()
    with running_server() as server:
        (tmp_path / "profiles" / "mine.yaml").write_text(
            f"extends: anthropic\nhosts: ['127.0.0.1:{server.port}']\npaths: ['/*']\nretry: {{first_backoff_s: 0.02}}\n"
        )
        with running(tmp_path / "conf", *options) as proxy:
            for call in CALLS:
                ask(proxy, server, *call)
            proxy.wait_for(lambda state: not state["live"], "the end of every request")
            for holder in (["--everyone"], ["counted"]):  # set after it was spent
                asked(proxy, "budget", "set", *holder, "--usd", "100", "--tokens", "1m", "--per", "day")

            def budgets():
                return {one["holder"]: one for one in json.loads(asked(proxy, "budget", "--json"))}

            proxy.wait_for(lambda _: budgets()["agent counted"]["spent_tokens"], "the journal's answer")
            report = json.loads(asked(proxy, "status", "--json"))
            agents = json.loads(asked(proxy, "agents", "--json"))
            with httpx.Client(trust_env=False, timeout=PATIENCE_S) as plain:
                page = plain.get(f"http://127.0.0.1:{proxy.port}/report.json").json()
                metrics = plain.get(f"http://127.0.0.1:{proxy.port}/metrics").text
            told = {
                "agents": of_rows(agents),
                "pools": of_rows(json.loads(asked(proxy, "pools", "--json"))),
                "status, its agents": of_journal(report["tally"]["sessions"]),
                "status, its pools": of_journal(report["tally"]["pools"]),
                "page": of_journal(page["tally"]["pools"]),
                "history": of_journal(json.loads(asked(proxy, "history", "agents", "--json"))),
                "history, by model": of_journal(
                    json.loads(asked(proxy, "history", "agents", "--by", "model", "--json"))
                ),
                "metrics": of_metrics(metrics),
                "MCP": await of_mcp(proxy, [call[0] for call in CALLS]),
            }
            assert len(set(told.values())) == 1, told
            ((tokens, micro_usd, wasted_tokens, wasted_usd),) = set(told.values())
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
            assert "in vain" in asked(proxy, "agents")
            assert "in vain" in asked(proxy, "status")
            assert "In vain" in asked(proxy, "history", "agents")
