"""What is not scheduled: other programs through the same proxy, other paths of the same provider, other people's headers."""

import functools
import gzip
import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import zipfile
from contextlib import closing, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from hivemind_addon.lab.sim.server import running_server
from tests.e2e.origin import PLAIN, STREAMED, running_origin
from tests.e2e.proxy import NO_TLS, PATIENCE_S, body, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("passthrough")]

SETTINGS_OF_OTHERS = ("PIP_", "GIT_", "npm_", "SSL_CERT_", "REQUESTS_CA_", "CURL_CA_")

# Other programs, without the proxy's CA ---------------------------------------------------------------------------------


class _QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def serving(folder, tls=None):
    """A web server of files, as `git`, `pip` and `npm` can use one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_QuietFiles, directory=str(folder)))
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    with running(tmp_path_factory.mktemp("passthrough")) as proxy:
        yield proxy


@pytest.fixture
def tls(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


@pytest.fixture
def authority_file(authority, tmp_path):
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    return file


def run(*command, **more):
    """Run a program that knows nothing of the user's own set-up. Its output; AssertionError when it fails."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith(SETTINGS_OF_OTHERS)
    }
    ended = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=kept | more.pop("env", {}),
        check=False,
        **more,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def assert_went_through(proxy, url):
    assert f"server connect {url.partition('://')[2]}" in proxy.log


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
@pytest.mark.parametrize("secure", [False, True])
def test_git_clones_through_the_proxy_without_its_ca(proxy, tmp_path, tls, authority_file, secure):
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_TERMINAL_PROMPT": "0"}
    who = ("-c", "user.name=a", "-c", "user.email=a@b.test")
    run("git", "init", "-q", tmp_path / "work", env=alone)
    (tmp_path / "work" / "file").write_text("content")
    run("git", "-C", tmp_path / "work", "add", ".", env=alone)
    run("git", "-C", tmp_path / "work", *who, "commit", "-q", "-m", "first", env=alone)
    run("git", "clone", "-q", "--bare", tmp_path / "work", tmp_path / "served" / "it.git", env=alone)
    run("git", "-C", tmp_path / "served" / "it.git", "update-server-info", env=alone)
    with serving(tmp_path / "served", tls if secure else None) as url:
        through = ("-c", f"http.proxy={proxy.url()}", "-c", f"http.sslCAInfo={authority_file}")
        assert "HEAD" in run("git", *through, "ls-remote", f"{url}/it.git", env=alone)
        run("git", *through, "clone", "-q", f"{url}/it.git", tmp_path / "clone", env=alone)
        assert (tmp_path / "clone" / "file").read_text() == "content"
        assert_went_through(proxy, url)


def wheel(folder, name):
    """The smallest wheel that pip takes."""
    folder.mkdir(parents=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize("secure", [False, True])
def test_pip_downloads_through_the_proxy_without_its_ca(proxy, tmp_path, tls, authority_file, secure):
    wheel(tmp_path / "served" / "simple" / "tiny", "tiny")
    (tmp_path / "served" / "simple" / "tiny" / "index.html").write_text('<a href="tiny-1.0-py3-none-any.whl">tiny</a>')
    with serving(tmp_path / "served", tls if secure else None) as url:
        into = ("--no-cache-dir", "--disable-pip-version-check", "--no-deps", "-d", tmp_path / "got")
        way = ("--proxy", proxy.url(), "--cert", authority_file, "--index-url", f"{url}/simple")
        run(
            sys.executable,
            "-m",
            "pip",
            "--isolated",
            "download",
            *into,
            *way,
            "tiny",
            env={"PIP_CONFIG_FILE": os.devnull},
        )
        assert (tmp_path / "got" / "tiny-1.0-py3-none-any.whl").is_file()
        assert_went_through(proxy, url)


@pytest.mark.skipif(not shutil.which("npm"), reason="needs npm")
@pytest.mark.parametrize("secure", [False, True])
def test_npm_reads_a_registry_through_the_proxy_without_its_ca(proxy, tmp_path, tls, authority_file, secure):
    (tmp_path / "served").mkdir()
    package = {
        "name": "tiny",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {"name": "tiny", "version": "1.0.0", "dist": {}}},
    }
    (tmp_path / "served" / "tiny").write_text(json.dumps(package))
    (tmp_path / "npmrc").write_text("")
    with serving(tmp_path / "served", tls if secure else None) as url:
        way = (
            f"--registry={url}/",
            f"--proxy={proxy.url()}",
            f"--https-proxy={proxy.url()}",
            f"--cafile={authority_file}",
            "--noproxy=nobody.test",
        )
        own = (
            f"--userconfig={tmp_path / 'npmrc'}",
            f"--cache={tmp_path / 'cache'}",
            "--fetch-retries=0",
            "--update-notifier=false",
        )
        assert run("npm", "view", "tiny", "version", *way, *own, cwd=tmp_path).strip() == "1.0.0"
        assert_went_through(proxy, url)


