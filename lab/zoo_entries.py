"""The zoo's entries: limiters that a scheduler may meet, each before twenty agents. Values."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hivemind_addon.kernel.values.ticket import Dimension
from lab.closed_loop import ClosedCrowd
from lab.gateway import (
    BAD_GATEWAY,
    OVERLOADED,
    RATE_LIMITED,
    RESET,
    TOO_MANY_AT_ONCE,
    UNAVAILABLE,
    Chance,
    GatewayNeighbour,
    Make,
    RetryAfter,
    Rule,
    by_chance,
    capped,
    moving,
    refusing,
    several,
    striking,
    telling,
)
from lab.limiters import (
    Ban,
    Bucket,
    Cap,
    Outage,
    Ramp,
    SlidingCounter,
    SlidingLog,
    Window,
)


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One kind of provider, and who is before it."""

    name: str
    about: str
    gateway: Make
    crowd: ClosedCrowd = field(default_factory=ClosedCrowd)
    time_goal: float = 1.15
    """Time ÷ the oracle's, at the most."""
    beyond: str = ""
    """Why no scheduler that cannot ask the limiter reaches the goals."""


_SILENT = RetryAfter.MISSING
_TOKENS = Dimension.INPUT_TOKENS
_HOURS = ClosedCrowd(patience_s=4 * 3_600.0)
_UNEVEN = (300, 300, 300, 300, 300, 300, 300, 12_000)


def _window(limit: float, length_s: float, counts: Dimension = Dimension.REQUESTS) -> Callable[[random.Random], Window]:
    """A window by the clock, of which the run begins anywhere in one."""
    return lambda rng: Window(limit, length_s, begins_at=-rng.uniform(0, length_s), counts=counts)


def _opened(limit: float, length_s: float) -> Callable[[random.Random], Window]:
    """A window that the first call opens."""
    return lambda _: Window(limit, length_s, begins_at=None)


def _log(limit: float, length_s: float, *, counts_refusals: bool = False) -> Callable[[random.Random], SlidingLog]:
    return lambda _: SlidingLog(limit, length_s, counts_refusals=counts_refusals)


def _bucket(
    limit: float,
    length_s: float = 60.0,
    size: float | None = None,
    counts: Dimension = Dimension.REQUESTS,
    *,
    counts_refusals: bool = False,
) -> Callable[[random.Random], Bucket]:
    return lambda _: Bucket(limit, length_s, size=size, counts=counts, counts_refusals=counts_refusals)


_SLOW = ClosedCrowd(service_s=(8.0, 16.0))
_NEAR = ClosedCrowd(service_s=(0.1, 0.3), way_s=0.005)
_FEW = ClosedCrowd(agents=5, turns=60)
_MANY = ClosedCrowd(agents=60, turns=10)
_JITTER = ClosedCrowd(jitter_s=0.05)
_TAIL = ClosedCrowd(turns=40, long_share=0.05)
_LAZY = ClosedCrowd(think_s=(15.0, 30.0), turns=12)

_DOWN = (UNAVAILABLE, _SILENT)
_STORM = (by_chance(0.15, BAD_GATEWAY), by_chance(0.15), Chance(0.15, RESET, late=True))

