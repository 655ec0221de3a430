"""An exception of ours anywhere: the client gets an answer, no slot is lost, and it is told, counted and over."""

import itertools
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest

from hivemind_addon.lab.sim.faults import NAMED
from hivemind_addon.lab.sim.server import running_server
from tests.e2e.origin import PLAIN, running_origin
from tests.e2e.probe import TRIPPABLE
from tests.e2e.proxy import NO_TLS, PATIENCE_S, body, running
from tests.journal.samples import column

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("guard")]

BREAKS_THE_LAYER = {"gate", "wait_for_head", "collect", "peek", "retry", "release", "stream", "layer"}
"""Here an answer may be an error of ours, or end early: what the layer had in hand is lost."""
NEEDS_MORE = {"refusal", "budget_refusal", "client_gone", "observer", "judge_transport", "judge_stream"}
"""Not on the way of the requests below: they have tests of their own."""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server():
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, server):
    folder = tmp_path_factory.mktemp("guard")
    (folder / "profiles").mkdir()
    quick = "retry: {first_backoff_s: 0.02, max_backoff_s: 0.1}\nbreaker: {first_probe_s: 0.05, max_probe_s: 0.2}\n"
    (folder / "profiles" / "sim.yaml").write_text(f"extends: anthropic\nhosts: ['127.0.0.1:{server.port}']\n{quick}")
    settings = ("--set", f"hivemind_profiles={folder / 'profiles'}")
    with running(folder / "conf", *settings, modes=("regular", f"reverse:{server.url}")) as proxy:
        yield proxy


@pytest.fixture
def trip(proxy):
    """Break one of our functions until the test ends, or says `off`."""
    yield lambda where: proxy.probe("trip", where=where)
    proxy.probe("trip", where="off")


@pytest.fixture
def key():
    return f"sk-guard-{next(_numbers)}"


