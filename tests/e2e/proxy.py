"""A real mitmdump with the addon, for tests: starts, tells its ports, shows its inside, ends by its own process id."""

import itertools
import json
import os
import secrets
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import httpx

from tests.e2e.forked import Forked
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of plain HTTP: by default httpx reads all authorities that the world trusts, for each of them."""
MITMDUMP = Path(sys.executable).parent / "mitmdump"
PROBE = Path(__file__).parent / "probe.py"


QUICK = "retry: {first_backoff_s: 0.02, max_backoff_s: 0.1}\nbreaker: {first_probe_s: 0.05, max_probe_s: 0.2}\n"
"""In a profile: nothing waits for long."""


def options(**values):
    """What mitmdump must be told to have these options of ours."""
    return [word for name, value in values.items() for word in ("--set", f"hivemind_{name}={value}")]


def profiles(folder, **texts):
    """The same for profiles: their names and what they say."""
    (folder / "profiles").mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / "profiles" / f"{name}.yaml").write_text(text)
    return options(profiles=folder / "profiles")


def for_host(port, *, extends="anthropic", slots=None, more=""):
    """A profile's text for what listens at a port of this machine; `slots`: so many requests at a time."""
    room = f"concurrency: {{initial: {slots}, maximum: {slots}}}\n" if slots else ""
    return f"extends: {extends}\nhosts: ['127.0.0.1:{port}']\n{room}{more}"


class _TrustingContext(ssl.SSLContext):
    """Offers HTTP/2 first where it is offered: mitmproxy takes the client's first choice, httpx names it last."""

    def set_alpn_protocols(self, alpn_protocols):
        super().set_alpn_protocols(sorted(alpn_protocols, key=lambda name: name != "h2"))


class Proxy:
    """One running mitmdump."""

    def __init__(self, process, ports, log, confdir):
        self.process = process
        self.ports = ports
        self._log = log
        self.ca = confdir / "mitmproxy-ca-cert.pem"

    @property
    def port(self):
        return self.ports[0]

    def url(self, agent="agent-1", words="x"):
        return f"http://{agent}:{words}@127.0.0.1:{self.port}"

    @property
    def log(self):
        return self._log.read_text(errors="replace")

    def client(self, agent="agent-1", words="x", **kwargs):
        """An HTTP client that goes through the proxy and trusts its CA; with `http2=True` it speaks HTTP/2."""
        return httpx.Client(**self._client_settings(agent, words, kwargs))

    def async_client(self, agent="agent-1", words="x", **kwargs):
        """The same for asyncio; for many requests at once over HTTP/2, where httpx's threads get in each other's way."""
        return httpx.AsyncClient(**self._client_settings(agent, words, kwargs))

    def _client_settings(self, agent, words, settings):
        context = _TrustingContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca.exists():
            context.load_verify_locations(self.ca)
        return {
            "timeout": PATIENCE_S,
            "proxy": self.url(agent, words),
            "verify": context,
            "trust_env": False,
            "limits": httpx.Limits(keepalive_expiry=None),  # a slow machine is no reason for another connection
        } | settings

    def ask(self, url, agent="agent-1", words="x", *, key="k", headers=(), **changes):
        """A Messages request through the proxy, whose user is the agent."""
        mine = {"x-api-key": key, "content-type": "application/json"} | dict(headers)
        with self.client(agent, words) as client:
            return client.post(url, content=body(**changes), headers=mine)

    def post(self, path="/v1/messages", content=None, *, key="k", headers=(), timeout=PATIENCE_S):
        """A request to the second of its modes, a reverse one; by default a minimal Messages request."""
        return httpx.post(
            f"http://127.0.0.1:{self.ports[1]}{path}",
            content=body() if content is None else content,
            headers={"x-api-key": key, "content-type": "application/json"} | dict(headers),
            timeout=timeout,
            trust_env=False,
            verify=NO_TLS,
        )

    def probe(self, path, **arguments):
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            connection.request("GET", f"http://probe.test/{path}?{urlencode(arguments)}")
            answer = connection.getresponse()
            text = answer.read()
        assert answer.status == 200, text
        return json.loads(text)

    def state(self):
        return self.probe("state")

    def wait_for(self, condition, what):
        """Ask the probe until `condition(state)` holds. Waits for an event of another process: there is no clock to advance."""
        deadline, pause_s = time.monotonic() + PATIENCE_S, 0.005
        while True:
            state = self.state()
            if condition(state):
                return state
            assert time.monotonic() < deadline, f"{what} did not happen: {state}"
            select.select([], [], [], pause_s)
            pause_s = min(2 * pause_s, 0.05)

    def settled(self):
        """The inside, once nothing is held, in flight or left behind but the question itself."""
        state = self.wait_for(is_idle, "the return of every slot and stream")
        assert state["guard_trips"] == 0, self.log
        return state

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(PATIENCE_S)


