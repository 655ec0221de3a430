"""Values about requests: the ticket with its demand, its attempts, and their outcomes.

The core makes these values in every decision. So they are frozen Structs: like frozen dataclasses, but made ten times
as fast. They refer to values only, so the garbage collector need not track them (`gc=False`).
"""

from enum import Enum, IntEnum
from operator import add

from msgspec import Struct, field
from msgspec.structs import astuple

from hivemind_addon.kernel.values.spend import Budget, Price, Spend

REQUEST_HEADER = "x-hivemind-request"
"""Header with the ticket's id on each answer to a scheduled request, for `hivemind history ticket`."""


class ContractError(Exception):
    """Misuse of the core by our own code, such as settling an attempt twice. A provider never causes this error."""


class Dimension(Enum):
    """The quantity that a provider's limit counts."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOTAL_TOKENS = "total_tokens"


class PoolKey(Struct, frozen=True, gc=False):
    """Identifies a pool: the requests that share a set of the provider's limits."""

    host: str
    account: str
    """The organisation that requests or responses name, else `key-` and a hash of the credential."""
    model_group: str

    def __str__(self) -> str:
        return f"{self.host}/{self.account}/{self.model_group}"


class Demand(Struct, frozen=True, gc=False):
    """The amounts that an attempt takes from the meters, computed by the profile's charge rule before and after."""

    requests: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0

    def of(self, dimension: Dimension) -> int:
        """The amount in one dimension."""
        amount: int = getattr(self, dimension.value)
        return amount

    def plus(self, other: "Demand") -> "Demand":
        """The sum of both demands."""
        return Demand(*map(add, astuple(self), astuple(other)))


class Usage(Struct, frozen=True, gc=False):
    """Tokens that an attempt used; each number is reported by the provider, or counted or expected by us."""

    input_tokens: int = 0
    """Uncached input."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reported: bool = False
    """Whether the provider reported input and output; else at least one of them is our number."""
    cache_write_1h_tokens: int = 0
    """The part of `cache_write_tokens` that is cached for an hour."""
    tier: str = ""
    """The service tier that the provider reported, which has own prices; empty: as requested."""

    @property
    def total_input_tokens(self) -> int:
        """All input, cached or not."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: "Usage") -> "Usage":
        """The sum of both usages; `reported` if at least one is."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reported=self.reported or other.reported,
            cache_write_1h_tokens=self.cache_write_1h_tokens + other.cache_write_1h_tokens,
            tier=self.tier or other.tier,
        )


class OutcomeKind(Enum):
    """How an attempt ended. The kind decides which limits learn from the attempt."""

    SUCCESS = "success"
    THROTTLED = "throttled"
    """A rate limit refused (429): the meters learn, the concurrency limit never does."""
    OVERLOADED = "overloaded"
    """529, 503 overload, or a 429 about concurrency: changes the concurrency limit and the breaker."""
    FAILED = "failed"
    """500, 502, a cut, a reset: a problem of the ticket alone while other tickets succeed."""
    IGNORED = "ignored"
    """A fault of the request (400, 401, 413, …), the account (spent credit) or the model (garbage): no limit learns."""
    CANCELLED = "cancelled"
    """The client left, or a person aborted the request."""

    __hash__ = object.__hash__  # Enum's `__hash__` is written in Python, and the end of each attempt calls it


class Outcome(Struct, frozen=True, gc=False):
    """The classified end of an attempt. Made by `formats/wire/outcome.py`."""

    kind: OutcomeKind
    reason: str
    """A short stable phrase for people, logs and filters: `429 rate_limit_error`, `connection reset`."""
    status: int | None = None
    """HTTP status; None if the attempt ended without a status."""
    retryable: bool = False
    """Whether waiting can cure the failure. False for 400, spent credit, `x-should-retry: false`, bad certificates."""
    ambiguous: bool = False
    """Ended without a status after the request was sent: the provider may have run and billed it."""
    retry_after_s: float | None = None
    """The provider's retry-after: a minimum for the backoff."""
    unreached: bool = False
    """The attempt never reached the provider: no network, name not found. Neither request nor account is at fault."""
    account_block_s: float | None = None
    """Seconds until the provider serves the account again, after a refusal for hours or days; 0: the end is not stated.
    None: no such refusal."""
    words: str = ""
    """The provider's message, of a refusal for long only."""
    of_account: bool = False
    """The account is at fault, not the request: an equal endpoint may serve the request."""
    of_edge: bool = False
    """Whether something in front of the provider refused, as an HTML page or a header says."""
    garbage: str = ""
    """The fault in a complete answer (`formats/wire/garbage.py`); empty: no known fault."""
    lacks_end: bool = False
    """Whether the answer's transport ended as usual and the answer lacks its last event."""

    @property
    def may_be_billed(self) -> bool:
        """Whether the provider may have done work even if nothing of an answer came."""
        return self.ambiguous or self.kind in (OutcomeKind.SUCCESS, OutcomeKind.CANCELLED)