ZOO: tuple[ZooEntry, ...] = (
    # Windows by the clock
    ZooEntry("window-1s", "5 a second", refusing(_window(5, 1))),
    ZooEntry("window-5s", "20 per 5 s", refusing(_window(20, 5))),
    ZooEntry("window-10s", "30 per 10 s", refusing(_window(30, 10))),
    ZooEntry("window-10s-silent", "30 per 10 s, no retry-after", refusing(_window(30, 10), _SILENT)),
    ZooEntry("window-20s", "60 per 20 s", refusing(_window(60, 20))),
    ZooEntry("window-20s-silent", "60 per 20 s, no retry-after", refusing(_window(60, 20), _SILENT)),
    ZooEntry("window-60s", "60 a minute", refusing(_window(60, 60))),
    ZooEntry("window-60s-silent", "60 a minute, no retry-after", refusing(_window(60, 60), _SILENT)),
    ZooEntry("window-100s", "80 per 100 s", refusing(_window(80, 100))),
    ZooEntry("window-300s", "100 per 5 minutes", refusing(_window(100, 300))),
    ZooEntry("window-300s-silent", "100 per 5 minutes, no retry-after", refusing(_window(100, 300), _SILENT)),
    ZooEntry("window-hour", "150 an hour, whose clients wait for hours", refusing(_window(150, 3_600)), _HOURS),
    ZooEntry(
        "window-hour-silent",
        "150 an hour, no retry-after, whose clients wait for hours",
        refusing(_window(150, 3_600), _SILENT),
        _HOURS,
    ),
    ZooEntry("window-slow", "60 a minute, answers of 8 to 16 s", refusing(_window(60, 60)), _SLOW),
    ZooEntry(
        "window-quick", "300 a minute, answers of 0.2 s", refusing(_window(300, 60)), ClosedCrowd(40, 40, (0.1, 0.3))
    ),
    ZooEntry("window-few", "30 a minute, 5 agents", refusing(_window(30, 60)), _FEW),
    ZooEntry("window-many", "90 a minute, 60 agents", refusing(_window(90, 60)), _MANY),
    ZooEntry(
        "window-late",
        "60 a minute, agents that begin within 3 minutes",
        refusing(_window(60, 60)),
        ClosedCrowd(starts_s=180),
    ),
    ZooEntry("window-idle", "60 a minute, of which lazy agents need 50", refusing(_window(60, 60)), _LAZY),
    ZooEntry("window-1s-jitter", "5 a second, the way takes up to 50 ms more", refusing(_window(5, 1)), _JITTER),
    ZooEntry("window-tail", "60 a minute, one answer of 20 takes ten times as long", refusing(_window(60, 60)), _TAIL),
    # Windows that the first call opens
    ZooEntry("opened-10s", "30 per 10 s from the first call on", refusing(_opened(30, 10))),
    ZooEntry("opened-60s", "60 a minute from the first call on", refusing(_opened(60, 60))),
    ZooEntry("opened-300s", "100 per 5 minutes from the first call on", refusing(_opened(100, 300))),
    ZooEntry(
        "opened-60s-silent", "60 a minute from the first call on, no retry-after", refusing(_opened(60, 60), _SILENT)
    ),
    # Sliding
    ZooEntry("log-10s", "30 in any 10 s", refusing(_log(30, 10))),
    ZooEntry("log-60s", "60 in any minute", refusing(_log(60, 60))),
    ZooEntry("log-60s-silent", "60 in any minute, no retry-after", refusing(_log(60, 60), _SILENT)),
    ZooEntry("log-300s", "100 in any 5 minutes", refusing(_log(100, 300))),
    ZooEntry("log-hour", "150 in any hour, whose clients wait for hours", refusing(_log(150, 3_600)), _HOURS),
    ZooEntry("counter-10s", "a sliding counter, 30 per 10 s", refusing(lambda _: SlidingCounter(30, 10))),
    ZooEntry("counter-60s", "a sliding counter, 60 a minute", refusing(lambda _: SlidingCounter(60, 60))),
    ZooEntry(
        "counter-60s-silent",
        "a sliding counter, 60 a minute, no retry-after",
        refusing(lambda _: SlidingCounter(60, 60), _SILENT),
    ),
    # Buckets
    ZooEntry("bucket", "60 a minute, all at once if need be", refusing(_bucket(60))),
    ZooEntry("bucket-silent", "60 a minute, all at once if need be, no retry-after", refusing(_bucket(60), _SILENT)),
    ZooEntry("bucket-small", "60 a minute, 10 at once", refusing(_bucket(60, size=10))),
    ZooEntry("gcra", "120 a minute, 3 at once", refusing(_bucket(120, size=3))),
    ZooEntry("gcra-silent", "120 a minute, 3 at once, no retry-after", refusing(_bucket(120, size=3), _SILENT)),
    ZooEntry("spacing", "one every half second", refusing(_bucket(120, size=1))),
    ZooEntry("spacing-silent", "one every half second, no retry-after", refusing(_bucket(120, size=1), _SILENT)),
    ZooEntry("bucket-slow", "15 a minute, 15 at once", refusing(_bucket(15))),
    ZooEntry("bucket-slow-silent", "15 a minute, 15 at once, no retry-after", refusing(_bucket(15), _SILENT)),
    ZooEntry("bucket-300s", "100 per 5 minutes, all at once if need be", refusing(_bucket(100, 300))),
    ZooEntry("bucket-hour", "150 an hour, whose clients wait for hours", refusing(_bucket(150, 3_600)), _HOURS),
    ZooEntry("gcra-slow", "60 a minute, 3 at once, answers of 8 to 16 s", refusing(_bucket(60, size=3)), _SLOW),
    ZooEntry("gcra-few", "60 a minute, 3 at once, 5 agents", refusing(_bucket(60, size=3)), _FEW),
    ZooEntry("bucket-many", "90 a minute, 60 agents", refusing(_bucket(90)), _MANY),
    ZooEntry(
        "spacing-idle", "one every 1.2 s, lazy agents need three quarters of it", refusing(_bucket(50, size=1)), _LAZY
    ),
    ZooEntry(
        "bucket-hour-silent",
        "150 an hour, no retry-after, whose clients wait for hours",
        refusing(_bucket(150, 3_600), _SILENT),
        _HOURS,
    ),
    ZooEntry(
        "spacing-jitter",
        "one every half second, the way takes up to 50 ms more",
        refusing(_bucket(120, size=1)),
        _JITTER,
    ),
    ZooEntry(
        "gcra-jitter",
        "120 a minute, 3 at once, the way takes up to 50 ms more",
        refusing(_bucket(120, size=3)),
        _JITTER,
    ),
    ZooEntry(
        "gcra-tail",
        "120 a minute, 3 at once, one answer of 20 takes ten times as long",
        refusing(_bucket(120, size=3)),
        _TAIL,
    ),
    ZooEntry(
        "ramp", "in 10 s 20, or 1.5 times as many as in the 10 s before", refusing(lambda _: Ramp(20, 10, growth=1.5))
    ),
    ZooEntry(
        "ramp-silent",
        "in 10 s 20, or 1.5 times as many as in the 10 s before, no retry-after",
        refusing(lambda _: Ramp(20, 10, growth=1.5), _SILENT),
    ),
    # Caps
    ZooEntry("cap-2", "2 at once, 529", capped(2)),
    ZooEntry("cap-8", "8 at once, 529", capped(8)),
    ZooEntry("cap-16", "16 at once, 529", capped(16), time_goal=1.10),
    ZooEntry("cap-8-503", "8 at once, 503", capped(8, UNAVAILABLE)),
    ZooEntry("cap-8-429", "8 at once, 429 that says concurrency", capped(8, TOO_MANY_AT_ONCE)),
    ZooEntry("cap-8-plain", "8 at once, 429 that does not say why", capped(8, RATE_LIMITED)),
    ZooEntry(
        "cap-8-wait-60",
        "8 at once, 429 that says concurrency, and always to wait 60 s",
        capped(8, TOO_MANY_AT_ONCE, retry_after=RetryAfter.ALWAYS_60),
    ),
    ZooEntry("cap-slow", "8 at once, answers of 8 to 16 s", capped(8), _SLOW),
    ZooEntry("cap-quick", "8 at once, answers of 0.2 s", capped(8), _NEAR),
    ZooEntry("cap-many", "16 at once, 60 agents", capped(16), _MANY),
    ZooEntry("cap-few", "3 at once, 5 agents", capped(3), _FEW),
    ZooEntry("cap-late", "8 at once, agents that begin within a minute", capped(8), ClosedCrowd(starts_s=60)),
    ZooEntry("cap-idle", "4 at once, lazy agents need 2 of them", capped(4), _LAZY),
    ZooEntry("cap-tail", "8 at once, one answer of 20 takes ten times as long", capped(8), _TAIL),
    ZooEntry("cap-jitter", "8 at once, the way takes up to 50 ms more", capped(8), _JITTER),
    ZooEntry("cap-falls", "12 at once, 6 after 20 s", capped(12, moves=[(20, 6)])),
    ZooEntry("cap-rises", "4 at once, 12 after 60 s", capped(4, moves=[(60, 12)])),
    ZooEntry("cap-moves", "10 at once, 4 after 20 s, 14 after 70 s", capped(10, moves=[(20, 4), (70, 14)])),
    ZooEntry("cap-lingers-0.5s", "8 at once, a slot is taken half a second longer", capped(8, linger_s=0.5)),
    ZooEntry("cap-lingers-2s", "8 at once, a slot is taken 2 s longer", capped(8, linger_s=2)),
    ZooEntry("cap-lingers-5s", "8 at once, a slot is taken 5 s longer", capped(8, linger_s=5)),
    ZooEntry(
        "cap-shared",
        "10 at once, of which a neighbour has two or so, for 100 s each",
        capped(10, neighbour=GatewayNeighbour(0.02, service_s=100)),
    ),
    ZooEntry(
        "cap-shared-busy",
        "10 at once, of which a neighbour has two or so, for 2 s each",
        capped(10, neighbour=GatewayNeighbour(1.0)),
        beyond="the neighbour takes a slot and leaves one each second, unseen; above 90 % of use one slot is free on "
        "average, so a third of its calls, which is more than 5 % of all attempts, find none free and cost one of ours "
        "a refusal; and what it leaves is found only by attempts that are refused where it has not left",
    ),
    # Chance
    ZooEntry("random-529-1%", "529 by chance", striking(by_chance(0.01)), time_goal=1.10),
    ZooEntry("random-529-3%", "529 by chance", striking(by_chance(0.03)), time_goal=1.10),
    ZooEntry("random-529-6%", "529 by chance", striking(by_chance(0.06)), time_goal=1.10),
    ZooEntry("random-529-20%", "529 by chance", striking(by_chance(0.20))),
    ZooEntry("random-429-5%", "429 by chance, no retry-after", striking(by_chance(0.05, RATE_LIMITED))),
    ZooEntry("random-429-20%", "429 by chance, no retry-after", striking(by_chance(0.20, RATE_LIMITED))),
    ZooEntry("random-429-5%-told", "429 by chance, retry-after 1 s", striking(by_chance(0.05, RATE_LIMITED, 1.0))),
    ZooEntry("random-429-20%-told", "429 by chance, retry-after 1 s", striking(by_chance(0.20, RATE_LIMITED, 1.0))),
    ZooEntry("random-429-3%-wait", "429 by chance, retry-after 60 s", striking(by_chance(0.03, RATE_LIMITED, 60.0))),
    ZooEntry("random-529-3%-wait", "529 by chance, retry-after 30 s", striking(by_chance(0.03, OVERLOADED, 30.0))),
    ZooEntry("random-529-6%-many", "529 by chance, 60 agents", striking(by_chance(0.06)), _MANY, time_goal=1.10),
    ZooEntry("random-503-10%", "503 by chance", striking(by_chance(0.10, UNAVAILABLE))),
    ZooEntry("random-502", "502 10 %", striking(by_chance(0.10, BAD_GATEWAY))),
    ZooEntry(
        "random-cuts",
        "502 10 %, reset in the midst 5 %",
        striking(by_chance(0.10, BAD_GATEWAY), Chance(0.05, RESET, late=True)),
    ),
    ZooEntry("cap-16-529-1%", "16 at once, 529 by chance", capped(16, chances=[by_chance(0.01)]), time_goal=1.10),
    ZooEntry("cap-16-529-3%", "16 at once, 529 by chance", capped(16, chances=[by_chance(0.03)]), time_goal=1.10),
    ZooEntry("cap-16-529-6%", "16 at once, 529 by chance", capped(16, chances=[by_chance(0.06)]), time_goal=1.10),
    ZooEntry("cap-8-529-6%", "8 at once, 529 by chance", capped(8, chances=[by_chance(0.06)]), time_goal=1.10),
    ZooEntry("window-529-5%", "60 a minute, 529 by chance", refusing(_window(60, 60), chances=[by_chance(0.05)])),
    ZooEntry(
        "bucket-429-5%",
        "60 a minute, 10 at once, 429 by chance",
        refusing(_bucket(60, size=10), chances=[by_chance(0.05, RATE_LIMITED)]),
    ),
    ZooEntry(
        "gcra-529-5%",
        "120 a minute, 3 at once, 529 by chance",
        refusing(_bucket(120, size=3), chances=[by_chance(0.05)]),
    ),
    ZooEntry(
        "told-429-3%",
        "60 a minute by the clock, headers, 429 by chance",
        telling(_window(60, 60), chances=[by_chance(0.03, RATE_LIMITED)]),
    ),
    # Storms
    ZooEntry("storm-502-45%", "502 by chance", striking(by_chance(0.45, BAD_GATEWAY))),
    ZooEntry("storm-mixed", "502, 529, resets, 15 % each", striking(*_STORM)),
    ZooEntry("storm-mixed-bucket", "60 a minute, 502, 529, resets, 15 % each", refusing(_bucket(60), chances=_STORM)),
    ZooEntry(
        "outage", "503 from the 20th second on, for half a minute", several(lambda _: Rule(Outage(20, 30), *_DOWN))
    ),
    ZooEntry(
        "outage-and-cap",
        "8 at once, 503 from the 20th second on, for half a minute",
        several(lambda _: Rule(Outage(20, 30), *_DOWN), lambda _: Rule(Cap(8), OVERLOADED, _SILENT)),
    ),
    # Refusals that count
    ZooEntry("log-counts", "60 in any minute, refusals count", refusing(_log(60, 60, counts_refusals=True))),
    ZooEntry(
        "log-counts-silent",
        "60 in any minute, refusals count, no retry-after",
        refusing(_log(60, 60, counts_refusals=True), _SILENT),
    ),
    ZooEntry(
        "bucket-counts", "60 a minute, 10 at once, refusals count", refusing(_bucket(60, size=10, counts_refusals=True))
    ),
    ZooEntry(
        "ban",
        "60 a minute; 8 refusals within 10 s close it for 45 s",
        several(lambda _: Rule(Ban(8, 10, lasts_s=45)), lambda rng: Rule(_window(60, 60)(rng))),
    ),
    # Retry-after
    ZooEntry(
        "window-rounded-up", "60 a minute, retry-after rounded up", refusing(_window(60, 60), RetryAfter.ROUNDED_UP)
    ),
    ZooEntry(
        "window-rounded-down",
        "60 a minute, retry-after cut to seconds",
        refusing(_window(60, 60), RetryAfter.ROUNDED_DOWN),
    ),
    ZooEntry(
        "window-short",
        "60 a minute, retry-after 0.3 times as long as it takes",
        refusing(_window(60, 60), RetryAfter.SHORT),
    ),
    ZooEntry(
        "window-long",
        "60 a minute, retry-after 10 times as long as it takes",
        refusing(_window(60, 60), RetryAfter.LONG),
    ),
    ZooEntry("window-wait-60", "30 per 20 s, retry-after always 60", refusing(_window(30, 20), RetryAfter.ALWAYS_60)),
    ZooEntry(
        "bucket-rounded-up",
        "120 a minute, 10 at once, retry-after rounded up",
        refusing(_bucket(120, size=10), RetryAfter.ROUNDED_UP),
    ),
    ZooEntry(
        "bucket-rounded-down",
        "120 a minute, 10 at once, retry-after cut to seconds",
        refusing(_bucket(120, size=10), RetryAfter.ROUNDED_DOWN),
    ),
    ZooEntry(
        "bucket-short",
        "60 a minute, 10 at once, retry-after 0.3 times as long as it takes",
        refusing(_bucket(60, size=10), RetryAfter.SHORT),
    ),
    ZooEntry(
        "bucket-long",
        "60 a minute, 10 at once, retry-after 10 times as long as it takes",
        refusing(_bucket(60, size=10), RetryAfter.LONG),
    ),
    ZooEntry(
        "bucket-wait-60",
        "60 a minute, 10 at once, retry-after always 60",
        refusing(_bucket(60, size=10), RetryAfter.ALWAYS_60),
    ),
    # Tokens
    ZooEntry("tokens-bucket", "60,000 tokens a minute, equal requests", refusing(_bucket(60_000, counts=_TOKENS))),
    ZooEntry(
        "tokens-window", "60,000 tokens a minute by the clock, equal requests", refusing(_window(60_000, 60, _TOKENS))
    ),
    ZooEntry(
        "tokens-bucket-uneven",
        "120,000 tokens a minute, requests of 300 and of 12,000",
        refusing(_bucket(120_000, counts=_TOKENS)),
        ClosedCrowd(tokens=_UNEVEN),
    ),
    ZooEntry(
        "tokens-window-uneven",
        "120,000 tokens a minute by the clock, requests of 300 and of 12,000",
        refusing(_window(120_000, 60, _TOKENS)),
        ClosedCrowd(tokens=_UNEVEN),
    ),
    ZooEntry(
        "tokens-told",
        "120,000 tokens a minute, headers, requests of 300 and of 12,000",
        telling(_bucket(120_000, counts=_TOKENS)),
        ClosedCrowd(tokens=_UNEVEN),
    ),
    ZooEntry(
        "tokens-window-told",
        "120,000 tokens a minute by the clock, headers, requests of 300 and of 12,000",
        telling(_window(120_000, 60, _TOKENS)),
        ClosedCrowd(tokens=_UNEVEN),
    ),
    # Several limits at once
    ZooEntry(
        "window-and-cap",
        "100 a minute by the clock, 6 at once",
        several(lambda _: Rule(Cap(6), OVERLOADED, _SILENT), lambda rng: Rule(_window(100, 60)(rng))),
    ),
    ZooEntry(
        "second-and-minute",
        "4 a second and 90 a minute by the clock",
        several(lambda rng: Rule(_window(4, 1)(rng)), lambda rng: Rule(_window(90, 60)(rng))),
    ),
    ZooEntry(
        "second-and-minute-silent",
        "4 a second and 90 a minute by the clock, no retry-after",
        several(
            lambda rng: Rule(_window(4, 1)(rng), retry_after=_SILENT),
            lambda rng: Rule(_window(90, 60)(rng), retry_after=_SILENT),
        ),
    ),
    ZooEntry(
        "requests-and-tokens-told",
        "80 requests and 120,000 tokens a minute, headers of both",
        several(lambda _: Rule(Bucket(80, 60)), lambda _: Rule(Bucket(120_000, 60, counts=_TOKENS)), told=2),
        ClosedCrowd(tokens=_UNEVEN),
    ),
    ZooEntry(
        "told-and-cap",
        "120 a minute with headers, 5 at once without",
        several(lambda rng: Rule(_window(120, 60)(rng)), lambda _: Rule(Cap(5), OVERLOADED, _SILENT), told=1),
    ),
    ZooEntry(
        "told-and-second",
        "120 a minute with headers, 3 a second without",
        several(lambda rng: Rule(_window(120, 60)(rng)), lambda rng: Rule(_window(3, 1)(rng)), told=1),
    ),
    ZooEntry(
        "minute-and-hour",
        "60 a minute and 250 an hour, whose clients wait for hours",
        several(lambda rng: Rule(_window(60, 60)(rng)), lambda rng: Rule(_window(250, 3_600)(rng))),
        _HOURS,
    ),
    # Headers
    ZooEntry("told-window", "60 a minute by the clock, headers", telling(_window(60, 60))),
    ZooEntry("told-bucket", "60 a minute, headers", telling(_bucket(60))),
    ZooEntry("told-window-300s", "100 per 5 minutes, headers", telling(_window(100, 300))),
    ZooEntry("told-more", "60 a minute, headers that say 90", telling(_bucket(60), says=_bucket(90))),
    ZooEntry(
        "told-more-window",
        "60 a minute by the clock, headers that say 90",
        telling(_window(60, 60), says=_window(90, 60)),
    ),
    ZooEntry("told-stale", "60 a minute by the clock, headers 3 s old", telling(_window(60, 60), age_s=3)),
    ZooEntry(
        "told-on-success",
        "60 a minute by the clock, headers only of answers",
        telling(_window(60, 60), on_refusals=False),
    ),
    ZooEntry(
        "told-20s-as-60s",
        "30 per 20 s by the clock, headers, a profile that says per 60 s",
        telling(_window(30, 20), window_s=60),
    ),
    ZooEntry(
        "told-slices",
        "10 per 10 s by the clock, headers that say 60 a minute",
        telling(_window(10, 10), says=_window(60, 60)),
    ),
    ZooEntry("told-slow", "60 a minute by the clock, headers, answers of 8 to 16 s", telling(_window(60, 60)), _SLOW),
    ZooEntry("told-many", "90 a minute by the clock, headers, 60 agents", telling(_window(90, 60)), _MANY),
    ZooEntry("told-gcra", "120 a minute, 3 at once, headers", telling(_bucket(120, size=3))),
    ZooEntry("told-log", "60 in any minute, headers", telling(_log(60, 60))),
    ZooEntry("told-hour", "150 an hour, headers, whose clients wait for hours", telling(_window(150, 3_600)), _HOURS),
    # Neighbours
    ZooEntry(
        "told-neighbour",
        "90 a minute by the clock, headers, a neighbour takes 30",
        telling(_window(90, 60), neighbour=GatewayNeighbour(0.5)),
    ),
    ZooEntry(
        "told-bucket-neighbour",
        "90 a minute, headers, a neighbour takes 30",
        telling(_bucket(90), neighbour=GatewayNeighbour(0.5)),
    ),
    ZooEntry(
        "window-neighbour",
        "90 a minute by the clock, a neighbour takes 30",
        refusing(_window(90, 60), neighbour=GatewayNeighbour(0.5)),
    ),
    ZooEntry(
        "bucket-neighbour", "90 a minute, a neighbour takes 30", refusing(_bucket(90), neighbour=GatewayNeighbour(0.5))
    ),
    # Limits that change
    ZooEntry("told-falls", "60 a minute with headers, 30 after 150 s", moving(_bucket(60), 150, 30, told=True)),
    ZooEntry("window-falls", "90 a minute by the clock, 45 after 130 s", moving(_window(90, 60), 130, 45, told=False)),
    ZooEntry("bucket-rises", "30 a minute, 120 after 180 s", moving(_bucket(30), 180, 120, told=False)),
    # Patience
    ZooEntry(
        "patience-120s",
        "60 a minute by the clock, clients that leave after 2 minutes",
        refusing(_window(60, 60)),
        ClosedCrowd(patience_s=120),
    ),
    ZooEntry(
        "patience-130s",
        "60 per 2 minutes by the clock, clients that leave after 130 s",
        refusing(_window(60, 120)),
        ClosedCrowd(patience_s=130),
    ),
    ZooEntry("patience-cap", "2 at once, clients that leave after a minute", capped(2), ClosedCrowd(patience_s=60)),
)


def entries(names: Sequence[str] = ()) -> list[ZooEntry]:
    """All of the zoo, or those whose names have one of these parts."""
    return [entry for entry in ZOO if not names or any(name in entry.name for name in names)]
