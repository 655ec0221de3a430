"""One provider as data. `profiles/<name>.yaml` holds only what differs from the defaults written here.

Every field's docstring is its documentation: `make docs` prints them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from hivemind_addon.formats.base.memo import REMEMBERED_CHARS, by_thing, by_thing_and_text
from hivemind_addon.formats.base.patterns import glob_matches
from hivemind_addon.formats.base.typed import BadValue
from hivemind_addon.formats.profile import prices
from hivemind_addon.formats.profile.format import WireFormat
from hivemind_addon.formats.profile.upstreams import EqualUpstream
from hivemind_addon.kernel.limits.breaker import BreakerSettings
from hivemind_addon.kernel.limits.machine import MachineSettings
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.limits.stated_limits import StatedLimit
from hivemind_addon.kernel.order.cache import CacheSettings
from hivemind_addon.kernel.order.fair_queue import OrderSettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.retry import RetryPolicy
from hivemind_addon.kernel.values.spend import Price
from hivemind_addon.kernel.values.ticket import CallKind, Delivery, Dimension, OutcomeKind


class WebSocketUse(Enum):
    """What becomes of a WebSocket."""

    TURNS = "turns"
    """Each turn in it is scheduled as a request (Responses only, and one endpoint; else it is refused)."""
    REFUSE = "refuse"
    """Its upgrade is answered with 426, upon which Codex sends plain requests at once, which are scheduled."""
    TUNNEL = "tunnel"
    """It passes; what runs inside is not scheduled."""


class ProfileKind(Enum):
    """What is called."""

    MODEL = "model"
    """Models: bodies are read, tokens counted."""
    PLAIN = "plain"
    """Any service, by any method and path: nothing but heads is read, and calls are counted (docs/tools.md)."""


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
    """Header with the instant, or delay, of the reset, in any usual form; empty: the provider sends none."""
    window_s: float = 60
    """The window that the limit is stated for."""
    granularity: float = 0
    """How coarsely `remaining` is rounded."""
    item: int | None = None
    """Where each of these headers holds a list (`1, 15000`): which one of it, from 0."""
    groups: tuple[str, ...] = ()
    """Of a plain profile: the groups whose answers tell it; empty: all of them."""


@dataclass(frozen=True, slots=True)
class WindowHeaders:
    """One long window of a subscription as response headers tell it: shown and logged, never paced by."""

    window: str
    """Name shown to people: `5h`, `7d`."""
    used: str = ""
    """Header that says how much of it is used."""
    full: float = 1
    """What `used` says when all of it is: 1 for a fraction, 100 for per cent."""
    status: str = ""
    """Header with the provider's own word; `rejected` says that the window is spent."""
    reset: str = ""
    """Header with the instant, or delay, after which the window begins anew, in any usual form."""
    minutes: str = ""
    """Header that says how long the window is, in minutes."""


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
    body: Mapping[str, str] = field(default_factory=dict)
    """JSON pointer into the answer of an error, or into its event → regular expression searched, ignoring case, in the
    texts and numbers there; one of them must match."""
    retry_after: bool | None = None
    """True or False: only with, or only without a retry-after."""
    account_block: bool = False
    """Whether the account is refused until the end of a long window (a subscription's, a day's): clients that wait
    beyond the end are held, the others are refused at once, and without a stated end all are. The end is in the error,
    the spent windows or the retry-after. One request looks every five minutes."""
    of_account: bool = False
    """Whether it is the account's trouble and not the request's, though no end is known (no credit): where the profile
    lists `upstreams`, another one is tried."""


@dataclass(frozen=True, slots=True)
class RequestPlace:
    """Where a request names something: a header, a parameter of its query, a member of its body, or its path.

    As a text: `header`, `header#member`, `body#member` or `query#name`.
    """

    header: str = ""
    """Its name."""
    member: str = ""
    """The header holds a JSON object: the text of this member."""
    query: str = ""
    """Its name."""
    body: str = ""
    """Its name, `outer.member` inside an object; one of the format's `request.names`."""
    path: str = ""
    """Regular expression searched in the path, ignoring case."""
    match: str = ""
    """Regular expression searched in what stands there, ignoring case; where it finds nothing, nothing stands there. Of
    both, what the groups find counts, joined by `/`; without a group all that was found."""

    def __post_init__(self) -> None:
        """BadValue: it is not one place."""
        if sum(map(bool, (self.header, self.query, self.body, self.path))) != 1:
            raise BadValue("it names no place, or several", "write one of header, query, body and path")
        if self.member and not self.header:
            raise BadValue("only a header has a member", "write body: outer.member for what is inside an object")
        if self.path and self.match:
            raise BadValue("a path is searched already", "write the regular expression at path alone")

    def __str__(self) -> str:
        """As it is written, without what is searched."""
        if self.header:
            return f"{self.header}#{self.member}" if self.member else self.header
        return next(
            f"{kind}#{name}" for kind, name in (("query", self.query), ("body", self.body), ("path", self.path)) if name
        )


