"""What is not scheduled: other programs, other paths, other people's headers; and what is the proxy's own."""

import functools
import gzip
import hashlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from lab.running_server import running_server
from tests.e2e.conftest import Call
from tests.e2e.house import running_house
from tests.e2e.origin import PLAIN, STREAMED, running_origin
from tests.e2e.proxy import MITMDUMP, NO_TLS, PATIENCE_S, body, free_port, options, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("passthrough")]

# Other programs, without the proxy's CA ---------------------------------------------------------------------------------

SETTINGS_OF_OTHERS = ("PIP_", "GIT_", "SSL_CERT_", "REQUESTS_CA_", "CURL_CA_")


class _QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def serving(folder, tls):
    """A web server of files, as `git` and `pip` can use one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_QuietFiles, directory=str(folder)))
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
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
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def authority_file(authority, tmp_path):
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    return file


def run(*command, env):
    """Run a program that knows nothing of the user's own set-up. Its output; AssertionError when it fails."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith(SETTINGS_OF_OTHERS)
    }
    words = [str(word) for word in command]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=kept | env, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_git_clones_through_the_proxy_without_its_ca(proxy, tmp_path, tls, authority_file):
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_TERMINAL_PROMPT": "0"}
    git = functools.partial(run, "git", env=alone)
    git("init", "-q", tmp_path / "work")
    (tmp_path / "work" / "file").write_text("content")
    git("-C", tmp_path / "work", "add", ".")
    git("-C", tmp_path / "work", "-c", "user.name=a", "-c", "user.email=a@b.test", "commit", "-q", "-m", "first")
    git("clone", "-q", "--bare", tmp_path / "work", tmp_path / "served" / "it.git")
    git("-C", tmp_path / "served" / "it.git", "update-server-info")
    with serving(tmp_path / "served", tls) as url:
        through = ("-c", f"http.proxy={proxy.url()}", "-c", f"http.sslCAInfo={authority_file}")
        git(*through, "clone", "-q", f"{url}/it.git", tmp_path / "clone")
        assert (tmp_path / "clone" / "file").read_text() == "content"
        assert f"server connect {url.partition('://')[2]}" in proxy.log


def test_pip_downloads_through_the_proxy_without_its_ca(proxy, tmp_path, tls, authority_file):
    wheel = tmp_path / "served" / "simple" / "tiny" / "tiny-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:  # the smallest one that pip takes
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    (wheel.parent / "index.html").write_text(f'<a href="{wheel.name}">tiny</a>')
    with serving(tmp_path / "served", tls) as url:
        into = ("--no-cache-dir", "--disable-pip-version-check", "--no-deps", "-d", tmp_path / "got")
        way = ("--proxy", proxy.url(), "--cert", authority_file, "--index-url", f"{url}/simple")
        pip = (sys.executable, "-m", "pip", "--isolated", "download")
        run(*pip, *into, *way, "tiny", env={"PIP_CONFIG_FILE": os.devnull})
        assert (tmp_path / "got" / wheel.name).is_file()
        assert f"server connect {url.partition('://')[2]}" in proxy.log


