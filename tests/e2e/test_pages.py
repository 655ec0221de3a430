"""The proxy's own pages: who gets them, in which modes, and that nobody else hears of them."""

import json
import socket
import time
from contextlib import closing

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hivemind_addon.lab.sim.faults import ErrorStatus
from tests.e2e.conftest import Call
from tests.e2e.proxy import NO_TLS, PATIENCE_S, running

pytestmark = pytest.mark.slow
PAGES = ("/", "/report.json", "/metrics", "/health")


def direct(**settings):
    return httpx.Client(trust_env=False, verify=NO_TLS, timeout=PATIENCE_S, **settings)


def raw(port, request):
    """Send bytes, and read to the end."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)) as connection:
        connection.sendall(request)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
            if b"\r\n\r\n" in answer and b"connection: close" not in request.lower():
                break
        return answer


@pytest.mark.parametrize("path", PAGES)
def test_it_is_there_through_the_proxy_and_on_its_own_port(stage, path):
    url = f"http://127.0.0.1:{stage.proxy.port}{path}"
    with stage.proxy.client() as client, direct() as plain:
        answers = [
            client.get(f"http://hivemind.internal{path}"),
            plain.get(url),
            plain.get(f"http://localhost:{stage.proxy.port}{path}"),
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert {answer.headers["content-type"] for answer in answers} == {answers[0].headers["content-type"]}
    for answer in answers:
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("http2", [False, True])
def test_it_is_there_over_tls_with_the_proxys_own_authority(stage, http2):
    with stage.proxy.client(http2=http2) as client:
        answer = client.get("https://hivemind.internal/report.json")
    assert answer.status_code == 200
    assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
    assert answer.json()["proxy"]["port"] == stage.proxy.port


def test_it_is_there_through_the_upstream_mode(stage):
    with direct(proxy=stage.upstream) as client:
        assert client.get("http://hivemind.internal/health").json()["status"] == "ok"


def test_in_reverse_mode_the_paths_are_the_upstreams(stage):
    with direct() as client:
        assert client.get(f"{stage.reverse}/health").json().get("status") != "ok"
        ours = client.get(f"{stage.reverse}/health", headers={"host": "hivemind.internal"})
    assert ours.json()["status"] == "ok"


def test_it_cannot_be_written_to(stage):
    with direct() as client:
        url = f"http://127.0.0.1:{stage.proxy.port}/"
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            answer = client.request(method, url, content=b"x" * 100_000 if method == "POST" else None)
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
        assert client.get(url + "nowhere").status_code == 404


def test_a_head_has_no_body_and_the_connection_lives_on(stage):
    with direct() as client:
        url = f"http://127.0.0.1:{stage.proxy.port}/"
        head = client.head(url)
        assert (head.status_code, head.content) == (200, b"")
        assert len(client.get(url).content) == int(head.headers["content-length"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
    ],
)
def test_other_sites_get_nothing(stage, headers, status):
    with direct() as client:
        assert client.get(f"http://127.0.0.1:{stage.proxy.port}/report.json", headers=headers).status_code == status


@pytest.mark.parametrize("host", ["evil.test:{port}", "127.0.0.1:{other}", "localhost", "[::1", ""])
def test_another_host_that_leads_here_gets_nothing(stage, host):
    port = stage.proxy.port
    host = host.format(port=port, other=port + 1)
    answer = raw(port, f"GET /report.json HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert b"snapshot" not in answer
    assert b" 200 " not in answer.partition(b"\r\n")[0]


@pytest.mark.parametrize("model", ["\ud800 lone", "\x00\x1b[31m", "x" * 100_000, "</script><!--", "\u202egpj"])
def test_a_strange_name_breaks_no_page(stage, key, model):
    call = Call(key)
    with stage.proxy.client("strange") as client:
        client.post(
            "https://h1.sim.test/v1/messages",
            content=json.dumps({"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "x"}]}),
            headers=call.headers | {"x-claude-code-session-id": b"\xff\xfe name"},
        )
    stage.settled()
    with direct() as client:
        for path in PAGES:
            answer = client.get(f"http://127.0.0.1:{stage.proxy.port}{path}")
            assert (answer.status_code, len(answer.content) < 5_000_000) == (200, True)
    assert stage.proxy.state()["guard_trips"] == 0


def test_nobody_else_hears_of_it(stage):
    before = stage.proxy.state()
    with direct() as client:
        for path in PAGES:
            client.get(f"http://127.0.0.1:{stage.proxy.port}{path}", headers={"x-test-id": "page-reader"})
    state = stage.settled()
    assert not any("page-reader" in hook for hook in state["hooks"])
    assert "page-reader" not in stage.proxy.probe("known")
    assert state["snapshot"]["counters"]["tickets"] == before["snapshot"]["counters"]["tickets"]


def test_the_report_shows_what_happened_and_metrics_count_it(providers, proxy_arguments, key, tmp_path):
    """In a proxy of its own: one that many tests share has more pools than metrics name."""
    providers.script(key, [ErrorStatus(429)])
    with running(tmp_path, *proxy_arguments) as proxy:
        with proxy.client("page-agent") as client:
            client.send(Call(key).request("https://h1.sim.test"))
        proxy.wait_for(lambda state: state["live"] == 0, "the end of the request")
        with direct() as client:
            report = client.get(f"http://127.0.0.1:{proxy.port}/report.json").json()
            text = client.get(f"http://127.0.0.1:{proxy.port}/metrics").text
    (mine,) = report["tally"]["sessions"]
    assert (mine["agent"], mine["delivered"], mine["retries_absorbed"]) == ("page-agent", 1, 1)
    values = {
        (sample.name, sample.labels.get("outcome") or sample.labels.get("end")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("pool", "").startswith("h1.sim.test/")
    }
    assert values["hivemind_attempts_ended_total", "throttled"] == 1
    assert values["hivemind_tickets_ended_total", "delivered"] == 1


def test_neither_keys_nor_prompts_nor_passwords_nor_answers_are_in_anything_that_is_shown(stage, key):
    """Also where providers repeat them in their errors, and where requests cannot be read."""
    secrets = {
        "key": key,
        "password": f"pw-{key}-zx",
        "prompt": f"the prompt of {key} about whales",
        "header": f"token-{key}-oauth",
    }
    said = f"Incorrect API key provided: {key}; you said {secrets['prompt']}; {secrets['header']}"
    stage.providers.script(
        key,
        [
            ErrorStatus(429, message=said),
            ErrorStatus(529, message=said),
            ErrorStatus(500, message=said),
            ErrorStatus(401, message=said),
            ErrorStatus(400, message=said),
        ],
    )
    call = Call(key, text=secrets["prompt"])
    headers = {"authorization": f"Bearer {secrets['header']}", "cookie": secrets["header"]}
    with stage.proxy.client("page-secret", secrets["password"]) as client:
        for host in ("h1.sim.test", "h2.sim.test"):
            for _ in range(3):
                client.send(call.request(f"https://{host}", **headers))
        for content in (
            secrets["prompt"],
            f'{{"model": 7, "messages": "{secrets["prompt"]}"',
            f'["{secrets["prompt"]}"]',
        ):
            client.post("https://h1.sim.test/v1/messages?beta=" + key, content=content, headers=call.headers | headers)
    stage.settled()
    url, settled_at = f"http://127.0.0.1:{stage.proxy.port}", time.time()
    with direct() as client:
        while client.get(f"{url}/report.json").json()["told_wall"] < settled_at:
            assert time.time() < settled_at + PATIENCE_S
            time.sleep(0.05)  # the one before is shown for a second
        shown = {path: client.get(f"{url}{path}").text for path in PAGES}
    assert "page-secret" in shown["/report.json"]
    shown["log"] = stage.proxy.log
    found = {(where, what) for where, text in shown.items() for what, secret in secrets.items() if secret in text}
    assert not found


# With proxyauth -------------------------------------------------------------------------------------------------------


def test_with_proxyauth_it_is_for_those_who_know_the_password(tmp_path):
    with running(
        tmp_path, "--set", "proxyauth=ann:sesame", "--set", "listen_host=127.0.0.1", scripts=("hivemind_addon",)
    ) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        with direct() as client:
            assert client.get(f"{url}/health").status_code == 200
            refused = client.get(f"{url}/report.json")
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Basic")
            assert client.get(f"{url}/report.json", auth=("ann", "wrong")).status_code == 401
        with direct() as client:
            assert client.get(f"{url}/report.json", auth=("ann", "sesame")).status_code == 200
        with direct(proxy=url) as client:
            assert client.get("http://hivemind.internal/").status_code == 407
        with proxy.client("ann", "sesame") as client:
            assert client.get("http://hivemind.internal/").status_code == 200
            assert client.get("https://hivemind.internal/").status_code == 200


def test_a_client_from_elsewhere_gets_nothing_though_the_listener_is_wide(tmp_path):
    address = _own_address()
    with running(
        tmp_path,
        "--set",
        "listen_host=0.0.0.0",
        "--set",
        "hivemind_allow_lan=true",
        scripts=("hivemind_addon",),
        host="*",
    ) as proxy:
        with direct(proxy=f"http://{address}:{proxy.port}") as stranger:
            for path in PAGES:
                assert stranger.get(f"http://hivemind.internal{path}").status_code == 403
            # Whatever leads back here is cut, by this machine's own address too.
            assert stranger.get(f"http://{address}:{proxy.port}/").status_code == 502
        with direct() as client:
            assert client.get(f"http://127.0.0.1:{proxy.port}/health").status_code == 200
            assert client.get(f"http://{address}:{proxy.port}/health").status_code != 200


def _own_address():
    """This machine's address in its network: a connection to it comes from it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine is in no network")
        return asking.getsockname()[0]
