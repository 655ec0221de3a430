"""The snapshot: frozen values with the scheduler's state at an instant. Dashboards, pages and tests read only this."""

from enum import Enum, StrEnum

from msgspec import Struct, field

from hivemind_addon.kernel.values.spend import Balance, Budget, Spend
from hivemind_addon.kernel.values.ticket import Dimension, PoolKey, Priority, Reason, Ticket

SCHEMA_VERSION = 1


class MeterView(Struct, frozen=True, gc=False):
    """A meter of a pool."""

    name: str
    kind: str
    """`bucket`, `window` or `unknown`."""
    limit: float
    level: float
    """The amount that may still be taken now; never above the limit."""
    full_in_s: float
    """Seconds until the level reaches the limit again, if nothing more is taken."""
    window_s: float | None = None
    """The window of the limit; None: unknown."""
    dimension: Dimension | None = None
    """The quantity that the limit counts; None: unknown."""
    shared_by: tuple[str, ...] = ()
    """The account's model groups whose pools draw on the meter; empty: this pool only."""


class WindowView(Struct, frozen=True, gc=False):
    """A long window of a subscription, as last reported."""

    name: str
    used: float | None
    """The used fraction."""
    status: str
    """The provider's word; may be empty."""
    resets_in_s: float | None
    length_s: float | None


class AccountBlockView(Struct, frozen=True, gc=False):
    """A pool's account block: the provider refuses the account, or the model, for long."""

    reason: str
    ends_in_s: float
    """0: the end has come, and a single request goes first as a test."""
    of_account: bool = True
    """Whether a refusal named the account; else two requests of the model were refused."""

    @property
    def words(self) -> str:
        """The limit that is spent, as far as is known."""
        return Reason.ACCOUNT_BLOCK.value if self.of_account else Reason.MODEL_BLOCK.value


CONCURRENCY = "concurrency"
"""The name of the limit on calls in flight, used like the name of a meter."""


class LimitNeed(Struct, frozen=True, gc=False):
    """The limit that decides when a ticket goes."""

    name: str
    """The meter's name, or CONCURRENCY; for a hidden limit the quantity that it counts."""
    needs: float
    """The amount that the ticket takes."""
    left: float
    """The remaining amount; for calls in flight the free places."""
    of: float = 0.0
    """The whole limit."""
    before: int = 0
    """Tickets of the pool that wait for the same limit and will probably go first."""
    maximum_from: str = ""
    """For calls in flight: the pool's `maximum_from`."""


class RequestState(StrEnum):
    """The state of a ticket before the end, in the words of every view."""

    QUEUED = "queued"
    BACKING_OFF = "backing off"
    IN_FLIGHT = "in flight"


class TicketView(Struct, frozen=True, gc=False):
    """A ticket that has not ended."""

    ticket: Ticket
    state: RequestState
    reason: str
    """The `Reason` for the wait; empty in flight."""
    position: int
    """Place among the pool's waiting tickets in the probable order: 1 is next; 0 in flight."""
    attempts: int
    waited_s: float
    starts_in_s: float | None = None
    """Seconds until the ticket will probably go, by limits and queue; None in flight or if unknown."""
    limit: LimitNeed | None = None
    """The limit that holds back the ticket, or the tickets before; None: unknown, or `reason` is not a limit."""
    why: str = ""
    """The reason in the words of every view: `input tokens: needs 7.1k, 3.9k left`; empty in flight.

    The scheduler leaves it empty; `pool_words.with_words` fills it in."""
    budget: Budget | None = None
    """The budget that the ticket waits for; None: no budget."""


class LearnedView(Struct, frozen=True, gc=False):
    """A hidden limit, learned from refusals and overloads."""

    name: str
    """`ceiling`, `pace` or `quota`."""
    text: str
    """In words: `12 at a time`, `3.2 requests per second`, `50 requests per 60 s`."""
    meter: MeterView | None = None
    """The same in numbers, with the level now; None: not known."""


class PriorityView(Struct, frozen=True, gc=False):
    """A priority that was set at run time."""

    agent: str
    """Glob over agents' names."""
    priority: Priority
    ends_in_s: float | None = None
    """Seconds until the priority ends; None: no end."""
    by: str = ""
    """The agent that gave the command; empty: a person."""