def queued(state):
    return sum(pool["queued"] for pool in state["snapshot"]["pools"])


def in_flight(state):
    return sum(pool["in_flight"] for pool in state["snapshot"]["pools"])


def is_idle(state):
    """Whether nothing is held, in flight or left behind, but the question for the state."""
    pools = state["snapshot"]["pools"]
    left = any(pool["in_flight"] or pool["queued"] or pool["tickets"] or pool["bypassing"] for pool in pools)
    return not (left or state["live"]) and state["streams"] <= 1 and state["layer_streams"] <= 1


def _ports():
    """What this process of the tests may give away, each once: no other of the same run has any of them."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = range(20_000 + worker, 32_000, workers)  # below the system's own choice for clients
    return itertools.cycle(secrets.SystemRandom().sample(mine, len(mine)))


_ports_left = _ports()


def free_port():
    """A port that nobody listens on, and that no other test and no outgoing connection takes before it is used."""
    while True:
        port = next(_ports_left)
        with socket.socket() as attempt, suppress(OSError):
            attempt.bind(("127.0.0.1", port))
            return port


def start(
    confdir,
    *arguments,
    modes=("regular",),
    scripts=(ROOT / "hivemind_addon", PROBE),
    executable=None,
    cwd=ROOT,
    host="127.0.0.1",
    ports=None,
):
    """Start mitmdump and wait until it listens. Raises AssertionError with its log when it ends instead.

    `executable`: to start it from nothing; otherwise a fork of what is imported already.
    `ports`: one for each mode, of a proxy that ended; otherwise free ones. Such a one may be another test's by the
    time that it is bound: then with others, once more.
    """
    try:
        return _start(confdir, arguments, modes, scripts, executable, cwd, host, ports)
    except AssertionError as error:
        if ports or "address already in use" not in str(error):
            raise
        return _start(confdir, arguments, modes, scripts, executable, cwd, host, ports)


def _start(confdir, arguments, modes, scripts, executable, cwd, host, ports):
    confdir.mkdir(parents=True, exist_ok=True)
    log = confdir / f"mitmdump-{time.monotonic_ns()}.log"
    command = [
        str(executable or MITMDUMP),
        "--set",
        f"confdir={confdir}",
        "--set",
        "termlog_verbosity=info",
        "--set",
        "flow_detail=0",
    ]
    chosen = ports or [free_port() for _ in modes]  # mitmproxy refuses two modes on port 0
    for mode, port in zip(modes, chosen, strict=True):
        command += ["--mode", f"{mode}@{port}"]
    for script in scripts:
        command += ["-s", str(script)]
    command += map(str, arguments)
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment["PYTHONUNBUFFERED"] = "1"
    environment["XDG_STATE_HOME"] = str(confdir / f"state-{time.monotonic_ns()}")  # what one learns is not another's
    with log.open("wb") as out:
        if executable is None:
            process = Forked(command, log, cwd, environment)
        else:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=cwd, env=environment)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        text = log.read_text(errors="replace")
        if all(f" listening at {host}:{port}." in text for port in chosen):
            return Proxy(process, chosen, log, confdir)
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"mitmdump did not start (exit status {process.wait()}):\n{text}")
        select.select([], [], [], 0.01)


@contextmanager
def running(confdir, *arguments, **kwargs):
    proxy = start(confdir, *arguments, **kwargs)
    try:
        yield proxy
    finally:
        if proxy.process.poll() is None:
            proxy.process.kill()
        proxy.process.wait(PATIENCE_S)


def body(**changes):
    """A minimal Messages request."""
    request = {"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}
    return json.dumps(request | changes)
