"""What a real proxy tells: its own pages, to whom, and never a secret; the event log, calls for help, traces."""

import gzip
import json
import socket
import stat
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from hivemind_addon.sim.faults import ErrorStatus
from tests.e2e.conftest import Call
from tests.e2e.proxy import NO_TLS, PATIENCE_S, body, for_host, free_port, options, profiles, running
from tests.e2e.raw_provider import raw_provider, whole

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

PAGES = ("/", "/report.json", "/metrics", "/health")


def direct(**settings):
    return httpx.Client(trust_env=False, verify=NO_TLS, timeout=PATIENCE_S, **settings)


def is_served(answer):
    """A proxy that is busy says so on /health, by a 503."""
    return answer.status_code == 200 or (answer.status_code == 503 and answer.url.path == "/health")


def raw(port, request, *, host="127.0.0.1"):
    """Send bytes, and read to the end."""
    connection = socket.create_connection((host, port), timeout=PATIENCE_S)
    with closing(connection), suppress(ConnectionError):  # a client that is refused is cut off before it is read
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))
    return b""


# Pages ------------------------------------------------------------------------------------------------------------------


def test_it_is_there_in_every_mode_and_on_its_own_port(stage, subtests):
    url = f"http://127.0.0.1:{stage.proxy.port}"
    with stage.proxy.client() as client, stage.proxy.client(http2=True) as h2, direct() as plain:
        for path in PAGES:
            with subtests.test(path):
                answers = [
                    client.get(f"http://hivemind.internal{path}"),
                    plain.get(f"{url}{path}"),
                    plain.get(f"http://localhost:{stage.proxy.port}{path}"),
                ]
                assert all(map(is_served, answers))
                assert {answer.headers["content-type"] for answer in answers} == {answers[0].headers["content-type"]}
                for answer in answers:
                    assert answer.headers["cache-control"] == "no-store"
                    assert answer.headers["x-content-type-options"] == "nosniff"
                    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
                    assert "access-control-allow-origin" not in answer.headers
        for way, version in ((client, "HTTP/1.1"), (h2, "HTTP/2")):  # over TLS with the proxy's own authority
            answer = way.get("https://hivemind.internal/report.json")
            assert (answer.status_code, answer.http_version) == (200, version)
            assert answer.json()["proxy"]["port"] == stage.proxy.port
        assert "status" not in plain.get(f"{stage.reverse}/health").json(), "the paths are the upstream's"
        assert plain.get(f"{stage.reverse}/health", headers={"host": "hivemind.internal"}).json()["status"]
    with direct(proxy=stage.upstream) as client:
        assert client.get("http://hivemind.internal/health").json()["status"]


def test_it_cannot_be_written_to_and_a_head_has_no_body(stage):
    with direct() as client:
        url = f"http://127.0.0.1:{stage.proxy.port}/"
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            answer = client.request(method, url, content=b"x" * 100_000 if method == "POST" else None)
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
        assert client.get(f"{url}nowhere").status_code == 404
        head = client.head(url)
        assert (head.status_code, head.content) == (200, b"")
        assert len(client.get(url).content) == int(head.headers["content-length"])


def test_other_sites_and_other_names_that_lead_here_get_nothing(stage, subtests):
    """tests/proxy/gate/test_pages.py has all of them."""
    port = stage.proxy.port
    with direct() as client:
        for site, status in (("cross-site", 403), ("same-origin", 200)):
            answer = client.get(f"http://127.0.0.1:{port}/report.json", headers={"sec-fetch-site": site})
            assert answer.status_code == status
    for host in (f"evil.test:{port}", f"127.0.0.1:{port + 1}", "[::1", ""):
        with subtests.test(host):
            answer = raw(port, f"GET /report.json HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert b"snapshot" not in answer
            assert b" 200 " not in answer.partition(b"\r\n")[0]


def test_strange_names_break_no_page(stage, key):
    with stage.proxy.client("strange") as client:
        for model in ("\ud800 lone", "\x00\x1b[31m", "x" * 100_000, "</script><!--", "\u202egpj"):
            asked = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "x"}]}
            headers = Call(key).headers | {"x-claude-code-session-id": b"\xff\xfe name"}
            client.post("https://h1.sim.test/v1/messages", content=json.dumps(asked), headers=headers)
    stage.settled()
    with direct() as client:
        for path in PAGES:
            answer = client.get(f"http://127.0.0.1:{stage.proxy.port}{path}")
            assert is_served(answer), path
            assert len(answer.content) < 5_000_000, path
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
            assert is_served(client.get(f"{url}/health"))
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
            assert is_served(client.get(f"http://127.0.0.1:{proxy.port}/health"))
            assert client.get(f"http://{address}:{proxy.port}/report.json").status_code != 200