def test_an_upgrade_of_nobody_passes(proxy):
    """No profile answers it: bytes both ways."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: odd\r\n\r\n")
                connection.sendall(connection.recv(65536).upper())

        served = threads.submit(serve)
        with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S)) as client:
            upgrade = "connection: upgrade\r\nupgrade: odd\r\n\r\n"
            client.sendall(f"GET http://{address}/ HTTP/1.1\r\nhost: {address}\r\n{upgrade}".encode())
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            assert head.startswith(b"HTTP/1.1 101")
            client.sendall(b"hello")
            assert client.recv(4096) == b"HELLO"
        served.result(PATIENCE_S)


# Other requests of our hosts ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """One request at a time goes to the origin, in forward and in reverse mode."""
    with running_house(tmp_path_factory.mktemp("single")) as house:
        yield house


@pytest.fixture(params=["forward", "reverse"])
def client(request, house):
    house.origin.arrived.clear()
    headers = {"x-api-key": "k", "content-type": "application/json"}
    if request.param == "forward":
        with house.proxy.client(base_url=house.origin.url, headers=headers) as client:
            yield client
    else:
        settings = {"trust_env": False, "verify": NO_TLS, "timeout": PATIENCE_S, "headers": headers}
        with httpx.Client(base_url=f"http://127.0.0.1:{house.proxy.ports[1]}", **settings) as client:
            yield client


def last(origin, path):
    """The last request to a path, once there is one."""
    origin.wait_for(lambda arrived: any(request.path == path for request in arrived), f"a request to {path}")
    return [request for request in origin.arrived if request.path == path][-1]


def posted(house, client, path, **more):
    """A model call that is answered at once, and what arrived of it."""
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.post, path, **more)
        request = last(house.origin, path)
        request.go.set()
        return answer.result(PATIENCE_S), request


def test_what_is_no_model_call_passes_while_the_pool_is_used_up(house, client):
    path, proxy = "/v1/messages?busy", house.proxy
    with client.stream("POST", path, content=body(stream=True)) as stream:
        pieces = stream.iter_raw()
        got = next(pieces)
        call = last(house.origin, path)
        (pool,) = [pool for pool in proxy.state()["snapshot"]["pools"] if pool["in_flight"]]
        assert pool["in_flight"] == pool["limit"] == 1
        for quick in ("/v1/messages/count_tokens", "/v1/messages/batches", "/api/event_logging/batch", "/v1/files"):
            assert client.post(quick, content=body()).text == quick
        assert client.get("/v1/models").text == "/v1/models"
        assert client.get(path).text == path
        assert proxy.state()["live"] == 1
        call.go.set()
        assert got + b"".join(pieces) == STREAMED
    proxy.wait_for(lambda state: not state["live"], "the end of the stream")


def test_uploads_and_downloads_that_are_not_scheduled_arrive_while_they_are_sent(house, client):
    def pieces():
        yield b"first half"
        request = last(house.origin, "/v1/files")
        house.origin.wait_for(lambda _: bytes(request.body) == b"first half", "the first half's arrival")
        assert not request.complete.is_set()
        yield b", second half"

    assert client.post("/v1/files", content=pieces()).status_code == 200
    assert last(house.origin, "/v1/files").body == b"first half, second half"
    with client.stream("GET", "/halves") as answer:
        got = answer.iter_raw()
        assert next(got) == b"first half"
        last(house.origin, "/halves").go.set()
        assert b"".join(got) == b", second half"


def test_what_is_meant_for_the_proxy_never_goes_upstream(house, client):
    mine = {
        "proxy-authorization": "Basic YWdlbnQtMTp4",
        "x-hivemind-delivery": "stream",
        "X-Hivemind-Anything": "1",
        "x-own": "stays",
    }
    for path in ("/v1/messages?mine", "/v1/models", "/elsewhere"):
        answer, request = posted(house, client, path, content=body(), headers=mine)
        assert answer.status_code == 200
        assert not [name for name in request.headers if name.startswith(("proxy-", "x-hivemind"))], path
        assert "x-own" in request.headers


def test_the_proxys_credentials_do_not_go_upstream_through_tls(stage, key):
    mine = {"x-hivemind-x": "1", "proxy-authorization": "Basic YTpi"}
    with stage.proxy.client("agent-9", "secret") as client:
        assert client.send(Call(key).request("https://h1.sim.test", x_hivemind_delivery="whole")).status_code == 200
        assert client.get("https://h1.sim.test/v1/models", headers=mine).status_code == 200
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


def test_a_scheduled_body_arrives_byte_for_byte(subtests, house, client):
    for number, (name, sent) in enumerate(BODIES.items()):
        with subtests.test(name):
            answer, request = posted(house, client, f"/v1/messages?{number}", content=sent)
            assert answer.content == PLAIN
            assert request.body == sent
            assert request.headers.get("content-length") == str(len(sent))
    packed = gzip.compress(body().encode())
    answer, request = posted(
        house,
        client,
        "/v1/messages?gzip",
        content=iter([packed[:10], packed[10:]]),
        headers={"content-encoding": "gzip"},
    )
    assert (answer.content, request.body) == (PLAIN, packed)
    house.proxy.settled()


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


# What listens in the proxy's own process is not reached through it, under any name; what else is local is -----------------

PASSWORD = "open-sesame"
NAMES = (
    "127.0.0.1",
    "localhost",
    "LOCALHOST",
    "127.1",
    "0.0.0.0",
    "2130706433",
    "[::ffff:127.0.0.1]",
    "rebound.leads-here.test",
)


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    """A mitmweb, and the port of its page."""
    port = free_port()
    page = ("--no-web-open-browser", "--web-port", str(port), "--set", f"web_password={PASSWORD}")
    with running(tmp_path_factory.mktemp("own"), *page, executable=MITMDUMP.with_name("mitmweb")) as proxy:
        yield proxy, port
        assert "Traceback" not in proxy.log, proxy.log


def asked(proxy, host, port, path="/"):
    """What a plain request through the proxy gets."""
    target = f"http://{host}:{port}{path}"
    return _talk(proxy, f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n")


def tunnelled(proxy, host, port, path="/"):
    """What a request in a CONNECT tunnel gets."""
    inner = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    return _talk(proxy, f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n", inner)


def _talk(proxy, *parts):
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S)) as connection:
        answer = b""
        for part in parts:
            connection.sendall(part.encode())
            while chunk := connection.recv(65536):
                answer += chunk
                if part is not parts[-1]:
                    break
        return answer


@pytest.mark.parametrize("ask", [asked, tunnelled])
def test_neither_mitmwebs_page_nor_the_proxy_itself_is_reached_but_a_model_server_on_loopback_is(web, subtests, ask):
    proxy, page = web
    with running_origin() as origin:
        for host in NAMES:
            with subtests.test(host):
                answer = ask(proxy, host, page, f"/flows?token={PASSWORD}")
                assert b"x-xss-protection" not in answer.lower()  # which mitmweb always sends
                proxy.state()
                before = proxy.log.count("client connect")
                assert b" 200 OK" not in ask(proxy, host, proxy.port, "/nowhere")
                proxy.state()
                # A connection of its own to each: the loop would have made a third, or a hundred.
                assert 2 <= proxy.log.count("client connect") - before <= 3
                assert b" 200 OK" in ask(proxy, host, origin.port)
    ask(proxy, "another.leads-here.test", page)
    assert f"another.leads-here.test:{page}, which is the proxy itself: closed" in proxy.log


def test_a_redirect_to_another_port_of_loopback_works(tmp_path):
    with running_origin() as origin:
        redirect = options(redirect=f"api.anthropic.com=127.0.0.1:{origin.port}")
        with running(tmp_path, *redirect) as proxy:
            assert b" 200 OK" in asked(proxy, "api.anthropic.com", 80)
