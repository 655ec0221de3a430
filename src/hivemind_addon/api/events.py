"""One frozen fact per change of state (schema v1). Metrics, journal, capture and dashboards read only these.

Every event carries `at` (monotonic instant); those about a ticket carry its id and pool.
"""

from msgspec import Struct, field

from hivemind_addon.api.spend import Budget, Spend
from hivemind_addon.api.ticket import Dimension, Outcome, OutcomeKind, PoolKey, Reason, Ticket, Usage

SCHEMA_VERSION = 1


class Submitted(Struct, frozen=True, gc=False):
    """A ticket asked for admission."""

    at: float
    ticket: Ticket


class Held(Struct, frozen=True, gc=False):
    """A ticket could not go at once. Once per wait, with the reason at its beginning."""

    at: float
    ticket_id: str
    pool: PoolKey
    reason: Reason
    position: int
    """Tickets of its pool that are before it, itself counted: 1 is next."""


class AttemptStarted(Struct, frozen=True, gc=False):
    """A ticket was admitted."""

    at: float
    ticket_id: str
    pool: PoolKey
    attempt: int
    waited_s: float
    """Since it arrived (first attempt) or since its last attempt ended."""
    in_flight: int
    """Attempts of the pool, this one counted."""


class AttemptEnded(Struct, frozen=True, gc=False):
    """An attempt was settled."""

    at: float
    ticket_id: str
    pool: PoolKey
    attempt: int
    outcome: Outcome
    usage: Usage | None
    duration_s: float
    spend: Spend = field(default_factory=Spend)
    """What it is booked with, in the budgets of its ticket and wherever it is summed up."""

    @property
    def wasted(self) -> Spend:
        """What of it came to nothing: all, unless the attempt succeeded."""
        return Spend() if self.outcome.kind is OutcomeKind.SUCCESS else self.spend


class BackedOff(Struct, frozen=True, gc=False):
    """A failed ticket will be tried again, unseen by its client."""

    at: float
    ticket_id: str
    pool: PoolKey
    attempt: int
    until: float
    reason: str


class TicketEnded(Struct, frozen=True, gc=False):
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
    last_outcome: str = ""
    """Of one that gave up: what its last attempt came to."""


class ConcurrencyChanged(Struct, frozen=True, gc=False):
    """The adaptive concurrency limit moved."""

    at: float
    pool: PoolKey
    limit: int
    reason: str


class BreakerChanged(Struct, frozen=True, gc=False):
    """The breaker changed its state (`closed`, `open`, `half-open`)."""

    at: float
    pool: PoolKey
    state: str
    reason: str
    before: str = ""
    """The state that it was in; empty: not told."""


class PoolBlocked(Struct, frozen=True, gc=False):
    """The provider asked for a pause."""

    at: float
    pool: PoolKey
    until: float
    reason: str


class AccountBlocked(Struct, frozen=True, gc=False):
    """The provider refuses the account for long: everybody who waits and who comes is told so until the end."""

    at: float
    pool: PoolKey
    until: float
    reason: str


class AccountUnblocked(Struct, frozen=True, gc=False):
    """The block's end had come, and a request that went first was answered."""

    at: float
    pool: PoolKey


class WindowUsed(Struct, frozen=True, gc=False):
    """A long window was seen for the first time, another tenth of it is used, or its status changed."""

    at: float
    pool: PoolKey
    window: str
    used: float | None
    """The fraction."""
    status: str
    resets_in_s: float | None


HIDDEN_LIMIT = "hidden limit"
"""The meter that a limit is called by which no header tells."""
HIDDEN = (HIDDEN_LIMIT, "pace", "quota")
"""And what older captures call it."""


class MeterLearned(Struct, frozen=True, gc=False):
    """A meter was seen for the first time, or its limit or kind changed."""

    at: float
    pool: PoolKey
    meter: str
    kind: str
    limit: float
    window_s: float | None = None
    """The span that the limit is stated for; None: not known."""
    dimension: Dimension | None = None
    """What it counts; None: not known."""


