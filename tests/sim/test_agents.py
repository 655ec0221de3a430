import asyncio
import random
import ssl
from datetime import UTC, datetime

import pytest

from hivemind_addon.lab.sim.agents import AgentState, Habits, Route, SimAgent, plan_turns
from hivemind_addon.lab.sim.certificate import write_certificates
from hivemind_addon.lab.sim.faults import NAMED, ErrorStatus
from hivemind_addon.lab.sim.resend import SdkBackoff
from hivemind_addon.lab.sim.server import running_server

HABITS = Habits(
    turns=3,
    opening_chars=200,
    prompt_chars=(50, 100),
    think_s=(0, 0),
    latency_s=(0, 0),
    chunks=(2, 5),
    interval_s=0,
    backoff=SdkBackoff(first_s=0.001),
)
STREAMED, PLAIN = {"streamed": 1.0}, {"streamed": 0.0}


@pytest.fixture(scope="module")
def provider(tmp_path_factory):
    files = write_certificates(tmp_path_factory.mktemp("tls"), "api.anthropic.com", datetime.now(UTC))
    with running_server(tls=(str(files.certificate), str(files.key))) as server:
        route = Route(ssl.create_default_context(cafile=files.authority), direct=f"{server.host}:{server.port}")
        yield server, route


def run(provider, key, *script, **changes):
    server, route = provider
    server.script(key, [NAMED[fault] if isinstance(fault, str) else fault for fault in script])
    habits = Habits(**{name: getattr(HABITS, name) for name in HABITS.__slots__} | changes)
    agent = SimAgent(name=key, key=key, habits=habits, route=route, seed=1)
    asyncio.run(agent.run())
    return agent.record, server.truth().agents[key]


@pytest.mark.parametrize("kind", [STREAMED, PLAIN], ids=["streamed", "plain"])
def test_an_agent_that_meets_no_trouble_finishes_and_knows_what_it_used(provider, new_key, kind):
    record, truth = run(provider, new_key(), **kind)
    assert record.state is AgentState.FINISHED
    assert (record.turns_done, record.requests, record.failures) == (3, 3, [])
    assert record.output_tokens == truth.output_tokens > 0
    assert truth.completed == 3


def test_the_conversation_grows_with_each_turn(provider, new_key):
    key = new_key()
    seen = []
    for turns in (1, 2, 3):
        record, _ = run(provider, key, turns=turns)
        seen.append(record.input_tokens)
    one, two, three = seen
    assert two - one > one
    assert three - two > two - one


def test_an_agent_is_known_by_its_name_and_its_certificate_check_is_the_real_hosts(provider, new_key):
    server, _ = provider
    key = new_key()
    run(provider, key, turns=1)
    assert server.connections()[-1].sni == "api.anthropic.com"
    request = server.requests()[-1]
    assert request.headers["host"] == "api.anthropic.com"
    assert request.headers["x-stainless-timeout"] == "600"


@pytest.mark.parametrize("fault", ["429", "500", "502", "529", "reset-before-head"])
def test_two_failures_before_an_answer_are_cured_by_its_own_retries(provider, new_key, fault):
    record, truth = run(provider, new_key(), fault, fault, **STREAMED)
    assert record.state is AgentState.FINISHED
    assert len(record.failures) == 2
    assert truth.attempts == record.requests == 5


def test_the_third_failure_in_a_row_is_the_end(provider, new_key):
    record, truth = run(provider, new_key(), "ok", "502", "529", "500", **STREAMED)
    assert (record.state, record.death) == (AgentState.DEAD, "status 500")
    assert (record.turns_done, truth.attempts) == (1, 4)


def test_without_retries_the_first_failure_is_the_end(provider, new_key):
    record, truth = run(provider, new_key(), "502", retries=0)
    assert (record.state, record.death, truth.attempts) == (AgentState.DEAD, "status 502", 1)


@pytest.mark.parametrize(
    ("fault", "death"),
    [
        ("error-second", "overloaded_error in a stream"),
        ("error-in-the-middle", "overloaded_error in a stream"),
        ("stream-close", "RemoteProtocolError in a stream"),
    ],
)
def test_what_breaks_inside_a_stream_is_not_tried_again(provider, new_key, fault, death):
    record, truth = run(provider, new_key(), fault, **STREAMED)
    assert (record.state, record.death, truth.attempts) == (AgentState.DEAD, death, 1)


def test_a_plain_answer_that_is_cut_is_tried_again(provider, new_key):
    record, _ = run(provider, new_key(), "body-cut", **PLAIN)
    assert (record.state, len(record.failures)) == (AgentState.FINISHED, 1)


@pytest.mark.parametrize("fault", ["400", "401", "500-should-not-retry"])
def test_what_waiting_cannot_cure_is_not_tried_again(provider, new_key, fault):
    record, truth = run(provider, new_key(), fault)
    assert (record.state, truth.attempts) == (AgentState.DEAD, 1)


def test_json_in_place_of_a_stream_is_the_end(provider, new_key):
    record, _ = run(provider, new_key(), "json-for-stream", **STREAMED)
    assert record.death == "a stream without its end"


def test_a_stalled_answer_runs_into_the_clients_timeout(provider, new_key):
    record, _ = run(provider, new_key(), "stall", timeout_s=0.05, retries=0, **STREAMED)
    assert record.death == "ReadTimeout in a stream"


def test_a_refusal_that_says_at_once_is_tried_again(provider, new_key):
    record, _ = run(provider, new_key(), ErrorStatus(503, retry_after_s=0))
    assert record.state is AgentState.FINISHED


def test_one_seed_gives_one_plan_and_another_seed_another():
    plans = [plan_turns(Habits(), random.Random(seed)) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert len(plans[0][0].prompt) > Habits().opening_chars


def test_a_plain_turn_takes_as_long_as_the_stream_would_have():
    (turn,) = plan_turns(Habits(turns=1, latency_s=(1, 1), chunks=(11, 11), interval_s=0.1, **PLAIN), random.Random(1))
    assert turn.service_s == pytest.approx(2.0)
    assert float(turn.steering()["x-sim-latency-ms"]) == pytest.approx(2000)
