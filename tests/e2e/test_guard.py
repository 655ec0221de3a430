"""An exception of ours anywhere: the client gets an answer, no slot is lost, and it is told, counted and over."""

import itertools
import socket
from contextlib import closing, contextmanager

import httpx
import pytest

from hivemind_addon.sim.faults import NAMED
from lab.running_server import running_server
from tests.e2e.house import running_house
from tests.e2e.origin import PLAIN
from tests.e2e.probe import TRIPPABLE
from tests.e2e.proxy import PATIENCE_S, QUICK, body, for_host, in_flight, is_idle, options, profiles, running
from tests.proxy.journal.samples import column

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("guard")]

BREAKS_THE_LAYER = {"gate", "wait_for_head", "collect", "peek", "retry", "release", "stream", "layer"}
"""Here an answer may be an error of ours, or end early: what the layer had in hand is lost."""
NEEDS_MORE = {"refusal", "budget_refusal", "client_gone", "observer", "journal", "judge_transport", "judge_stream"}
"""Not on the way of the requests below: they have tests of their own."""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server():
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, server):
    folder = tmp_path_factory.mktemp("guard")
    settings = profiles(folder, sim=for_host(server.port, more=QUICK))
    with running(folder / "conf", *settings, modes=("regular", f"reverse:{server.url}")) as proxy:
        yield proxy


@pytest.fixture
def key():
    return f"sk-guard-{next(_numbers)}"


@contextmanager
def tripped(proxy, where):
    """One of our functions raises meanwhile."""
    proxy.probe("trip", where=where)
    try:
        yield
    finally:
        proxy.probe("trip", where="off")


