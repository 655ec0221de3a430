"""What keeps an agent from being scheduled, and what cures it: one finding a line.

A client's way through the proxy is tried for real: CONNECT, TLS with the client's bundle, one request. An agent whose
base URL leads to the proxy needs none of that.
"""

import base64
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from OpenSSL import crypto

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.formats.profile import prices
from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.wire.tokenizer import Tokenizer
from hivemind_addon.proxy.api.control import UnreadableReport
from hivemind_addon.proxy.api.report import VENDORS_OWN, ProxyView
from hivemind_addon.proxy.api.trust import CERTIFICATE, ca_certificate, cure_of_distrust
from hivemind_addon.proxy.api.words import several
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.proxy.system.descriptors import ENOUGH
from hivemind_addon.tools.launch import background
from hivemind_addon.tools.launch.agent_environment import NamelessSecret, holds_key, proved_name
from hivemind_addon.tools.launch.environment import PROXY_VARIABLES, bypass_entries, bypasses
from hivemind_addon.tools.launch.finding import Finding, Severity
from hivemind_addon.tools.launch.hindrance import LOOPBACK, base_urls_to, hindrances, port_of
from hivemind_addon.tools.launch.neighbour import find_stranger
from hivemind_addon.tools.launch.port import AGENT_VARIABLE, SECRET_VARIABLE
from hivemind_addon.tools.launch.programs import Program, ProgramTable
from hivemind_addon.tools.setup import dotenv_text

_OLD_PRICES_DAYS = 60
_AGAIN = "install hivemind-addon again"
_CONNECT_S = 10.0
_ANSWER_S = 10.0
_MAX_HEAD_BYTES = 64 * 1024
_ASKED = 407
_FROM_PROXY = {502, 503, 504}
"""Statuses that the proxy itself answers with where the provider cannot be reached."""
_DISTRUSTS = "CERTIFICATE_VERIFY_FAILED"


@dataclass(frozen=True, slots=True)
class Handshake:
    """TLS was agreed on."""

    wall_date_at: float | None
    """The provider's clock, epoch seconds; None: it did not answer, or without a date."""


def shake_hands(port: int, host: str, bundle: Path, who: str = "hivemind-doctor:x") -> Handshake | str:
    """Go through the proxy on `port` to `host`, trusting `bundle` only. A text says what failed.

    `who`: the agent's name and its secret, where the proxy asks for one.
    """
    try:
        context = ssl.create_default_context(cafile=str(bundle))
        # Verified afterwards: the proxy would report a client that breaks off as one that does not trust it.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_S) as plain:
            credentials = base64.b64encode(who.encode()).decode()
            lines = (f"CONNECT {host}:443 HTTP/1.1", f"Host: {host}:443", f"Proxy-Authorization: Basic {credentials}")
            plain.sendall("\r\n".join((*lines, "", "")).encode())
            head = _head(plain)
            if _status(head) == _ASKED:
                return (
                    f"the proxy answers 407: it asks for a name and secret; set {AGENT_VARIABLE} and {SECRET_VARIABLE}"
                )
            if _status(head) != 200:
                return f"the proxy answers CONNECT with {head.splitlines()[0] if head else 'nothing'!r}"
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return _distrust(secure, bundle) or Handshake(wall_date_at=_date(secure, host))
    except (OSError, ssl.SSLError) as error:
        return str(error)


def _distrust(secure: ssl.SSLSocket, bundle: Path) -> str:
    """Why a client with this bundle does not trust the certificate that it was shown; empty: it does."""
    store = crypto.X509Store()
    store.load_locations(str(bundle))
    shown = crypto.load_certificate(crypto.FILETYPE_ASN1, secure.getpeercert(binary_form=True) or b"")
    try:
        crypto.X509StoreContext(store, shown).verify_certificate()
    except crypto.X509StoreContextError as error:
        return f"{_DISTRUSTS}: {error}"
    return ""


def _date(secure: ssl.SSLSocket, host: str) -> float | None:
    """What time the provider says it is; that needs the network."""
    secure.settimeout(_ANSWER_S)
    with suppress(OSError, ValueError):
        secure.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head = _head(secure)
        if head and _status(head) not in _FROM_PROXY:
            for line in head.splitlines():
                name, _, value = line.partition(":")
                if name.lower() == "date":
                    return parsedate_to_datetime(value.strip()).timestamp()
    return None


