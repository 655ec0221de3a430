"""One provider as data. `profiles/<name>.yaml` holds only what differs from the defaults written here.

Every field's docstring is its documentation: `make docs` prints them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from hivemind_addon.core.aimd import ConcurrencySettings
from hivemind_addon.core.breaker import BreakerSettings
from hivemind_addon.core.pool import PoolSettings
from hivemind_addon.core.retry import RetryPolicy
from hivemind_addon.core.ticket import Dimension, OutcomeKind


class DialectName(Enum):
    """The shape of a request, its answer and its errors on the wire."""

    ANTHROPIC_MESSAGES = "anthropic-messages"
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"


class ResetFormat(Enum):
    """How a `reset` header is written."""

    RFC3339 = "rfc3339"
    """An instant: `2026-11-20T10:00:00Z`."""
    EPOCH_S = "epoch-seconds"
    """An instant, in seconds since 1970."""
    EPOCH_MS = "epoch-milliseconds"
    """An instant, in milliseconds since 1970."""
    DURATION = "duration"
    """Go-like: `1s`, `6m0s`, `12ms`, `2m59.56s`."""
    SECONDS = "seconds"
    """Seconds from now, with or without a fraction."""
    AUTO = "auto"
    """A timestamp, a duration, or a number: > 1e12 epoch ms, > 1e9 epoch s, else seconds."""


class Delivery(Enum):
    """When a streamed answer reaches the client."""

    STREAM = "stream"
    """Chunk by chunk, as soon as its first content is judged."""
    WHOLE = "whole"
    """When it is complete and checked: any failure of it can be retried. For unattended agents."""


class InputCharge(Enum):
    """What a provider counts as input."""

    UNCACHED = "uncached"
    """Uncached input and cache writes; cache reads are free (Anthropic)."""
    ALL = "all"
    """All input, cached or not (OpenAI)."""


class OutputCharge(Enum):
    """What a provider counts as output, and when."""

    ACTUAL = "actual"
    """What is generated, as it is generated (Anthropic)."""
    MAX_TOKENS = "max-tokens"
    """The request's own maximum, when it is admitted (OpenAI)."""


@dataclass(frozen=True, slots=True)
class MeterHeaders:
    """One limit as response headers tell it."""

    meter: str
    """Name shown to people: `requests`, `input-tokens`."""
    dimension: Dimension
    """What the limit counts."""
    limit: str
    """Header that holds the limit."""
    remaining: str
    """Header that holds what is left of it."""
    reset: str = ""
    """Header that says when it is whole again; empty: the provider sends none."""
    reset_format: ResetFormat = ResetFormat.AUTO
    """How `reset` is written."""
    window_s: float = 60
    """The window that the limit is stated for."""
    granularity: float = 0
    """How coarsely `remaining` is rounded."""


@dataclass(frozen=True, slots=True)
class OutcomeRule:
    """What an answer means. All the given conditions must hold; the first rule that matches decides."""

    kind: OutcomeKind
    """What it says about the provider's limits."""
    retry: bool
    """Whether waiting can cure it."""
    status: tuple[int, ...] = ()
    """HTTP statuses; empty: any. An error inside a 200 stream has the status 200."""
    error: tuple[str, ...] = ()
    """`type` or `code` of the error object (any of them)."""
    message: str = ""
    """Regular expression searched in the error's message, ignoring case."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header name → regular expression searched in its value, ignoring case."""
    retry_after: bool | None = None
    """True or False: only with, or only without a retry-after."""


