"""What is scheduled: a ticket, what it is expected to use, and what became of each of its attempts.

Values of the core that every decision makes are frozen Structs: like frozen dataclasses, and made ten times as fast.
They refer to values only, so that the garbage collector need not know of them (`gc=False`).
"""

from enum import Enum, IntEnum

from msgspec import Struct, field

from hivemind_addon.kernel.values.spend import Budget, Price, Spend

REQUEST_HEADER = "x-hivemind-request"
"""On every answer to a scheduled request, whoever made it: the ticket's id, which `hivemind history ticket` knows."""


class ContractError(Exception):
    """Our own misuse of the core, such as settling an attempt twice. Never caused by a provider."""


class Dimension(Enum):
    """What a provider's limit counts."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOTAL_TOKENS = "total_tokens"


class PoolKey(Struct, frozen=True, gc=False):
    """One provider limit domain."""

    host: str
    account: str
    """What requests or responses name (an organisation), else `key-` and a hash of the credential."""
    model_group: str

    def __str__(self) -> str:
        return f"{self.host}/{self.account}/{self.model_group}"


class Demand(Struct, frozen=True, gc=False):
    """What one attempt takes from each meter. Made by the profile's charge rule, before and after the attempt."""

    requests: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0

    def of(self, dimension: Dimension) -> int:
        """The amount in one dimension."""
        match dimension:
            case Dimension.REQUESTS:
                return self.requests
            case Dimension.INPUT_TOKENS:
                return self.input_tokens
            case Dimension.OUTPUT_TOKENS:
                return self.output_tokens
            case Dimension.TOTAL_TOKENS:
                return self.total_tokens

    def plus(self, other: "Demand") -> "Demand":
        """What both take."""
        return Demand(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.total_tokens + other.total_tokens,
        )


class Usage(Struct, frozen=True, gc=False):
    """Tokens that an attempt used, as reported by the provider or, where it reports nothing, counted."""

    input_tokens: int = 0
    """Uncached input."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reported: bool = False
    """Whether the provider said so; else it is our count."""

    @property
    def total_input_tokens(self) -> int:
        """All input, cached or not."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: "Usage") -> "Usage":
        """What both used; reported when either was."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reported=self.reported or other.reported,
        )


class OutcomeKind(Enum):
    """How an attempt ended, and so whether it may teach a limit."""

    SUCCESS = "success"
    THROTTLED = "throttled"
    """A rate limit (429): the meters' business, never the concurrency limit's."""
    OVERLOADED = "overloaded"
    """529, 503 overload, a 429 that says concurrency: moves the concurrency limit and the breaker."""
    FAILED = "failed"
    """500, 502, a cut, a reset: the ticket's own trouble while others succeed."""
    IGNORED = "ignored"
    """The request's own fault (400, 401, 413, …), its account's (spent credit) or its model's (garbage): teaches no
    limit."""
    CANCELLED = "cancelled"
    """The client went, or a person aborted."""

    __hash__ = object.__hash__  # an Enum's own is Python, and asked for at each attempt's end


class Outcome(Struct, frozen=True, gc=False):
    """The end of one attempt, judged. Made by `formats/wire/outcome.py`."""

    kind: OutcomeKind
    reason: str
    """A short stable phrase for people, logs and filters: `429 rate_limit_error`, `connection reset`."""
    status: int | None = None
    """HTTP status, or None when the attempt ended without one."""
    retryable: bool = False
    """Whether waiting can cure it. False for 400, spent credit, `x-should-retry: false`, bad certificates."""
    ambiguous: bool = False
    """Ended without a status after the request was sent: the provider may have run and billed it."""
    retry_after_s: float | None = None
    """The provider's own word, a floor for the backoff."""
    unreached: bool = False
    """It never got to the provider: no network, name not found. Nobody's own trouble."""
    account_block_s: float | None = None
    """Seconds until the account is served again, where it is refused for hours or days; 0: it does not say until when.

    None: no such refusal."""
    of_account: bool = False
    """It is the account's trouble and not the request's: an equal endpoint may serve it."""
    garbage: str = ""
    """What is wrong with a complete answer (`formats/wire/garbage.py`); empty: nothing that is known."""


