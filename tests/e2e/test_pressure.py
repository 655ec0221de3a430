"""A conversation that fills its model's context window, and is compacted: who hears of it, and what it cost."""

import json

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from hivemind_addon.tools.cli import main
from lab.running_server import running_server
from tests.e2e.proxy import NO_TLS, body, for_host, options, profiles, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pressure")]

WINDOW = 4000
SUMMARY = "Your task is to create a detailed summary of the conversation so far. "


@pytest.fixture
def folder(runtime_dir, tmp_path):
    """Of one test; control sockets have theirs."""
    return tmp_path


def turn(proxy, host, tokens, words=""):
    """One request of ada's conversation that carries so many input tokens; the provider counts four bytes as one."""
    text = words + "x" * (4 * tokens - len(body()) - len(words))
    session = {"x-claude-code-session-id": "long"}
    answer = proxy.ask(
        f"http://{host}/v1/messages", "ada", headers=session, messages=[{"role": "user", "content": text}]
    )
    assert answer.status_code == 200, answer.text


def scraped(proxy):
    """Every sample without its labels' values."""
    text = httpx.get(f"http://127.0.0.1:{proxy.port}/metrics", trust_env=False, verify=NO_TLS).text
    return {one.name: one.value for family in text_string_to_metric_families(text) for one in family.samples}


def test_a_full_context_is_told_everywhere_and_its_compaction_has_a_price(folder):
    calls, events = folder / "calls", folder / "events.jsonl"
    notify = folder / "notify"
    notify.write_text(f'#!/bin/sh\ncat >> "{calls}"\n')
    notify.chmod(0o700)
    with running_server() as provider:
        host = f"127.0.0.1:{provider.port}"
        settings = profiles(folder, mine=for_host(provider.port, more=f'context_windows: {{"claude-*": {WINDOW}}}\n'))
        settings += options(notify=notify, log=events, context_warning="75%")
        with running(folder / "conf", *settings) as proxy:
            for tokens in (1000, 1600, 2200):
                turn(proxy, host, tokens)
            calm = proxy.settled()
            assert not any("ContextFull" in event for event in calm["events"])
            for tokens in (2900, 3100):
                turn(proxy, host, tokens)
            report = httpx.get(f"http://127.0.0.1:{proxy.port}/report.json", trust_env=False, verify=NO_TLS).json()
            # Who looks has it told at once; else the next attempts that end would.
            proxy.wait_for(lambda _: calls.exists() and calls.read_text().endswith("}\n"), "the call for help")
            (call,) = map(json.loads, calls.read_text().splitlines())
            assert (call["cause"], call["state"]) == ("context", "began")
            assert "ada (session long): its context is 7" in call["text"]
            assert "ada (session long): its context is 7" in proxy.log
            (one,) = report["contexts"]
            assert (one["agent"], one["session"], one["window_tokens"], one["is_full"]) == ("ada", "long", WINDOW, True)
            assert 3100 <= one["tokens"] <= WINDOW
            assert 200 <= one["growth_per_turn"] <= 700
            shown = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["status", "-p", str(proxy.port)])
            assert "nearly full contexts: ada (session long)" in shown.output
            turn(proxy, host, 3300, SUMMARY)
            turn(proxy, host, 900)
            proxy.settled()
            told = scraped(proxy)
            assert told["hivemind_compactions_total"] == told["hivemind_full_contexts_total"] == 1
            assert told["hivemind_contexts_full"] == 0
            assert told["hivemind_compaction_tokens_total"] >= 3300
            assert proxy.stop() == 0
            kinds = [json.loads(line) for line in events.read_text().splitlines()]
    (shrank,) = [one for one in kinds if one["event"] == "ContextShrank"]
    assert shrank["after_tokens"] == pytest.approx(900, abs=10)
    assert shrank["before_tokens"] == one["tokens"]
    assert shrank["spend"]["micro_usd"] > 3300 * 3  # three dollars a million tokens of input, and its output
    assert "was compacted" in proxy.log
