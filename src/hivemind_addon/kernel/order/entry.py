"""A ticket in its pool: the states from submit to end, and the attempts in flight by ticket and by request."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from hivemind_addon.kernel.retry import History
from hivemind_addon.kernel.values.ticket import Attempt, ContractError, Priority, Ticket

_NEVER = float("inf")
_LONG_AGO = float("-inf")
_WEIGHTS = {Priority.CRITICAL: 4.0, Priority.HIGH: 2.0, Priority.NORMAL: 1.0, Priority.LOW: 0.5}
_LEAST_WEIGHT = 0.001


class EntryState(Enum):
    """The state of a ticket in its pool.

           ┌───── backoff over, the other ticket answered, or the budget's account changed ─────┐
           ▼                                                                                    │
    NEW ──► DUE ──admitted──► IN_FLIGHT ──failed, to retry────────────────────► BACKING_OFF ────┤
            │ │                    │                                                            │
            │ ├──lets others pass until another ticket is answered────────────► ASIDE ──────────┤
            │ └──the budget is reserved───────────────────────────────────────► UNFUNDED ───────┘
            └──shed, refused, cancelled──► ENDED ◄──the last attempt ended

    A ticket that backs off or is aside may be admitted as the breaker's probe. A waiting ticket becomes new when its
    pool proves to be another pool. A ticket that another process has sent goes from new to in flight directly.
    """

    NEW = "new"
    """Submitted, and in no queue yet."""
    DUE = "due"
    """Waits for the turn: by the start, or in front because a person moved the ticket."""
    BACKING_OFF = "backing off"
    """Due at an instant."""
    ASIDE = "aside"
    """Due when the leader of the prefix is answered, ends or is late, or when an attempt of another sub-agent ends."""
    UNFUNDED = "unfunded"
    """Due when the budget's account changes: an attempt that reserved from the budget ends, or a new period begins."""
    IN_FLIGHT = "in flight"
    """An attempt is upstream."""
    ENDED = "ended"
    """The client has an answer or a refusal, or has left."""

    __hash__ = object.__hash__  # Enum's `__hash__` is written in Python, and each step of each ticket calls it


WAITING = frozenset({EntryState.DUE, EntryState.BACKING_OFF, EntryState.ASIDE, EntryState.UNFUNDED})
TRANSITIONS: dict[EntryState, frozenset[EntryState]] = {
    EntryState.NEW: frozenset({EntryState.DUE, EntryState.BACKING_OFF, EntryState.UNFUNDED, EntryState.IN_FLIGHT}),
    EntryState.DUE: WAITING | {EntryState.IN_FLIGHT, EntryState.ENDED, EntryState.NEW},
    EntryState.BACKING_OFF: WAITING | {EntryState.IN_FLIGHT, EntryState.ENDED, EntryState.NEW},
    EntryState.ASIDE: WAITING | {EntryState.IN_FLIGHT, EntryState.ENDED, EntryState.NEW},
    EntryState.UNFUNDED: WAITING | {EntryState.ENDED, EntryState.NEW},
    EntryState.IN_FLIGHT: frozenset({EntryState.DUE, EntryState.BACKING_OFF, EntryState.ENDED}),
    EntryState.ENDED: frozenset(),
}
"""The states that may follow each state."""


