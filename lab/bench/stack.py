"""The processes of a run: providers, proxies, client. Each is started, pinned, asked and ended here."""

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hivemind_addon.formats.base.resources import script_path
from hivemind_addon.sim.certificate import write_certificates
from lab.bench.plan import (
    CONVERSE,
    GEMINI,
    HTTP2,
    HTTP2_TO_1,
    LARGE_BYTES,
    MESSAGES,
    REVERSE,
    REVERSE_TLS,
    route_of,
)
from lab.fleets.proxy import free_port

HERE = Path(__file__).parent
VARIANTS = ("direct", "bare", "addon")
PROFILE = "extends: anthropic\nhosts: ['127.0.0.1:{plain}', 'localhost:{tls}', 'localhost:{tls1}']\nconcurrency: {{initial: {slots}, maximum: {slots}}}\n"
STREAM_PROFILES = {GEMINI: "gemini", CONVERSE: "bedrock"}
"""Formats that have a provider each."""
STREAM_PROFILE = "extends: {name}\nhosts: ['127.0.0.1:{port}']\nconcurrency: {{initial: {slots}, maximum: {slots}}}\n"
QUICK = "delivery: whole\nretry: {first_backoff_s: 0.01, max_backoff_s: 0.05}\nbreaker: {failures_to_open: 1000}\n"
MEASURABLE = Path("/proc/self/schedstat").exists()
"""Whether this system tells the memory and the processor time of a process."""
_START_S = 60
_LINE_S = 120
_CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
PINNED = len(_CPUS) >= 2
"""The proxy has the first core for itself; client and provider share the second."""


