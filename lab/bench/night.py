"""`python -m lab.bench.night`: mitmweb with the addon and somebody before its page, through a night in three minutes.

soak    requests pass one after the other: does memory stay flat?
lag     hundreds of large requests are held and one goes each second, so that all comments change: does the
        event loop keep up?
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab.bench.plan import LARGE_BYTES, REVERSE
from lab.bench.stack import Stack
from lab.bench.timing import Timing

SOAK_BYTES = 20_000
CONNECTIONS = 16
_SETTLED = 0.25
"""Of the soak; until then caches and the view fill."""


@dataclass(frozen=True)
class Night:
    requests: int
    held_flows: int
    lag_s: float


FULL = Night(requests=20_000, held_flows=500, lag_s=20)
QUICK = Night(requests=600, held_flows=20, lag_s=2)


@dataclass(frozen=True)
class Soak:
    rss_bytes: tuple[int, ...]
    """After each tenth of the requests."""
    requests: int
    failures: int

    @property
    def growth_bytes(self):
        """From when everything was full to the end."""
        return self.rss_bytes[-1] - self.rss_bytes[round(len(self.rss_bytes) * _SETTLED)]


def soak(stack, night, tell=print):
    """Send them; what the proxy has come to."""
    proxy = stack.start_web("soak", slots=256)
    watcher = stack.watch(proxy)
    seen, failures = [], 0
    for _ in range(10):
        plan = {"concurrency": CONNECTIONS, "requests": night.requests // 10, "body_bytes": SOAK_BYTES}
        answer = stack.ask("load", stack.route("soak", REVERSE), streamed=True, **plan)
        failures += len(answer["failures"])
        proxy.settle_down()
        seen.append(proxy.rss_bytes())
        tell(f"{len(seen)} tenths: {seen[-1] / 1e6:.0f} MB, {failures} failures")
    stack.stop(watcher, proxy.process)
    return Soak(tuple(seen), night.requests, failures)


def lag(stack, night):
    """How late the event loop ran while flows were held."""
    proxy = stack.start_web("lag", slots=1)
    watcher = stack.watch(proxy)
    route = stack.route("lag", REVERSE)
    stack.pace(latency_s=1)
    stack.ask("leave", route, concurrency=night.held_flows + 1, body_bytes=LARGE_BYTES, streamed=True)
    proxy.settle_to(lambda counters: counters["queued"] + counters["delivered"] >= night.held_flows)
    lags_s = proxy.lags_s(night.lag_s)
    held = proxy.counters()["queued"]
    stack.stop(watcher, proxy.process)
    return Timing.of(lags_s), held


def report(soaked, lagged, held):
    """Both in words."""
    megabytes = ", ".join(f"{size / 1e6:.0f}" for size in soaked.rss_bytes)
    return (
        f"Soak: {soaked.requests:,} streamed requests of {SOAK_BYTES // 1000} KB through mitmweb, "
        f"{soaked.failures} failures.\n"
        f"  resident MB after each tenth: {megabytes}; growth after the first quarter "
        f"{soaked.growth_bytes / 1e6:+.1f} MB\n"
        f"Lag: {held} flows of {LARGE_BYTES // 1000} KB held, one goes each second, a page is open.\n"
        f"  event loop late by p50 {lagged.median_s * 1e3:.2f} ms, p99 {lagged.p99_s * 1e3:.1f} ms, "
        f"at most {lagged.max_s * 1e3:.1f} ms"
    )


def run(night, tell=print):
    with tempfile.TemporaryDirectory(prefix="hivemind-night-") as folder, Stack(Path(folder), alone=True) as stack:
        soaked = soak(stack, night, tell)
        return soaked, *lag(stack, night)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m lab.bench.night", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute's night instead of three")
    night = QUICK if parser.parse_args(arguments).quick else FULL
    soaked, lagged, held = run(night, tell=lambda line: print(line, file=sys.stderr, flush=True))
    print(report(soaked, lagged, held))
    return 0 if soaked.failures == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