@dataclass(frozen=True, slots=True)
class CallRule:
    """What a request is for. All the given conditions must hold; the first rule that matches decides."""

    kind: CallKind
    """What it is for."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header name → regular expression searched in its value, ignoring case; `name#member` looks into a header that
    holds a JSON object. A header that is not there is an empty text."""
    paths: tuple[str, ...] = ()
    """Path globs (any of them); empty: any path."""
    models: tuple[str, ...] = ()
    """Globs of model names (any of them); empty: any model."""
    tools: bool | None = None
    """Whether the request brings tools."""
    max_messages: int | None = None
    """At most so many messages, the system's own in the list counted."""
    system: str = ""
    """Words that stand in the first 2,000 bytes of the system prompt, or of the first message where there is none; in
    whatever case."""
    says: str = ""
    """Words that stand in the first 2,000 bytes of the last message, or of its last text (after results of tools); in
    whatever case."""


@dataclass(frozen=True, slots=True)
class ClientRule:
    """One kind of client, told by its headers."""

    headers: Mapping[str, str]
    """Header name → regular expression searched in its value, ignoring case; all of them must match."""


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """What a model costs, in dollars per million tokens."""

    input: float
    """Uncached input."""
    output: float
    """Output, thinking included."""
    cache_write: float | None = None
    """Input that is written to the prompt cache; without it as `input`."""
    cache_read: float | None = None
    """Input that is read from the prompt cache; without it as `input`."""
    cache_write_1h: float | None = None
    """Input that is written to the prompt cache for an hour; without it as `cache_write`."""

    @property
    def price(self) -> Price:
        """The same in whole micro-dollars."""
        write, read, hour = self.cache_write, self.cache_read, self.cache_write_1h
        return Price(
            input=prices.micro(self.input),
            cache_write=prices.micro(self.input if write is None else write),
            cache_read=prices.micro(self.input if read is None else read),
            output=prices.micro(self.output),
            cache_write_1h=None if hour is None else prices.micro(hour),
        )


@dataclass(frozen=True, slots=True)
class Watchdog:
    """When an attempt that is silent counts as hanging: it is ended and, where nothing of the answer has reached the
    client, tried again.
    """

    silent_s: float = 120
    """At least this long without a byte from upstream. Each attempt that hung doubles the time of the next."""
    begun_s: float = 0
    """At least this long once the head of a good answer has come, and before an answer that is not streamed while fewer
    than twenty of the model are known: a model may think. 0: as long as the client waits, and at least 900 s."""
    factor: float = 10
    """And this many times what 99 of 100 answers of the model take to the head; to the end where they are not streamed;
    or, once the head has come, from one piece to the next at most."""


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
    """For text too long to be counted without stalling the event loop, and far from a limit for all; learned per model
    as well."""


@dataclass(frozen=True, slots=True)
class PatienceRule:
    """How long this provider's clients wait for an answer."""

    default_s: float = 600
    """Assumed where the client announces nothing, until clients have shown how long they wait."""
    headers: tuple[str, ...] = ("x-stainless-read-timeout", "x-stainless-timeout")
    """Request headers in which a client announces it, in seconds; the first that is there counts."""
    clients: Mapping[str, float] = field(default_factory=dict)
    """Glob of user agents → seconds, assumed instead; the first match counts."""
    kept_alive_s: float = 0
    """At least so long where they hear `keep_alive_s`, or `interim`, meanwhile; 0: no longer than otherwise."""
    interim: tuple[str, ...] = (
        "python-httpx/*",
        "python-requests/*",
        "python-urllib3/*",
        "Python-urllib/*",
        "pip/*",
        "PyGithub*",
    )
    """Globs of user agents whose time-out begins anew with each `100 Continue`: a held client that speaks HTTP/1.1 gets
    this interim response every 2 s, so that only the service's own silence counts."""
    margin_s: float = 5
    """A held client is refused this long before it would give up, or after 90 % of its patience where that is
    later."""