def _head(connection: socket.socket) -> str:
    """A response's head; empty: there was none."""
    data = b""
    while b"\r\n\r\n" not in data and len(data) < _MAX_HEAD_BYTES:
        chunk = connection.recv(4096)
        if not chunk:
            break
        data += chunk
    return data.decode("latin-1")


def _status(head: str) -> int:
    words = head.split(maxsplit=2)
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0


OLDEST_MITMPROXY = (12, 2)
_NODE_WITH_ENV_PROXY = (22, 21)
_USUAL_HOSTS = ("api.anthropic.com", "api.openai.com")
"""What most agents call: the handshake is tried with the first of them that is scheduled."""
_CLOCK_OFF_S = 60.0
_CONFDIR = Path("~/.mitmproxy")
_NO_AGENTS = {"GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO"}
"""CA variables of programs that call no model: what they reach is not intercepted."""


def examine(
    environment: Mapping[str, str],
    *,
    port: int,
    program: Program | None,
    table: ProgramTable,
    clock: Clock,
    unknown: str = "",
) -> Iterator[Finding]:
    """Look at everything, cheapest first. `program`: the agent in question; None: any, or the one called `unknown`."""
    yield _mitmproxy()
    yield _tokenizer()
    yield _prices(clock)
    try:
        profiles = load_profiles(None)
    except DocumentError as error:
        yield Finding(Severity.BAD, "profiles.unreadable", f"profiles: {error}", "change the file that it names")
        return
    yield Finding(Severity.GOOD, "profiles", f"profiles: {', '.join(sorted(profiles.by_name))}")
    finding, proxy = _proxy(port)
    yield finding
    if proxy:
        yield _open_files(proxy)
        yield from _seen(proxy)
    if unknown:
        yield Finding(Severity.NOTE, "agent.unknown", f"agent: nothing is known of {unknown}: it is checked as any")
    for own, variables in _own_variables(program, table):
        yield Finding(Severity.GOOD, "variables", f"variables: {own} sets {', '.join(variables)}")
        environment = {**variables, **environment}
    listens = proxy.listens if proxy else (f"127.0.0.1:{port}",)
    hosts = proxy.hosts if proxy else tuple(host for one in profiles.claims.values() for host in one.hosts)
    yield from hindrances(program, environment=environment, table=table, hosts=hosts, listens=listens)
    if program is not None and program.tunnelled:
        return
    way = _way(environment, port, dict(base_urls_to(listens, program, environment=environment, table=table)))
    yield way
    if way.id == "way.base-url":
        return
    yield _ca(Path(proxy.confdir) if proxy else _CONFDIR)
    yield from _bypassed(environment, hosts)
    if program is None or program.fetches:
        yield from _node(environment, Severity.NOTE if program is None else Severity.BAD)
    files = dict(_ca_files(environment, program, table))
    for file, names in files.items():
        yield _bundle(Path(file), names)
    if not files:
        wanted = " or ".join(program.ca if program else ()) or "a CA variable"
        cure = 'use `hivemind exec`, or eval "$(hivemind setup env)"'
        yield Finding(Severity.BAD, "ca.unset", f"CA: {wanted} is not set here", cure)
    if proxy and files:
        yield from _trust(proxy, files, clock, environment)


def _own_variables(program: Program | None, table: ProgramTable) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """The files of its own from which an agent has a variable that matters here, and these variables."""
    wanted = {spelling for name in (*PROXY_VARIABLES, "NO_PROXY") for spelling in (name, name.lower())}
    wanted |= {*table.ca_variables, *table.base_url_variables, "NODE_USE_ENV_PROXY"}
    for name in program.variables_in if program else ():
        try:
            file = Path(os.path.expandvars(name)).expanduser()
            text = file.read_text(encoding="utf-8")
            said = json.loads(text).get("env", {}) if file.suffix == ".json" else dotenv_text.read(text)
        except (OSError, ValueError, AttributeError, RuntimeError):  # RuntimeError: the user has no home
            continue
        if isinstance(said, Mapping) and (found := {key: str(said[key]) for key in said if key in wanted}):
            yield file, found