class Reading(Struct, frozen=True, gc=False):
    """A header limit: the values for a meter in a response's headers."""

    meter: str
    """The meter's name in the profile, for example `input-tokens`."""
    dimension: Dimension
    window_s: float
    """The window of the limit (60 for per-minute limits)."""
    limit: float | None = None
    remaining: float | None = None
    reset_in_s: float | None = None
    """Seconds from the response until the provider's `reset` instant, or the latest possible instant if rounded; never
    negative."""
    granularity: float = 0
    """The step to which `remaining` is rounded (Anthropic rounds tokens to 1,000)."""


class WindowReading(Struct, frozen=True, gc=False):
    """A long window of a subscription (five hours, a week) as reported in a response. Shown; paces nothing."""

    window: str
    """The window's name in the profile."""
    used: float | None = None
    """The used fraction; may exceed 1."""
    status: str = ""
    """The provider's word: `allowed`, `allowed_warning`, `rejected`; empty if missing."""
    resets_in_s: float | None = None
    """Seconds from the response until the window begins again; never negative."""
    length_s: float | None = None


class Hints(Struct, frozen=True, gc=False):
    """The statements of a response about limits. Made by `formats/wire/hints.py`."""

    readings: tuple[Reading, ...] = ()
    retry_after_s: float | None = None
    should_retry: bool | None = None
    """`x-should-retry`, if the provider sent this header."""
    account: str | None = None
    """The organisation that the response named."""
    windows: tuple[WindowReading, ...] = ()
    oddities: tuple[str, ...] = ()
    """Descriptions of headers that could not be understood; all other headers count."""


class Priority(IntEnum):
    """A class of tickets, served before the lower classes within a bound that keeps every wait finite."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


class CallKind(Enum):
    """The purpose of a request, inferred from head and body."""

    TURN = "turn"
    SUBAGENT = "sub-agent"
    AUXILIARY = "auxiliary"
    """A title or a summary: nobody waits for the answer."""
    COMPACTION = "compaction"
    CLASSIFIER = "classifier"
    PREWARM = "prewarm"
    TOOL = "tool"
    """A call to a service other than a model (plain profile)."""


class Endpoint(Struct, frozen=True, gc=False):
    """A pool among several that can serve a ticket equally well."""

    pool: PoolKey
    weight: float = 1.0
    """The pool's relative share of new trees of sessions."""


class Ticket(Struct, frozen=True, gc=False):
    """A request from submit to end, through all attempts."""

    id: str
    pool: PoolKey
    agent: str
    """The agent: the proxy user, else the name in the request's headers, else the connection."""
    session: str
    """The agent's session; decides the lane."""
    model: str
    demand: Demand
    arrived_at: float
    """Monotonic instant."""
    deadline_at: float
    """Monotonic instant at which the client gives up."""
    shed_at: float
    """Monotonic instant, shortly before `deadline_at`, at which a held client gets a refusal and is to come back."""
    priority: Priority = Priority.NORMAL
    kind: CallKind = CallKind.TURN
    parent_session: str = ""
    """The session that started this session (sub-agents); empty: unknown or none."""
    prefix: str = ""
    """Hash of the part that is the provider's prompt-cache key (model, tools, system, first message); or empty."""
    prefix_tokens: int = 0
    """Size of that part."""
    cached_tokens: int = 0
    """Input that the provider will probably read from the prompt cache, if the entry is still warm."""
    cold_tokens: int = 0
    """The part of `cached_tokens` that limits count as input after the entry lapsed; 0 if they always count it."""
    streamed: bool = False
    request_hash: str = ""
    """Equal for the same agent, model, messages and tools, so also when a client comes back after a refusal."""
    weight: float = 1.0
    """The agent's relative share among agents of the same priority."""
    max_fan_out: int | None = None
    """Maximum number of sub-agents' attempts in flight in the tree of sessions; None: no maximum."""
    budgets: tuple[Budget, ...] = ()
    """All budgets that pay for the ticket: of the agent, the group and all agents together."""
    price: Price | None = None
    """None: tokens are counted, money is not."""
    needs_price: bool = False
    """Whether a budget in money refuses the ticket, because the model has no own price."""
    expected: Spend = field(default_factory=Spend)
    """The amounts that an attempt is expected to take from the budgets."""
    group: str = ""
    """The agent's group in the agents file; empty: none."""
    task: str = ""
    """The client's name for the task: `x-hivemind-task-id`, or `task-ID` in the proxy's password."""
    client: str = ""
    """The kind of client, if the client did not announce how long it waits; empty: `deadline_at` was announced."""
    only_reads: bool = False
    """Whether the request changes nothing at the service; known of plain calls."""
    idempotency_key: str = ""
    """The client's `Idempotency-Key`, sent upstream unchanged."""
    endpoints: tuple[Endpoint, ...] = ()
    """Pools that can serve the ticket; the soonest free pool takes the ticket, which waits in `pool`. Empty: `pool`."""
    window_tokens: int | None = None
    """The model's context window; None: unknown."""
    cache_s: float = 0.0
    """How long the provider caches the input, from the start of the attempt; 0: not at all, or unknown."""

    def demand_reading(self, share: float) -> Demand:
        """The demand of an attempt that reads this share of the cached input from the cache."""
        cold = round(self.cold_tokens * (1 - share))
        return self.demand.plus(Demand(0, input_tokens=cold, total_tokens=cold)) if cold else self.demand