class Reading(Struct, frozen=True, gc=False):
    """One meter as one response's headers told it."""

    meter: str
    """The meter's name in the profile, for example `input-tokens`."""
    dimension: Dimension
    window_s: float
    """The window that the limit is stated for (60 for per-minute limits)."""
    limit: float | None = None
    remaining: float | None = None
    reset_in_s: float | None = None
    """Seconds from the response until the provider's `reset` instant, or until the last one that it may mean; never
    negative."""
    granularity: float = 0
    """How coarsely `remaining` is rounded (Anthropic rounds tokens to 1,000)."""
    reset_cut_s: float = 0
    """So much sooner the reset may be: it is told in whole seconds, and they were cut at most."""


class WindowReading(Struct, frozen=True, gc=False):
    """One long window of a subscription (five hours, a week) as one response told it. Shown, never paced by."""

    window: str
    """The window's name in the profile."""
    used: float | None = None
    """The fraction that is used; the provider may let it pass 1."""
    status: str = ""
    """The provider's own word: `allowed`, `allowed_warning`, `rejected`; empty where it gives none."""
    resets_in_s: float | None = None
    """Seconds from the response until it begins anew; never negative."""
    length_s: float | None = None


class Hints(Struct, frozen=True, gc=False):
    """What one response said about limits. Made by `formats/wire/hints.py`."""

    readings: tuple[Reading, ...] = ()
    retry_after_s: float | None = None
    should_retry: bool | None = None
    """`x-should-retry`, where the provider sent it."""
    account: str | None = None
    """The organisation that the response named."""
    windows: tuple[WindowReading, ...] = ()
    oddities: tuple[str, ...] = ()
    """Headers that could not be understood, in words; what could be understood counts all the same."""


class Priority(IntEnum):
    """A class that is served before the next one, within the bound that keeps every wait finite."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


class CallKind(Enum):
    """What a request is for, as far as its head and body tell."""

    TURN = "turn"
    SUBAGENT = "sub-agent"
    AUXILIARY = "auxiliary"
    """Titles and summaries: nobody waits for it."""
    COMPACTION = "compaction"
    CLASSIFIER = "classifier"
    PREWARM = "prewarm"
    TOOL = "tool"
    """A call of a service that is no model: of a plain profile."""


class Endpoint(Struct, frozen=True, gc=False):
    """A pool that is equal to others for the tickets that name it."""

    pool: PoolKey
    weight: float = 1.0
    """Its share of the new trees of sessions, beside the others'."""


class Ticket(Struct, frozen=True, gc=False):
    """One request that wants to go upstream, from submit to its end; survives retries."""

    id: str
    pool: PoolKey
    agent: str
    """Who asks: the proxy user, else what the request's headers name, else its connection."""
    session: str
    """The agent session that it belongs to; its lane."""
    model: str
    demand: Demand
    arrived_at: float
    """Monotonic instant."""
    deadline_at: float
    """Monotonic instant at which the client itself gives up."""
    shed_at: float
    """Monotonic instant, shortly before `deadline_at`, at which a held client gets the come-back refusal."""
    priority: Priority = Priority.NORMAL
    kind: CallKind = CallKind.TURN
    parent_session: str = ""
    """The session that started this one (sub-agents); empty: none is known."""
    prefix: str = ""
    """Hash of the part that the provider's prompt cache keys on (model, tools, system, first message); or empty."""
    prefix_tokens: int = 0
    """Size of that part."""
    cached_tokens: int = 0
    """Input that the provider is expected to read from its cache, as far as it is still warm."""
    cold_tokens: int = 0
    """Of these, what the limits count as input once the cache has lapsed; 0 where they count cached input anyway."""
    streamed: bool = False
    request_hash: str = ""
    """Same agent, model, messages and tools: a client that comes back after a refusal sends the same one."""
    weight: float = 1.0
    """The agent's share beside others of its priority."""
    max_fan_out: int | None = None
    """Attempts of sub-agents that its tree of sessions may have in flight; None: as many as fit."""
    budgets: tuple[Budget, ...] = ()
    """Everything that it is paid from: the agent's, its group's and everyone's."""
    price: Price | None = None
    """None: tokens are counted, money is not."""
    expected: Spend = field(default_factory=Spend)
    """What one attempt is expected to take from the budgets."""
    group: str = ""
    """The group that the agents file puts its agent in; empty: none."""
    task: str = ""
    """What its client calls the task that it is part of: `x-hivemind-task-id`, or `task-ID` in the proxy's password."""
    client: str = ""
    """What kind of client asks, where nobody told how long it waits; empty: `deadline_at` was announced."""
    only_reads: bool = False
    """It changes nothing where it goes; known of plain calls."""
    idempotency_key: str = ""
    """The client's own `Idempotency-Key`, which goes upstream as it came."""
    endpoints: tuple[Endpoint, ...] = ()
    """Pools that it may go to, whichever takes it soonest; `pool` is the one that it waits for. Empty: `pool` only."""

    window_tokens: int | None = None
    """Its model's context window; None: it is not known."""
    cache_s: float = 0.0
    """How long the provider keeps what an attempt has read, from its beginning; 0: nothing that is known of."""

    @property
    def cold_demand(self) -> Demand:
        """The demand of an attempt that finds nothing in the provider's cache."""
        demand = self.demand
        return Demand(
            requests=demand.requests,
            input_tokens=demand.input_tokens + self.cold_tokens,
            output_tokens=demand.output_tokens,
            total_tokens=demand.total_tokens + self.cold_tokens,
        )


