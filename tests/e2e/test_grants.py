"""Budgets, priorities, watchdogs and what outlives a restart, through a real proxy."""

import itertools
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import pytest

from tests.e2e.origin import FIRST_PIECE, PLAIN, STREAMED, running_origin
from tests.e2e.proxy import PATIENCE_S, body, running
from tests.e2e.raw_provider import STREAM_HEAD, chunk
from tests.journal.samples import column

pytestmark = pytest.mark.slow

SILENT_S = 0.5
QUICK = f"retry: {{first_backoff_s: 0.02, max_backoff_s: 0.1}}\nwatchdog: {{silent_s: {SILENT_S}, factor: 0.001}}\n"


@contextmanager
def house(tmp_path, port, *settings, profile=QUICK):
    (tmp_path / "profiles").mkdir(exist_ok=True)
    (tmp_path / "profiles" / "mine.yaml").write_text(f"extends: anthropic\nhosts: ['127.0.0.1:{port}']\n{profile}")
    sets = (f"hivemind_profiles={tmp_path / 'profiles'}", *settings)
    arguments = [word for one in sets for word in ("--set", one)]
    with running(tmp_path / "conf", *arguments, modes=("regular", f"reverse:http://127.0.0.1:{port}")) as proxy:
        yield proxy


def ask(proxy, agent="agent-1", words="x", **changes):
    """A call through the forward proxy, whose user is the agent."""
    host = changes.pop("host")
    with proxy.client(agent, words) as client:
        headers = {"x-api-key": "k", "content-type": "application/json", **changes.pop("headers", {})}
        return client.post(f"http://{host}/v1/messages", content=body(max_tokens=16, **changes), headers=headers)


def tickets(proxy, kind="Submitted"):
    return [event for event in proxy.state()["events"] if event.startswith(kind)]


def test_a_spent_budget_is_told_in_the_providers_shape_and_survives_a_restart(tmp_path):
    rules = tmp_path / "agents.yaml"
    rules.write_text("agents: {'agent-*': {budgets: [{tokens: 60, per: day}]}}")
    journal = tmp_path / "journal.db"
    settings = (f"hivemind_agents={rules}", f"hivemind_journal={journal}")
    with running_origin() as origin:
        origin.open()
        host = f"127.0.0.1:{origin.port}"
        with house(tmp_path, origin.port, *settings) as proxy:
            answers = []
            while not answers or answers[-1].status_code == 200:
                answers.append(ask(proxy, host=host))
                assert len(answers) < 12
            refused = answers[-1]
            assert len(answers) > 2
            assert refused.status_code == 400
            assert refused.headers["x-should-retry"] == "false"
            assert refused.json()["error"]["type"] == "invalid_request_error"
            message = refused.json()["error"]["message"]
            assert "agent agent-1" in message
            assert "of 60 tokens per day" in message
            assert str(rules) in message
            assert ask(proxy, "agent-2", host=host).status_code == 200, "a budget of its own"
            assert ask(proxy, "other", host=host).status_code == 200, "no budget at all"
            rules.write_text("agents: {'agent-*': {budgets: [{tokens: 60000, per: day}]}}")
            deadline = time.perf_counter() + PATIENCE_S
            while (raised := ask(proxy, host=host)).status_code == 400 and time.perf_counter() < deadline:
                continue
            assert raised.status_code == 200, "raised without a restart"
            assert proxy.state()["guard_trips"] == 0
            assert proxy.stop() == 0
        assert journal.stat().st_mode & 0o777 == 0o600
        assert "agent-1" in column(journal, "budget", "name", "name")
        rules.write_text("agents: {'agent-*': {budgets: [{tokens: 60, per: day}]}}")
        with house(tmp_path, origin.port, *settings) as proxy:
            assert ask(proxy, host=host).status_code == 400


def test_a_request_may_lower_its_priority_and_raise_it_only_with_a_grant(tmp_path):
    rules = tmp_path / "agents.yaml"
    rules.write_text("agents: {boss: {max_priority: high}}")
    with running_origin() as origin, house(tmp_path, origin.port, f"hivemind_agents={rules}") as proxy:
        origin.open()
        host = f"127.0.0.1:{origin.port}"
        for agent, words, headers, priority in [
            ("worker", "x", {}, "NORMAL"),
            ("worker", "x,prio-low", {}, "LOW"),
            ("worker", "x,prio-critical", {}, "NORMAL"),
            ("worker", "x", {"x-hivemind-priority": "low"}, "LOW"),
            ("boss", "x", {}, "NORMAL"),
            ("boss", "prio-low", {"x-hivemind-priority": "high"}, "HIGH"),
            ("boss", "prio-critical", {}, "HIGH"),
        ]:
            assert ask(proxy, agent, words, host=host, headers=headers).status_code == 200
            assert f"<Priority.{priority}:" in tickets(proxy)[-1]
        assert all("x-hivemind-priority" not in request.headers for request in origin.arrived)


