"""What the end-to-end tests share: simulated providers, profiles for them, and one mitmdump in front of all.

    forward     https://h1.sim.test (HTTP/1.1), https://h2.sim.test (HTTP/2), *.chat.test, *.whole.test, *.held.test …
    reverse     stage.reverse: a plain HTTP/1.1 provider; stage.reverse_h2: TLS and HTTP/2
    upstream    stage.upstream: through a second mitmdump without the addon; providers are at https://localhost:PORT

Every host of a test is claimed by a test profile and redirected to a provider. A test has a key of its own, so a pool
of its own: what one teaches the scheduler is not the others' business.
"""

import asyncio
import hashlib
import itertools
import os
import ssl
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest
import trustme

from hivemind_addon.sim import dialect as wire
from hivemind_addon.sim.dialect import Reply, SimDialect
from hivemind_addon.sim.faults import OK, Fault
from hivemind_addon.sim.provider import LimitScope, ProviderSettings
from lab.fleets.programs import CLAUDE_CODE, CODEX, NotInstalled, Programs, install
from lab.running_server import RunningServer, running_server
from tests.e2e.machine import Machine, machine
from tests.e2e.proxy import QUICK, Proxy, free_port, options, profiles, running

PROFILES = {
    "sim": f"extends: anthropic\nhosts: [h1.sim.test, h2.sim.test, late.sim.test, other-ca.sim.test, localhost]\n{QUICK}",
    "chat": f"extends: openai-compatible\nhosts: [h1.chat.test, h2.chat.test]\n{QUICK}",
    "whole": "extends: sim\nhosts: [h1.whole.test, h2.whole.test, late.whole.test]\ndelivery: whole",
    "wholechat": "extends: chat\nhosts: [h1.wholechat.test, h2.wholechat.test]\ndelivery: whole",
    "stall": "extends: whole\nhosts: [h1.stall.test, h2.stall.test]\nwatchdog: {begun_s: 1.5, silent_s: 1.5, factor: 0.001}",
    "stallchat": "extends: wholechat\nhosts: [h1.stallchat.test, h2.stallchat.test]\nwatchdog: {begun_s: 1.5, silent_s: 1.5, factor: 0.001}",
    "small": "extends: whole\nhosts: [h1.small.test, h2.small.test, late.small.test]\npeek: {whole_max_bytes: 1500}",
    "held": "extends: sim\nhosts: [h1.held.test, h2.held.test]\nkeep_alive_s: 0.05\nconcurrency: {initial: 1, maximum: 1}",
    "heldchat": (
        "extends: chat\nhosts: [h1.heldchat.test, h2.heldchat.test]\nkeep_alive_s: 0.05\n"
        "concurrency: {initial: 1, maximum: 1}"
    ),
    "narrow": "extends: sim\nhosts: [h1.narrow.test, h2.narrow.test, late.narrow.test]\nconcurrency: {initial: 1, maximum: 1}",
    "peek": "extends: sim\nhosts: [late.peek.test]\npeek: {max_bytes: 500, max_s: 0.5}",
    "silent": f"extends: anthropic\nhosts: [late.silent.test]\n{QUICK}watchdog: {{silent_s: 0.5, begun_s: 0.5, factor: 0.001}}\n",
    "patient": "extends: sim\nhosts: [late.patient.test, 127.0.0.1]\nretry: {first_backoff_s: 0.02, max_backoff_s: 0.1, max_failures: 10000}",
    "tiny": "extends: sim\nhosts: [h1.tiny.test, h2.tiny.test, late.tiny.test]\nretry: {first_backoff_s: 0.0001, max_backoff_s: 0.0002, max_failures: 10000}",
}
"""Name → YAML. Hosts that begin with `h1.` and `h2.` are redirected to the provider of that HTTP version."""
_LATE_HOSTS = [
    "late.sim.test",
    "late.whole.test",
    "late.small.test",
    "late.tiny.test",
    "late.peek.test",
    "late.narrow.test",
    "late.patient.test",
    "late.silent.test",
]
_HOSTS = [
    f"{version}.{name}.test"
    for name in PROFILES
    for version in ("h1", "h2")
    if name not in ("peek", "patient", "silent")
]


@dataclass(frozen=True, slots=True)
class Providers:
    """Three simulated providers."""

    h1: RunningServer
    """TLS, HTTP/1.1."""
    h2: RunningServer
    """TLS, HTTP/2."""
    plain: RunningServer
    """HTTP/1.1 without TLS."""
    stranger: RunningServer
    """As h1, with a certificate of an authority that nobody trusts."""

    def script(self, key: str, faults: Iterable[Fault], *, then: Fault = OK) -> None:
        """What the attempts with a key meet, at whichever provider."""
        faults = list(faults)
        for one in (self.h1, self.h2, self.plain):
            one.script(key, faults, then=then)

    def attempts(self, key: str) -> int:
        """How many attempts with a key were really made."""
        return sum(agent.attempts for one in (self.h1, self.h2, self.plain) if (agent := one.truth().agents.get(key)))