@dataclass(frozen=True, slots=True)
class Signature:
    """How long a request that its client signed may be held: it is sent, and sent again, as it came, or not at all."""

    header: str
    """Header with the instant at which it was signed; a request without it is not signed."""
    valid_s: float = 240
    """So long after that instant it may still be sent, whatever the client's patience; one that comes later is sent on
    unscheduled."""


@dataclass(frozen=True, slots=True)
class ContextEditing:
    """How a provider is asked to take old tool results out of a context itself, as Anthropic's API can be."""

    models: tuple[str, ...]
    """Globs of the models that can."""
    at: str
    """Pointer to the list of edits that a request asks for."""
    edit: Mapping[str, Any]
    """Template of the item that is added to it; `{at_tokens}`, `{least_tokens}` and `{keep}` stand for numbers: from
    which size on, at least how much, and how many of the newest results stay."""
    header: str = ""
    """Header in whose list it is switched on; empty: it needs none."""
    feature: str = ""
    """What that list needs."""
    results: str = ""
    """Pointer, in an answer or an event of a stream, to how many results were taken out; several add up."""
    tokens: str = ""
    """The same for their tokens."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer that makes a held client come back instead of giving up."""

    status: int = 503
    """HTTP status."""
    error: str = "server_is_overloaded"
    """`type` (and `code`) of the error object."""
    retry_after_max_s: int = 30
    """The longest that a client is told: some SDKs ignore more than 60 s, others sleep through any."""


@dataclass(frozen=True, slots=True)
class BudgetRefusal:
    """The answer when a budget is spent: one that clients show and do not retry."""

    status: int = 400
    """HTTP status; neither 408, 409, 429 nor 5xx, which SDKs retry."""
    error: str = "billing_hard_limit_reached"
    """`type` (and `code`) of the error object."""


@dataclass(frozen=True, slots=True)
class BlockedAccountRefusal:
    """The answer while the account is refused for long: one that clients show and do not retry, with the end in it."""

    status: int = 429
    """HTTP status."""
    error: str = "usage_limit_reached"
    """`type` (and `code`) of the error object."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """More headers; `{reset}` stands for the end in epoch seconds."""


@dataclass(frozen=True, slots=True)
class Peek:
    """How long the beginning of a streamed answer is kept back until its first content is judged."""

    max_bytes: int = 65536
    """At most this much of it."""
    max_s: float = 10
    """At most this long."""
    whole_max_bytes: int = 16 * 1024 * 1024
    """With whole delivery: past this size the rest is streamed."""
    whole_max_s: float = 150
    """Where `auto` chose whole delivery: so long after the request came, what has come of its answer is passed on, and
    the rest is streamed. With its own settings Claude Code sends a request again after 183 s of silence."""


MODEL_IN_PATH = "{model}"
"""Stands for the model in a path glob."""
JOB_IN_PATH = "{id}"
"""Stands for a job's id in a path glob."""


@dataclass(frozen=True, slots=True)
class JobRule:
    """Work that outlives its request, and what answers say of it (docs/budgets.md)."""

    path: str
    """Glob of the path that asks for the work, with `{id}` at its end; one more segment may follow."""
    format: str
    """Name of the packaged wire format that reports the usage."""
    begin: str = ""
    """Glob of the path of the POST that begins it; empty: `path` before the id."""
    at: tuple[str, ...] = ("",)
    """Pointers to the object that describes the work, in an answer, an event or a line; all of them count."""
    id: str = "/id"
    """Pointer to its id within that object; of a path the last segment counts."""
    status: str = "/status"
    """Pointer to its status."""
    going: tuple[str, ...] = ()
    """The words of a status with which the work goes on; any other word is the end."""
    done: tuple[str, ...] = ()
    """The words of the end after which the expected usage counts, if none is reported; after others nothing does."""
    usage_in: tuple[str, ...] = ("",)
    """Pointers within the object to what reports usage as an answer of the format; the sum counts."""
    results: str = ""
    """The segment behind the id whose answer, read to its end, has the usage in its lines; empty: the answer with the
    final status has it."""
    streamed_if: str = ""
    """Pointer within the object of a streamed answer: only if true stands there, the work outlives the stream."""
    expires: str = ""
    """Pointer to the instant at which the work expires."""
    lasts_s: float = 86_400
    """How long its end is waited for, if nothing says when it expires."""

    def __post_init__(self) -> None:
        """BadValue: the path has no id."""
        if not self.path.endswith(f"/{JOB_IN_PATH}"):
            raise BadValue(f"{self.path!r} names no job", f"end it with /{JOB_IN_PATH}")


