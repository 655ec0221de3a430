"""An agent on the wire: what it survives, what it dies of, and what it knows of its answers."""

import asyncio
import dataclasses
import ssl
from contextlib import AsyncExitStack

import pytest

from hivemind_addon.sim import live
from hivemind_addon.sim.actor import SdkBackoff
from hivemind_addon.sim.agents import Route
from hivemind_addon.sim.certificate import write_certificates
from hivemind_addon.sim.faults import NAMED, ErrorStatus
from hivemind_addon.sim.live import LiveFleet
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.workload import Crowd, Scenario
from lab.running_server import running_server

CROWD = Crowd("agent", 1, 3, think_s=(0, 0), latency_s=1e-6, output_tokens=(50, 120), streamed=True, retries=2)


@pytest.fixture(scope="module")
def provider(tmp_path_factory):
    files = write_certificates(tmp_path_factory.mktemp("tls"), "api.anthropic.com")
    settings = ProviderSettings(tokens_per_chunk=live.TOKENS_PER_CHUNK)
    with running_server(settings, tls=(str(files.certificate), str(files.key))) as server:
        yield server, Route(ssl.create_default_context(cafile=files.authority), direct=f"{server.host}:{server.port}")


@pytest.fixture
def run(provider, new_key, monkeypatch):
    """Let one agent meet these faults: how many turns it did, what it died of, its books, and the provider's truth."""
    server, route = provider
    monkeypatch.setattr(live, "_BACKOFF", SdkBackoff(first_s=0.001))

    def run(*script, **changes):
        key = new_key()
        monkeypatch.setattr(live, "_KEY", key)
        server.script(key, [NAMED[fault] if isinstance(fault, str) else fault for fault in script])
        crowd = dataclasses.replace(CROWD, name=key, **changes)
        fleet = LiveFleet(Scenario("one", (crowd,), ProviderSettings()), 1)
        (agent,) = fleet.agents

        async def live_it():
            async with AsyncExitStack() as stack:
                await fleet.run([await agent.connected(route, stack)], 60)

        asyncio.run(live_it())
        return len(agent.turns_s), agent.death, fleet._books, server.truth().agents[agent.name]

    return run


def test_an_agent_that_meets_no_trouble_finishes_and_knows_what_it_used(run):
    for streamed in (True, False):
        turns, death, books, truth = run(streamed=streamed)
        assert (turns, death, books.requests, books.failed) == (3, None, 3, 0)
        assert truth.completed == 3
        assert books.cost == truth.input_tokens > 0


def test_the_conversation_grows_with_each_turn(run):
    one, two, three = (run(turns=turns)[2].cost for turns in (1, 2, 3))
    assert two - one > one
    assert three - two > two - one


def test_an_agent_is_known_by_its_name_and_its_certificate_check_is_the_real_hosts(provider, run):
    server, _ = provider
    run(turns=1, timeout_s=600)
    assert server.connections()[-1].sni == "api.anthropic.com"
    request = server.requests()[-1]
    assert request.headers["host"] == "api.anthropic.com"
    assert request.headers["x-stainless-timeout"] == "600"


def test_two_failures_before_an_answer_are_cured_by_its_own_retries(run):
    for fault in ("429", "500", "502", "529", "reset-before-head"):
        turns, death, books, truth = run(fault, fault)
        assert (turns, death, books.failed) == (3, None, 2), fault
        assert truth.attempts == books.requests == 5


def test_the_third_failure_in_a_row_is_the_end(run):
    turns, death, _, truth = run("ok", "502", "529", "500")
    assert (turns, death, truth.attempts) == (1, "status 500", 4)


def test_without_retries_the_first_failure_is_the_end(run):
    turns, death, _, truth = run("502", retries=0)
    assert (turns, death, truth.attempts) == (0, "status 502", 1)


def test_what_breaks_inside_a_stream_is_not_tried_again(run):
    for fault, told in (
        ("error-second", "overloaded_error in a stream"),
        ("error-in-the-middle", "overloaded_error in a stream"),
        ("stream-close", "RemoteProtocolError in a stream"),
        ("json-for-stream", "a stream without its end"),
    ):
        turns, death, _, truth = run(fault)
        assert (turns, death, truth.attempts) == (0, told, 1)


def test_a_plain_answer_that_is_cut_is_tried_again(run):
    turns, _, books, _ = run("body-cut", streamed=False)
    assert (turns, books.failed) == (3, 1)


def test_what_waiting_cannot_cure_is_not_tried_again(run):
    for fault in ("400", "401", "500-should-not-retry"):
        turns, death, _, truth = run(fault)
        assert (turns, truth.attempts) == (0, 1)
        assert death == f"status {fault[:3]}"


def test_a_stalled_answer_runs_into_the_clients_timeout(run):
    assert run("stall", timeout_s=0.2, retries=0)[1] == "ReadTimeout in a stream"


def test_a_refusal_that_says_at_once_is_tried_again(run):
    assert run(ErrorStatus(503, retry_after_s=0))[0] == 3