@dataclass(frozen=True)
class Proxy:
    process: subprocess.Popen
    reverse_port: int
    stream_ports: dict[str, int]
    """Of reverse proxies for providers with other formats."""
    reverse_tls_port: int
    forward_port: int
    ca: Path
    counters_port: int
    web_port: int = 0
    """Of a mitmweb only."""

    def counters(self):
        """The addon's counters."""
        return self._asked("counters")

    def write_held(self):
        """Have the proxy write now all that waits to be written later."""
        self._asked("write")

    def rss_bytes(self):
        return rss_bytes(self.process.pid)

    def descriptors(self):
        """How many files and connections the proxy has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def lags_s(self, seconds):
        """How late the event loop runs, for so long from now on."""
        return self._asked(f"lag {seconds}")

    def cpu_s(self):
        """Processor time of all threads so far, where the system reports that."""
        return cpu_s(self.process.pid)

    def settle_down(self):
        """Wait until the proxy has had nothing to do for a while."""
        idle = 0
        before_s = self.cpu_s()
        while idle < 5:
            select.select([], [], [], 0.1)
            now_s = self.cpu_s()
            idle = idle + 1 if now_s - before_s < 0.01 else 0
            before_s = now_s

    def settle_to(self, condition):
        """Wait until the counters are so."""
        if not condition(counters := self.counters_when(condition)):
            raise SystemExit(f"the proxy did not come to it: {counters}")

    def counters_when(self, condition):
        """The counters as soon as they are so, or else as they are at the deadline."""
        deadline = time.perf_counter() + _START_S
        while not condition(counters := self.counters()) and time.perf_counter() < deadline:
            select.select([], [], [], 0.1)
        return counters

    def _asked(self, what):
        with Questions(self.counters_port) as questions:
            return questions.ask(what)


class Questions:
    """A connection to a script in a proxy, which may listen a little later than the proxy itself."""

    def __init__(self, port):
        deadline = time.perf_counter() + _START_S
        while True:
            try:
                self._sock = socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                if time.perf_counter() > deadline:
                    raise
            select.select([], [], [], 0.05)
        self._lines = self._sock.makefile()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._lines.close()
        self._sock.close()

    def ask(self, what):
        """A line → the answer, of JSON."""
        self._sock.sendall(f"{what}\n".encode())
        return json.loads(self._lines.readline())


class Stack:
    """Everything that runs. A context manager."""

    def __init__(self, folder, beside=HERE / "counters.py", *, alone=False):
        """`alone`: without the proxies `bare` and `addon`; proxies that are started later have the machine for themselves."""
        self.folder = folder
        self._alone = alone
        self.beside = beside
        """A script in all proxies, for our questions."""
        self.environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        """Of all processes. Journal and control socket are on, as users have them, but not among the user's own."""
        self.environment |= {
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "",  # else each start compiles the package, which an installed one is not
            "TERM": "xterm-256color",
        }
        self._exits = ExitStack()
        self.proxies = {}
        self.sent = Counter()
        """Requests by variant, those of the warm-up counted."""

    def __enter__(self):
        with ExitStack() as exits:  # what was started ends, too, when a later one does not start
            self._exits = exits
            self.certificates = write_certificates(self.folder, "localhost")
            tls = ("--tls", str(self.certificates.certificate), str(self.certificates.key))
            self._providers = [self._provider(), self._provider(*tls, "--http2"), self._provider(*tls)]
            others = {api: self._provider("--format", api) for api in STREAM_PROFILES}
            self.provider_port, self.provider_tls_port, self.provider_tls1_port = map(_port, self._providers)
            self.stream_ports = {api: _port(provider) for api, provider in others.items()}
            self._providers += others.values()
            self._client = self.spawn(sys.executable, "-m", "lab.bench.client", core=-1, stdin=subprocess.PIPE)
            if not self._alone:
                self.proxies["bare"] = self.start_proxy("bare", HERE / "bare.py")
                self.start_addon("addon", slots=256)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_):
        self._exits.close()

    def ask(self, do, route, **plan):
        """An order to the client; the client's answer."""
        order = {"do": do, "route": route, "sessions": 0, **plan}
        self._client.stdin.write(json.dumps(order).encode() + b"\n")
        self._client.stdin.flush()
        return json.loads(_line(self._client, _LINE_S))

    def pace(self, *, latency_s=0.0, interval_s=0.0):
        """How long the providers delay an answer, and each of the pieces."""
        for provider in self._providers:
            provider.stdin.write(json.dumps({"latency_s": latency_s, "interval_s": interval_s}).encode() + b"\n")
            provider.stdin.flush()
            _line(provider, _LINE_S)

    def others_cpu_s(self):
        """Processor time of client and providers so far."""
        return sum(cpu_s(process.pid) for process in (self._client, *self._providers))

    def route(self, variant, mode, api=MESSAGES):
        """How the client reaches the provider."""
        if api != MESSAGES:
            ports = self.stream_ports if variant == "direct" else self.proxies[variant].stream_ports
            return route_of(ports[api], f"127.0.0.1:{ports[api]}")
        tls, http2 = mode not in (REVERSE, REVERSE_TLS), mode in (HTTP2, HTTP2_TO_1)
        provider = self.provider_tls1_port if mode in (REVERSE_TLS, HTTP2_TO_1) else self.provider_tls_port
        target = f"localhost:{provider}"
        if variant == "direct":
            tls = mode != REVERSE
            port = provider if tls else self.provider_port
            trust = str(self.certificates.authority) if tls else None
            return route_of(port, target, tls=trust, http2=mode == HTTP2)
        proxy = self.proxies[variant]
        if tls:
            return route_of(proxy.forward_port, target, tls=str(proxy.ca), connect=target, http2=http2)
        port = proxy.reverse_tls_port if mode == REVERSE_TLS else proxy.reverse_port
        return route_of(port, f"127.0.0.1:{port}")

    def start_addon(self, name, *, slots, more="", web=False, loop="", settings=()):
        """A proxy with the addon, and a profile in which the concurrency limit does not matter.

        `more`: of the profile; `web`: as mitmweb. With a `loop`, as `hivemind run --loop` starts it.
        """
        web_port = free_port() if web else 0
        if web:
            settings = ("web_open_browser=false", f"web_port={web_port}", "web_password=bench", *settings)
        program, profile = "mitmweb" if web else "mitmdump", self._profile(name, slots, more)
        started = self._start(program, name, (script_path(),), profile, *settings, loop=loop)
        self.proxies[name] = proxy = replace(started, web_port=web_port)
        return proxy

    def start_holding(self, name, flows, **more):
        """The same with one slot, and so many large requests there; a request goes each second."""
        proxy = self.start_addon(name, slots=1, **more)
        self.pace(latency_s=1)
        self.ask("leave", self.route(name, REVERSE), concurrency=flows + 1, body_bytes=LARGE_BYTES, streamed=True)
        proxy.settle_to(lambda counters: counters["queued"] + counters["delivered"] >= flows)
        return proxy

    def start_soak(self, name, faults, *, web=False):
        """The same with a journal, before another provider that fails so often; no client sees that."""
        settings = self.folder / f"{name}.json"
        settings.write_text(json.dumps({"faults": faults}))
        usual = self.provider_port
        self.provider_port = _port(self.spawn(sys.executable, "-m", "lab.bench.faulty", str(settings), core=-1))
        journal = f"hivemind_journal={self.folder / 'journal.db'}"
        proxy = self.start_addon(name, slots=64, more=QUICK, web=web, settings=(journal,))
        self.provider_port = usual
        return proxy

    def _profile(self, name, slots, more=""):
        profiles = self.folder / f"profiles-{name}"
        profiles.mkdir()
        profile = more + PROFILE.format(
            plain=self.provider_port, tls=self.provider_tls_port, tls1=self.provider_tls1_port, slots=slots
        )
        (profiles / "bench.yaml").write_text(profile)
        for api, extended in STREAM_PROFILES.items():
            stream = STREAM_PROFILE.format(name=extended, port=self.stream_ports[api], slots=slots)
            (profiles / f"bench-{extended}.yaml").write_text(stream)
        return f"hivemind_profiles={profiles}"

    def watch(self, proxy):
        """Somebody before mitmweb's page."""
        url = f"ws://127.0.0.1:{proxy.web_port}/updates?token=bench"
        process = self.spawn(sys.executable, "-m", "lab.bench.watcher", url, core=-1)
        _line(process, _START_S)
        return process

    def stop(self, *processes):
        for process in processes:
            process.kill()
            process.wait()

    def start_proxy(self, name, script, *settings):
        """A mitmdump with this script, and with `counters.py`: each script costs every hook a little."""
        return self._start("mitmdump", name, (script,), *settings)

    def _start(self, program, name, scripts, *settings, loop=""):
        confdir = self.folder / "mitmproxy"  # one CA for all
        reverse_port, reverse_tls_port, forward_port, counters_port, *more = _free_ports(4 + len(STREAM_PROFILES))
        streams = dict(zip(STREAM_PROFILES, more, strict=True))
        settings = [f"confdir={confdir}", "connection_strategy=lazy", "flow_detail=0", *settings]
        settings.append(f"ssl_verify_upstream_trusted_ca={self.certificates.authority}")
        settings.append(f"bench_counters_port={counters_port}")
        modes = (
            f"reverse:http://127.0.0.1:{self.provider_port}@127.0.0.1:{reverse_port}",
            f"reverse:https://localhost:{self.provider_tls1_port}@127.0.0.1:{reverse_tls_port}",
            f"regular@127.0.0.1:{forward_port}",
            *(f"reverse:http://127.0.0.1:{self.stream_ports[api]}@127.0.0.1:{port}" for api, port in streams.items()),
        )
        command = [sys.executable, "-P", "-m", "hivemind_addon.proxy.run.program", loop, program]
        if not loop:
            command = [str(Path(sys.executable).parent / program)]
        for option, values in (("--set", settings), ("--mode", modes), ("-s", (*scripts, self.beside))):
            for value in values:
                command += [option, str(value)]
        # The addon closes mitmproxy's listeners and opens them again, and says so when they stay open.
        listens = "hivemind: listening at " if script_path() in scripts else " listening at "
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = self.spawn(*command, core=0, stdout=out, stderr=subprocess.STDOUT)
        deadline = time.perf_counter() + _START_S
        while (text := log.read_text(errors="replace")).count(listens) < len(modes):
            if process.poll() is not None or time.perf_counter() > deadline:
                raise SystemExit(f"mitmdump ({name}) did not start:\n{text}")
            select.select([], [], [], 0.05)
        ca = confdir / "mitmproxy-ca-cert.pem"
        return Proxy(process, reverse_port, streams, reverse_tls_port, forward_port, ca, counters_port)

    def _provider(self, *arguments):
        return self.spawn(sys.executable, "-m", "lab.bench.provider", *arguments, core=-1, stdin=subprocess.PIPE)

    def spawn(self, *command, core, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None):
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=self.environment,
            cwd=HERE.parents[1],
        )
        if PINNED:
            os.sched_setaffinity(process.pid, {_CPUS[0] if core == 0 else _CPUS[1]})
        self._exits.enter_context(_ended(process))
        return process


@contextmanager
def _ended(process):
    try:
        yield
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


def cpu_s(pid):
    """Processor time of a process so far, of threads that have ended, too; 0 where the system does not report that."""
    if not MEASURABLE:
        return 0.0
    with suppress(OSError):  # it has ended
        # The clock of a process, as clock_getcpuclockid(3) makes its number on Linux: one reading for all threads.
        return time.clock_gettime(~pid << 3 | 2)
    return 0.0


def rss_bytes(pid):
    """The resident memory of a process; 0: the system does not report it."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if MEASURABLE else 0


def _port(process):
    """Of a provider that says so."""
    return json.loads(_line(process, _START_S))["port"]


def _line(process, timeout_s):
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    line = process.stdout.readline() if ready else b""
    if not line:
        raise SystemExit(f"{' '.join(map(str, process.args))}: no answer")
    return line


def _free_ports(count):
    """So many, no two of them the same."""
    ports = set()
    while len(ports) < count:
        ports.add(free_port())
    return tuple(ports)