# Other requests of our hosts ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def origin():
    with running_origin() as origin:
        yield origin


@pytest.fixture(scope="module")
def single(tmp_path_factory, origin):
    """A proxy that lets one request at a time go to `origin`, in forward and in reverse mode."""
    folder = tmp_path_factory.mktemp("single")
    (folder / "profiles").mkdir()
    (folder / "profiles" / "single.yaml").write_text(
        f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\nconcurrency: {{initial: 1, maximum: 1}}\n"
    )
    with running(
        folder / "conf", "--set", f"hivemind_profiles={folder / 'profiles'}", modes=("regular", f"reverse:{origin.url}")
    ) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _fresh(origin):
    origin.arrived.clear()


@pytest.fixture(params=["forward", "reverse"])
def client(request, single, origin):
    if request.param == "forward":
        with single.client(base_url=origin.url) as client:
            yield client
    else:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{single.ports[1]}", trust_env=False, verify=NO_TLS, timeout=PATIENCE_S
        ) as client:
            yield client


def last(origin, path):
    origin.wait_for(lambda arrived: any(request.path == path for request in arrived), f"a request to {path}")
    return [request for request in origin.arrived if request.path == path][-1]


def let_go(origin, path):
    last(origin, path).go.set()


def call_headers(**more):
    return {"x-api-key": "k", "content-type": "application/json"} | {
        name.replace("_", "-"): value for name, value in more.items()
    }


def test_what_is_no_model_call_passes_while_the_pool_is_used_up(single, origin, client, request):
    path = f"/v1/messages?{request.node.callspec.id}"
    with client.stream("POST", path, content=body(stream=True), headers=call_headers()) as stream:
        pieces = stream.iter_raw()
        got = next(pieces)
        (pool,) = [pool for pool in single.state()["snapshot"]["pools"] if pool["in_flight"]]
        assert pool["in_flight"] == pool["limit"] == 1
        for quick in ("/v1/messages/count_tokens", "/v1/messages/batches", "/api/event_logging/batch", "/v1/files"):
            assert client.post(quick, content=body(), headers=call_headers()).text == quick
        assert client.get("/v1/models").text == "/v1/models"
        assert client.get(path).text == path
        state = single.state()
        assert state["live"] == 1
        last(origin, path)
        [one for one in origin.arrived if one.path == path and one.method == "POST"][-1].go.set()
        assert got + b"".join(pieces) == STREAMED
    single.wait_for(lambda state: not state["live"], "the end of the stream")


def test_an_upload_that_is_not_scheduled_arrives_while_it_is_sent(single, origin, client):
    half_arrived = threading.Event()

    def pieces():
        yield b"first half"
        request = last(origin, "/v1/files")
        origin.wait_for(lambda _: bytes(request.body) == b"first half", "the first half's arrival")
        assert not request.complete.is_set()
        half_arrived.set()
        yield b", second half"

    assert client.post("/v1/files", content=pieces(), headers=call_headers()).status_code == 200
    assert half_arrived.is_set()
    assert last(origin, "/v1/files").body == b"first half, second half"


def test_a_download_that_is_not_scheduled_arrives_while_it_is_sent(origin, client):
    with client.stream("GET", "/halves") as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"first half"
        last(origin, "/halves").go.set()
        assert b"".join(pieces) == b", second half"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/models", "/elsewhere"])
def test_what_is_meant_for_the_proxy_never_goes_upstream(single, origin, client, path):
    origin_answers = threading.Thread(target=let_go, args=(origin, f"{path}?mine"))
    origin_answers.start()
    mine = {
        "proxy-authorization": "Basic YWdlbnQtMTp4",
        "x-hivemind-delivery": "stream",
        "X-Hivemind-Anything": "1",
        "x-own": "stays",
    }
    assert client.post(f"{path}?mine", content=body(), headers=call_headers() | mine).status_code == 200
    origin_answers.join()
    names = set(last(origin, f"{path}?mine").headers)
    assert not [name for name in names if name.startswith(("proxy-", "x-hivemind"))]
    assert "x-own" in names