def ask(proxy, key, *, stream=False, **headers):
    """One request on a connection of its own. An answer, or None when it ended early."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        return proxy.post(content=body(stream=stream), key=key, headers=named)
    except httpx.RemoteProtocolError:
        return None


def told_trips(proxy):
    return proxy.log.count("hivemind: guard trip in ")


def idle(proxy):
    return proxy.wait_for(is_idle, "the return of every slot and stream")


def assert_scheduling_works(proxy, server, key):
    server.script(key, [NAMED["529"]])
    before = proxy.state()
    answer = ask(proxy, key)
    assert answer.status_code == 200
    state = idle(proxy)
    assert state["snapshot"]["counters"]["delivered"] == before["snapshot"]["counters"]["delivered"] + 1
    assert state["snapshot"]["counters"]["retries"] > before["snapshot"]["counters"]["retries"]
    assert state["guard_trips"] == before["guard_trips"]


def test_an_exception_of_ours_costs_no_answer_and_no_slot(subtests, proxy, server):
    for where in sorted(set(TRIPPABLE) - NEEDS_MORE):
        with subtests.test(where):
            costs_no_answer_and_no_slot(proxy, server, where)


def costs_no_answer_and_no_slot(proxy, server, where):
    key, held = f"sk-guard-{where}", f"sk-held-{where}"  # the latter's provider is busy
    ask(proxy, key)
    before = idle(proxy)
    told = told_trips(proxy)
    server.script(key, [NAMED["ok"], NAMED["ok"], NAMED["529"], NAMED["ok"]])
    server.script(held, [NAMED["529"]])

    with tripped(proxy, where):
        plain = ask(proxy, key)
        streamed = ask(proxy, key, stream=True)
        retried = ask(proxy, key)
        backing_off = ask(proxy, held)

    if where in BREAKS_THE_LAYER:
        answers = (plain, streamed, retried, backing_off)
        assert {answer.status_code for answer in answers if answer is not None} <= {200, 502, 529}
    else:
        assert plain.status_code == 200
        assert plain.json()["type"] == "message"
        assert streamed.status_code == 200
        assert streamed.text.rstrip().endswith('{"type":"message_stop"}')
        assert {retried.status_code, backing_off.status_code} <= {200, 529}
    assert ask(proxy, key).status_code == 200  # with it, what the core could not take back before is given back
    trips = idle(proxy)["guard_trips"] - before["guard_trips"]
    assert trips >= 1
    # Of many like it the first few have one; earlier cases may have tripped in the same place.
    assert proxy.log.count("Traceback (most recent call last)") == told_trips(proxy)
    assert told_trips(proxy) - told <= trips
    assert_scheduling_works(proxy, server, f"{key}-after")


@pytest.mark.parametrize(
    ("where", "fault", "stream"),
    [
        ("judge_transport", "reset-before-head", False),
        ("judge_transport", "stream-reset", True),
        ("judge_stream", "error-first", True),
    ],
)
def test_an_exception_while_a_failure_is_judged_costs_no_slot(proxy, server, key, where, fault, stream):
    before = proxy.state()["guard_trips"]
    server.script(key, [NAMED[fault]])
    with tripped(proxy, where):
        answer = ask(proxy, key, stream=stream)
    assert answer is None or answer.status_code in (200, 502)
    assert idle(proxy)["guard_trips"] > before
    assert_scheduling_works(proxy, server, key + "-after")


def test_a_client_that_goes_while_its_end_fails_costs_no_slot(proxy, server, key):
    content = body().encode()
    before = proxy.state()["guard_trips"]
    with tripped(proxy, "client_gone"):
        with closing(socket.create_connection(("127.0.0.1", proxy.ports[1]), timeout=PATIENCE_S)) as client:
            head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\nx-sim-latency-ms: 60000\r\ncontent-length: {len(content)}\r\n\r\n"
            client.sendall(head.encode() + content)
            proxy.wait_for(in_flight, "the admission")
        idle(proxy)
    assert proxy.state()["guard_trips"] > before
    assert_scheduling_works(proxy, server, key)


def test_an_observer_that_fails_changes_no_decision(tmp_path, server, key):
    """It is not called again, so this proxy is of no use afterwards."""
    journal = tmp_path / "journal.db"
    modes = ("regular", f"reverse:{server.url}")
    with running(tmp_path / "conf", *options(journal=journal), modes=modes) as proxy:
        with tripped(proxy, "observer"):
            assert ask(proxy, key).status_code == 200
        assert idle(proxy)["snapshot"]["counters"]["delivered"] == 1
        assert proxy.log.count("is not called again") == 1
        with tripped(proxy, "journal"):  # its thread loses what it has in hand, and goes on
            assert ask(proxy, key, x_hivemind_task_id="lost").status_code == 200
            proxy.wait_for(lambda _: "injected by the test" in proxy.log, "the journal's trouble")
        assert ask(proxy, key, x_hivemind_task_id="afterwards").status_code == 200
        proxy.wait_for(lambda _: "afterwards" in column(journal, "ticket", "task", "id"), "the journal's going on")


def test_tripped_requests_go_on_under_the_pools_last_limit_and_count_as_in_flight(tmp_path):
    with running_house(tmp_path, slots=3, threads=12) as house:
        proxy, origin = house.proxy, house.origin
        first = house.ask("first")
        house.let_go("first")
        assert first.result(PATIENCE_S).content == PLAIN
        with tripped(proxy, "submit"):
            answers = [house.ask("tripped") for _ in range(12)]
            origin.wait_for_calls(4)
            state = proxy.wait_for(lambda state: state["live"] == 12, "the arrival of all")
            (pool,) = state["snapshot"]["pools"]
            assert pool["bypassing"] == pool["in_flight"] == pool["limit"] == 3
            assert len(origin.arrived) == 4
            for number in range(1, 13):
                origin.wait_for_calls(number + 1)
                running_now = sum(not request.go.is_set() for request in origin.arrived)
                assert running_now <= 3
                origin.arrived[number].go.set()
            assert [answer.result(PATIENCE_S).content for answer in answers] == [PLAIN] * 12
            assert idle(proxy)["guard_trips"] == 12
        origin.open()
        assert ask(proxy, "k").content == PLAIN
        assert proxy.state()["guard_trips"] == 12


def test_a_refusal_that_cannot_be_made_lets_the_request_go_on(tmp_path, server, key):
    with running_house(tmp_path / "deadline") as house:
        filler, _ = house.fill()
        with tripped(house.proxy, "refusal"):
            refused = house.ask("refused", headers={"x-stainless-timeout": "1"})
            house.let_go("refused")
            assert refused.result(PATIENCE_S).content == PLAIN
        house.origin.open()
        assert filler.result(PATIENCE_S).status_code == 200
        assert idle(house.proxy)["guard_trips"] == 1

    rules = tmp_path / "agents.yaml"
    rules.write_text("everyone: {budgets: [{tokens: 1}]}")
    modes = ("regular", f"reverse:{server.url}")
    with running(tmp_path / "budget", *options(agents=rules), modes=modes) as proxy:
        assert ask(proxy, key).status_code == 400
        with tripped(proxy, "budget_refusal"):
            assert ask(proxy, key).status_code == 200
        assert ask(proxy, key).status_code == 400
        assert idle(proxy)["guard_trips"] == 1
