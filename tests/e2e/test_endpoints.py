"""Two endpoints of one's own behind a real mitmdump: affinity, a dead one, a blocked one; and the key of neither seen."""

import ssl
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from click.testing import CliRunner

from hivemind_addon.sim.faults import ErrorStatus, Hangup, NoHead
from hivemind_addon.tools.cli import main
from lab.running_server import running_server
from tests.e2e.proxy import NO_TLS, QUICK, body, options, profiles, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("endpoints")]

EAST, WEST = "sk-sim-east-secret", "sk-sim-west-secret"


@pytest.fixture
def stage(runtime_dir, tmp_path, monkeypatch):
    """A proxy whose profile for a host that is nowhere lists two endpoints, and both of them."""
    key = tmp_path / "west.key"
    key.write_text(WEST + "\n")
    key.chmod(0o600)
    monkeypatch.setenv("EAST_KEY", EAST)
    with running_server() as east, running_server() as west:
        text = (
            f"extends: anthropic\nhosts: ['nowhere.test:80']\n{QUICK}upstreams:\n"
            f"  - {{name: east, url: 'http://127.0.0.1:{east.port}', key: {{env: EAST_KEY}}}}\n"
            f"  - {{name: west, url: 'http://127.0.0.1:{west.port}', key: {{file: {key}}}, "
            "models: {claude-sonnet-4-5: sonnet-west}}\n"
        )
        with running(
            tmp_path,
            *profiles(tmp_path, two=text),
            *options(journal=tmp_path / "journal.db", log=tmp_path / "events.log", capture=tmp_path / "capture.flows"),
        ) as proxy:
            yield proxy, east, west


def ask(proxy, session, *, key="client-key", **changes):
    return proxy.ask(
        "http://nowhere.test/v1/messages", session, key=key, headers={"x-claude-code-session-id": session}, **changes
    )


def attempts(server, key):
    agent = server.truth().agents.get(key)
    return 0 if agent is None else agent.attempts


def pools(proxy):
    return {pool["key"].split("/")[1]: pool for pool in proxy.settled()["snapshot"]["pools"]}


def test_each_endpoint_gets_its_own_key_and_a_session_stays_where_it_is(stage, tmp_path):
    """Two sessions go to two endpoints; their later turns stay there. Nobody sees a key, and west its own model name."""
    proxy, east, west = stage
    for _ in range(3):
        for session in ("one", "two"):
            assert ask(proxy, session).status_code == 200
    assert (attempts(east, EAST), attempts(west, WEST)) == (3, 3)
    assert attempts(east, "client-key") == attempts(west, "client-key") == 0
    assert set(pools(proxy)) == {"east", "west"}
    metrics = httpx.get(f"http://127.0.0.1:{proxy.port}/metrics", trust_env=False, verify=NO_TLS).text
    status = CliRunner(env={"COLUMNS": "160"}).invoke(main, ["status", "-p", str(proxy.port)]).output
    for told in (metrics, status):
        assert f"127.0.0.1:{east.port}/east/claude-" in told
        assert f"127.0.0.1:{west.port}/west/sonnet-west" in told
    assert proxy.stop() == 0
    written = b"".join(file.read_bytes() for file in tmp_path.glob("*") if file.suffix in (".db", ".log", ".flows"))
    assert EAST.encode() not in written
    assert WEST.encode() not in written


def test_a_dead_endpoint_loses_nobody(stage):
    """One resets every connection: all are answered by the other, and later calls go there at once."""
    proxy, east, west = stage
    east.script(EAST, [], then=NoHead(Hangup.RESET))
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: ask(proxy, f"s{number}").status_code, range(24)))
    assert answers == [200] * 24
    assert attempts(west, WEST) >= 24
    proxy.settled()


@pytest.mark.parametrize("fault", [ErrorStatus(401), ErrorStatus(402)])
def test_a_blocked_endpoint_is_not_felt_while_the_other_serves(stage, fault):
    """A wrong key, or no money: the request goes elsewhere unseen, and nobody else tries that endpoint."""
    proxy, east, west = stage
    east.script(EAST, [], then=fault)
    answers = [ask(proxy, f"s{number}").status_code for number in range(6)]
    assert answers == [200] * 6
    assert attempts(east, EAST) == 1
    assert attempts(west, WEST) == 6
    assert pools(proxy)["east"]["account_block"] is not None
    west.script(WEST, [], then=fault)
    assert ask(proxy, "last").status_code == fault.status  # none is left: what the last one says


@pytest.mark.parametrize("streamed", [False, True])
def test_an_endpoint_of_tls_and_http2_is_reached_under_its_own_name(authority, tmp_path, monkeypatch, streamed):
    """Its certificate is for that name only; a failed attempt is sent to it again, with its key."""
    monkeypatch.setenv("EAST_KEY", EAST)
    trusted = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("east.test").configure_cert(context)
    with running_server(tls=context, http2=True) as east:
        text = (
            f"extends: anthropic\nhosts: [nowhere.test]\n{QUICK}upstreams:\n"
            "  - {name: east, url: 'https://east.test', key: {env: EAST_KEY}}\n"
        )
        arguments = [*profiles(tmp_path, one=text), *options(redirect=f"east.test=127.0.0.1:{east.port}")]
        with running(tmp_path, *arguments, "--set", f"ssl_verify_upstream_trusted_ca={trusted}") as proxy:
            east.script(EAST, [ErrorStatus(500), ErrorStatus(529)])
            with proxy.client(http2=True) as client:
                head = {"x-api-key": "client-key", "content-type": "application/json"}
                answer = client.post("https://nowhere.test/v1/messages", content=body(stream=streamed), headers=head)
            assert answer.status_code == 200
            assert answer.http_version == "HTTP/2"
            assert attempts(east, EAST) == 3
            asked = [request.headers for request in east.requests()]
            assert [head["x-api-key"] for head in asked] == [EAST] * 3
            proxy.settled()


def test_a_signed_request_is_never_moved(stage):
    """It goes where it was sent, which is nowhere here, with nothing of ours."""
    proxy, east, west = stage
    headers = {
        "authorization": "AWS4-HMAC-SHA256 Credential=x/20261123/us-east-1/bedrock/aws4_request",
        "user-agent": "impatient/1",  # no interim response renews its time-out
    }
    with proxy.client("signed", timeout=5) as client, pytest.raises(Exception):  # noqa: B017, PT011 - it is held: no such host
        client.post("http://nowhere.test/v1/messages", content=b"{}", headers=headers, timeout=1)
    assert attempts(east, EAST) == attempts(west, WEST) == 0
