"""How late the event loop runs while hundreds of large requests are held, the page is fetched each second, and
`hivemind top` is open; and the memory of a held flow, beside bare mitmdump with as many in flight."""

import json
import os
import pty
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

from lab.bench.bare import __file__ as bare_script
from lab.bench.plan import LARGE_BYTES, REVERSE
from lab.bench.stack import MEASURABLE
from lab.bench.timing import Timing

_TOP = Path(sys.executable).parent / "hivemind"
_START_S = 60


@dataclass(frozen=True)
class Watched:
    held: int
    lag: Timing
    page: Timing
    """To fetch `/report.json`."""
    page_bytes: int


def measure(stack, flows, seconds):
    """A request goes each second, so that the views change."""
    proxy = stack.start_holding("watched", flows)
    over, pages, sizes = Event(), [], []

    def fetch_each_second():
        while not over.wait(1):
            began = perf_counter()
            sizes.append(len(fetch(proxy.forward_port, "/report.json")))
            pages.append(perf_counter() - began)

    fetching = Thread(target=fetch_each_second)
    fetching.start()
    try:
        with _top(stack, proxy.reverse_port):
            lags_s = proxy.lags_s(seconds)
    finally:
        over.set()
        fetching.join()
    held = proxy.counters()["queued"]
    stack.ask("close", stack.route("watched", REVERSE))
    stack.pace()
    stack.stop(proxy.process)
    return Watched(held, Timing.of(lags_s), Timing.of(pages * 2), max(sizes))


def fetch(port, path):
    """A page of the proxy's own. Raises SystemExit when there is none."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200 or not isinstance(json.loads(body), dict):
        raise SystemExit(f"{path}: {answer.status}")
    return body


@contextmanager
def _top(stack, port):
    """`hivemind top` on a terminal that somebody reads, from when something is drawn."""
    ours, terminal = pty.openpty()
    process = stack.spawn(str(_TOP), "top", "-p", str(port), core=-1, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    drawn = []

    def read():
        with suppress(OSError):  # its other end is closed
            while data := os.read(ours, 65_536):
                drawn.append(len(data))

    reading = Thread(target=read, daemon=True)
    reading.start()
    try:
        began = perf_counter()
        while sum(drawn) < 1_000 and process.poll() is None and perf_counter() - began < _START_S:
            reading.join(0.05)
        yield
        if process.poll() is not None or sum(drawn) < 1_000:
            raise SystemExit(f"hivemind top drew nothing: {process.poll()}, {sum(drawn)} bytes")
    finally:
        stack.stop(process)
        reading.join(5)
        os.close(ours)


_LATENCY_S = 600


@dataclass(frozen=True)
class Memory:
    held_flows: int
    body_bytes: int
    bare_bytes: float
    """Growth of the resident set for each flow in flight."""
    addon_bytes: float
    """For each held flow."""


def measure_memory(stack, plan):
    """None where the system does not report memory. Two fresh proxies; the addon's has a single slot."""
    if not MEASURABLE:
        return None
    stack.proxies["memory-bare"] = stack.start_proxy("memory-bare", Path(bare_script))
    stack.start_addon("memory-addon", slots=1)
    bare_bytes = _growth(stack, "memory-bare", plan.held_flows)
    # One more than are held: the first one goes at once, and keeps the only slot.
    addon_bytes = _growth(stack, "memory-addon", plan.held_flows + 1)
    held = stack.proxies["memory-addon"].counters()["queued"]
    if held != plan.held_flows:
        raise SystemExit(f"{held} flows were held, not {plan.held_flows}")
    for variant in ("memory-bare", "memory-addon"):
        stack.ask("close", stack.route(variant, REVERSE))
        stack.proxies.pop(variant).process.kill()
    return Memory(plan.held_flows, LARGE_BYTES, bare_bytes, addon_bytes)


def _growth(stack, variant, flows):
    route, proxy = stack.route(variant, REVERSE), stack.proxies[variant]
    # With the connections open and used once, what grows is the flows.
    stack.ask("load", route, concurrency=flows, requests=flows, body_bytes=1_000, streamed=True)
    proxy.settle_down()
    before = proxy.rss_bytes()
    stack.pace(latency_s=_LATENCY_S)
    stack.ask("leave", route, concurrency=flows, body_bytes=LARGE_BYTES, streamed=True)
    proxy.settle_down()
    stack.pace()
    return (proxy.rss_bytes() - before) / flows
