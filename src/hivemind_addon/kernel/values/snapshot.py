"""A frozen view of everything at one instant. Dashboards, pages and tests read nothing else."""

from enum import Enum, StrEnum

from msgspec import Struct, field

from hivemind_addon.kernel.values.spend import Balance, Budget, Spend
from hivemind_addon.kernel.values.ticket import Dimension, PoolKey, Priority, Ticket

SCHEMA_VERSION = 1


class MeterView(Struct, frozen=True, gc=False):
    """One meter of a pool."""

    name: str
    kind: str
    """`bucket`, `window` or `unknown`."""
    limit: float
    level: float
    """What may still be taken now; never above the limit."""
    full_in_s: float
    """Seconds until the level is at the limit again, if nothing more is taken."""
    window_s: float | None = None
    """The span that the limit is stated for; None: not known."""
    dimension: Dimension | None = None
    """What it counts; None: not known."""
    shared_by: tuple[str, ...] = ()
    """The model groups of the account whose pools draw on it; empty: it is the pool's own."""


class WindowView(Struct, frozen=True, gc=False):
    """One long window of a subscription, as last told."""

    name: str
    used: float | None
    """The fraction."""
    status: str
    """The provider's own word; may be empty."""
    resets_in_s: float | None
    length_s: float | None


class AccountBlockView(Struct, frozen=True, gc=False):
    """A pool's hard wall: its account is refused for long."""

    reason: str
    ends_in_s: float
    """0: its end has come, and one request goes first to see whether it is open."""


CONCURRENCY = "concurrency"
"""The limit of calls in flight, beside the names of meters."""


class LimitNeed(Struct, frozen=True, gc=False):
    """The limit that decides when a ticket goes."""

    name: str
    """A meter's, or CONCURRENCY; of a limit that no header told what it counts."""
    needs: float
    """What the ticket takes of it."""
    left: float
    """What is left of it now; of calls in flight what is free."""
    of: float = 0.0
    """The whole limit; of calls in flight how many there may be."""
    before: int = 0
    """Tickets of its pool that wait for the same limit and are likely to go first."""
    maximum_from: str = ""
    """Of calls in flight: the pool's `maximum_from`."""


class RequestState(StrEnum):
    """Where a ticket that has not ended is. The words for it in every view."""

    QUEUED = "queued"
    BACKING_OFF = "backing off"
    IN_FLIGHT = "in flight"


class TicketView(Struct, frozen=True, gc=False):
    """One ticket that has not ended."""

    ticket: Ticket
    state: RequestState
    reason: str
    """A `Reason` why it waits; empty in flight."""
    position: int
    """Place among those of its pool that wait, in the order in which they are likely to go: 1 is next; 0 in flight."""
    attempts: int
    waited_s: float
    starts_in_s: float | None = None
    """When it is likely to go, as far as limits and the queue tell now; None in flight, or where nothing tells."""
    limit: LimitNeed | None = None
    """What makes it, or who is before it, wait until then; None: nothing that is known, or something else than a limit
    (`reason`)."""
    why: str = ""
    """What keeps it from going, in the words of every view: `input tokens: needs 7.1k, 3.9k left`; empty in flight."""


class LearnedView(Struct, frozen=True, gc=False):
    """A limit that no header told: what refusals and overloads taught."""

    name: str
    """`ceiling`, `pace` or `quota`."""
    text: str
    """In words: `12 at a time`, `3.2 requests per second`, `50 requests per 60 s`."""


class PriorityView(Struct, frozen=True, gc=False):
    """A priority that was ordered."""

    agent: str
    """Glob over agents' names."""
    priority: Priority
    ends_in_s: float | None = None
    """When it ends by itself; None: it stands until it is taken back."""
    by: str = ""
    """The agent that asked for it; empty: a person did."""


class GivenBudget(Struct, frozen=True, gc=False):
    """A budget that was given at run time."""

    budget: Budget
    """An agent's name may be a glob."""
    by: str = ""
    """The agent that asked for it; empty: a person did."""


class PoolView(Struct, frozen=True, gc=False):
    """One pool."""

    key: PoolKey
    account_name: str | None
    in_flight: int
    """Attempts upstream, bypassing ones counted."""
    bypassing: int
    """Of these, the ones that go past the scheduler after a guard trip."""
    limit: int
    """The adaptive concurrency limit."""
    queued: int
    """All that wait; `tickets` may have the next ones only."""
    breaker: str
    blocked_for_s: float
    """Seconds that the provider's own retry-after still asks for; 0 when free."""
    meters: tuple[MeterView, ...]
    tickets: tuple[TicketView, ...]
    account_block: AccountBlockView | None = None
    """None: there is none."""
    windows: tuple[WindowView, ...] = ()
    paused: bool = False
    """By a person: nothing is admitted until it is resumed."""
    cap: int | None = None
    """What a person lets the concurrency limit be at most; `limit` is never above it."""
    learned: tuple[LearnedView, ...] = ()
    breaker_tries_in_s: float | None = None
    """When the open breaker lets a probe go; None: it is closed, or a probe is under way."""
    longest_wait_s: float = 0.0
    """Of those that wait, in `tickets` or not."""
    maximum_from: str = ""
    """The setting of ours that keeps `limit`, all of which is in flight, from growing; empty: it is not the maximum."""


class BudgetView(Struct, frozen=True, gc=False):
    """One holder's budget in its present period."""

    budget: Budget
    """With the limits that hold now, a person's changes counted."""
    spent: Spend
    reserved: Spend
    """Expected of attempts in flight."""
    renews_in_s: float | None
    """None: with the next run, or when a person resets it."""
    added: Spend = field(default_factory=Spend)
    """What a person added to the limits, for this period only."""

    @property
    def balances(self) -> list[Balance]:
        """Each unit that is limited."""
        return self.budget.balances(self.spent, self.reserved)

    @property
    def spent_share(self) -> float:
        """How much is spent, by the unit of which most is."""
        return max((balance.spent_share for balance in self.balances), default=0.0)


class Counters(Struct, frozen=True, gc=False):
    """Totals since the start."""

    tickets: int = 0
    delivered: int = 0
    gave_up: int = 0
    shed: int = 0
    refused: int = 0
    """Tickets that a spent budget or a spent account ended."""
    cancelled: int = 0
    attempts: int = 0
    retries: int = 0
    throttled: int = 0
    """Attempts that a rate limit refused."""
    ambiguous_resends: int = 0
    guard_trips: int = 0
    waits_overruled: int = 0
    """Tickets that were sent although what was learned advised against it, because nothing else had gone for long."""
    input_tokens: int = 0
    output_tokens: int = 0


class Snapshot(Struct, frozen=True, gc=False):
    """Everything at one instant."""

    at: float
    stopping: bool
    pools: tuple[PoolView, ...]
    counters: Counters
    budgets: tuple[BudgetView, ...] = ()
    priorities: tuple[PriorityView, ...] = ()
    """What persons set, the newest first."""
    given: tuple[GivenBudget, ...] = ()
    """The budgets that persons gave at run time, the newest of each period first; an agent's name may be a glob."""
    pauses: dict[str, bool] = field(default_factory=dict)
    """By a glob over pools' names or hosts, the newest first; False takes back what an older one says."""
    caps: dict[str, int | None] = field(default_factory=dict)
    """The same of what the concurrency limits may be at most; None takes back."""


class BreakerState(Enum):
    """Whether attempts may go."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    """Exactly one attempt, the probe, was admitted since it opened."""