def _seen(proxy: ProxyView) -> Iterator[Finding]:
    """What the proxy has noticed of agents that are not scheduled, and of pools that share limits."""
    for host in proxy.unscheduled:
        yield Finding(
            Severity.BAD,
            "unscheduled.unclaimed",
            f"unscheduled: calls to {host} went through the proxy and passed by",
            f"write a profile with hosts: [{host}] and the paths of its calls (docs/profiles.md)",
        )
    for host in proxy.vendors:
        yield Finding(Severity.NOTE, "unscheduled.vendor", f"unscheduled: calls to {host} are tunnelled, {VENDORS_OWN}")
    for who, host in proxy.distrusting:
        problem, _, cure = cure_of_distrust(host, Path(proxy.confdir)).partition(": ")
        yield Finding(Severity.BAD, "trust.client", f"trust: {who}: {problem}", cure)
    for who, host in proxy.sockets:
        yield Finding(
            Severity.NOTE,
            "unscheduled.websocket",
            f"unscheduled: {who} has a WebSocket to {host}, and what it says there passes by",
        )
    for who, host in proxy.refused_sockets:
        yield Finding(
            Severity.GOOD,
            "websocket.refused",
            f"WebSocket: that of {who} to {host} was refused, so that it sends plain requests, which are scheduled; "
            "`websocket: turns` in a profile schedules it (docs/websockets.md)",
        )
    for pool, words in proxy.sharing:
        yield Finding(Severity.GOOD, "pools.sharing", f"pools: {pool}: {words}")


def _mitmproxy() -> Finding:
    try:
        found = version("mitmproxy")
    except PackageNotFoundError:
        return Finding(Severity.BAD, "mitmproxy.missing", "mitmproxy: not installed beside this command", _AGAIN)
    if _numbers(found) < OLDEST_MITMPROXY:
        oldest = ".".join(map(str, OLDEST_MITMPROXY))
        return Finding(Severity.BAD, "mitmproxy.old", f"mitmproxy: {found} is too old", f"install {oldest} or newer")
    return Finding(Severity.GOOD, "mitmproxy", f"mitmproxy: {found}")


def _tokenizer() -> Finding:
    problem = Tokenizer().load()
    if problem:
        return Finding(Severity.BAD, "tokenizer.damaged", f"tokenizer: {problem}", _AGAIN)
    return Finding(Severity.GOOD, "tokenizer", "tokenizer: its vocabulary is whole")


def _prices(clock: Clock) -> Finding:
    """How old the prices are that the profiles do not hold themselves."""
    today = datetime.fromtimestamp(clock.wall(), UTC).date()
    data, newest = prices.data_of(today)
    days = (today - newest).days
    text = f"prices: genai-prices {data}, newest price of {newest} ({several(days, 'day')} old)"
    if days > _OLD_PRICES_DAYS:
        return Finding(Severity.NOTE, "prices.old", text, "`pip install -U genai-prices` where hivemind is installed")
    return Finding(Severity.GOOD, "prices", text)


def _proxy(port: int) -> tuple[Finding, ProxyView | None]:
    try:
        proxy = background.running(port)
    except (UnreadableReport, OSError) as error:
        return Finding(
            Severity.BAD, "proxy.unreadable", f"proxy: {error}", f"`hivemind stop -p {port}`, and start it again"
        ), None
    if proxy:
        return Finding(Severity.GOOD, "proxy", f"proxy: process {proxy.pid} serves {', '.join(proxy.listens)}"), proxy
    if (stranger := find_stranger(port)) is not None:
        return Finding(
            Severity.BAD, "proxy.stranger", f"proxy: port {port} is taken by {stranger.who}", stranger.cure
        ), None
    return Finding(
        Severity.BAD, "proxy.none", f"proxy: nothing listens on port {port}", f"start `hivemind run -p {port}`"
    ), None


