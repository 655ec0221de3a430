"""What can go wrong with one attempt at the simulated provider, as values; chosen by rate or by script.

A fault that a request cannot show becomes its nearest relative: a cut stream of an unstreamed request is a
cut body, an error event is the status that it stands for, a reset HTTP/2 stream is a reset connection on
HTTP/1.1.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hivemind_addon.sim.shapes import REFUSALS, WAITS


class Hangup(Enum):
    """How a TCP connection ends."""

    RESET = "reset"
    """RST: the peer's next read fails."""
    CLOSE = "close"
    """FIN: the peer reads an end of file."""


class Encoding(Enum):
    """Content codings, by their names in `content-encoding`."""

    GZIP = "gzip"
    BROTLI = "br"
    ZSTD = "zstd"


class Fault:
    """One of the classes below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Fine(Fault):
    """No fault."""


@dataclass(frozen=True, slots=True)
class ErrorStatus(Fault):
    """An error answer in the dialect's own shape; not billed."""

    status: int
    retry_after_s: float | None = None
    error: str | None = None
    """`type` of the error object; None: what the dialect uses for this status."""
    message: str = "simulated fault"
    should_retry: bool | None = None
    """`x-should-retry`; None: not sent."""


@dataclass(frozen=True, slots=True)
class SpentCredit(Fault):
    """A 429 that waiting cannot cure: the account has no money left."""


@dataclass(frozen=True, slots=True)
class WordedRefusal(Fault):
    """An error answer in the words of one provider, whatever the dialect."""

    name: str
    """In shapes.yaml."""
    retry_after_s: float = 1
    """As far as it says when to come back."""


@dataclass(frozen=True, slots=True)
class HtmlError(Fault):
    """An error page of something between client and provider."""

    status: int = 502


@dataclass(frozen=True, slots=True)
class NoHead(Fault):
    """The connection ends before the response's head."""

    how: Hangup


@dataclass(frozen=True, slots=True)
class HeadThenReset(Fault):
    """The head arrives, then an RST."""


@dataclass(frozen=True, slots=True)
class BodyCut(Fault):
    """Half of an unstreamed body arrives, then the connection ends."""

    chunked: bool = False
    """Whether the missing end is a missing last chunk; else fewer bytes come than content-length said."""
    how: Hangup = Hangup.CLOSE


@dataclass(frozen=True, slots=True)
class StreamCut(Fault):
    """The connection ends after some events of a stream."""

    after_events: int | None = None
    """None: in the middle of the content."""
    how: Hangup = Hangup.CLOSE


@dataclass(frozen=True, slots=True)
class StreamError(Fault):
    """An error event inside a 200 stream, which then ends cleanly."""

    at_event: int | None = None
    """Its index among the events: 0 is the first; None: in the middle of the content."""
    status: int = 529
    """The status that it stands for, whose error object it carries."""


@dataclass(frozen=True, slots=True)
class Stall(Fault):
    """Silence inside a stream, before an event; it goes on afterwards. Unstreamed: before the head."""

    stall_s: float
    at_event: int | None = None
    """None: in the middle of the content; 0: after the head."""


@dataclass(frozen=True, slots=True)
class Slow(Fault):
    """A spike: this much more latency before the head."""

    extra_s: float


@dataclass(frozen=True, slots=True)
class Hang(Fault):
    """Silence before the head, for as long as the provider's settings say."""


@dataclass(frozen=True, slots=True)
class Queue(Fault):
    """The head at once, and then one provider's signs of life until the answer begins."""

    name: str
    """In shapes.yaml."""
    wait_s: float | None = None
    """None: as long as it says there, as for the next."""
    every_s: float | None = None


class KeepAlive(Enum):
    """What a held answer sends meanwhile."""

    NOTHING = "nothing"
    """Not even a head."""
    COMMENTS = "comments"
    """A head, and then comments of server-sent events."""
    PINGS = "pings"
    """A head and the first event, and then the `ping` events of Messages."""
    BLANK_LINES = "blank lines"
    """A head, and then empty lines, which no reader of events takes for anything."""


@dataclass(frozen=True, slots=True)
class Hold(Fault):
    """Every answer is kept back until a while after the credential's first attempt; afterwards all is well."""

    hold_s: float
    """From that first attempt on."""
    keep_alive: KeepAlive = KeepAlive.NOTHING
    """Of streamed answers."""
    every_s: float = 15


@dataclass(frozen=True, slots=True)
class Encoded(Fault):
    """The answer comes in a content coding, whether or not the client asked for it."""

    encoding: Encoding


@dataclass(frozen=True, slots=True)
class JsonForStream(Fault):
    """A streamed request gets an unstreamed 200 answer."""


@dataclass(frozen=True, slots=True)
class GoAway(Fault):
    """HTTP/2 GOAWAY within the body. On HTTP/1.1 the connection closes: after the body, or (error) in it."""

    error: bool = False
    """False: NO_ERROR; streams finish, then the connection closes. True: INTERNAL_ERROR, closed at once."""
    after_events: int | None = None


