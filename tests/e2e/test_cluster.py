"""Two machines, each with a real `hivemind run`, a real engine between them, and one provider that lets two calls go at once."""

import os
import signal
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from hivemind_addon.sim.provider import ProviderSettings
from lab.running_server import running_server
from tests.e2e.machine import machine
from tests.e2e.proxy import NO_TLS, PATIENCE_S
from tests.engine_server import EngineServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]

AT_ONCE = 2
PROFILE = f"extends: anthropic\nconcurrency: {{initial: {AT_ONCE}, maximum: {AT_ONCE}}}\n"


@pytest.fixture(scope="module")
def strict(authority):
    """A provider that refuses who comes beyond two at once."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("api.anthropic.com").configure_cert(context)
    with running_server(ProviderSettings(concurrency=AT_ONCE), tls=context) as server:
        yield server


@pytest.fixture(scope="module")
def own_engine():
    """An engine that tests here kill and start again."""
    engine = EngineServer()
    try:
        yield engine.start()
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def pair(strict, own_engine, authority):
    """Two machines that are one."""
    with ExitStack() as stack:
        machines = [stack.enter_context(machine(strict, authority)) for _ in range(2)]
        for one in machines:
            (one.home / "profiles").mkdir()
            (one.home / "profiles" / "anthropic.yaml").write_text(PROFILE)
            told = ("--cluster", own_engine.url, "--cluster-name", "pair", "--total-budget", "1M")
            stack.enter_context(one.started("run", *told, "--set", f"hivemind_profiles={one.home / 'profiles'}"))
        yield machines


def views(pair):
    """What each tells of the cluster; None: it does not serve."""
    return [report and report["cluster"] for report in (one.report() for one in pair)]


def as_one(pair):
    """What they tell once one coordinates both."""

    def one():
        told = views(pair)
        if None in told or {view["role"] for view in told} != {"coordinator", "member"}:
            return None
        return len({(view["coordinator"], view["epoch"]) for view in told}) == 1 and told

    return pair[0].wait_for(one, "two machines that are one")


def ask(one, agent, *, latency_ms=0, patience_s=PATIENCE_S):
    """A call at a machine; who is there again after a moment is asked again, as agents do."""
    body = {"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"x-api-key": "sk-1", "x-session-id": agent, "x-sim-agent": agent, "x-sim-latency-ms": str(latency_ms)}
    url = f"http://127.0.0.1:{one.port}/v1/messages"
    answers = []

    def answered():
        try:
            answers.append(
                httpx.post(url, json=body, headers=headers, timeout=patience_s, trust_env=False, verify=NO_TLS)
            )
        except httpx.TransportError:
            return False
        return True

    one.wait_for(answered, "an answer")
    return answers[0].status_code


def ask_all(pair, agents, calls, *, latency_ms, meanwhile=lambda: None):
    """So many agents at each machine, so many calls each; the statuses of all. `meanwhile` happens beside them."""

    def live(one, name):
        return [ask(one, name, latency_ms=latency_ms) for _ in range(calls)]

    with ThreadPoolExecutor(len(pair) * agents) as pool:
        ends = [pool.submit(live, one, f"m{n}-{agent}") for n, one in enumerate(pair) for agent in range(agents)]
        meanwhile()
        return [status for end in ends for status in end.result()]


def test_two_machines_share_the_limit_and_each_tells_of_the_whole(pair, strict):
    as_one(pair)
    strict.reset()
    # Long enough that one of each is at the provider at once, however late a busy machine sends the next.
    assert set(ask_all(pair, 4, 3, latency_ms=150)) == {200}
    truth = strict.truth()
    assert (truth.completed, truth.overloaded, truth.peak_in_flight) == (24, 0, AT_ONCE)

    def tells(one):
        report = one.report()
        (budget,) = report["snapshot"]["budgets"]
        return (sum(stats["delivered"] for stats in report["stats"]["pools"]), budget["spent"]["tokens"])

    whole = (24, truth.input_tokens + truth.output_tokens)
    for one in pair:
        one.wait_for(lambda one=one: tells(one) == whole, "the whole")
        said = " ".join(one.run("status", COLUMNS="140").stdout.split())
        assert "24 delivered" in said, said
        assert "pair" in said, said


def test_what_is_ordered_at_one_holds_at_the_other(pair, strict):
    as_one(pair)
    assert pair[0].run("pause").returncode == 0
    pair[1].wait_for(lambda: any(pool["paused"] for pool in pair[1].report()["snapshot"]["pools"]), "the pause")
    assert pair[1].run("resume").returncode == 0
    pair[0].wait_for(
        lambda: not any(pool["paused"] for pool in pair[0].report()["snapshot"]["pools"]), "the resumption"
    )
    assert ask(pair[0], "m0") == 200


def test_a_coordinator_is_killed_and_nobody_is_lost(pair, strict):
    before = as_one(pair)
    strict.reset()

    def kill():
        pair[0].wait_for(lambda: strict.truth().completed >= 4, "some calls")
        leader = next(one for one, view in zip(pair, before, strict=True) if view["role"] == "coordinator")
        os.kill(leader.report()["proxy"]["pid"], signal.SIGKILL)

    assert set(ask_all(pair, 3, 6, latency_ms=50, meanwhile=kill)) == {200}
    truth = strict.truth()
    assert truth.overloaded == 0
    assert as_one(pair)[0]["epoch"] > before[0]["epoch"]


def test_without_the_engine_each_goes_on_with_its_share_and_with_it_they_are_one_again(pair, strict, own_engine):
    as_one(pair)
    strict.reset()

    def outage():
        own_engine.kill()
        pair[0].wait_for(lambda: [view and view["role"] for view in views(pair)] == ["alone", "alone"], "two alone")
        assert [ask(one, f"m{n}") for n, one in enumerate(pair)] == [200, 200]
        own_engine.start()

    assert set(ask_all(pair, 2, 4, latency_ms=50, meanwhile=outage)) == {200}
    as_one(pair)
    truth = strict.truth()
    assert truth.overloaded == 0
    spent = truth.input_tokens + truth.output_tokens
    for one in pair:
        one.wait_for(lambda one=one: budget_spent(one) >= spent, "the books")


def budget_spent(one):
    (budget,) = one.report()["snapshot"]["budgets"]
    return budget["spent"]["tokens"]


def test_a_wrong_password_is_told_and_a_url_that_is_none_ends_it(strict, authority):
    engine = EngineServer("--requirepass", "right")
    with ExitStack() as stack:
        stack.callback(engine.stop)
        engine.start()
        one = stack.enter_context(machine(strict, authority))
        bad = one.run("run", "--cluster", "http://127.0.0.1/0")
        assert bad.returncode == 1
        assert "'http://127.0.0.1/0' is no engine's URL; write valkey://" in bad.stdout + bad.stderr
        assert "Traceback" not in bad.stdout + bad.stderr
        url = engine.url.replace("redis://", "redis://:wrong@")
        run = stack.enter_context(one.started("run", HIVEMIND_CLUSTER=url))
        told = run.stdout.readline() + run.stdout.readline()
        assert "refuses the user or the password" in told
        assert "wrong@" not in told
        assert ask(one, "m0") == 200  # alone, as well as it can