class AccountNamed(Struct, frozen=True, gc=False):
    """A response said which organisation an account is."""

    at: float
    pool: PoolKey
    name: str


class BudgetWarned(Struct, frozen=True, gc=False):
    """A holder has spent 85 % of a budget. Once per period and unit."""

    at: float
    budget: Budget
    unit: str
    """`tokens` or `micro_usd`: what `spent` and `limit` count."""
    spent: int
    limit: int


class BudgetSpent(Struct, frozen=True, gc=False):
    """A holder has spent a budget: its new tickets are refused. Once per period and unit."""

    at: float
    budget: Budget
    unit: str
    """`tokens` or `micro_usd`: what `spent` and `limit` count."""
    spent: int
    limit: int


class BudgetBooked(Struct, frozen=True, gc=False):
    """A holder's account changed: something was reserved or settled, a period began, or a person changed it."""

    at: float
    budget: Budget
    """With the limits that hold now, a person's changes counted."""
    began_at: float
    """When its present period began."""
    spent: Spend
    reserved: Spend
    """By attempts in flight."""
    added: Spend = field(default_factory=Spend)
    """What a person added to the limits, for this period only."""


class CheckpointKept(Struct, frozen=True, gc=False):
    """The conversation of a request that a spent budget refused is on disk, or could not be written."""

    at: float
    ticket_id: str
    pool: PoolKey
    checkpoint_id: str
    """Empty: it could not be written."""
    reason: str = ""
    """Why it could not."""


class PoolsMerged(Struct, frozen=True, gc=False):
    """Two pools proved to be of one account; all that `merged` had is `pool`'s now."""

    at: float
    pool: PoolKey
    merged: PoolKey


class Moved(Struct, frozen=True, gc=False):
    """A waiting ticket goes to an equal endpoint, whose pool it is in from now on."""

    at: float
    ticket_id: str
    pool: PoolKey
    """Where it goes."""
    left: PoolKey
    """Where it waited."""


class Superseded(Struct, frozen=True, gc=False):
    """A client came back with a request of which an attempt still runs: that one is to be ended."""

    at: float
    ticket_id: str
    """Whose attempt is to be ended."""
    pool: PoolKey
    by_ticket_id: str


class MachineSlept(Struct, frozen=True, gc=False):
    """The machine slept until now: time passed for the provider, and none for the clients."""

    at: float
    slept_s: float


class OddityNoted(Struct, frozen=True, gc=False):
    """A provider or client said something that could not be understood; a safe default was used."""

    at: float
    pool: PoolKey | None
    ticket_id: str | None
    what: str


class PersonActed(Struct, frozen=True, gc=False):
    """A command of a person, or of an agent that may, was carried out, or stands still after a restart."""

    at: float
    text: str
    """What was done, in one line; whom it concerns is in the fields below, where it is one."""
    pool: PoolKey | None = None
    ticket_id: str | None = None
    by: str = ""
    """The agent that asked for it; empty: a person did, or nobody had to."""


class StateUnsaved(Struct, frozen=True, gc=False):
    """The journal could not be written to disk, or could again: what happened, what was learned and spent."""

    at: float
    reason: str
    """Empty: it is written again."""


class CommittedStreamFailed(Struct, frozen=True, gc=False):
    """The head 200 had been sent for a keep-alive, and then no 200 stream followed."""

    at: float
    ticket_id: str
    pool: PoolKey
    reason: str


class GuardTripped(Struct, frozen=True, gc=False):
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
    | AccountBlocked
    | AccountUnblocked
    | WindowUsed
    | MeterLearned
    | AccountNamed
    | BudgetWarned
    | BudgetSpent
    | BudgetBooked
    | CheckpointKept
    | PoolsMerged
    | Moved
    | Superseded
    | MachineSlept
    | OddityNoted
    | PersonActed
    | StateUnsaved
    | CommittedStreamFailed
    | GuardTripped
)
