"""One frozen fact per change of state (schema v1). Metrics, journal, capture and dashboards read only these.

Every event carries `at` (monotonic instant); those about a ticket carry its id and pool. Encoded it has the name of its
class as its first field, `event`.
"""

from msgspec import Struct, field

from hivemind_addon.kernel.values.spend import Budget, Spend
from hivemind_addon.kernel.values.ticket import Dimension, Outcome, OutcomeKind, PoolKey, Reason, Ticket, Usage

SCHEMA_VERSION = 1


class _Fact(Struct, frozen=True, gc=False, tag=True, tag_field="event"):
    """Any of them."""


class Submitted(_Fact, frozen=True, gc=False):
    """A ticket asked for admission."""

    at: float
    ticket: Ticket


class Held(_Fact, frozen=True, gc=False):
    """A ticket could not go at once. Once per wait, with the reason at its beginning."""

    at: float
    ticket_id: str
    pool: PoolKey
    reason: Reason
    position: int
    """Tickets of its pool that are before it, itself counted: 1 is next."""


class AttemptStarted(_Fact, frozen=True, gc=False):
    """A ticket was admitted."""

    at: float
    ticket_id: str
    pool: PoolKey
    attempt: int
    waited_s: float
    """Since it arrived (first attempt) or since its last attempt ended."""
    in_flight: int
    """Attempts of the pool, this one counted."""


class AttemptEnded(_Fact, frozen=True, gc=False):
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


class BackedOff(_Fact, frozen=True, gc=False):
    """A failed ticket will be tried again, unseen by its client."""

    at: float
    ticket_id: str
    pool: PoolKey
    attempt: int
    until: float
    reason: str


class TicketEnded(_Fact, frozen=True, gc=False):
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


class ConcurrencyChanged(_Fact, frozen=True, gc=False):
    """The adaptive concurrency limit moved."""

    at: float
    pool: PoolKey
    limit: int
    reason: str


class MaximumReached(_Fact, frozen=True, gc=False):
    """Requests wait although the provider has refused no more in flight: a setting of ours allows no more. Told once
    for each pool, and again when its profile changes.
    """

    at: float
    pool: PoolKey
    limit: int
    """Attempts in flight."""
    maximum_from: str
    """The setting, for people who want to raise it."""


class BreakerChanged(_Fact, frozen=True, gc=False):
    """The breaker changed its state (`closed`, `open`, `half-open`)."""

    at: float
    pool: PoolKey
    state: str
    reason: str
    before: str = ""
    """The state that it was in; empty: not told."""


class PoolBlocked(_Fact, frozen=True, gc=False):
    """The provider asked for a pause."""

    at: float
    pool: PoolKey
    until: float
    reason: str


class AccountBlocked(_Fact, frozen=True, gc=False):
    """The provider refuses the account for long: whose client waits beyond the end is held, all others are told so."""

    at: float
    pool: PoolKey
    until: float
    reason: str


class AccountUnblocked(_Fact, frozen=True, gc=False):
    """A request that looked was answered, or a person lifted the block."""

    at: float
    pool: PoolKey


class WindowUsed(_Fact, frozen=True, gc=False):
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


class MeterLearned(_Fact, frozen=True, gc=False):
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


class AccountNamed(_Fact, frozen=True, gc=False):
    """A response said which organisation an account is."""

    at: float
    pool: PoolKey
    name: str


class BudgetWarned(_Fact, frozen=True, gc=False):
    """A holder has spent 85 % of a budget. Once per period and unit."""

    at: float
    budget: Budget
    unit: str
    """`tokens`, `micro_usd` or `calls`: what `spent` and `limit` count."""
    spent: int
    limit: int


class BudgetSpent(_Fact, frozen=True, gc=False):
    """A holder has spent a budget: its new tickets are refused. Once per period and unit."""

    at: float
    budget: Budget
    unit: str
    """`tokens`, `micro_usd` or `calls`: what `spent` and `limit` count."""
    spent: int
    limit: int


class PriceMissing(_Fact, frozen=True, gc=False):
    """A model without a price was called under a budget in money, which does not count it. Once per model."""

    at: float
    pool: PoolKey
    model: str
    """As the request names it; empty: it names none."""
    budget: Budget
    """The budget of this call; the other budgets in money do not count the model, either."""


class BudgetBooked(_Fact, frozen=True, gc=False):
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


class ContextKept(_Fact, frozen=True, gc=False):
    """A conversation is on disk as a request carried it, or could not be written."""

    at: float
    ticket_id: str
    pool: PoolKey
    context_id: str
    """Empty: it could not be written."""
    reason: str = ""
    """Why it could not. Of those that the policy keeps only the first is told, until one can be written again."""
    by: str = "budget"
    """What had it kept: a spent `budget`, or the policy: `turn`, `every N`, `idle`, `end`."""

    @property
    def is_routine(self) -> bool:
        """Whether nothing went wrong or was stopped."""
        return bool(self.context_id) and self.by != "budget"