@dataclass(frozen=True, slots=True)
class Profile:
    """One provider."""

    name: str = ""
    """The file's name without `.yaml`."""
    kind: ProfileKind = ProfileKind.MODEL
    """What is called: models, or any other service (`plain`). A plain profile that extends nothing has the defaults of
    the packaged one called `plain`."""
    hosts: tuple[str, ...] = ()
    """`host` or `host:port`; `*` matches within a name. Only these are intercepted."""
    paths: tuple[str, ...] = ()
    """Path globs of model calls (POST), in whatever spelling; of a plain profile those of calls by any method.
    Everything else on the host passes by untouched."""
    exclude_paths: tuple[str, ...] = ()
    """Path globs that pass by although `paths` matches."""
    format: WireFormat = field(default_factory=WireFormat)
    """The wire format of `paths`: a packaged one's name, or a mapping that `extends` one and changes its keys."""
    formats: Mapping[str, WireFormat] = field(default_factory=dict)
    """Path glob → wire format, where it is another one; the first match counts."""
    model_groups: tuple[str, ...] = ()
    """Globs of model names that share one limit; a model that matches none is its own group."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of a plain profile: name → path globs of the calls that share one limit; the first match counts. What matches
    none has a limit of its own, `*`."""
    stated: tuple[StatedLimit, ...] = ()
    """Of a plain profile: limits that no header tells and nobody has to be refused to learn of."""
    safe_paths: tuple[str, ...] = ()
    """Of a plain profile: path globs of calls that change nothing, whatever their method; a search that is a POST."""
    model_paths: tuple[str, ...] = ()
    """Path globs with `{model}` where paths name the model (Azure's deployment); it counts before the body's."""
    account: tuple[RequestPlace, ...] = ()
    """Where requests name their account; the first that is there counts, and before any credential: one that is changed
    every hour names a new account each time."""
    credentials: tuple[RequestPlace, ...] = (
        RequestPlace(header="authorization"),
        RequestPlace(header="x-api-key"),
        RequestPlace(header="api-key"),
    )
    """Where they hold the key; the hash of the first that is there names the account until something better does."""
    response_account_headers: tuple[str, ...] = ()
    """Response headers that name the account."""
    session_headers: tuple[str, ...] = ()
    """Where a request names the agent's session; the first that is there counts: a header, `name#member` of a header
    that holds a JSON object, or `body#member` (`body#outer.member`) of the request's own JSON, as far as it is read."""
    subagent_headers: tuple[str, ...] = ()
    """Where it names a sub-agent within that session; the first that is there, and is not the session itself."""
    parent_headers: tuple[str, ...] = ()
    """Where it names the session which started this one; as above."""
    parent_beside: Mapping[str, str] = field(default_factory=dict)
    """Header that names the session → where such a request names its parent; for agents whose name for it is, in
    others, something else."""
    upstreams: tuple[EqualUpstream, ...] = ()
    """Endpoints that are equal: calls go where they can go soonest (docs/upstreams.md). Empty: where they were sent.
    Not inherited by `extends` of another name."""
    websocket: WebSocketUse = WebSocketUse.TUNNEL
    """What becomes of a WebSocket that a client opens on one of `paths`; on any other path it passes."""
    calls: tuple[CallRule, ...] = ()
    """What requests are for, where it is neither a turn nor (by the headers above) a sub-agent's."""
    jobs: tuple[JobRule, ...] = ()
    """Work that outlives its request: the budgets keep its reservation until its end is seen."""
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)
    """Glob of model names → what they cost; the first match counts. Other models have the price that the data of
    `genai-prices` knows, or that of the nearest model of their family, which is reported."""
    context_windows: Mapping[str, int] = field(default_factory=dict)
    """Glob of model names → how many tokens a request of theirs may carry; the first match counts, and 0 says that it
    is not known. Other models have the window that `genai-prices` knows. What is not known is not warned of."""
    cache: CacheSettings = field(default_factory=CacheSettings)
    """How the provider keeps the beginning of prompts."""
    cache_needs_marks: bool = False
    """It keeps only what requests mark (`cache_control`), not every beginning that is long enough."""
    watchdog: Watchdog = field(default_factory=Watchdog)
    """When an attempt counts as hanging."""
    reverse_paths: tuple[str, ...] = ()
    """Path globs by which a reverse-mode upstream is recognised; not inherited by `extends`."""
    meters: tuple[MeterHeaders, ...] = ()
    """The limits that response headers tell."""
    windows: tuple[WindowHeaders, ...] = ()
    """The long windows of a subscription that response headers tell."""
    outcomes: tuple[OutcomeRule, ...] = ()
    """Before the general rules of `formats/wire/outcome.py`."""
    charge: Charge = field(default_factory=Charge)
    """How the provider's limits count a call."""
    tokens: Tokens = field(default_factory=Tokens)
    """How request bodies are counted before they are sent."""
    patience: PatienceRule = field(default_factory=PatienceRule)
    """How long its clients wait for an answer."""
    sign: Signature | None = None
    """Whether clients sign their requests, with the time in it (AWS)."""
    context_editing: ContextEditing | None = None
    """How it is asked to take old tool results out of a context itself, for agents whose contexts are compacted; not
    inherited by `extends` of another name. Without it the proxy puts stubs in their place (docs/compaction.md)."""
    refusal: Refusal = field(default_factory=Refusal)
    """The answer that makes a held client come back."""
    budget_refusal: BudgetRefusal = field(default_factory=BudgetRefusal)
    """The answer when a budget is spent."""
    account_block_refusal: BlockedAccountRefusal = field(default_factory=BlockedAccountRefusal)
    """The answer while the account is refused for long."""
    delivery: Delivery = Delivery.AUTO
    """When a streamed answer reaches the client, where neither agent nor request says it."""
    headless: tuple[ClientRule, ...] = ()
    """Clients that run headless, for delivery `auto`; beside those that are known (docs/delivery.md)."""
    keep_alive_s: float = 0
    """Seconds between the SSE comments that a held streaming client gets; 0: none, and 20 while a stream that has begun
    is silent."""
    peek: Peek = field(default_factory=Peek)
    """How long the beginning of an answer is kept back to be judged."""
    concurrency: ConcurrencySettings = field(default_factory=ConcurrencySettings)
    """How many attempts may be in flight at once."""
    machine: MachineSettings | None = None
    """One machine serves all models of the host, and a change of the model takes a while; without it changes cost
    nothing."""
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    """When a provider counts as down, and how it is probed."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How often a failed attempt is tried again."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing but heads is read, and no tokens are counted."""
        return self.kind is ProfileKind.PLAIN

    @property
    def credential_headers(self) -> tuple[str, ...]:
        """Headers that hold a key, or a part of one."""
        return tuple(one.header for one in self.credentials if one.header)

    @property
    def account_headers(self) -> tuple[str, ...]:
        """Headers in which requests name the account."""
        return tuple(one.header for one in self.account if one.header)

    def price_of(self, model: str, wall: float, host: str = "") -> Price | None:
        """The price at an instant (epoch seconds), `host` being called; None: unknown."""
        own = _price(self, model)
        if own is not None or not model or self.is_plain:
            return own
        return prices.price_of((host, *self.hosts), model[:REMEMBERED_CHARS], int(wall // prices.SLOT_S))

    def window_of(self, model: str, host: str = "") -> int | None:
        """The model's context window in tokens; None: it is not known."""
        own = _window(self, model)
        if own is None and model and not self.is_plain:
            own = prices.window_of((host, *self.hosts), model[:REMEMBERED_CHARS])
        return own or None

    @property
    def pool_settings(self) -> PoolSettings:
        """What the core needs of it."""
        return _pool_settings(self)


@by_thing_and_text
def _price(profile: Profile, model: str) -> Price | None:
    return next((one.price for glob, one in profile.prices.items() if glob_matches(glob, model)), None)


@by_thing_and_text
def _window(profile: Profile, model: str) -> int | None:
    return next((tokens for glob, tokens in profile.context_windows.items() if glob_matches(glob, model)), None)


@by_thing
def _pool_settings(profile: Profile) -> PoolSettings:
    concurrency = profile.concurrency
    if concurrency.maximum_from == ConcurrencySettings().maximum_from:
        concurrency = replace(concurrency, maximum_from=f"{concurrency.maximum_from} of profile {profile.name}")
    return PoolSettings(
        profile=profile.name,
        concurrency=concurrency,
        breaker=profile.breaker,
        retry=profile.retry,
        order=OrderSettings(cache=profile.cache),
        stated=profile.stated,
        machine=profile.machine,
    )