class Attempt(Struct, eq=False):
    """A sending of a ticket's request to the provider. `Scheduler.settle` ends each attempt exactly once."""

    ticket: Ticket
    number: int
    """Counted from 1."""
    admitted_at: float
    """Monotonic instant."""
    demand: Demand = Demand()
    """The reserved demand."""
    stamp: int = 0
    """Number of the account's admissions and settles so far: shows which of them a later header can include."""
    in_flight: int = 0
    """The attempts in flight at admission, of all pools that share the limits, this attempt included."""
    own: int = 0
    """The same of this pool alone."""
    is_probe: bool = False
    """Whether the attempt tests if a provider that was down is up again."""
    has_passed: bool = False
    """Whether the provider is known to have accepted the attempt."""


class Job(Struct, frozen=True, gc=False):
    """Work at the provider that goes on after the answer to the request: a response in background mode, or a batch."""

    name: str
    """The host and the provider's id."""
    lasts_s: float
    """Seconds until the job expires: then nobody waits for the end."""


class AttemptResult(Struct, frozen=True, gc=False):
    """The result of an attempt, for all counters and limits."""

    outcome: Outcome
    usage: Usage | None = None
    """None: unknown."""
    charged: Demand | None = None
    """The demand that the provider really charged; None: the reserved demand."""
    client_saw_bytes: bool = False
    may_repeat: bool = True
    """False: the provider would not accept the same request again. If waiting might cure the failure, the client gets a
    refusal and is to come back with another request."""
    by_others: bool = False
    """Whether other processes may have attempts in flight that this process does not count. Then no limit learns from
    a refusal, and for some seconds no further attempt is tried."""
    job: Job | None = None
    """The work that goes on, with which the attempt ends; None: nothing goes on."""


class Reason(Enum):
    """Why a ticket waits or was refused, in the words of logs and dashboards."""

    CONCURRENCY = "concurrency limit"
    METER = "rate limit"
    BLOCKED = "told to wait"
    """A refusal's retry-after, or a throttled answer without one."""
    BREAKER = "provider down"
    BACKOFF = "backing off"
    ORDER = "others go first"
    """Tickets of another pool that draws on the same limit; or the ticket goes at the next poll."""
    LEADER = "its prompt cache is being written"
    FAN_OUT = "enough sub-agents running"
    DEADLINE = "client about to give up"
    STOPPING = "scheduler stopping"
    SPENT_ATTEMPTS = "attempts spent"
    SPENT_AMBIGUOUS = "may have been billed too often"
    NOT_RETRYABLE = "waiting cannot cure it"
    LONG_WAIT = "told to wait for longer than its client"
    DELIVERED_BYTES = "client has seen part of it"
    ANEW = "its client sends all of it anew"
    """A turn of a WebSocket that continued an earlier answer."""
    BUDGET = "budget spent"
    FUNDS = "its budget is reserved by running requests"
    PAUSED = "paused by a person"
    COORDINATOR = "looking for the cluster's coordinator"
    """The coordinator decides for a member; the member has no coordinator at present."""
    ACCOUNT_BLOCK = "the account's limit is spent"
    MODEL_BLOCK = "this model's limit is spent"
    """A subscription's window or a day's quota. After the end a single request goes first; the others wait for the
    answer."""


class Delivery(Enum):
    """When a streamed answer reaches the client."""

    STREAM = "stream"
    """Chunk by chunk, after the check of the first content."""
    WHOLE = "whole"
    """After the check of the complete answer: any failure can be retried. For unattended agents."""
    AUTO = "auto"
    """`whole` for a client that is headless by its headers, else `stream`, because a person may watch."""
