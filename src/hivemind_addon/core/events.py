"""One frozen fact per change of state (schema v1). Metrics, journal, capture and dashboards read only these.

Every event carries `at` (monotonic instant); those about a ticket carry its id and pool.
"""

from dataclasses import dataclass

from hivemind_addon.core.decision import Reason
from hivemind_addon.core.spend import Budget
from hivemind_addon.core.ticket import Outcome, PoolKey, Ticket, Usage

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Submitted:
    """A ticket asked for admission."""

    at: float
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Held:
    """A ticket could not go at once. Once per wait, with the reason at its beginning."""

    at: float
    ticket_id: str
    pool: PoolKey
    reason: Reason
    position: int
    """Tickets of its pool that are before it, itself counted: 1 is next."""


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A ticket was admitted."""

    at: float
    ticket_id: str
    pool: PoolKey
    attempt: int
    waited_s: float
    """Since it arrived (first attempt) or since its last attempt ended."""
    in_flight: int
    """Attempts of the pool, this one counted."""


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt was settled."""

    at: float
    ticket_id: str
    pool: PoolKey
    attempt: int
    outcome: Outcome
    usage: Usage | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class BackedOff:
    """A failed ticket will be tried again, unseen by its client."""

    at: float
    ticket_id: str
    pool: PoolKey
    attempt: int
    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class TicketEnded:
    """The last event of every ticket that was submitted; exactly one each."""

    at: float
    ticket_id: str
    pool: PoolKey
    end: str
    """`delivered`, `gave up`, `shed`, `refused`, `cancelled`."""
    reason: str
    attempts: int
    ambiguous_resends: int
    waited_s: float
    """Sum of all waits."""


@dataclass(frozen=True, slots=True)
class ConcurrencyChanged:
    """The adaptive concurrency limit moved."""

    at: float
    pool: PoolKey
    limit: int
    reason: str


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """The breaker changed its state (`closed`, `open`, `half-open`)."""

    at: float
    pool: PoolKey
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class PoolBlocked:
    """The provider asked for a pause."""

    at: float
    pool: PoolKey
    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class WallHit:
    """The provider refuses the account for long: everybody who waits and who comes is told so until the end."""

    at: float
    pool: PoolKey
    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class WallOpened:
    """The wall's end had come, and a request that went first was answered."""

    at: float
    pool: PoolKey


@dataclass(frozen=True, slots=True)
class WindowUsed:
    """A long window was seen for the first time, another tenth of it is used, or its status changed."""

    at: float
    pool: PoolKey
    window: str
    used: float | None
    """The fraction."""
    status: str
    resets_in_s: float | None


@dataclass(frozen=True, slots=True)
class MeterLearned:
    """A meter was seen for the first time, or its limit or kind changed."""

    at: float
    pool: PoolKey
    meter: str
    kind: str
    limit: float


@dataclass(frozen=True, slots=True)
class AccountNamed:
    """A response said which organisation an account is."""

    at: float
    pool: PoolKey
    name: str


@dataclass(frozen=True, slots=True)
class BudgetWarned:
    """A holder has spent 85 % of a budget. Once per period and unit."""

    at: float
    budget: Budget
    unit: str
    """`tokens` or `micro_usd`: what `spent` and `limit` count."""
    spent: int
    limit: int


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """A holder has spent a budget: its new tickets are refused. Once per period and unit."""

    at: float
    budget: Budget
    unit: str
    """`tokens` or `micro_usd`: what `spent` and `limit` count."""
    spent: int
    limit: int


@dataclass(frozen=True, slots=True)
class PoolsMerged:
    """Two pools proved to be of one account; all that `merged` had is `pool`'s now."""

    at: float
    pool: PoolKey
    merged: PoolKey


@dataclass(frozen=True, slots=True)
class Superseded:
    """A client came back with a request of which an attempt still runs: that one is to be ended."""

    at: float
    ticket_id: str
    """Whose attempt is to be ended."""
    pool: PoolKey
    by_ticket_id: str


@dataclass(frozen=True, slots=True)
class ClockJumped:
    """The wall clock moved by this much more than the monotonic one: the machine slept, or its clock was set."""

    at: float
    delta_s: float


@dataclass(frozen=True, slots=True)
class OddityNoted:
    """A provider or client said something that could not be understood; a safe default was used."""

    at: float
    pool: PoolKey | None
    ticket_id: str | None
    what: str


@dataclass(frozen=True, slots=True)
class CommittedStreamFailed:
    """The head 200 had been sent for a keep-alive, and then no 200 stream followed."""

    at: float
    ticket_id: str
    pool: PoolKey
    reason: str


@dataclass(frozen=True, slots=True)
class GuardTripped:
    """An exception of ours; the flow goes on under a plain semaphore."""

    at: float
    ticket_id: str | None
    where: str
    error: str


Event = (
    Submitted
    | Held
    | AttemptStarted
    | AttemptEnded
    | BackedOff
    | TicketEnded
    | ConcurrencyChanged
    | BreakerChanged
    | PoolBlocked
    | WallHit
    | WallOpened
    | WindowUsed
    | MeterLearned
    | AccountNamed
    | BudgetWarned
    | BudgetSpent
    | PoolsMerged
    | Superseded
    | ClockJumped
    | OddityNoted
    | CommittedStreamFailed
    | GuardTripped
)