def test_the_proxys_credentials_do_not_go_upstream_through_tls(stage, key):
    from tests.e2e.conftest import Call

    with stage.proxy.client("agent-9", "secret") as client:
        assert client.send(Call(key).request("https://h1.sim.test", x_hivemind_delivery="whole")).status_code == 200
        assert (
            client.get(
                "https://h1.sim.test/v1/models", headers={"x-hivemind-x": "1", "proxy-authorization": "Basic YTpi"}
            ).status_code
            == 200
        )
    names = {name for request in stage.providers.h1.requests() for name in request.headers}
    assert not [name for name in names if name.startswith(("proxy-", "x-hivemind"))]


BODIES = {
    "spaces and order": b'{ "stream" :false,\t"model":"m" , "messages":[ {"role":"user","content":"\\u00e4 \xc3\xa4"}]  }\n',
    "invalid UTF-8": b'{"model": "m", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "duplicate keys, NaN": b'{"model": "m", "model": "n", "temperature": NaN, "messages": []}',
    "no JSON": b"--boundary\r\n\x00\x01\x02",
    "empty": b"",
    "cut": b'{"model": "m", "mess',
}


@pytest.mark.parametrize("name", BODIES)
def test_a_scheduled_body_arrives_byte_for_byte(single, origin, client, name):
    sent = BODIES[name]
    path = f"/v1/messages?{hashlib.sha256(sent).hexdigest()[:8]}{client.base_url.port}"
    answers = threading.Thread(target=let_go, args=(origin, path))
    answers.start()
    assert client.post(path, content=sent, headers=call_headers()).content == PLAIN
    answers.join()
    request = last(origin, path)
    assert request.body == sent
    assert request.headers.get("content-length") == str(len(sent))
    assert single.wait_for(lambda state: not state["live"], "its end")["guard_trips"] == 0


def test_compressed_and_chunked_bodies_arrive_as_they_were_sent(single, origin, client):
    sent = gzip.compress(body().encode())
    path = f"/v1/messages?gzip{client.base_url.port}"
    answers = threading.Thread(target=let_go, args=(origin, path))
    answers.start()
    answer = client.post(path, content=iter([sent[:10], sent[10:]]), headers=call_headers(content_encoding="gzip"))
    answers.join()
    assert answer.content == PLAIN
    assert last(origin, path).body == sent


MB = 1024 * 1024


def memory_mb(proxy, field):
    for line in Path(f"/proc/{proxy.process.pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise AssertionError(field)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_100_mb_that_are_not_scheduled_pass_in_flat_memory(tmp_path):
    with (
        running_server() as server,
        running(tmp_path, modes=("regular", f"reverse:{server.url}")) as proxy,
        httpx.Client(
            base_url=f"http://127.0.0.1:{proxy.ports[1]}", trust_env=False, verify=NO_TLS, timeout=PATIENCE_S
        ) as client,
    ):
        proxy.wait_for(lambda state: "not loaded" not in state["tokenizer"], "the vocabulary's loading")
        before_mb = memory_mb(proxy, "VmHWM")
        size = 0
        with client.stream("GET", f"/download?size={100 * MB}") as answer:
            for piece in answer.iter_raw():
                size += len(piece)
        assert size == 100 * MB
        piece = bytes(MB)
        told = client.post("/upload", content=(piece for _ in range(100))).json()
        assert told == {"size": 100 * MB, "sha256": hashlib.sha256(bytes(100 * MB)).hexdigest()}
        assert memory_mb(proxy, "VmHWM") - before_mb < 20


def test_a_websocket_of_nobody_passes(proxy):
    """An upgrade that no profile answers: bytes both ways."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: odd\r\n\r\n")
                connection.sendall(connection.recv(65536).upper())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S)) as client:
            client.sendall(
                f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: upgrade\r\nupgrade: odd\r\n\r\n".encode()
            )
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            assert head.startswith(b"HTTP/1.1 101")
            client.sendall(b"hello")
            assert client.recv(4096) == b"HELLO"
        thread.join(PATIENCE_S)