def test_clients_of_an_allowed_network_see_the_pages_behind_proxyauth_and_all_others_are_cut_off(tmp_path):
    address = _own_address()
    wide = ("--set", "listen_host=0.0.0.0", *options(allow_clients="203.0.113.0/24"))
    with running(tmp_path, *wide, host="*") as proxy:
        url = f"http://{address}:{proxy.port}"
        for _ in range(2):
            assert raw(proxy.port, b"GET /health HTTP/1.0\r\nHost: hivemind.internal\r\n\r\n", host=address) == b""
        assert proxy.log.count(f"{address} is refused") == 1
        assert proxy.log.count("every client in 203.0.113.0/24 can spend your key under any name") == 1
        assert proxy.probe("set", option=f"hivemind_allow_clients=203.0.113.0/24,{address}") == "ok"
        assert proxy.probe("set", option="proxyauth=ann:sesame") == "ok"
        with direct() as client:
            assert is_served(client.get(f"{url}/health"))
            assert client.get(f"{url}/metrics").status_code == 401
            assert client.get(f"{url}/metrics", auth=("ann", "sesame")).status_code == 200
            published = {"host": "localhost:9090"}  # a container's port, under another number
            assert client.get(f"{url}/report.json", auth=("ann", "sesame"), headers=published).status_code == 200
            rebound = {"host": f"rebound.test:{proxy.port}"}
            assert client.get(f"{url}/report.json", auth=("ann", "sesame"), headers=rebound).status_code == 421


def _own_address():
    """This machine's address in its network: a connection to it comes from it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine is in no network")
        return asking.getsockname()[0]


# The event log, a call for help at a wall, traces to a collector ---------------------------------------------------------

GOOD = b'{"type": "message", "content": [{"type": "text", "text": "hi"}], "usage": {"input_tokens": 5, "output_tokens": 2}}'
SPENT = b'{"type":"error","error":{"type":"rate_limit_error","message":"This would exceed your limit."}}'
SECRET_KEY, SECRET_WORD = "sk-very-secret", "xyzzy-prompt"
WALL_S = 6
"""Longer than a starved proxy takes to read that there is one."""


class Collector(BaseHTTPRequestHandler):
    """Takes spans as an OpenTelemetry collector does."""

    def do_POST(self):
        data = self.rfile.read(int(self.headers["content-length"]))
        data = gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans.extend(scope.spans)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def collecting():
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.spans = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def good_then_spent_then_good(resets):
    """A provider that notes when it says that it is back."""

    def handler(number, send):
        if number != 1:
            send(whole(200, GOOD))
            return
        resets.append(int(time.time()) + WALL_S)
        status, reset = "anthropic-ratelimit-unified-status", "anthropic-ratelimit-unified-reset"
        send(whole(429, SPENT, **{status: "rejected", reset: str(resets[0])}))

    return handler


def calls(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.glob("[0-9]*"))]


def attributes(span):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_a_night_with_a_wall_is_in_the_event_log_calls_for_help_and_is_traced(tmp_path, monkeypatch):
    port, called, resets = free_port(), tmp_path / "called", []
    called.mkdir()
    script = tmp_path / "call.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        f"place = pathlib.Path({str(called)!r})\n"
        "(place / 'unfinished').write_text(sys.stdin.read())\n"
        "(place / 'unfinished').rename(place / str(time.time_ns()))\n"
    )
    log = tmp_path / "events.jsonl"
    notify = f"{sys.executable} -I -S '{script}'"
    arguments = profiles(tmp_path, mine=for_host(port)) + options(log=log, notify=notify)
    url = f"http://127.0.0.1:{port}/v1/messages"
    headers = {"x-api-key": SECRET_KEY, "content-type": "application/json"}
    content = body(messages=[{"role": "user", "content": SECRET_WORD}])

    with collecting() as collector, raw_provider(port, None, good_then_spent_then_good(resets)):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(PATIENCE_S))
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        begun = time.time()
        with running(tmp_path / "conf", *arguments) as proxy:
            with proxy.client("agent-1") as client:
                assert client.post(url, content=content, headers=headers).status_code == 200
                assert client.post(url, content=content, headers=headers).status_code == 200, (
                    "it was held until the end"
                )
                proxy.wait_for(lambda _: len(calls(called)) == 2, "the second call for help")
            proxy.wait_for(lambda _: log.read_text().count('"TicketEnded"') == 2, "the last line of the event log")
            proxy.wait_for(
                lambda _: len(collector.spans) == 5, "the last span"
            )  # a stopping proxy waits for neither long
            assert proxy.stop() == 0
            text = proxy.log
        spans = list(collector.spans)

    began, ended = calls(called)
    assert (began["cause"], began["state"], ended["cause"], ended["state"]) == (
        "account block",
        "began",
        "account block",
        "ended",
    )
    assert abs(began["ends_at"] - resets[0]) < 2
    assert "the call for help failed" not in text

    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = [line["event"] for line in lines]
    assert [
        kinds.count(kind) for kind in ("Submitted", "AttemptEnded", "TicketEnded", "AccountBlocked", "AccountUnblocked")
    ] == [*(2, 3, 2, 1, 1)]
    assert all(begun - 1 < line["wall"] < time.time() + 1 for line in lines)
    for secret in (SECRET_KEY, SECRET_WORD):
        assert secret not in log.read_text() + text + json.dumps(calls(called)) + str(spans)

    tickets = [span for span in spans if span.name.startswith("ticket ")]
    attempts = [span for span in spans if span.name.startswith("chat ")]
    assert (len(tickets), len(attempts)) == (2, 3)
    assert {span.parent_span_id for span in attempts} == {span.span_id for span in tickets}
    assert [attributes(span)["http.response.status_code"] for span in attempts] == [200, 429, 200]
    assert attributes(attempts[0])["gen_ai.usage.output_tokens"] == 2
    assert {attributes(span)["hivemind.agent"] for span in tickets} == {"agent-1"}
    assert "Traceback" not in text
