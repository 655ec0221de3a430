"""`python -m lab.bench.soak [--minutes N] [--web]`: a week of requests in some minutes at full speed; an eighth is faulty.

Whole delivery, so that no client sees a fault: each is tried again. After every round memory, descriptors and the event
loop are looked at; from when caches are full none of them may grow. Exit status 1: some did, or a request was lost.

With `--web` through mitmweb with somebody before its page. Then hundreds of large requests are held and a request goes each
second, so that all comments change: does the event loop keep up?
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median
from threading import Thread

from lab.bench.plan import LARGE_BYTES, REVERSE
from lab.bench.stack import Stack
from lab.bench.timing import Timing

FAULTS = {
    "500": 0.02,
    "502": 0.02,
    "reset-before-head": 0.02,
    "stream-close": 0.02,
    "stream-reset": 0.02,
    "error-in-the-middle": 0.02,
}
ROUND_REQUESTS = 1500
CONNECTIONS = 24
BODY_BYTES = 20_000
LAG_S = 2.0
HELD_FLOWS, HELD_LAG_S = 500, 20.0
_SETTLED = 1 / 3
"""Of the rounds; until then caches fill."""
_MOST_GROWTH_BYTES = 12_000_000
"""From then on, by the slope: more than the noise of a busy allocator, and less than a leak of 500 bytes a request."""
_MOST_DESCRIPTORS = 8
_MOST_LAG_S = 0.010


@dataclass(frozen=True)
class Round:
    requests: int
    failures: int
    rss_bytes: int
    descriptors: int
    lag: Timing


@dataclass(frozen=True)
class Soaked:
    rounds: tuple[Round, ...]
    guard_trips: int
    held: int = 0
    """Flows that mitmweb held at the end; 0 with mitmdump."""
    held_lag: Timing | None = None

    @property
    def settled(self):
        return self.rounds[round(len(self.rounds) * _SETTLED) :]

    def growth(self, of):
        """The growth from when everything was full to the end, by the slope of all rounds."""
        values = [of(one) for one in self.settled]
        return linear_regression(range(len(values)), values).slope * (len(values) - 1)

    @property
    def complaints(self):
        """The names of all that has grown, or went wrong."""
        growths = (
            ("memory", self.growth(lambda one: one.rss_bytes), _MOST_GROWTH_BYTES),
            ("descriptors", self.growth(lambda one: one.descriptors), _MOST_DESCRIPTORS),
            ("loop delay", self.growth(lambda one: one.lag.p99_s), _MOST_LAG_S),
            ("lost requests", sum(one.failures for one in self.rounds), 0),
            ("guard trips", self.guard_trips, 0),
        )
        return [what for what, grown, most in growths if grown > most]


def run(
    seconds, *, requests=ROUND_REQUESTS, lag_s=LAG_S, web=False, flows=HELD_FLOWS, held_lag_s=HELD_LAG_S, tell=print
):
    """Rounds for so long, four at least."""
    with tempfile.TemporaryDirectory(prefix="hivemind-soak-") as folder, Stack(Path(folder), alone=True) as stack:
        proxy = stack.start_soak("soak", FAULTS, web=web)
        watcher = [stack.watch(proxy)] if web else []
        rounds, ends_at = [], time.perf_counter() + seconds
        while len(rounds) < 4 or time.perf_counter() < ends_at:
            rounds.append(_round(stack, proxy, requests, lag_s))
            one = rounds[-1]
            tell(
                f"{sum(done.requests for done in rounds):,} requests: {one.rss_bytes / 1e6:.0f} MB, "
                f"{one.descriptors} descriptors, loop late by p99 {one.lag.p99_s * 1e3:.1f} ms, {one.failures} failures"
            )
        trips = proxy.counters()["guard_trips"]
        stack.stop(*watcher, proxy.process)
        return Soaked(tuple(rounds), trips, *(_held(stack, flows, held_lag_s) if web else ()))


def _held(stack, flows, seconds):
    """How many flows another mitmweb holds, and how late the event loop runs."""
    proxy = stack.start_holding("held", flows, web=True, settings=("hivemind_journal=off",))
    watcher = stack.watch(proxy)
    lags_s = proxy.lags_s(seconds)
    held = proxy.counters()["queued"]
    stack.stop(watcher, proxy.process)
    return held, Timing.of(lags_s)


def _round(stack, proxy, requests, lag_s):
    lags_s = []
    watching = Thread(target=lambda: lags_s.extend(proxy.lags_s(lag_s)))
    watching.start()
    plan = {"concurrency": CONNECTIONS, "requests": requests, "body_bytes": BODY_BYTES}
    answer = stack.ask("load", stack.route("soak", REVERSE), streamed=True, **plan)
    watching.join()
    proxy.settle_down()
    return Round(requests, len(answer["failures"]), proxy.rss_bytes(), proxy.descriptors(), Timing.of(lags_s))


def report(soaked):
    """In words."""
    first, last = soaked.settled[0], soaked.settled[-1]
    lags_ms = [one.lag.p99_s * 1e3 for one in soaked.settled]
    held = soaked.held_lag
    web = held and (
        f"  {soaked.held} flows of {LARGE_BYTES // 1000} KB held: event loop late by p50 {held.median_s * 1e3:.2f} ms, "
        f"p99 {held.p99_s * 1e3:.1f} ms, at most {held.max_s * 1e3:.1f} ms\n"
    )
    return (
        f"Soak: {sum(one.requests for one in soaked.rounds):,} streamed requests, {sum(FAULTS.values()):.0%} of the "
        f"attempts faulty, {sum(one.failures for one in soaked.rounds)} lost; guard trips: {soaked.guard_trips}.\n"
        f"  From the first third on, {sum(one.requests for one in soaked.settled):,} requests:\n"
        f"  memory {first.rss_bytes / 1e6:.0f} to {last.rss_bytes / 1e6:.0f} MB, by the slope "
        f"{soaked.growth(lambda one: one.rss_bytes) / 1e6:+.1f} MB\n"
        f"  descriptors {first.descriptors} to {last.descriptors}\n"
        f"  event loop late by p99 {median(lags_ms):.1f} ms in the median round, {max(lags_ms):.1f} ms in the worst\n"
        f"{web or ''}{'FAILED: ' + ', '.join(soaked.complaints) if soaked.complaints else 'Nothing grows.'}"
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m lab.bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--web", action="store_true", help="through mitmweb, whose page is open")
    options = parser.parse_args(arguments)
    soaked = run(options.minutes * 60, web=options.web, tell=lambda line: print(line, file=sys.stderr, flush=True))
    print(report(soaked))
    return 1 if soaked.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