@dataclass(frozen=True, slots=True)
class Stage:
    """One mitmdump with the addon, and the providers behind it."""

    proxy: Proxy
    providers: Providers
    late_port: int
    """Where late.sim.test and other late.*.test are redirected to: nobody listens there until a test does."""
    upstream_proxy_port: int
    """The second mitmdump."""

    @property
    def reverse(self) -> str:
        """URL in front of the plain provider."""
        return f"http://127.0.0.1:{self.proxy.ports[1]}"

    @property
    def reverse_h2(self) -> str:
        """URL in front of the HTTP/2 provider."""
        return f"http://127.0.0.1:{self.proxy.ports[2]}"

    @property
    def upstream(self) -> str:
        """Proxy URL of the mode that goes through the second mitmdump."""
        return f"http://agent-1:x@127.0.0.1:{self.proxy.ports[3]}"

    def misroute(self, port: int, to: str, times: int) -> None:
        """Let the next upstream connections to a port of this machine go elsewhere (`address:port`)."""
        self.proxy.probe("misroute", at=f"127.0.0.1:{port}", to=to, times=times)

    def settled(self) -> dict[str, object]:
        """The proxy's inside, once nothing is left in it."""
        return self.proxy.settled()

    def ended(self, call: "Call") -> list["Ended"]:
        """The tickets of a call's key that are over, oldest first."""
        credential = call.headers.get("authorization") or call.headers["x-api-key"]
        account = "key-" + hashlib.sha256(credential.encode()).hexdigest()[:12]
        return [Ended(*one) for one in self.proxy.probe("ended", account=account)]


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """Who signs the providers' certificates."""
    return trustme.CA()


def _tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    names = [*_HOSTS, *_LATE_HOSTS, "other-ca.sim.test", "localhost", "127.0.0.1"]
    authority.issue_cert(*names).configure_cert(context)
    return context


@pytest.fixture(scope="module")
def anthropic(authority: trustme.CA) -> Iterator[RunningServer]:
    """A simulated provider that shows Anthropic's own name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("api.anthropic.com").configure_cert(context)
    with running_server(tls=context) as server:
        yield server


@pytest.fixture
def mine(anthropic: RunningServer, authority: trustme.CA) -> Iterator[Machine]:
    """A user's machine, before that provider."""
    with machine(anthropic, authority) as made:
        yield made


@pytest.fixture(scope="module")
def served(anthropic: RunningServer, authority: trustme.CA) -> Iterator[Machine]:
    """A machine on which a proxy runs already: of all tests of a file, which are one group then."""
    with machine(anthropic, authority) as made, made.started("run"):
        made.wait_for(made.report, "the start")
        yield made


@pytest.fixture(scope="session")
def late_tls(authority: trustme.CA) -> Callable[[], ssl.SSLContext]:
    """Makes contexts for providers that a test starts itself."""
    return lambda: _tls(authority)


@pytest.fixture(scope="session")
def providers(authority: trustme.CA) -> Iterator[Providers]:
    """They run until the session ends."""
    settings = ProviderSettings(scope=LimitScope.CREDENTIAL)
    with ExitStack() as stack:
        yield Providers(
            h1=stack.enter_context(running_server(settings, tls=_tls(authority))),
            h2=stack.enter_context(running_server(settings, tls=_tls(authority), http2=True)),
            plain=stack.enter_context(running_server(settings)),
            stranger=stack.enter_context(running_server(settings, tls=_tls(trustme.CA()))),
        )


@pytest.fixture(scope="session")
def late_port() -> int:
    """A port that nobody listens on, until a test does."""
    return free_port()


@pytest.fixture(scope="session")
def proxy_arguments(
    authority: trustme.CA, providers: Providers, late_port: int, tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    """What mitmdump must be told to know the test hosts: profiles, redirects, the providers' authority."""
    folder = tmp_path_factory.mktemp("profiles")
    trusted = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))
    ports = {host: providers.h1.port if host.startswith("h1.") else providers.h2.port for host in _HOSTS}
    ports |= {"other-ca.sim.test": providers.stranger.port} | dict.fromkeys(_LATE_HOSTS, late_port)
    redirects = [word for host, port in ports.items() for word in options(redirect=f"{host}=127.0.0.1:{port}")]
    return [*profiles(folder, **PROFILES), "--set", f"ssl_verify_upstream_trusted_ca={trusted}", *redirects]


@pytest.fixture(scope="session")
def second_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A mitmdump without the addon that only tunnels: somebody's corporate proxy."""
    with running(tmp_path_factory.mktemp("second"), "--ignore-hosts", ".*", scripts=(), host="*") as proxy:
        yield proxy