@dataclass(frozen=True, slots=True)
class RefusedStream(Fault):
    """HTTP/2 RST_STREAM(REFUSED_STREAM) instead of a head."""


@dataclass(frozen=True, slots=True)
class ResetStream(Fault):
    """HTTP/2 RST_STREAM(INTERNAL_ERROR) within the body."""

    after_events: int | None = None


ODD_ENDS = ("no-last-chunk", "left-open", "half-terminal", "no-terminal", "length-too-large", "other-label")


@dataclass(frozen=True, slots=True)
class OddEnd(Fault):
    """All of the answer comes and is billed; a client that reads by the format alone notices nothing."""

    how: str
    """One of ODD_ENDS. An event that tells more than that the stream is over comes whole all the same."""


OK = Fine()

NAMED: Mapping[str, Fault] = {
    "ok": OK,
    **{str(status): ErrorStatus(status) for status in (400, 401, 402, 403, 404, 413, 429, 500, 502, 503, 504, 529)},
    "429-retry-after": ErrorStatus(429, retry_after_s=1),
    "429-retry-after-60": ErrorStatus(429, retry_after_s=60),
    "529-retry-after-30": ErrorStatus(529, retry_after_s=30),
    "500-should-not-retry": ErrorStatus(500, should_retry=False),
    "spent-credit": SpentCredit(),
    "html": HtmlError(),
    "403-html": HtmlError(403),
    "reset-before-head": NoHead(Hangup.RESET),
    "close-before-head": NoHead(Hangup.CLOSE),
    "head-then-reset": HeadThenReset(),
    "body-cut": BodyCut(),
    "body-cut-chunked": BodyCut(chunked=True),
    "body-reset": BodyCut(how=Hangup.RESET),
    "stream-close": StreamCut(),
    "stream-reset": StreamCut(how=Hangup.RESET),
    "error-first": StreamError(0),
    "error-second": StreamError(1),
    "error-in-the-middle": StreamError(),
    "stall": Stall(5),
    "slow": Slow(5),
    "hang": Hang(),
    "gzip": Encoded(Encoding.GZIP),
    "br": Encoded(Encoding.BROTLI),
    "zstd": Encoded(Encoding.ZSTD),
    "json-for-stream": JsonForStream(),
    "goaway": GoAway(),
    "goaway-error": GoAway(error=True),
    "refused-stream": RefusedStream(),
    "reset-stream": ResetStream(),
    **{name: WordedRefusal(name) for name in REFUSALS},
    **{name: Queue(name) for name in WAITS},
    **{name: OddEnd(name) for name in ODD_ENDS},
}
"""The usual faults by name, as settings files and truths call them; also every name of shapes.yaml."""

_ROUNDING = 1e-9
"""Of rates between two points."""
_NAMES = {fault: name for name, fault in NAMED.items()}


def name_of(fault: Fault) -> str:
    """Its name in NAMED, else its repr."""
    return _NAMES.get(fault) or repr(fault)


class FaultMix:
    """Draws faults by rate. ValueError: an unknown name, a negative rate, or rates above 1 in all."""

    def __init__(self, rates: Mapping[str, float]) -> None:
        unknown = sorted(set(rates) - set(NAMED))
        if unknown:
            raise ValueError(f"unknown fault {unknown[0]!r}; known: {', '.join(NAMED)}")
        if any(not rate >= 0 for rate in rates.values()) or sum(rates.values()) > 1 + _ROUNDING:
            raise ValueError("fault rates must not be negative, and 1 at most in all")
        self._faults = [(NAMED[name], rate) for name, rate in rates.items()]

    def draw(self, rng: random.Random) -> Fault:
        """One attempt's fault; OK with what is left of the rates. One draw each, or none without rates."""
        if not self._faults:
            return OK
        place = rng.random()
        for fault, rate in self._faults:
            place -= rate
            if place < 0:
                return fault
        return OK


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """The fault rates of one instant."""

    at_s: float
    """Since the first call."""
    faults: Mapping[str, float]
    """Name (see sim/faults.py) → share of the calls that the limits let through; what is not named is 0."""


@dataclass(frozen=True, slots=True)
class FaultCourse:
    """How fault rates change with time: in a straight line from each point to the next."""

    points: tuple[FaultPoint, ...]
    """In the order of their instants; before the first, its rates count."""
    repeats: bool = False
    """Whether the course begins anew at the last point's instant; else the last point's rates stay."""

    def at(self, since_s: float) -> Mapping[str, float]:
        """The rates so long after the first call."""
        last = self.points[-1]
        if self.repeats:
            since_s %= last.at_s
        before = self.points[0]
        for point in self.points:
            if point.at_s > since_s:
                return _between(before, point, since_s)
            before = point
        return last.faults


def _between(before: FaultPoint, after: FaultPoint, since_s: float) -> Mapping[str, float]:
    if after is before or since_s <= before.at_s:
        return before.faults
    share = (since_s - before.at_s) / (after.at_s - before.at_s)
    return {
        name: (1 - share) * before.faults.get(name, 0.0) + share * after.faults.get(name, 0.0)
        for name in dict.fromkeys((*before.faults, *after.faults))
    }
