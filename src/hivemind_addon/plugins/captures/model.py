"""A recorded session as values: every call of every agent with all attempts, and the limits that were met.

`captures/file.py` writes and reads these values; shows and replays use them. All times are seconds: `at_s` since the
begin of the capture, `after_s` since an attempt was sent. The format is plain JSON (`encode`, `decode`). `decode`
refuses a file of a newer version, and ignores unknown fields.
"""

from dataclasses import dataclass, field, replace

import msgspec

from hivemind_addon.formats.base import json_values
from hivemind_addon.kernel.limits.learned import LearnedPool
from hivemind_addon.kernel.values.ticket import (
    CallKind,
    Demand,
    Dimension,
    OutcomeKind,
    PoolKey,
    Priority,
    Reading,
    Usage,
)

VERSION = 1
"""Grows when a field disappears or changes meaning."""
MAX_CHUNKS = 200
"""Of an attempt's stream; neighbours are merged above this number."""


class NotACapture(Exception):
    """A line that names the file, the fault and the cure."""


@dataclass(frozen=True, slots=True)
class CapturedChunk:
    """A piece of a streamed body."""

    after_s: float
    """When the chunk came, since the attempt was sent."""
    size: int
    """Bytes on the wire."""


@dataclass(frozen=True, slots=True)
class CapturedAttempt:
    """A try upstream."""

    number: int
    """Counted from 1."""
    at_s: float
    """When the attempt was admitted and sent."""
    waited_s: float
    """Since the call arrived (first attempt) or since the last attempt ended."""
    kind: OutcomeKind
    reason: str
    """A short stable phrase: `429 rate_limit_error`, `cannot connect: refused`."""
    ended_after_s: float
    status: int | None = None
    """Of the answer's head; None: the attempt ended without a head. A 200 without SUCCESS broke off, or the stream
    reported an error."""
    head_after_s: float | None = None
    """None: no head came."""
    chunks: tuple[CapturedChunk, ...] = ()
    """Of a streamed answer, oldest first, MAX_CHUNKS at most."""
    usage: Usage | None = None
    charged: Demand | None = None
    """The provider's charge to the limits; None: not reported."""
    retry_after_s: float | None = None
    """The wait that the answer asked for."""
    readings: tuple[Reading, ...] = ()
    """The limits that the head stated."""


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """A request of an agent, from arrival to end."""

    id: str
    at_s: float
    """When the call arrived."""
    ended_s: float
    agent: str
    session: str
    pool: PoolKey
    model: str
    end: str
    """`delivered`, `gave up`, `shed`, `refused`, `cancelled`."""
    reason: str = ""
    """The reason of the end, for people."""
    waited_s: float = 0.0
    """Sum of all waits."""
    attempts: tuple[CapturedAttempt, ...] = ()
    parent_session: str = ""
    """The session that started this session; empty: none is known."""
    kind: CallKind = CallKind.TURN
    priority: Priority = Priority.NORMAL
    weight: float = 1.0
    dialect: str = "anthropic"
    """Of the API: `anthropic`, `openai-chat`, `openai-responses`, `ollama`."""
    profile: str = ""
    """Name of the provider's profile; empty: no profile has the host."""
    streamed: bool = False
    delivery: str = "stream"
    """`stream` or `whole`."""
    demand: Demand = field(default_factory=Demand)
    """Of an attempt that finds a warm prompt cache."""
    cached_tokens: int = 0
    """Input expected to come from the provider's cache."""
    cold_tokens: int = 0
    """The part of `cached_tokens` that the limits count as input once the cache has lapsed."""
    prefix: str = ""
    """Hash of the prompt cache's key; empty: nothing is shared."""
    prefix_tokens: int = 0
    patience_s: float = 600.0
    """How long the client waits for an answer."""
    request_hash: str = ""
    """Equal for a request and the client's own retries."""
    request_bytes: int = 0
    """Size of the body."""
    max_tokens: int | None = None
    """The most output that the request allows; None: the request does not say."""


@dataclass(frozen=True, slots=True)
class LimitSeen:
    """A provider's limit, stated in headers or learned from refusals."""

    at_s: float
    pool: PoolKey
    meter: str
    """The meter's name in the profile (`input-tokens`); `pace` or `quota`: no header states the limit."""
    kind: str
    """`bucket`, `window` or `unknown`; of a learned limit, a description."""
    limit: float
    window_s: float | None = None
    """The span to which the limit applies; None: not known."""
    dimension: Dimension | None = None
    """The dimension that the limit counts; None: not known."""
    left: float | None = None
    """Units that were free as the capture began, with those of the attempts in flight; None: not known."""
    full_in_s: float | None = None
    """Seconds from then until all units are free."""


@dataclass(frozen=True, slots=True)
class ConcurrencyMove:
    """The adaptive concurrency limit of a pool moved."""

    at_s: float
    pool: PoolKey
    limit: int
    reason: str


@dataclass(frozen=True, slots=True)
class Capture:
    """A recorded session."""

    calls: tuple[CapturedCall, ...] = ()
    """In the order of arrival, without calls that had not ended when the capture ended."""
    limits: tuple[LimitSeen, ...] = ()
    """Every change, oldest first."""
    moves: tuple[ConcurrencyMove, ...] = ()
    """Oldest first."""
    learned: tuple[LearnedPool, ...] = ()
    """What the scheduler knew of its pools as the capture began."""
    began_wall: float = 0.0
    """Epoch seconds of the begin, where `at_s` is 0."""
    ended_s: float = 0.0
    """The last known instant."""
    profiles: tuple[str, ...] = ()
    """Names of the providers' profiles in use."""
    proxy_version: str = ""
    """Of the package that recorded the session; empty: another program did."""
    content: bool = False
    """Whether the file still has the text of the bodies."""
    damage: tuple[str, ...] = ()
    """The unreadable parts, in words; empty: the file is whole."""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class _Versioned:
    version: int


def later(call: CapturedCall, later_s: float) -> CapturedCall:
    """The call, so much later."""
    if not later_s:
        return call

    def moved(attempt: CapturedAttempt) -> CapturedAttempt:
        return replace(attempt, at_s=attempt.at_s + later_s)

    return replace(
        call,
        at_s=call.at_s + later_s,
        ended_s=call.ended_s + later_s,
        attempts=tuple(moved(attempt) for attempt in call.attempts),
    )


def encode(capture: Capture) -> bytes:
    """As JSON."""
    return msgspec.json.encode(capture)


def decode(data: bytes | bytearray) -> Capture:
    """From JSON. Raises NotACapture, whose text does not name the file."""
    try:
        version = json_values.decode(data, _Versioned).version
        if version > VERSION:
            raise NotACapture(
                f"the capture is of version {version}, this package reads {VERSION}; upgrade hivemind-addon"
            )
        return json_values.decode(data, Capture)
    except msgspec.MsgspecError as error:
        raise NotACapture(f"this is no capture in JSON ({error})") from error