def ask(proxy, key, *, stream=False, **headers):
    """One request on a connection of its own. An answer, or None when it ended early."""
    mine = {"x-api-key": key, "content-type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    try:
        return httpx.post(
            f"http://127.0.0.1:{proxy.ports[1]}/v1/messages",
            content=body(stream=stream),
            headers=mine,
            timeout=PATIENCE_S,
            trust_env=False,
            verify=NO_TLS,
        )
    except httpx.RemoteProtocolError:
        return None


def told_trips(proxy):
    return proxy.log.count("hivemind: guard trip in ")


def is_idle(state):
    pools = state["snapshot"]["pools"]
    return (
        not (state["live"] or any(pool["in_flight"] or pool["queued"] or pool["bypassing"] for pool in pools))
        and state["layer_streams"] <= 1
    )


def assert_scheduling_works(proxy, server, key):
    server.script(key, [NAMED["529"]])
    before = proxy.state()
    answer = ask(proxy, key)
    assert answer.status_code == 200
    state = proxy.wait_for(is_idle, "the return of every slot")
    assert state["snapshot"]["counters"]["delivered"] == before["snapshot"]["counters"]["delivered"] + 1
    assert state["snapshot"]["counters"]["retries"] > before["snapshot"]["counters"]["retries"]
    assert state["guard_trips"] == before["guard_trips"]


def test_every_step_has_its_trip():
    """Each function of the list is there: else a test below would break something else than it says."""
    import importlib

    for module_name, class_name, name in TRIPPABLE.values():
        owner = importlib.import_module(module_name)
        assert callable(getattr(getattr(owner, class_name) if class_name else owner, name))


@pytest.mark.parametrize("where", sorted(set(TRIPPABLE) - NEEDS_MORE))
def test_an_exception_of_ours_costs_no_answer_and_no_slot(proxy, server, trip, key, where):
    ask(proxy, key)
    before = proxy.wait_for(is_idle, "a quiet start")
    told = told_trips(proxy)
    server.script(key, [NAMED["ok"], NAMED["ok"], NAMED["529"], NAMED["ok"]])
    held = key.replace("guard", "held")  # a pool of its own, whose provider is busy
    server.script(held, [NAMED["529"]])

    trip(where)
    plain = ask(proxy, key)
    streamed = ask(proxy, key, stream=True)
    retried = ask(proxy, key)
    backing_off = ask(proxy, held)
    trip("off")

    if where in BREAKS_THE_LAYER:
        assert {answer.status_code for answer in (plain, streamed, retried, backing_off) if answer is not None} <= {
            200,
            502,
            529,
        }
    else:
        assert plain.status_code == 200
        assert plain.json()["type"] == "message"
        assert streamed.status_code == 200
        assert streamed.text.rstrip().endswith('{"type":"message_stop"}')
        assert {retried.status_code, backing_off.status_code} <= {200, 529}
    assert ask(proxy, key).status_code == 200  # with it, what the core could not take back before is given back
    state = proxy.wait_for(is_idle, "the return of every slot")
    tripped = state["guard_trips"] - before["guard_trips"]
    assert tripped >= 1
    # Of many like it the first few have one; earlier tests may have tripped in the same place.
    assert proxy.log.count("Traceback (most recent call last)") == told_trips(proxy)
    assert told_trips(proxy) - told <= tripped
    assert_scheduling_works(proxy, server, key + "-after")


@pytest.mark.parametrize(
    ("where", "fault", "stream"),
    [
        ("judge_transport", "reset-before-head", False),
        ("judge_transport", "stream-reset", True),
        ("judge_stream", "error-first", True),
    ],
)
def test_an_exception_while_a_failure_is_judged_costs_no_slot(proxy, server, trip, key, where, fault, stream):
    before = proxy.state()["guard_trips"]
    server.script(key, [NAMED[fault]])
    trip(where)
    answer = ask(proxy, key, stream=stream)
    trip("off")
    assert answer is None or answer.status_code in (200, 502)
    assert proxy.wait_for(is_idle, "the return of every slot")["guard_trips"] > before
    assert_scheduling_works(proxy, server, key + "-after")


def test_a_client_that_goes_while_its_end_fails_costs_no_slot(proxy, server, trip, key):
    content = body().encode()
    before = proxy.state()["guard_trips"]
    trip("client_gone")
    with closing(socket.create_connection(("127.0.0.1", proxy.ports[1]), timeout=PATIENCE_S)) as client:
        head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\nx-sim-latency-ms: 60000\r\ncontent-length: {len(content)}\r\n\r\n"
        client.sendall(head.encode() + content)
        proxy.wait_for(lambda state: any(pool["in_flight"] for pool in state["snapshot"]["pools"]), "the admission")
    proxy.wait_for(is_idle, "the return of every slot")
    trip("off")
    assert proxy.state()["guard_trips"] > before
    assert_scheduling_works(proxy, server, key)


def test_an_observer_that_fails_changes_no_decision(tmp_path, server, key):
    """It is not called again, so this proxy is of no use afterwards."""
    journal = tmp_path / "journal.db"
    arguments = ("--set", f"hivemind_journal={journal}")
    with running(tmp_path / "conf", *arguments, modes=("regular", f"reverse:{server.url}")) as proxy:
        proxy.probe("trip", where="observer")
        assert ask(proxy, key).status_code == 200
        proxy.probe("trip", where="off")
        state = proxy.wait_for(is_idle, "the return of every slot")
        assert state["snapshot"]["counters"]["delivered"] == 1
        # The log and the tally, each once; the journal's thread loses what it has in hand and goes on.
        assert proxy.log.count("is not called again") == 2
        assert ask(proxy, key, x_hivemind_task_id="afterwards").status_code == 200
        proxy.wait_for(lambda _: "afterwards" in column(journal, "ticket", "task", "id"), "the journal's going on")


def limited(folder, origin, limit):
    (folder / "profiles").mkdir()
    text = (
        f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\nconcurrency: {{initial: {limit}, maximum: {limit}}}\n"
    )
    (folder / "profiles" / "limited.yaml").write_text(text)
    return running(
        folder / "conf", "--set", f"hivemind_profiles={folder / 'profiles'}", modes=("regular", f"reverse:{origin.url}")
    )


def test_tripped_requests_go_on_under_the_pools_last_limit_and_count_as_in_flight(tmp_path):
    with running_origin() as origin, limited(tmp_path, origin, 3) as proxy, ThreadPoolExecutor(12) as threads:
        first = threads.submit(ask, proxy, "k")
        origin.wait_for_calls(1)
        origin.arrived[0].go.set()
        assert first.result(PATIENCE_S).content == PLAIN
        proxy.probe("trip", where="submit")
        answers = [threads.submit(ask, proxy, "k") for _ in range(12)]
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
        state = proxy.wait_for(is_idle, "the return of every slot")
        assert state["guard_trips"] == 12
        proxy.probe("trip", where="off")
        origin.open()
        assert ask(proxy, "k").content == PLAIN
        assert proxy.state()["guard_trips"] == 12


def test_a_refusal_that_cannot_be_made_lets_the_request_go_on(tmp_path):
    with running_origin() as origin, limited(tmp_path, origin, 1) as proxy, ThreadPoolExecutor(2) as threads:
        filler = threads.submit(ask, proxy, "k")
        origin.wait_for_calls(1)
        proxy.probe("trip", where="refusal")
        refused = threads.submit(ask, proxy, "k", x_stainless_timeout="1")
        origin.wait_for_calls(2)
        origin.open()
        assert filler.result(PATIENCE_S).content == PLAIN
        assert refused.result(PATIENCE_S).content == PLAIN
        assert proxy.wait_for(is_idle, "the return of every slot")["guard_trips"] == 1


def test_a_budgets_refusal_that_cannot_be_made_lets_the_request_go_on(tmp_path, server, key):
    rules = tmp_path / "agents.yaml"
    rules.write_text("everyone: {budgets: [{tokens: 1}]}")
    settings = ("--set", f"hivemind_agents={rules}")
    with running(tmp_path / "conf", *settings, modes=("regular", f"reverse:{server.url}")) as proxy:
        assert ask(proxy, key).status_code == 400
        proxy.probe("trip", where="budget_refusal")
        assert ask(proxy, key).status_code == 200
        proxy.probe("trip", where="off")
        assert ask(proxy, key).status_code == 400
        assert proxy.wait_for(is_idle, "the return of every slot")["guard_trips"] == 1