class GivenBudget(Struct, frozen=True, gc=False):
    """A budget that was given at run time."""

    budget: Budget
    """An agent's name may be a glob."""
    by: str = ""
    """The agent that gave the command; empty: a person."""


class PoolView(Struct, frozen=True, gc=False):
    """A pool."""

    key: PoolKey
    account_name: str | None
    in_flight: int
    """Attempts upstream, with `bypassing`."""
    bypassing: int
    """Attempts that bypass the scheduler after a guard trip."""
    limit: int
    """The adaptive concurrency limit."""
    queued: int
    """Number of all waiting tickets; `tickets` may hold only the next of them."""
    breaker: str
    blocked_for_s: float
    """Remaining seconds of the provider's retry-after; 0: none."""
    meters: tuple[MeterView, ...]
    tickets: tuple[TicketView, ...]
    account_block: AccountBlockView | None = None
    """None: no block."""
    windows: tuple[WindowView, ...] = ()
    paused: bool = False
    """Whether a person stopped admissions until a resume."""
    cap: int | None = None
    """A person's maximum for the concurrency limit; `limit` is never above."""
    learned: tuple[LearnedView, ...] = ()
    breaker_tries_in_s: float | None = None
    """Seconds until the open breaker admits a probe; None: closed, or a probe is in flight."""
    sharing: str = ""
    """Who draws on the limits by refusals and on the slots, in words; empty: the account has no other pool."""
    longest_wait_s: float = 0.0
    """Over all waiting tickets, in `tickets` or not."""
    maximum_from: str = ""
    """Our setting that stops `limit` from growing while all of `limit` is in flight; empty: none does."""


class BudgetView(Struct, frozen=True, gc=False):
    """A holder's budget in the present period."""

    budget: Budget
    """The present limits, with a person's changes."""
    spent: Spend
    reserved: Spend
    """Expected spend of the attempts in flight."""
    renews_in_s: float | None
    """None: with the next run, or when a person resets the budget."""
    added: Spend = field(default_factory=Spend)
    """Amounts that a person added to the limits, for this period only."""
    guesses: dict[str, str] = field(default_factory=dict)
    """Model that money counted at the price of another → that model, the nearest of its family."""

    @property
    def balances(self) -> list[Balance]:
        """The balances of the limited units."""
        return self.budget.balances(self.spent, self.reserved)

    @property
    def spent_share(self) -> float:
        """The highest spent fraction of all limited units."""
        return max((balance.spent_share for balance in self.balances), default=0.0)


class Counters(Struct, frozen=True, gc=False):
    """Totals since the start."""

    tickets: int = 0
    delivered: int = 0
    gave_up: int = 0
    shed: int = 0
    refused: int = 0
    """Tickets that were refused for a spent budget or account."""
    cancelled: int = 0
    attempts: int = 0
    retries: int = 0
    throttled: int = 0
    """Attempts that a rate limit refused."""
    ambiguous_resends: int = 0
    guard_trips: int = 0
    waits_overruled: int = 0
    """Tickets that were sent against learned limits, because the pool had sent nothing for long."""
    input_tokens: int = 0
    output_tokens: int = 0


class Snapshot(Struct, frozen=True, gc=False):
    """The scheduler's state at an instant."""

    at: float
    stopping: bool
    pools: tuple[PoolView, ...]
    counters: Counters
    budgets: tuple[BudgetView, ...] = ()
    priorities: tuple[PriorityView, ...] = ()
    """Priorities set at run time, newest first."""
    given: tuple[GivenBudget, ...] = ()
    """Budgets given at run time, newest first within each period; an agent's name may be a glob."""
    pauses: dict[str, bool] = field(default_factory=dict)
    """Glob over pools' names or hosts → paused, newest first; False overrides older entries."""
    caps: dict[str, int | None] = field(default_factory=dict)
    """Glob over pools' names or hosts → maximum concurrency limit, newest first; None overrides older entries."""


class BreakerState(Enum):
    """Whether the breaker lets attempts go."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    """Exactly one attempt, the probe, was admitted since the breaker opened."""