@pytest.fixture(scope="session")
def stage(
    providers: Providers,
    proxy_arguments: list[str],
    late_port: int,
    second_proxy: Proxy,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    """The proxy that most tests share. A test leaves no flow behind in it."""
    modes = (
        "regular",
        f"reverse:{providers.plain.url}",
        "reverse:https://h2.sim.test:443",
        f"upstream:http://127.0.0.1:{second_proxy.port}",
    )
    with running(tmp_path_factory.mktemp("stage"), *proxy_arguments, modes=modes) as proxy:
        yield Stage(proxy, providers, late_port, second_proxy.port)
        assert "Traceback" not in proxy.log, proxy.log


meetings = pytest.mark.parametrize(
    ("upstream", "client", "chat"),
    [("h1", "h1", False), ("h2", "h2", False), ("h1", "h2", True), ("h2", "h1", True)],
    ids=["h1-h1-anthropic", "h2-h2-anthropic", "h1-h2-chat", "h2-h1-chat"],
)
"""HTTP versions on both sides and format: every two of these meet."""
versions = pytest.mark.parametrize(
    ("upstream", "client"),
    [("h1", "h1"), ("h1", "h2"), ("h2", "h1"), ("h2", "h2")],
    ids=["h1-h1", "h1-h2", "h2-h1", "h2-h2"],
)


@pytest.fixture(scope="session")
def programs() -> Programs:
    """The real Claude Code and Codex."""
    try:
        return install((CLAUDE_CODE, CODEX))
    except NotInstalled as error:
        if os.environ.get("HIVEMIND_REQUIRE_AGENTS") == "1":
            pytest.fail(str(error))
        pytest.skip(f"Claude Code and Codex do not run: {error}")


@pytest.fixture(scope="module")
def runtime_dir() -> Iterator[str]:
    """Where control sockets are, for this process too; pytest's own folders are too deep for one."""
    with tempfile.TemporaryDirectory(prefix="hm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield folder


_numbers = itertools.count(1)


@pytest.fixture
def key() -> str:
    """A key that no other test uses, and so a pool."""
    return f"sk-sim-{os.getpid()}-{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a test, in one of the two dialects, and what its answer must be."""

    key: str
    chat: bool = False
    stream: bool = False
    text: str = "hello"
    max_tokens: int = 64

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/messages"

    @property
    def headers(self) -> dict[str, str]:
        credential = {"authorization": f"Bearer {self.key}"} if self.chat else {"x-api-key": self.key}
        return credential | {"content-type": "application/json", "x-test-id": self.key}

    @property
    def body(self) -> bytes:
        stream = ', "stream": true' if self.stream else ""
        text = f'{{"model": "sim-1", "max_tokens": {self.max_tokens}, "messages": [{{"role": "user", "content": "{self.text}"}}]'
        return f"{text}{stream}}}".encode()

    def request(self, base_url: str, **headers: str) -> httpx.Request:
        """To send with `client.send`; underscores in the names stand for hyphens."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.Request("POST", base_url + self.path, headers=self.headers | more, content=self.body)

    def answer_of(self, response: httpx.Response, *, chunks: int = 8, body: bytes | None = None) -> bytes:
        """The bytes that the attempt named in the response's head has sent, when it went well.

        `body`: what the provider got, where that is not what was sent.
        """
        body = self.body if body is None else body
        return self.answer(response.headers["request-id"], int(response.headers["x-sim-attempt"]), chunks, body)

    def answer(self, request_id: str, attempt: int, chunks: int = 8, body: bytes | None = None) -> bytes:
        """The bytes of one good attempt's answer."""
        body = self.body if body is None else body
        reply = Reply(
            dialect=SimDialect.CHAT if self.chat else SimDialect.MESSAGES,
            request_id=request_id,
            attempt=attempt,
            digest=f"{zlib.crc32(body):08x}",
            model="sim-1",
            input_tokens=max(1, len(body) // 4),
            cached_tokens=0,
            output_tokens=chunks,
            tokens_per_delta=1,
            truncated=False,
            include_usage=False,
        )
        if not self.stream:
            return wire.whole_body(reply)
        return b"".join(event.data for event in wire.stream_events(reply))


def cut_off(response: httpx.Response) -> bytes:
    """What came of an answer before its cut. Fails when it came to a clean end instead."""
    pieces: list[bytes] = []
    with pytest.raises(httpx.RemoteProtocolError):
        pieces.extend(response.iter_raw())
    return b"".join(pieces)


async def send_apart(
    stage: Stage, client: str, requests: Iterable[httpx.Request], **gathered: bool
) -> list[httpx.Response]:
    """Send each on a connection of its own, all at once: what befalls one connection is not the others' business."""

    async def send(request: httpx.Request) -> httpx.Response:
        async with stage.proxy.async_client(http2=client == "h2") as http:
            return await http.send(request)

    return await asyncio.gather(*map(send, requests), **gathered)


@dataclass(frozen=True, slots=True)
class Ended:
    """What the scheduler says of a ticket that is over."""

    end: str
    reason: str
    attempts: int
    ambiguous_resends: int
    ticket_id: str