@dataclass(frozen=True, slots=True)
class Charge:
    """How the provider's limits count a call."""

    input: InputCharge = InputCharge.ALL
    """Which input counts."""
    output: OutputCharge = OutputCharge.MAX_TOKENS
    """Which output counts."""
    default_output_tokens: int = 1024
    """Expected output of a session that has not answered yet; the maximum where the request names none."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """How request bodies are counted before they are sent."""

    scale: float = 1.0
    """Provider's tokens for one token of o200k_base, at the start; a ratio learned per model replaces it."""
    bytes_per_token: float = 4.0
    """For text too long to be counted without stalling the event loop; learned per model as well."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long this provider's clients wait for an answer."""

    default_s: float = 600
    """Where the client announces nothing."""
    headers: tuple[str, ...] = ("x-stainless-read-timeout", "x-stainless-timeout")
    """Request headers in which a client announces it, in seconds; the first that is there counts."""
    margin_s: float = 5
    """A held client is refused this long before it would give up, or after 90 % of its patience where that is
    later."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer that makes a held client come back instead of giving up."""

    status: int = 503
    """HTTP status."""
    error: str = "server_is_overloaded"
    """`type` (and `code`) of the error object."""
    retry_after_max_s: int = 30
    """SDKs ignore a longer one (Anthropic's above 60 s)."""


@dataclass(frozen=True, slots=True)
class Peek:
    """How long the beginning of a streamed answer is kept back until its first content is judged."""

    max_bytes: int = 65536
    """At most this much of it."""
    max_s: float = 10
    """At most this long."""
    whole_max_bytes: int = 16 * 1024 * 1024
    """With whole delivery: past this size the rest is streamed."""
    stall_s: float = 120
    """With whole delivery: an answer that is silent for so long has stalled, and is tried again."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One provider."""

    name: str = ""
    """The file's name without `.yaml`."""
    hosts: tuple[str, ...] = ()
    """`host` or `host:port`; `*` matches within a name. Only these are intercepted."""
    paths: tuple[str, ...] = ()
    """Path globs of model calls (POST). Everything else on the host passes by untouched."""
    exclude_paths: tuple[str, ...] = ()
    """Path globs that pass by although `paths` matches."""
    dialect: DialectName = DialectName.OPENAI_CHAT
    """The wire format of `paths`."""
    dialects: Mapping[str, DialectName] = field(default_factory=dict)
    """Path glob → wire format, where it is another one; the first match counts."""
    model_groups: tuple[str, ...] = ()
    """Globs of model names that share one limit; a model that matches none is its own group."""
    credential_headers: tuple[str, ...] = ("authorization", "x-api-key", "api-key")
    """Headers that hold the key; its hash names the account until something better does."""
    request_account_headers: tuple[str, ...] = ()
    """Request headers that name the account."""
    response_account_headers: tuple[str, ...] = ()
    """Response headers that name the account."""
    session_headers: tuple[str, ...] = ()
    """Request headers that name the agent's session; the first that is there counts."""
    reverse_paths: tuple[str, ...] = ()
    """Path globs by which a reverse-mode upstream is recognised; not inherited by `extends`."""
    meters: tuple[MeterHeaders, ...] = ()
    """The limits that response headers tell."""
    outcomes: tuple[OutcomeRule, ...] = ()
    """Before the general rules of `wire/outcome.py`."""
    bookkeeping_events: tuple[str, ...] = ()
    """Stream events before the first content: kept back, so that an error behind them can be retried."""
    charge: Charge = field(default_factory=Charge)
    """How the provider's limits count a call."""
    tokens: Tokens = field(default_factory=Tokens)
    """How request bodies are counted before they are sent."""
    patience: Patience = field(default_factory=Patience)
    """How long its clients wait for an answer."""
    refusal: Refusal = field(default_factory=Refusal)
    """The answer that makes a held client come back."""
    delivery: Delivery = Delivery.STREAM
    """When a streamed answer reaches the client, where neither agent nor request says it."""
    keep_alive_s: float = 0
    """Seconds between the SSE comments that a held streaming client gets; 0: none."""
    peek: Peek = field(default_factory=Peek)
    """How long the beginning of an answer is kept back to be judged."""
    concurrency: ConcurrencySettings = field(default_factory=ConcurrencySettings)
    """How many attempts may be in flight at once."""
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    """When a provider counts as down, and how it is probed."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How often a failed attempt is tried again."""

    @property
    def pool_settings(self) -> PoolSettings:
        """What the core needs of it."""
        return PoolSettings(concurrency=self.concurrency, breaker=self.breaker, retry=self.retry)
