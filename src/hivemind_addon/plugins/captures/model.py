"""A recorded session as values: every call of every agent, each of its attempts, and the limits that were met.

What `captures/file.py` writes and reads, and what shows and replays work on. All times are seconds: `at_s` since
the capture's begin, `after_s` since an attempt was sent. Plain JSON both ways (`encode`, `decode`); a file of a newer
version is refused, fields that this version does not know are passed over.
"""

from dataclasses import dataclass, field

import msgspec

from hivemind_addon.kernel.values.ticket import CallKind, Demand, Dimension, OutcomeKind, PoolKey, Priority, Usage

VERSION = 1
"""Grows when a field changes its meaning or goes."""
MAX_CHUNKS = 200
"""Of one attempt's stream; neighbours are merged above it."""


class NotACapture(Exception):
    """One line that names the file, what is wrong with it, and the cure."""


@dataclass(frozen=True, slots=True)
class CapturedChunk:
    """A piece of a streamed body."""

    after_s: float
    """When it came, since its attempt was sent."""
    size: int
    """Bytes, as they came."""


@dataclass(frozen=True, slots=True)
class CapturedAttempt:
    """One try upstream."""

    number: int
    """Counted from 1."""
    at_s: float
    """When it was admitted and sent."""
    waited_s: float
    """Since the call arrived (first attempt) or since its last attempt ended."""
    kind: OutcomeKind
    reason: str
    """A short stable phrase: `429 rate_limit_error`, `cannot connect: refused`."""
    ended_after_s: float
    status: int | None = None
    """Of the answer's head; None: it ended without one. A 200 that was no SUCCESS broke off, or its stream told an
    error."""
    head_after_s: float | None = None
    """None: no head came."""
    chunks: tuple[CapturedChunk, ...] = ()
    """Of a streamed answer, oldest first, MAX_CHUNKS at most."""
    usage: Usage | None = None
    charged: Demand | None = None
    """What the provider takes for it from its limits; None: it did not say."""
    retry_after_s: float | None = None
    """What the answer asked for."""


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """One request of an agent, from its arrival to its end."""

    id: str
    at_s: float
    """When it arrived."""
    ended_s: float
    agent: str
    session: str
    pool: PoolKey
    model: str
    end: str
    """`delivered`, `gave up`, `shed`, `refused`, `cancelled`."""
    reason: str = ""
    """Why it ended so; for people."""
    waited_s: float = 0.0
    """Sum of all waits."""
    attempts: tuple[CapturedAttempt, ...] = ()
    parent_session: str = ""
    """The session that started this one; empty: none is known."""
    kind: CallKind = CallKind.TURN
    priority: Priority = Priority.NORMAL
    weight: float = 1.0
    dialect: str = "anthropic"
    """Of the API: `anthropic`, `openai-chat`, `openai-responses`, `ollama`."""
    profile: str = ""
    """Name of the provider's profile; empty: none knows the host."""
    streamed: bool = False
    delivery: str = "stream"
    """`stream` or `whole`."""
    demand: Demand = field(default_factory=Demand)
    """Of an attempt that finds the prompt cache warm."""
    cached_tokens: int = 0
    """Input that was expected to be read from the provider's cache."""
    cold_tokens: int = 0
    """Of these, what the limits count as input once the cache has lapsed."""
    prefix: str = ""
    """Hash of what the prompt cache keys on; empty: nothing is shared."""
    prefix_tokens: int = 0
    patience_s: float = 600.0
    """How long its client waits for an answer."""
    request_hash: str = ""
    """The same for a client's own retry of a request."""
    request_bytes: int = 0
    """Size of the request's body."""


@dataclass(frozen=True, slots=True)
class LimitSeen:
    """A provider's limit, as headers told it or refusals taught it."""

    at_s: float
    pool: PoolKey
    meter: str
    """Its name in the profile (`input-tokens`); `pace` or `quota` where no header told it."""
    kind: str
    """`bucket`, `window` or `unknown`; a learned one in words."""
    limit: float
    window_s: float | None = None
    """The span that the limit is stated for; None: not known."""
    dimension: Dimension | None = None
    """What it counts; None: not known."""


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
    """In the order of their arrival. A call that had not ended when the capture did is not in it."""
    limits: tuple[LimitSeen, ...] = ()
    """Every change, oldest first."""
    moves: tuple[ConcurrencyMove, ...] = ()
    """Oldest first."""
    began_wall: float = 0.0
    """Epoch seconds of its begin, where `at_s` is 0."""
    ended_s: float = 0.0
    """Its last instant that is known."""
    profiles: tuple[str, ...] = ()
    """Names of the providers' profiles in use."""
    proxy_version: str = ""
    """Of the package that recorded it; empty: something else did."""
    content: bool = False
    """Whether the file still has the bodies' words."""
    damage: tuple[str, ...] = ()
    """What could not be read, in words; empty: the file is whole."""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class _Versioned:
    version: int


def encode(capture: Capture) -> bytes:
    """As JSON."""
    return msgspec.json.encode(capture)


def decode(data: bytes | bytearray) -> Capture:
    """From JSON. Raises NotACapture, whose text does not name the file."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version > VERSION:
            raise NotACapture(
                f"the capture is of version {version}, this package reads {VERSION}; upgrade hivemind-addon"
            )
        return msgspec.json.decode(data, type=Capture)
    except msgspec.MsgspecError as error:
        raise NotACapture(f"this is no capture in JSON ({error})") from error
