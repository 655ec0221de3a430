"""Who may use a real proxy: agents prove their names by secrets, in every way to it that can carry one."""

import base64
import select
import time
from contextlib import ExitStack

import httpx
import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from hivemind_addon.tools.launch.doctor import Handshake, shake_hands
from tests.e2e.conftest import Call
from tests.e2e.proxy import NO_TLS, PATIENCE_S, free_port, options, running
from tests.e2e.test_start import assert_refused
from tests.engine_server import EngineServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("access")]


@pytest.fixture
def engine():
    server = EngineServer()
    try:
        yield server.start()
    finally:
        server.stop()


def add(file, name, command="add"):
    """The secret that the command prints in an address."""
    done = CliRunner().invoke(main, ["agent", command, name, "--file", str(file)])
    assert done.exit_code == 0, done.output
    return httpx.URL(done.stdout.strip()).password


def header(name, password):
    return {"proxy-authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def wait_until(answer):
    """What it answers, once that is something: of another process, which looks at a file and makes a page by its clock."""
    deadline = time.monotonic() + PATIENCE_S
    while not (said := answer()):
        assert time.monotonic() < deadline
        select.select([], [], [], 0.05)
    return said


def agents_of(report):
    return {session["agent"] for session in report.json()["stats"]["sessions"]}


def test_an_agent_cannot_take_another_s_name(tmp_path, providers, proxy_arguments, key):
    file = tmp_path / "team.json"
    ann, bob = add(file, "ann"), add(file, "bob")
    modes = ("regular", f"reverse:{providers.plain.url}")
    call = Call(key)
    with running(tmp_path, *proxy_arguments, *options(agent_secrets=file), modes=modes) as proxy:
        url, reverse = (f"http://127.0.0.1:{port}" for port in proxy.ports)

        def refused(name, secret):
            """By a CONNECT, a plain request and one in reverse mode."""
            with proxy.client(name, secret) as client:
                with pytest.raises(httpx.ProxyError, match="407"):
                    client.get("https://h1.sim.test/")
                with pytest.raises(httpx.ProxyError, match="407"):
                    client.get("https://nobody.test/")
                plain = client.get("http://nobody.test/")
            with httpx.Client(trust_env=False, verify=NO_TLS, timeout=PATIENCE_S) as direct:
                answers = [plain, direct.send(call.request(reverse, **header(name, secret)))]
                assert direct.get(f"{url}/report.json", auth=(name, secret)).status_code == 401
            return [(one.status_code, b"hivemind agent add NAME" in one.content) for one in answers] == [
                (407, True)
            ] * 2

        assert refused("ann", bob)
        assert refused("ann", "x")
        assert refused("eve", ann)
        with httpx.Client(trust_env=False, verify=NO_TLS, timeout=PATIENCE_S) as direct:
            assert direct.send(call.request(reverse)).status_code == 407
            assert direct.get(f"{url}/health").status_code in (200, 503), "supervisors have no secret"
            assert direct.send(call.request(reverse, **header("bob", bob))).status_code == 200
        assert providers.attempts(key) == 1
        assert "HIVEMIND_AGENT_SECRET" in shake_hands(proxy.port, "h1.sim.test", proxy.ca)
        assert isinstance(shake_hands(proxy.port, "h1.sim.test", proxy.ca, f"ann:{ann}"), Handshake)
        with proxy.client("ann", f"{ann}.task-12.prio-low") as client:
            for _ in range(2):
                assert client.send(call.request("https://h1.sim.test")).status_code == 200
            with httpx.Client(trust_env=False, verify=NO_TLS, timeout=PATIENCE_S) as direct:
                seen = wait_until(lambda: agents_of(direct.get(f"{url}/report.json", auth=("ann", ann))) - {"bob"})
            assert seen == {"ann"}
            # A new secret counts for the tunnel that is open, too.
            add(file, "ann", "rotate")
            wait_until(lambda: client.send(call.request("https://h1.sim.test")).status_code == 407)
        log = proxy.log
    assert ann not in log
    assert bob not in log
    assert log.count("'eve' at 127.0.0.1 is refused") == 1


def test_asking_where_nobody_can_answer_stops_the_start(tmp_path):
    file = tmp_path / "team.json"
    add(file, "ann")
    secrets = options(agent_secrets=file)
    assert_refused(tmp_path, *secrets, "--set", "proxyauth=a:b", says=["hivemind_agent_secrets", "leave proxyauth out"])
    assert_refused(tmp_path, *secrets, "--mode", f"socks5@{free_port()}", says=["hivemind_agent_secrets", "socks5"])


def test_agents_of_two_members_are_told_apart_where_that_is_wanted_and_prove_their_names_at_both(
    tmp_path, providers, proxy_arguments, key, engine
):
    file, call = tmp_path / "team.json", Call(key)
    ann = add(file, "ann")
    (tmp_path / "agents.yaml").write_text("agents: {ann: {budgets: [{tokens: 1000000}]}}")
    told = options(
        agent_secrets=file,
        agents=tmp_path / "agents.yaml",
        cluster=engine.url,
        cluster_name=f"apart-{key}",
        cluster_agents="apart",
    )
    with ExitStack() as stack:
        members = [
            stack.enter_context(running(tmp_path / host, *proxy_arguments, *told, *options(cluster_host=host)))
            for host in ("ci-1", "ci-2")
        ]
        direct = stack.enter_context(httpx.Client(trust_env=False, verify=NO_TLS, timeout=PATIENCE_S))

        def report(proxy):
            return direct.get(f"http://127.0.0.1:{proxy.port}/report.json", auth=("ann", ann)).json()

        def are_one():
            roles = [report(proxy)["cluster"]["role"] for proxy in members]
            return sorted(roles) == ["coordinator", "member"] and roles

        coordinator = members[wait_until(are_one).index("coordinator")]
        for proxy in members:
            with proxy.client("ann", ann) as client:
                assert client.send(call.request("https://h1.sim.test")).status_code == 200

        def spent():
            budgets = report(coordinator)["snapshot"]["budgets"]
            return {one["budget"]["name"] for one in budgets if one["spent"]["tokens"]}

        assert wait_until(lambda: spent() == {"ann@ci-1", "ann@ci-2"})