class ContextCompacted(_Fact, frozen=True, gc=False):
    """Old tool results were taken out of a conversation, as its agent's rules ask for.

    By the proxy, before a request is scheduled, or by the provider, as its answer says.
    """

    at: float
    ticket_id: str
    pool: PoolKey
    agent: str
    session: str
    results: int
    """So many that were not taken out before."""
    tokens_before: int
    """The request's input as it would be with all that is gone."""
    tokens_after: int
    """The same as it is now: as expected, or as the provider counted it."""


class ContextFull(_Fact, frozen=True, gc=False):
    """A conversation fills most of its model's context window. Once, until it is shorter again."""

    at: float
    pool: PoolKey
    agent: str
    session: str
    model: str
    tokens: int
    """What its last turn carried: all input, cached or not, and the output."""
    window_tokens: int
    growth_per_turn: float
    """In tokens; 0: not known yet."""


class ContextShrank(_Fact, frozen=True, gc=False):
    """A conversation goes on with much less than before: its agent, its provider or the proxy has compacted it."""

    at: float
    pool: PoolKey
    agent: str
    session: str
    model: str
    before_tokens: int
    """What the last turn before it carried."""
    after_tokens: int
    """The input of the first turn after it."""
    spend: Spend
    """Of the calls that made the summary; nothing where a profile does not know them."""
    by_proxy: bool = False
    """The proxy did it, and has told so: `ContextCompacted`."""


class PoolsMerged(_Fact, frozen=True, gc=False):
    """Two pools proved to be of one account; all that `merged` had is `pool`'s now."""

    at: float
    pool: PoolKey
    merged: PoolKey


class Moved(_Fact, frozen=True, gc=False):
    """A waiting ticket goes to an equal endpoint, whose pool it is in from now on."""

    at: float
    ticket_id: str
    pool: PoolKey
    """Where it goes."""
    left: PoolKey
    """Where it waited."""


class Superseded(_Fact, frozen=True, gc=False):
    """A client came back with a request of which an attempt still runs: that one is to be ended."""

    at: float
    ticket_id: str
    """Whose attempt is to be ended."""
    pool: PoolKey
    by_ticket_id: str


class MachineSlept(_Fact, frozen=True, gc=False):
    """The machine slept until now: time passed for the provider, and none for the clients."""

    at: float
    slept_s: float


class OddityNoted(_Fact, frozen=True, gc=False):
    """A provider or client said something that could not be understood; a safe default was used."""

    at: float
    pool: PoolKey | None
    ticket_id: str | None
    what: str


class PersonActed(_Fact, frozen=True, gc=False):
    """A command of a person, or of an agent that may, was carried out, or stands still after a restart."""

    at: float
    text: str
    """What was done, in one line; whom it concerns is in the fields below, where it is one."""
    pool: PoolKey | None = None
    ticket_id: str | None = None
    by: str = ""
    """The agent that asked for it; empty: a person did, or nobody had to."""
    person: str = ""
    """The person who did, where that is known: `ann, on the page`."""


class StateUnsaved(_Fact, frozen=True, gc=False):
    """The journal could not be written to disk, or could again: what happened, what was learned and spent."""

    at: float
    reason: str
    """Empty: it is written again."""


class CommittedStreamFailed(_Fact, frozen=True, gc=False):
    """The head 200 had been sent for a keep-alive, and then no 200 stream followed."""

    at: float
    ticket_id: str
    pool: PoolKey
    reason: str


class WaitOverruled(_Fact, frozen=True, gc=False):
    """A pool had sent nothing for so long, and only what was learned kept its tickets: one goes all the same."""

    at: float
    ticket_id: str
    pool: PoolKey
    idle_s: float
    reason: Reason
    """What advised against it."""


class GuardTripped(_Fact, frozen=True, gc=False):
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
    | MaximumReached
    | BreakerChanged
    | PoolBlocked
    | AccountBlocked
    | AccountUnblocked
    | WindowUsed
    | MeterLearned
    | AccountNamed
    | BudgetWarned
    | BudgetSpent
    | PriceMissing
    | BudgetBooked
    | ContextKept
    | ContextCompacted
    | ContextFull
    | ContextShrank
    | PoolsMerged
    | Moved
    | Superseded
    | MachineSlept
    | OddityNoted
    | PersonActed
    | StateUnsaved
    | CommittedStreamFailed
    | WaitOverruled
    | GuardTripped
)