def _open_files(proxy: ProxyView) -> Finding:
    """The proxy has raised its own limit as far as it may."""
    if proxy.open_files is not None and proxy.open_files < ENOUGH:
        return Finding(
            Severity.BAD,
            "open-files.few",
            f"open files: the proxy may have {proxy.open_files}, so that of many agents some wait for a connection",
            f"start it where `ulimit -Hn` is {ENOUGH} or more",
        )
    return Finding(Severity.GOOD, "open-files", f"open files: the proxy may have {proxy.open_files or 'any number'}")


def _ca(confdir: Path) -> Finding:
    file = ca_certificate(confdir)
    if not file.is_file():
        return Finding(Severity.BAD, "ca.missing", f"CA: {file} is not there", "`hivemind run` makes it when it starts")
    if holds_key(file):
        return Finding(
            Severity.BAD, "ca.key", f"CA: {file} holds a private key", "remove the folder's files and start again"
        )
    return Finding(Severity.GOOD, "ca", f"CA: {file}")


def _way(environment: Mapping[str, str], port: int, here: Mapping[str, str]) -> Finding:
    """Whether the environment leads to the proxy. `here`: base URLs that do, by what names them."""
    for where, url in here.items():
        host = urlsplit(url if "://" in url else f"http://{url}").hostname or ""
        if (name := _set_first(environment, "HTTP_PROXY", "ALL_PROXY")) and not _is_direct(host, environment):
            return Finding(
                Severity.BAD,
                "way.detour",
                f"way: {where} leads to the proxy, but what goes to {host} takes {name}",
                f"name {host} in NO_PROXY",
            )
    found = _way_by_variables(environment, port)
    if found.verdict is not Severity.BAD or not here:
        return found
    return Finding(
        Severity.GOOD,
        "way.base-url",
        f"way: port {port}, by {', '.join(here)}; an agent that reads it needs no HTTPS_PROXY and no CA",
    )


def _set_first(environment: Mapping[str, str], *names: str) -> str:
    """The first of these variables that is set, in either spelling; empty: none."""
    spelt = (spelling for name in names for spelling in (name, name.lower()))
    return next((name for name in spelt if environment.get(name)), "")


def _is_direct(host: str, environment: Mapping[str, str]) -> bool:
    """Whether NO_PROXY names this host."""
    return any(entry in ("*", host) or entry.startswith(f"{host}:") for entry in bypass_entries(environment))


def _way_by_variables(environment: Mapping[str, str], port: int) -> Finding:
    cure = (
        f'start the agent with `hivemind exec -p {port}`, or eval "$(hivemind setup env -p {port})", '
        f"or set its base URL to http://127.0.0.1:{port} (docs/start.md)"
    )
    names = [spelling for name in PROXY_VARIABLES for spelling in (name, name.lower()) if environment.get(spelling)]
    https = [name for name in names if not name.lower().startswith("http_")]
    if not https:
        return Finding(
            Severity.BAD, "way.unset", "way: HTTPS_PROXY is not set here, so nothing goes through the proxy", cure
        )
    for name in https:
        value = environment[name]
        url = urlsplit(value)
        if url.scheme != "http":
            return Finding(
                Severity.BAD, "way.scheme", f"way: {name}={_hidden(value)} does not begin with http://", cure
            )
        if url.hostname not in LOOPBACK or port_of(value) != port:
            return Finding(
                Severity.BAD,
                "way.elsewhere",
                f"way: {name} leads to {url.hostname}:{port_of(value)}, not to port {port}",
                cure,
            )
    user = urlsplit(environment[https[0]]).username
    if not user:
        return Finding(
            Severity.NOTE, "way.nameless", f"way: {https[0]} names no agent", f"write http://NAME:x@127.0.0.1:{port}"
        )
    return Finding(Severity.GOOD, "way", f"way: port {port} as {user}, by {', '.join(https)}")


def _bypassed(environment: Mapping[str, str], hosts: Sequence[str]) -> Iterator[Finding]:
    for entry in bypass_entries(environment):
        if bypasses(entry, hosts):
            yield Finding(
                Severity.BAD,
                "no-proxy",
                f"NO_PROXY: {entry} lets the provider's host go past the proxy",
                "take it out of NO_PROXY",
            )