@contextmanager
def raw_origin(*answers):
    """A plain HTTP/1.1 server: the answer to each connection's request, as bytes; then silence until the block ends.

    Connections beyond these get the last answer: on a busy machine a good one may come too late as well.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()
    served = []

    def serve(connection, answer):
        with connection, suppress(OSError):
            data = b""
            while b'"messages"' not in data:
                piece = connection.recv(65536)
                if not piece:
                    return
                data += piece
            served.append(time.perf_counter())
            connection.sendall(answer)
            connection.settimeout(PATIENCE_S)
            while not done.is_set() and connection.recv(65536):
                pass

    def accept():
        with suppress(OSError):
            for answer in itertools.chain(answers, itertools.repeat(answers[-1])):
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection, answer), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1], served
    finally:
        done.set()
        listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`, which might go on with the next test's listener
        accepting.join(PATIENCE_S)
        listener.close()


GOOD = STREAM_HEAD + chunk(STREAMED) + chunk(b"")


@pytest.mark.parametrize(
    "beginning", [b"", STREAM_HEAD, STREAM_HEAD + chunk(FIRST_PIECE[:200])], ids=["nothing", "head", "bookkeeping"]
)
def test_a_streamed_answer_that_hangs_before_its_content_is_tried_again(tmp_path, beginning):
    with raw_origin(beginning, GOOD) as (port, served), house(tmp_path, port) as proxy:
        asked_at = time.perf_counter()
        answer = ask(proxy, stream=True, host=f"127.0.0.1:{port}")
        assert answer.content == STREAMED
        assert served[1] - asked_at > SILENT_S
        state = proxy.wait_for(lambda state: state["live"] == 0, "the end")
        assert state["guard_trips"] == 0
        assert state["snapshot"]["counters"]["retries"] >= 1


def test_an_error_whose_body_hangs_is_no_zombie(tmp_path):
    hanging = b"HTTP/1.1 500 No\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
    with raw_origin(hanging, GOOD) as (port, _), house(tmp_path, port) as proxy:
        assert ask(proxy, stream=True, host=f"127.0.0.1:{port}").content == STREAMED
        assert proxy.state()["guard_trips"] == 0


def test_one_that_hangs_after_its_content_is_cut_and_frees_its_slot(tmp_path):
    with raw_origin(STREAM_HEAD + chunk(FIRST_PIECE)) as (port, _), house(tmp_path, port) as proxy:
        with pytest.raises(httpx.RemoteProtocolError):
            ask(proxy, stream=True, host=f"127.0.0.1:{port}")
        state = proxy.wait_for(lambda state: state["live"] == 0 and state["streams"] <= 1, "the end")
        assert state["guard_trips"] == 0
        assert state["snapshot"]["pools"][0]["in_flight"] == 0


def test_a_request_that_does_not_stream_is_not_watched(tmp_path):
    with running_origin() as origin, house(tmp_path, origin.port) as proxy, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask, proxy, host=f"127.0.0.1:{origin.port}")
        origin.wait_for_calls(1)
        with suppress(TimeoutError):
            answer.result(1.5)
        origin.open()
        assert answer.result(PATIENCE_S).content == PLAIN
        assert len(origin.arrived) == 1


def test_an_attempt_whose_client_has_come_back_makes_room(tmp_path):
    narrow = QUICK + "concurrency: {initial: 1, maximum: 1}\n"
    with (
        running_origin() as origin,
        house(tmp_path, origin.port, profile=narrow) as proxy,
        ThreadPoolExecutor(2) as threads,
    ):
        host = f"127.0.0.1:{origin.port}"
        impatient = {"x-stainless-timeout": "1"}
        first = threads.submit(ask, proxy, host=host, headers=impatient)
        origin.wait_for_calls(1)
        with suppress(TimeoutError):
            first.result(1.2)
        again = threads.submit(ask, proxy, host=host, headers=impatient | {"x-stainless-timeout": "60"})
        origin.wait_for_calls(2)
        with pytest.raises(httpx.RemoteProtocolError):
            first.result(PATIENCE_S)
        origin.open()
        assert again.result(PATIENCE_S).content == PLAIN
        state = proxy.wait_for(lambda state: state["live"] == 0, "the end")
        assert state["guard_trips"] == 0
