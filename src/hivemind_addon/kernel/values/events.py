"""Events: a frozen value for each change of state (schema v1).

Metrics, journal, capture and dashboards read only events. Every event has `at` (monotonic instant); events about a
ticket have the ticket's id and pool. The first field of an encoded event is `event`, the name of the class.
"""

from msgspec import Struct, field

from hivemind_addon.kernel.values.command import CommandResult, Order
from hivemind_addon.kernel.values.snapshot import GivenBudget, PriorityView
from hivemind_addon.kernel.values.spend import Budget, Spend
from hivemind_addon.kernel.values.ticket import Dimension, Outcome, OutcomeKind, PoolKey, Reason, Ticket, Usage

SCHEMA_VERSION = 1


class _Fact(Struct, frozen=True, gc=False, tag=True, tag_field="event"):
    """Base of all events."""

    at: float


class _OfPool(_Fact, frozen=True, gc=False):
    """Base of the events about a pool."""

    pool: PoolKey


class _OfTicket(_Fact, frozen=True, gc=False):
    """Base of the events about a ticket."""

    ticket_id: str
    pool: PoolKey


class Submitted(_Fact, frozen=True, gc=False):
    """A ticket asked for admission."""

    ticket: Ticket


class Held(_OfTicket, frozen=True, gc=False):
    """A ticket could not go at once. Emitted once per wait, with the reason at the beginning."""

    reason: Reason
    position: int
    """Place among the pool's waiting tickets: 1 is next."""


class AttemptStarted(_OfTicket, frozen=True, gc=False):
    """A ticket was admitted."""

    attempt: int
    waited_s: float
    """Since the arrival (first attempt) or the end of the last attempt."""
    in_flight: int
    """The pool's attempts in flight, this attempt included."""


class AttemptEnded(_OfTicket, frozen=True, gc=False):
    """An attempt was settled."""

    attempt: int
    outcome: Outcome
    usage: Usage | None
    duration_s: float
    spend: Spend = field(default_factory=Spend)
    """The spend that is booked in the ticket's budgets and in all sums."""

    @property
    def wasted(self) -> Spend:
        """The spend without a result: all of it, unless the attempt succeeded."""
        return Spend() if self.outcome.kind is OutcomeKind.SUCCESS else self.spend


class JobNoted(_OfTicket, frozen=True, gc=False):
    """A request was answered while the work goes on at the provider, or the work has ended.

    The attempt and the ticket end with the work.
    """

    job: str
    """The host and the provider's id."""
    until: float | None
    """When the job expires; None: the job has ended."""


class BackedOff(_OfTicket, frozen=True, gc=False):
    """A failed attempt will be retried, unseen by the client."""

    attempt: int
    until: float
    reason: str


class TicketEnded(_OfTicket, frozen=True, gc=False):
    """The last event of a submitted ticket; exactly one for each ticket."""

    end: str
    """`delivered`, `gave up`, `shed`, `refused`, `cancelled`."""
    reason: str
    attempts: int
    ambiguous_resends: int
    waited_s: float
    """Sum of all waits."""
    last_outcome: str = ""
    """The outcome of the last attempt, if the ticket gave up."""


class ConcurrencyChanged(_OfPool, frozen=True, gc=False):
    """The adaptive concurrency limit changed."""

    limit: int
    reason: str


class MaximumReached(_OfPool, frozen=True, gc=False):
    """Requests wait because our setting, not a refusal by the provider, allows no more attempts in flight. Emitted
    once for each pool, and again when the profile changes.
    """

    limit: int
    """Attempts in flight."""
    maximum_from: str
    """The setting that a person may raise."""


class BreakerChanged(_OfPool, frozen=True, gc=False):
    """The breaker changed its state (`closed`, `open`, `half-open`)."""

    state: str
    reason: str
    before: str = ""
    """The previous state; empty: not reported."""


class PoolBlocked(_OfPool, frozen=True, gc=False):
    """The provider asked for a pause."""

    until: float
    reason: str


class AccountBlocked(_OfPool, frozen=True, gc=False):
    """The provider refuses the account for long: clients that wait beyond the end are held, others are refused."""

    until: float
    reason: str


class AccountUnblocked(_OfPool, frozen=True, gc=False):
    """A request that tested the account block was answered, or a person lifted the block."""


class WindowUsed(_OfPool, frozen=True, gc=False):
    """A long window was seen for the first time, another tenth of the window was used, or the status changed."""

    window: str
    used: float | None
    """The used fraction."""
    status: str
    resets_in_s: float | None


HIDDEN_LIMIT = "hidden limit"
"""The meter name of limits that no header reports."""
HIDDEN = (HIDDEN_LIMIT, "pace", "quota")
"""All names of such limits, those of older captures included."""


class MeterLearned(_OfPool, frozen=True, gc=False):
    """A meter was seen for the first time, or its limit or kind changed."""

    meter: str
    kind: str
    limit: float
    window_s: float | None = None
    """The window of the limit; None: unknown."""
    dimension: Dimension | None = None
    """The quantity that the limit counts; None: unknown."""


class AccountNamed(_OfPool, frozen=True, gc=False):
    """A response named the organisation of an account."""

    name: str


class _OfBudget(_Fact, frozen=True, gc=False):
    """Base of the events about a unit of a budget."""

    budget: Budget
    unit: str
    spent: int
    limit: int


class BudgetWarned(_OfBudget, frozen=True, gc=False):
    """A holder has spent 85 % of a budget. Emitted once per period and unit: `tokens`, `micro_usd` or `calls`."""


class BudgetSpent(_OfBudget, frozen=True, gc=False):
    """A holder has spent a budget, so new tickets are refused. Emitted once per period and unit, as `BudgetWarned`."""


