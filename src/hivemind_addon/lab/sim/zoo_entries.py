"""The zoo's entries: limiters that a scheduler may meet, each before twenty agents. Values."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim.closed_loop import Crowd
from hivemind_addon.lab.sim.gateway import (
    BAD_GATEWAY,
    OVERLOADED,
    RATE_LIMITED,
    RESET,
    TOO_MANY_AT_ONCE,
    UNAVAILABLE,
    Chance,
    Make,
    Neighbour,
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
from hivemind_addon.lab.sim.limiters import (
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
class Entry:
    """One kind of provider, and who is before it."""

    name: str
    about: str
    gateway: Make
    crowd: Crowd = field(default_factory=Crowd)
    time_goal: float = 1.15
    """Time ÷ the oracle's, at the most."""
    beyond: str = ""
    """Why no scheduler that cannot ask the limiter reaches the goals."""


_SILENT = RetryAfter.MISSING
_TOKENS = Dimension.INPUT_TOKENS
_HOURS = Crowd(patience_s=4 * 3_600.0)
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


_SLOW = Crowd(service_s=(8.0, 16.0))
_NEAR = Crowd(service_s=(0.1, 0.3), way_s=0.005)
_FEW = Crowd(agents=5, turns=60)
_MANY = Crowd(agents=60, turns=10)
_JITTER = Crowd(jitter_s=0.05)
_TAIL = Crowd(turns=40, long_share=0.05)
_LAZY = Crowd(think_s=(15.0, 30.0), turns=12)

_DOWN = (UNAVAILABLE, _SILENT)
_STORM = (by_chance(0.15, BAD_GATEWAY), by_chance(0.15), Chance(0.15, RESET, late=True))