class Attempt(Struct, eq=False):
    """One sending of a ticket's request to the provider. Ends by `Scheduler.settle`, exactly once."""

    ticket: Ticket
    number: int
    """Counted from 1."""
    admitted_at: float
    """Monotonic instant."""
    demand: Demand = Demand()
    """What is reserved for it."""
    stamp: int = 0
    """Counts the admissions and settles of an account: what a header can know."""
    in_flight: int = 0
    """Attempts of the pool at its admission, itself counted."""
    is_probe: bool = False
    """It goes while the provider is down, to see whether it is back."""


class AttemptResult(Struct, frozen=True, gc=False):
    """What became of an attempt, as it goes down to everything that counts it."""

    outcome: Outcome
    usage: Usage | None = None
    """None: nothing is known of it."""
    charged: Demand | None = None
    """What the provider really takes for it; None: what was reserved."""
    client_saw_bytes: bool = False
    may_repeat: bool = True
    """False: the provider would not take the same request again; where waiting might cure it, its client is told to
    come back with another one."""
    by_others: bool = False
    """Other processes may have attempts in flight that nobody here counts: a refusal teaches no limit, and for some
    seconds no more is tried."""


class Reason(Enum):
    """Why a ticket waits, or why it was refused. The words that logs and dashboards show."""

    CONCURRENCY = "concurrency limit"
    METER = "rate limit"
    BLOCKED = "told to wait"
    """A refusal's retry-after, or a throttled answer without one."""
    BREAKER = "provider down"
    BACKOFF = "backing off"
    ORDER = "others go first"
    """Of another pool that draws on the same limit; or nothing keeps it, and it goes with the next poll."""
    LEADER = "its prompt cache is being written"
    FAN_OUT = "enough sub-agents running"
    DEADLINE = "client about to give up"
    STOPPING = "scheduler stopping"
    SPENT_ATTEMPTS = "attempts spent"
    SPENT_AMBIGUOUS = "may have been billed too often"
    NOT_RETRYABLE = "waiting cannot cure it"
    DELIVERED_BYTES = "client has seen part of it"
    ANEW = "its client sends all of it anew"
    """A turn of a WebSocket that continued an earlier answer."""
    BUDGET = "budget spent"
    FUNDS = "its budget is reserved by running requests"
    PAUSED = "paused by a person"
    COORDINATOR = "looking for the cluster's coordinator"
    """It decides for its member, which has none just now."""
    ACCOUNT_BLOCK = "the account's limit is spent"
    """A subscription's window, a day's quota: after its end one request goes first, the others wait for its answer."""


class Delivery(Enum):
    """When a streamed answer reaches the client."""

    STREAM = "stream"
    """Chunk by chunk, as soon as its first content is judged."""
    WHOLE = "whole"
    """When it is complete and checked: any failure of it can be retried. For unattended agents."""
    AUTO = "auto"
    """`whole` for a client whose headers say that it runs headless, else `stream`: a person may watch."""