class PriceMissing(_OfPool, frozen=True, gc=False):
    """A call used a model without an own price. Emitted once per model, and once more under a budget in money."""

    model: str
    """The name in the request; empty: no name."""
    budget: Budget | None
    """A budget in money of the call; None: it has none."""
    guess: str = ""
    """The model of the same family whose price is counted instead; empty: no price is counted."""


class BudgetBooked(_Fact, frozen=True, gc=False):
    """A holder's account changed by a reservation, a settlement, a new period or a person."""

    budget: Budget
    """The present limits, with a person's changes."""
    began_at: float
    """The beginning of the present period."""
    spent: Spend
    reserved: Spend
    """By attempts in flight."""
    added: Spend = field(default_factory=Spend)
    """Amounts that a person added to the limits, for this period only."""


class ContextKept(_OfTicket, frozen=True, gc=False):
    """A conversation was saved to disk as the request carried it, or could not be saved."""

    context_id: str
    """Empty: not saved."""
    reason: str = ""
    """Why the conversation was not saved. For the policy, only the first failure in a row is reported."""
    by: str = "budget"
    """The cause: a spent `budget`, or the policy: `turn`, `every N`, `idle`, `end`."""

    @property
    def is_routine(self) -> bool:
        """Whether nothing went wrong or was stopped."""
        return bool(self.context_id) and self.by != "budget"


class ContextCompacted(_OfTicket, frozen=True, gc=False):
    """Old tool results were removed from a conversation, as the agent's rules require: by the proxy before scheduling,
    or by the provider, as reported in the answer.
    """

    agent: str
    session: str
    results: int
    """Number of results that were removed now for the first time."""
    tokens_before: int
    """The request's input with all removed results."""
    tokens_after: int
    """The request's input without them: as expected, or as counted by the provider."""


class ContextFull(_OfPool, frozen=True, gc=False):
    """A conversation fills most of the model's context window. Emitted once, and again only after a shorter turn."""

    agent: str
    session: str
    model: str
    tokens: int
    """Tokens of the last turn: all input, cached or not, and the output."""
    window_tokens: int
    growth_per_turn: float
    """In tokens; 0: not known yet."""


class ContextShrank(_OfPool, frozen=True, gc=False):
    """A conversation continues with much less input: the agent, the provider or the proxy has compacted it."""

    agent: str
    session: str
    model: str
    before_tokens: int
    """Tokens of the last turn before."""
    after_tokens: int
    """The input of the first turn after."""
    spend: Spend
    """Spend of the calls that made the summary; nothing if the profile does not recognise such calls."""
    by_proxy: bool = False
    """Whether the proxy compacted the conversation, and has emitted `ContextCompacted`."""


class PoolsMerged(_OfPool, frozen=True, gc=False):
    """Two pools proved to belong to the same account; everything of `merged` belongs to `pool` now."""

    merged: PoolKey


class Moved(_OfTicket, frozen=True, gc=False):
    """A waiting ticket moved from the pool `left` to the pool of an equal endpoint."""

    left: PoolKey


class Superseded(_OfTicket, frozen=True, gc=False):
    """A client came back with the same request during an attempt of the ticket: the attempt will be ended."""

    by_ticket_id: str
    """The ticket of the new request."""


class MachineSlept(_Fact, frozen=True, gc=False):
    """The machine slept until now: time passed for the provider, but not for the clients."""

    slept_s: float


class OddityNoted(_Fact, frozen=True, gc=False):
    """A provider or client sent something that could not be understood; a safe default was used."""

    pool: PoolKey | None
    ticket_id: str | None
    what: str


class PersonActed(_Fact, frozen=True, gc=False):
    """A command of a person, or of an agent with the right, was executed, or remains in force after a restart."""

    text: str
    """The action in a line. The fields below name the pool or the ticket, if there is exactly one."""
    pool: PoolKey | None = None
    ticket_id: str | None = None
    by: str = ""
    """The agent that gave the command; empty: a person, or no command was necessary."""
    person: str = ""
    """The person who gave the command, if known: `ann, on the page`."""


class StateUnsaved(_Fact, frozen=True, gc=False):
    """The journal (history, learned values, spending) could not be written to disk, or could be written again."""

    reason: str
    """Empty: the journal is written again."""


class CommittedStreamFailed(_OfTicket, frozen=True, gc=False):
    """The client got status 200 early, with a keep-alive, but the provider's answer was not a 200 stream."""

    reason: str


class WaitOverruled(_OfTicket, frozen=True, gc=False):
    """A ticket was sent against learned limits, because the pool had sent nothing for long and nothing else held it."""

    idle_s: float
    reason: Reason
    """Why the ticket would have waited."""


class GuardTripped(_Fact, frozen=True, gc=False):
    """Our code raised an exception; the flow continues under a plain semaphore."""

    ticket_id: str | None
    where: str
    error: str


class CommandDone(_Fact, frozen=True, gc=False):
    """The scheduler carried out a command that changed something."""

    command: Order
    result: CommandResult


class PriorityEnded(_Fact, frozen=True, gc=False):
    """The time of a priority that a person or an agent ordered is over."""

    priority: PriorityView


class OverridesStand(_Fact, frozen=True, gc=False):
    """Overrides of an earlier run stand after a restart. The fields are as in `Snapshot`."""

    pauses: dict[str, bool]
    caps: dict[str, int | None]
    priorities: tuple[PriorityView, ...]
    given: tuple[GivenBudget, ...]


Event = (
    Submitted
    | Held
    | AttemptStarted
    | AttemptEnded
    | JobNoted
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
OrderEvent = CommandDone | PriorityEnded | OverridesStand
"""Events about orders, as values. Observers get each as a `PersonActed` in words: `replies.in_words`."""
SchedulerEvent = Event | OrderEvent
"""Events of the scheduler."""