ZOO: tuple[Entry, ...] = (
    # Windows by the clock
    Entry("window-1s", "5 a second", refusing(_window(5, 1))),
    Entry("window-5s", "20 per 5 s", refusing(_window(20, 5))),
    Entry("window-10s", "30 per 10 s", refusing(_window(30, 10))),
    Entry("window-10s-silent", "30 per 10 s, no retry-after", refusing(_window(30, 10), _SILENT)),
    Entry("window-20s", "60 per 20 s", refusing(_window(60, 20))),
    Entry("window-20s-silent", "60 per 20 s, no retry-after", refusing(_window(60, 20), _SILENT)),
    Entry("window-60s", "60 a minute", refusing(_window(60, 60))),
    Entry("window-60s-silent", "60 a minute, no retry-after", refusing(_window(60, 60), _SILENT)),
    Entry("window-100s", "80 per 100 s", refusing(_window(80, 100))),
    Entry("window-300s", "100 per 5 minutes", refusing(_window(100, 300))),
    Entry("window-300s-silent", "100 per 5 minutes, no retry-after", refusing(_window(100, 300), _SILENT)),
    Entry("window-hour", "150 an hour, whose clients wait for hours", refusing(_window(150, 3_600)), _HOURS),
    Entry(
        "window-hour-silent",
        "150 an hour, no retry-after, whose clients wait for hours",
        refusing(_window(150, 3_600), _SILENT),
        _HOURS,
    ),
    Entry("window-slow", "60 a minute, answers of 8 to 16 s", refusing(_window(60, 60)), _SLOW),
    Entry("window-quick", "300 a minute, answers of 0.2 s", refusing(_window(300, 60)), Crowd(40, 40, (0.1, 0.3))),
    Entry("window-few", "30 a minute, 5 agents", refusing(_window(30, 60)), _FEW),
    Entry("window-many", "90 a minute, 60 agents", refusing(_window(90, 60)), _MANY),
    Entry(
        "window-late", "60 a minute, agents that begin within 3 minutes", refusing(_window(60, 60)), Crowd(starts_s=180)
    ),
    Entry("window-idle", "60 a minute, of which lazy agents need 50", refusing(_window(60, 60)), _LAZY),
    Entry("window-1s-jitter", "5 a second, the way takes up to 50 ms more", refusing(_window(5, 1)), _JITTER),
    Entry("window-tail", "60 a minute, one answer of 20 takes ten times as long", refusing(_window(60, 60)), _TAIL),
    # Windows that the first call opens
    Entry("opened-10s", "30 per 10 s from the first call on", refusing(_opened(30, 10))),
    Entry("opened-60s", "60 a minute from the first call on", refusing(_opened(60, 60))),
    Entry("opened-300s", "100 per 5 minutes from the first call on", refusing(_opened(100, 300))),
    Entry(
        "opened-60s-silent", "60 a minute from the first call on, no retry-after", refusing(_opened(60, 60), _SILENT)
    ),
    # Sliding
    Entry("log-10s", "30 in any 10 s", refusing(_log(30, 10))),
    Entry("log-60s", "60 in any minute", refusing(_log(60, 60))),
    Entry("log-60s-silent", "60 in any minute, no retry-after", refusing(_log(60, 60), _SILENT)),
    Entry("log-300s", "100 in any 5 minutes", refusing(_log(100, 300))),
    Entry("log-hour", "150 in any hour, whose clients wait for hours", refusing(_log(150, 3_600)), _HOURS),
    Entry("counter-10s", "a sliding counter, 30 per 10 s", refusing(lambda _: SlidingCounter(30, 10))),
    Entry("counter-60s", "a sliding counter, 60 a minute", refusing(lambda _: SlidingCounter(60, 60))),
    Entry(
        "counter-60s-silent",
        "a sliding counter, 60 a minute, no retry-after",
        refusing(lambda _: SlidingCounter(60, 60), _SILENT),
    ),
    # Buckets
    Entry("bucket", "60 a minute, all at once if need be", refusing(_bucket(60))),
    Entry("bucket-silent", "60 a minute, all at once if need be, no retry-after", refusing(_bucket(60), _SILENT)),
    Entry("bucket-small", "60 a minute, 10 at once", refusing(_bucket(60, size=10))),
    Entry("gcra", "120 a minute, 3 at once", refusing(_bucket(120, size=3))),
    Entry("gcra-silent", "120 a minute, 3 at once, no retry-after", refusing(_bucket(120, size=3), _SILENT)),
    Entry("spacing", "one every half second", refusing(_bucket(120, size=1))),
    Entry("spacing-silent", "one every half second, no retry-after", refusing(_bucket(120, size=1), _SILENT)),
    Entry("bucket-slow", "15 a minute, 15 at once", refusing(_bucket(15))),
    Entry("bucket-slow-silent", "15 a minute, 15 at once, no retry-after", refusing(_bucket(15), _SILENT)),
    Entry("bucket-300s", "100 per 5 minutes, all at once if need be", refusing(_bucket(100, 300))),
    Entry("bucket-hour", "150 an hour, whose clients wait for hours", refusing(_bucket(150, 3_600)), _HOURS),
    Entry("gcra-slow", "60 a minute, 3 at once, answers of 8 to 16 s", refusing(_bucket(60, size=3)), _SLOW),
    Entry("gcra-few", "60 a minute, 3 at once, 5 agents", refusing(_bucket(60, size=3)), _FEW),
    Entry("bucket-many", "90 a minute, 60 agents", refusing(_bucket(90)), _MANY),
    Entry(
        "spacing-idle", "one every 1.2 s, lazy agents need three quarters of it", refusing(_bucket(50, size=1)), _LAZY
    ),
    Entry(
        "bucket-hour-silent",
        "150 an hour, no retry-after, whose clients wait for hours",
        refusing(_bucket(150, 3_600), _SILENT),
        _HOURS,
    ),
    Entry(
        "spacing-jitter",
        "one every half second, the way takes up to 50 ms more",
        refusing(_bucket(120, size=1)),
        _JITTER,
    ),
    Entry(
        "gcra-jitter",
        "120 a minute, 3 at once, the way takes up to 50 ms more",
        refusing(_bucket(120, size=3)),
        _JITTER,
    ),
    Entry(
        "gcra-tail",
        "120 a minute, 3 at once, one answer of 20 takes ten times as long",
        refusing(_bucket(120, size=3)),
        _TAIL,
    ),
    Entry(
        "ramp", "in 10 s 20, or 1.5 times as many as in the 10 s before", refusing(lambda _: Ramp(20, 10, growth=1.5))
    ),
    Entry(
        "ramp-silent",
        "in 10 s 20, or 1.5 times as many as in the 10 s before, no retry-after",
        refusing(lambda _: Ramp(20, 10, growth=1.5), _SILENT),
    ),
    # Caps
    Entry("cap-2", "2 at once, 529", capped(2)),
    Entry("cap-8", "8 at once, 529", capped(8)),
    Entry("cap-16", "16 at once, 529", capped(16), time_goal=1.10),
    Entry("cap-8-503", "8 at once, 503", capped(8, UNAVAILABLE)),
    Entry("cap-8-429", "8 at once, 429 that says concurrency", capped(8, TOO_MANY_AT_ONCE)),
    Entry("cap-8-plain", "8 at once, 429 that does not say why", capped(8, RATE_LIMITED)),
    Entry(
        "cap-8-wait-60",
        "8 at once, 429 that says concurrency, and always to wait 60 s",
        capped(8, TOO_MANY_AT_ONCE, retry_after=RetryAfter.ALWAYS_60),
    ),
    Entry("cap-slow", "8 at once, answers of 8 to 16 s", capped(8), _SLOW),
    Entry("cap-quick", "8 at once, answers of 0.2 s", capped(8), _NEAR),
    Entry("cap-many", "16 at once, 60 agents", capped(16), _MANY),
    Entry("cap-few", "3 at once, 5 agents", capped(3), _FEW),
    Entry("cap-late", "8 at once, agents that begin within a minute", capped(8), Crowd(starts_s=60)),
    Entry("cap-idle", "4 at once, lazy agents need 2 of them", capped(4), _LAZY),
    Entry("cap-tail", "8 at once, one answer of 20 takes ten times as long", capped(8), _TAIL),
    Entry("cap-jitter", "8 at once, the way takes up to 50 ms more", capped(8), _JITTER),
    Entry("cap-falls", "12 at once, 6 after 20 s", capped(12, moves=[(20, 6)])),
    Entry("cap-rises", "4 at once, 12 after 60 s", capped(4, moves=[(60, 12)])),
    Entry("cap-moves", "10 at once, 4 after 20 s, 14 after 70 s", capped(10, moves=[(20, 4), (70, 14)])),
    Entry("cap-lingers-0.5s", "8 at once, a slot is taken half a second longer", capped(8, linger_s=0.5)),
    Entry("cap-lingers-2s", "8 at once, a slot is taken 2 s longer", capped(8, linger_s=2)),
    Entry("cap-lingers-5s", "8 at once, a slot is taken 5 s longer", capped(8, linger_s=5)),
    Entry(
        "cap-shared",
        "10 at once, of which a neighbour has two or so, for 100 s each",
        capped(10, neighbour=Neighbour(0.02, service_s=100)),
    ),
    Entry(
        "cap-shared-busy",
        "10 at once, of which a neighbour has two or so, for 2 s each",
        capped(10, neighbour=Neighbour(1.0)),
        beyond="the neighbour takes a slot and leaves one each second, unseen; above 90 % of use one slot is free on "
        "average, so a third of its calls, which is more than 5 % of all attempts, find none free and cost one of ours "
        "a refusal; and what it leaves is found only by attempts that are refused where it has not left",
    ),
    # Chance
    Entry("random-529-1%", "529 by chance", striking(by_chance(0.01)), time_goal=1.10),
    Entry("random-529-3%", "529 by chance", striking(by_chance(0.03)), time_goal=1.10),
    Entry("random-529-6%", "529 by chance", striking(by_chance(0.06)), time_goal=1.10),
    Entry("random-529-20%", "529 by chance", striking(by_chance(0.20))),
    Entry("random-429-5%", "429 by chance, no retry-after", striking(by_chance(0.05, RATE_LIMITED))),
    Entry("random-429-20%", "429 by chance, no retry-after", striking(by_chance(0.20, RATE_LIMITED))),
    Entry("random-429-5%-told", "429 by chance, retry-after 1 s", striking(by_chance(0.05, RATE_LIMITED, 1.0))),
    Entry("random-429-20%-told", "429 by chance, retry-after 1 s", striking(by_chance(0.20, RATE_LIMITED, 1.0))),
    Entry("random-429-3%-wait", "429 by chance, retry-after 60 s", striking(by_chance(0.03, RATE_LIMITED, 60.0))),
    Entry("random-529-3%-wait", "529 by chance, retry-after 30 s", striking(by_chance(0.03, OVERLOADED, 30.0))),
    Entry("random-529-6%-many", "529 by chance, 60 agents", striking(by_chance(0.06)), _MANY, time_goal=1.10),
    Entry("random-503-10%", "503 by chance", striking(by_chance(0.10, UNAVAILABLE))),
    Entry("random-502", "502 10 %", striking(by_chance(0.10, BAD_GATEWAY))),
    Entry(
        "random-cuts",
        "502 10 %, reset in the midst 5 %",
        striking(by_chance(0.10, BAD_GATEWAY), Chance(0.05, RESET, late=True)),
    ),
    Entry("cap-16-529-1%", "16 at once, 529 by chance", capped(16, chances=[by_chance(0.01)]), time_goal=1.10),
    Entry("cap-16-529-3%", "16 at once, 529 by chance", capped(16, chances=[by_chance(0.03)]), time_goal=1.10),
    Entry("cap-16-529-6%", "16 at once, 529 by chance", capped(16, chances=[by_chance(0.06)]), time_goal=1.10),
    Entry("cap-8-529-6%", "8 at once, 529 by chance", capped(8, chances=[by_chance(0.06)]), time_goal=1.10),
    Entry("window-529-5%", "60 a minute, 529 by chance", refusing(_window(60, 60), chances=[by_chance(0.05)])),
    Entry(
        "bucket-429-5%",
        "60 a minute, 10 at once, 429 by chance",
        refusing(_bucket(60, size=10), chances=[by_chance(0.05, RATE_LIMITED)]),
    ),
    Entry(
        "gcra-529-5%",
        "120 a minute, 3 at once, 529 by chance",
        refusing(_bucket(120, size=3), chances=[by_chance(0.05)]),
    ),
    Entry(
        "told-429-3%",
        "60 a minute by the clock, headers, 429 by chance",
        telling(_window(60, 60), chances=[by_chance(0.03, RATE_LIMITED)]),
    ),
    # Storms
    Entry("storm-502-45%", "502 by chance", striking(by_chance(0.45, BAD_GATEWAY))),
    Entry("storm-mixed", "502, 529, resets, 15 % each", striking(*_STORM)),
    Entry("storm-mixed-bucket", "60 a minute, 502, 529, resets, 15 % each", refusing(_bucket(60), chances=_STORM)),
    Entry("outage", "503 from the 20th second on, for half a minute", several(lambda _: Rule(Outage(20, 30), *_DOWN))),
    Entry(
        "outage-and-cap",
        "8 at once, 503 from the 20th second on, for half a minute",
        several(lambda _: Rule(Outage(20, 30), *_DOWN), lambda _: Rule(Cap(8), OVERLOADED, _SILENT)),
    ),
    # Refusals that count
    Entry("log-counts", "60 in any minute, refusals count", refusing(_log(60, 60, counts_refusals=True))),
    Entry(
        "log-counts-silent",
        "60 in any minute, refusals count, no retry-after",
        refusing(_log(60, 60, counts_refusals=True), _SILENT),
    ),
    Entry(
        "bucket-counts", "60 a minute, 10 at once, refusals count", refusing(_bucket(60, size=10, counts_refusals=True))
    ),
    Entry(
        "ban",
        "60 a minute; 8 refusals within 10 s close it for 45 s",
        several(lambda _: Rule(Ban(8, 10, lasts_s=45)), lambda rng: Rule(_window(60, 60)(rng))),
    ),
    # Retry-after
    Entry("window-rounded-up", "60 a minute, retry-after rounded up", refusing(_window(60, 60), RetryAfter.ROUNDED_UP)),
    Entry(
        "window-rounded-down",
        "60 a minute, retry-after cut to seconds",
        refusing(_window(60, 60), RetryAfter.ROUNDED_DOWN),
    ),
    Entry(
        "window-short",
        "60 a minute, retry-after 0.3 times as long as it takes",
        refusing(_window(60, 60), RetryAfter.SHORT),
    ),
    Entry(
        "window-long",
        "60 a minute, retry-after 10 times as long as it takes",
        refusing(_window(60, 60), RetryAfter.LONG),
    ),
    Entry("window-wait-60", "30 per 20 s, retry-after always 60", refusing(_window(30, 20), RetryAfter.ALWAYS_60)),
    Entry(
        "bucket-rounded-up",
        "120 a minute, 10 at once, retry-after rounded up",
        refusing(_bucket(120, size=10), RetryAfter.ROUNDED_UP),
    ),
    Entry(
        "bucket-rounded-down",
        "120 a minute, 10 at once, retry-after cut to seconds",
        refusing(_bucket(120, size=10), RetryAfter.ROUNDED_DOWN),
    ),
    Entry(
        "bucket-short",
        "60 a minute, 10 at once, retry-after 0.3 times as long as it takes",
        refusing(_bucket(60, size=10), RetryAfter.SHORT),
    ),
    Entry(
        "bucket-long",
        "60 a minute, 10 at once, retry-after 10 times as long as it takes",
        refusing(_bucket(60, size=10), RetryAfter.LONG),
    ),
    Entry(
        "bucket-wait-60",
        "60 a minute, 10 at once, retry-after always 60",
        refusing(_bucket(60, size=10), RetryAfter.ALWAYS_60),
    ),
    # Tokens
    Entry("tokens-bucket", "60,000 tokens a minute, equal requests", refusing(_bucket(60_000, counts=_TOKENS))),
    Entry(
        "tokens-window", "60,000 tokens a minute by the clock, equal requests", refusing(_window(60_000, 60, _TOKENS))
    ),
    Entry(
        "tokens-bucket-uneven",
        "120,000 tokens a minute, requests of 300 and of 12,000",
        refusing(_bucket(120_000, counts=_TOKENS)),
        Crowd(tokens=_UNEVEN),
    ),
    Entry(
        "tokens-window-uneven",
        "120,000 tokens a minute by the clock, requests of 300 and of 12,000",
        refusing(_window(120_000, 60, _TOKENS)),
        Crowd(tokens=_UNEVEN),
    ),
    Entry(
        "tokens-told",
        "120,000 tokens a minute, headers, requests of 300 and of 12,000",
        telling(_bucket(120_000, counts=_TOKENS)),
        Crowd(tokens=_UNEVEN),
    ),
    Entry(
        "tokens-window-told",
        "120,000 tokens a minute by the clock, headers, requests of 300 and of 12,000",
        telling(_window(120_000, 60, _TOKENS)),
        Crowd(tokens=_UNEVEN),
    ),
    # Several limits at once
    Entry(
        "window-and-cap",
        "100 a minute by the clock, 6 at once",
        several(lambda _: Rule(Cap(6), OVERLOADED, _SILENT), lambda rng: Rule(_window(100, 60)(rng))),
    ),
    Entry(
        "second-and-minute",
        "4 a second and 90 a minute by the clock",
        several(lambda rng: Rule(_window(4, 1)(rng)), lambda rng: Rule(_window(90, 60)(rng))),
    ),
    Entry(
        "second-and-minute-silent",
        "4 a second and 90 a minute by the clock, no retry-after",
        several(
            lambda rng: Rule(_window(4, 1)(rng), retry_after=_SILENT),
            lambda rng: Rule(_window(90, 60)(rng), retry_after=_SILENT),
        ),
    ),
    Entry(
        "requests-and-tokens-told",
        "80 requests and 120,000 tokens a minute, headers of both",
        several(lambda _: Rule(Bucket(80, 60)), lambda _: Rule(Bucket(120_000, 60, counts=_TOKENS)), told=2),
        Crowd(tokens=_UNEVEN),
    ),
    Entry(
        "told-and-cap",
        "120 a minute with headers, 5 at once without",
        several(lambda rng: Rule(_window(120, 60)(rng)), lambda _: Rule(Cap(5), OVERLOADED, _SILENT), told=1),
    ),
    Entry(
        "told-and-second",
        "120 a minute with headers, 3 a second without",
        several(lambda rng: Rule(_window(120, 60)(rng)), lambda rng: Rule(_window(3, 1)(rng)), told=1),
    ),
    Entry(
        "minute-and-hour",
        "60 a minute and 250 an hour, whose clients wait for hours",
        several(lambda rng: Rule(_window(60, 60)(rng)), lambda rng: Rule(_window(250, 3_600)(rng))),
        _HOURS,
    ),
    # Headers
    Entry("told-window", "60 a minute by the clock, headers", telling(_window(60, 60))),
    Entry("told-bucket", "60 a minute, headers", telling(_bucket(60))),
    Entry("told-window-300s", "100 per 5 minutes, headers", telling(_window(100, 300))),
    Entry("told-more", "60 a minute, headers that say 90", telling(_bucket(60), says=_bucket(90))),
    Entry(
        "told-more-window",
        "60 a minute by the clock, headers that say 90",
        telling(_window(60, 60), says=_window(90, 60)),
    ),
    Entry("told-stale", "60 a minute by the clock, headers 3 s old", telling(_window(60, 60), age_s=3)),
    Entry(
        "told-on-success",
        "60 a minute by the clock, headers only of answers",
        telling(_window(60, 60), on_refusals=False),
    ),
    Entry(
        "told-20s-as-60s",
        "30 per 20 s by the clock, headers, a profile that says per 60 s",
        telling(_window(30, 20), window_s=60),
    ),
    Entry(
        "told-slices",
        "10 per 10 s by the clock, headers that say 60 a minute",
        telling(_window(10, 10), says=_window(60, 60)),
    ),
    Entry("told-slow", "60 a minute by the clock, headers, answers of 8 to 16 s", telling(_window(60, 60)), _SLOW),
    Entry("told-many", "90 a minute by the clock, headers, 60 agents", telling(_window(90, 60)), _MANY),
    Entry("told-gcra", "120 a minute, 3 at once, headers", telling(_bucket(120, size=3))),
    Entry("told-log", "60 in any minute, headers", telling(_log(60, 60))),
    Entry("told-hour", "150 an hour, headers, whose clients wait for hours", telling(_window(150, 3_600)), _HOURS),
    # Neighbours
    Entry(
        "told-neighbour",
        "90 a minute by the clock, headers, a neighbour takes 30",
        telling(_window(90, 60), neighbour=Neighbour(0.5)),
    ),
    Entry(
        "told-bucket-neighbour",
        "90 a minute, headers, a neighbour takes 30",
        telling(_bucket(90), neighbour=Neighbour(0.5)),
    ),
    Entry(
        "window-neighbour",
        "90 a minute by the clock, a neighbour takes 30",
        refusing(_window(90, 60), neighbour=Neighbour(0.5)),
    ),
    Entry("bucket-neighbour", "90 a minute, a neighbour takes 30", refusing(_bucket(90), neighbour=Neighbour(0.5))),
    # Limits that change
    Entry("told-falls", "60 a minute with headers, 30 after 150 s", moving(_bucket(60), 150, 30, told=True)),
    Entry("window-falls", "90 a minute by the clock, 45 after 130 s", moving(_window(90, 60), 130, 45, told=False)),
    Entry("bucket-rises", "30 a minute, 120 after 180 s", moving(_bucket(30), 180, 120, told=False)),
    # Patience
    Entry(
        "patience-120s",
        "60 a minute by the clock, clients that leave after 2 minutes",
        refusing(_window(60, 60)),
        Crowd(patience_s=120),
    ),
    Entry(
        "patience-130s",
        "60 per 2 minutes by the clock, clients that leave after 130 s",
        refusing(_window(60, 120)),
        Crowd(patience_s=130),
    ),
    Entry("patience-cap", "2 at once, clients that leave after a minute", capped(2), Crowd(patience_s=60)),
)


def entries(names: Sequence[str] = ()) -> list[Entry]:
    """All of the zoo, or those whose names have one of these parts."""
    return [entry for entry in ZOO if not names or any(name in entry.name for name in names)]