class QueueEntry(Struct, eq=False):
    """A ticket in a pool, from submit to end."""

    ticket: Ticket
    wait_began_at: float
    """The ticket's arrival, or the end of the last attempt."""
    not_before: float = _LONG_AGO
    """The end of the backoff."""
    history: History = History()
    attempt: Attempt | None = None
    """The attempt in flight, if any."""
    waited_s: float = 0.0
    """Sum of the finished waits."""
    shows_patience: bool = True
    """Whether a disconnect would show the client's patience: no byte was sent, and nothing else ended the ticket."""
    promised_at: float = _NEVER
    """The latest instant to which others may move the ticket's reservation; infinite: the ticket had none."""
    priority: Priority = Priority.NORMAL
    """The ticket's priority, or the priority that a person set."""
    # The queue alone uses the fields below.
    state: EntryState = EntryState.NEW
    order: int = 0
    """A smaller number is older."""
    since: float = _NEVER
    """The instant of the first submit."""
    turn_s: float = _NEVER
    """The instant that orders the ticket among the agent's: `since`, later by the work of the same tree's tickets."""
    start_s: float | None = None
    """The start in `StartTimes`, kept from an ended ticket for the same request."""
    was_sent: bool = False
    """Whether an attempt was sent: later attempts have the same start."""
    family: str = ""
    """The root of the ticket's tree of sessions, if the number of sub-agents' attempts in flight is limited."""
    cache_entry: str = ""
    """The key of the prompt-cache entry that the ticket reads; empty: a warm entry would save nothing."""
    weight: float = 1.0
    bonus_s: float = 0.0
    front: int = 0
    """Negative after a move to the front; the smallest goes first."""
    charged_s: float = 0.0
    """Cost charged for the attempt in flight."""

    def __post_init__(self) -> None:
        self.priority = self.ticket.priority

    def become(self, state: EntryState) -> None:
        """Change the state. Raises ContractError if `TRANSITIONS` does not allow the change."""
        if state not in TRANSITIONS[self.state]:
            raise ContractError(f"{self.ticket.id}: {self.state.value} cannot become {state.value}")
        self.state = state

    def enrol(self, order: int, now: float) -> None:
        """Take the next number, unless the ticket has the number of an earlier ticket already (`come_back_for`)."""
        self.weigh()
        self.order = self.order or order
        self.since = min(self.since, now)

    def come_back_for(self, old: "QueueEntry") -> None:
        """Take the position of an ended ticket for the same request."""
        self.order, self.since, self.turn_s = old.order, old.since, old.turn_s
        self.was_sent, self.start_s = old.was_sent, old.start_s

    def renew(self) -> None:
        """Become new for another pool, which has another virtual time. Keeps `since` and what a person has ordered."""
        self.become(EntryState.NEW)
        self.order, self.start_s, self.was_sent, self.cache_entry = 0, None, False, ""

    def wake_up(self, slept_s: float) -> None:
        """Move all instants by `slept_s`: the machine slept, and the client with the machine."""
        ticket = self.ticket
        self.ticket = replace(
            ticket,
            arrived_at=ticket.arrived_at + slept_s,
            deadline_at=ticket.deadline_at + slept_s,
            shed_at=ticket.shed_at + slept_s,
        )
        self.wait_began_at += slept_s
        self.promised_at += slept_s
        self.since += slept_s
        self.turn_s += slept_s
        if self.attempt is not None:
            self.attempt.ticket = self.ticket
            self.attempt.admitted_at += slept_s

    def end_wait(self, now: float) -> float:
        """End the present wait, and return the length."""
        waited_s = max(0.0, now - self.wait_began_at)
        self.waited_s += waited_s
        return waited_s

    def weigh(self) -> None:
        """Compute the weight. Not while in flight: the cost was charged with the old weight."""
        self.weight = max(_LEAST_WEIGHT, _WEIGHTS[self.priority] * self.ticket.weight)


class InFlight:
    """The entries of one pool with an attempt upstream; at most one attempt each."""

    def __init__(self) -> None:
        self.by_ticket: dict[str, QueueEntry] = {}
        """Oldest first. Only this class changes the dict."""
        self._by_request: defaultdict[tuple[str, str], dict[str, QueueEntry]] = defaultdict(dict)
        """By agent and hash of the request, of entries with a hash."""

    def __len__(self) -> int:
        return len(self.by_ticket)

    def __iter__(self) -> Iterator[QueueEntry]:
        """Oldest first."""
        return iter(self.by_ticket.values())

    @property
    def attempts(self) -> Iterator[Attempt]:
        """Oldest first."""
        return (entry.attempt for entry in self.by_ticket.values() if entry.attempt is not None)

    def of(self, attempt: Attempt) -> QueueEntry | None:
        """The entry of an attempt; None: the attempt has ended."""
        entry = self.by_ticket.get(attempt.ticket.id)
        return entry if entry is not None and entry.attempt is attempt else None

    def add(self, entry: QueueEntry) -> None:
        """Add an entry whose attempt was sent."""
        ticket = entry.ticket
        self.by_ticket[ticket.id] = entry
        if ticket.request_hash:
            self._by_request[ticket.agent, ticket.request_hash][ticket.id] = entry

    def remove(self, attempt: Attempt) -> None:
        """Remove the entry of an ended attempt."""
        entry = self.by_ticket.pop(attempt.ticket.id)
        entry.attempt = None
        request = entry.ticket.agent, entry.ticket.request_hash
        self._by_request[request].pop(entry.ticket.id, None)
        if not self._by_request[request]:
            del self._by_request[request]

    def alike(self, ticket: Ticket) -> Iterable[QueueEntry]:
        """Entries with the same agent and request, oldest first; none if the hash is unknown."""
        return self._by_request.get((ticket.agent, ticket.request_hash), {}).values()