def _node(environment: Mapping[str, str], severity: Severity) -> Iterator[Finding]:
    """Node's own fetch; agents that bring their own HTTP client do not need it."""
    node = shutil.which("node", path=environment.get("PATH"))
    if node is None:
        return
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return
    if _numbers(said) < _NODE_WITH_ENV_PROXY:
        oldest = ".".join(map(str, _NODE_WITH_ENV_PROXY))
        yield Finding(
            severity,
            "node.old",
            f"Node: fetch of {said.strip()} knows no proxy variables",
            f"install Node {oldest} or newer for what uses it",
        )
    elif not environment.get("NODE_USE_ENV_PROXY"):
        yield Finding(severity, "node.unset", "Node: its fetch goes past the proxy", "set NODE_USE_ENV_PROXY=1")


def _ca_files(
    environment: Mapping[str, str], program: Program | None, table: ProgramTable
) -> Iterator[tuple[str, list[str]]]:
    """File → the variables that name it, of those that the agent reads. The first that is set counts for it."""
    names = [
        name
        for name in (program.ca if program else table.ca_variables)
        if environment.get(name) and name not in _NO_AGENTS
    ]
    if program:
        names = names[:1]
    for file in dict.fromkeys(environment[name] for name in names):
        yield file, [name for name in names if environment[name] == file]


def _bundle(file: Path, names: Sequence[str]) -> Finding:
    who = ", ".join(names)
    try:
        key = holds_key(file)
    except OSError as error:
        return Finding(
            Severity.BAD,
            "ca.unreadable",
            f"CA: {who} names {file}, which cannot be read ({error.strerror})",
            "unset it",
        )
    if key:
        return Finding(
            Severity.BAD,
            "ca.names-key",
            f"CA: {who} names {file}, which holds a private key",
            f"name {CERTIFICATE} beside it instead",
        )
    return Finding(Severity.GOOD, "ca.named", f"CA: {who} names {file}")


def _trust(
    proxy: ProxyView, files: Mapping[str, Sequence[str]], clock: Clock, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """A real handshake with each bundle, and what the provider's clock says."""
    usual = (host for host in _USUAL_HOSTS if host in proxy.hosts)
    host = next((host for host in (*usual, *proxy.hosts) if re.fullmatch(r"[a-z0-9.-]+\.[a-z]+", host)), None)
    if host is None:
        yield Finding(Severity.NOTE, "trust.untried", "trust: no profile names a whole host to try")
        return
    date_at: float | None = None
    try:
        name, secret = proved_name(environment)
    except NamelessSecret as error:
        problem, _, cure = str(error).partition(": ")
        yield Finding(Severity.BAD, "agent.nameless", f"agent: {problem}", cure)
        return
    who = ":".join((name, *secret)) if name else "hivemind-doctor:x"
    for file, names in files.items():
        result = shake_hands(proxy.port, host, Path(file), who)
        match result:
            case Handshake():
                yield Finding(Severity.GOOD, "trust", f"trust: {', '.join(names)} trusts the proxy for {host}")
                date_at = result.wall_date_at if date_at is None else date_at
            case str() if _DISTRUSTS in result:
                problem, _, cure = cure_of_distrust(host, Path(proxy.confdir)).partition(": ")
                who = f"a client with {', '.join(names)}={file}"
                yield Finding(Severity.BAD, "trust.distrusted", f"trust: {who}: {problem}", cure)
            case _:
                yield Finding(
                    Severity.BAD,
                    "trust.no-tls",
                    f"trust: no TLS with {host} through the proxy: {result}",
                    f"see `hivemind logs -p {proxy.port}`",
                )
    if date_at is None:
        yield Finding(Severity.NOTE, "clock.unknown", "clock: not compared, the provider did not answer")
    elif abs(off_s := clock.wall() - date_at) > _CLOCK_OFF_S:
        way = "ahead of" if off_s > 0 else "behind"
        yield Finding(
            Severity.BAD, "clock.off", f"clock: {abs(off_s):,.0f} s {way} {host}'s", "set it, or switch NTP on"
        )
    else:
        yield Finding(Severity.GOOD, "clock", f"clock: agrees with {host}'s")


def _numbers(text: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _hidden(value: str) -> str:
    """Without the password."""
    return re.sub(r"//[^/@]*@", "//…@", value)
