"""Puts the waiting tickets of one pool in fair order, and charges agents for their attempts.

Three choices find the next ticket: an agent, a tree of this agent, a lane of this tree. Each choice takes the smallest
`position - bonus`, with the bounded bonus of `fair_queue.py`. The first ticket of the chosen lane goes.

    choice   among                                              position
    agent    the pool's agents                                  the agent's start in the pool's virtual time
    tree     sessions, each with all sub-agents below it        the tree's start in the agent's virtual time
    lane     tickets of one session and class, oldest first     the first submit of the lane's first ticket

`shares.py` computes the starts: a start moves forward by cost / weight with each attempt. Example: agents A and B have
start 5 s and equal weights, and each attempt costs 1 s. A sends an attempt and moves to 6 s, so B goes next, even if A
has a thousand sessions and B has a single session. New session names gain nothing either: the agent pays.

An attempt is charged the estimated cost at admission, and the difference to the actual cost at the end. Nobody waits
for auxiliary calls. They queue as a separate agent, and their cost is charged to the real agent, too. So an agent
that marks all calls auxiliary gains nothing.

`InFlight` holds the pool's attempts upstream, by ticket and by request.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from hivemind_addon.kernel.heap import NOTHING, KeyedHeap
from hivemind_addon.kernel.order.shares import Share, Shares
from hivemind_addon.kernel.retry import History
from hivemind_addon.kernel.values.ticket import Attempt, CallKind, ContractError, Demand, Priority, Ticket

_NEVER = float("inf")
_LONG_AGO = float("-inf")
_WEIGHTS = {Priority.CRITICAL: 4.0, Priority.HIGH: 2.0, Priority.NORMAL: 1.0, Priority.LOW: 0.5}
_LEAST_WEIGHT = 0.001


class EntryState(Enum):
    """The state of a ticket in its pool.

                      ┌──────── backoff over, prefix written, or the budget's account changed ───────┐
                      ▼                                                                              │
    NEW ──► LANE / RETURNING / FRONT ──admitted──► IN_FLIGHT ──failed, to retry───► BACKING_OFF ─────┤
                  │   │                                │                                             │
                  │   ├──another ticket writes the prefix─────────────────────────► FOLLOWING ───────┤
                  │   └──the budget is reserved───────────────────────────────────► UNFUNDED ────────┘
                  └──shed, refused, cancelled──► ENDED ◄──the last attempt ended

    A waiting ticket may move to the front, or end. A ticket that backs off or follows may be admitted as the breaker's
    probe. If a pool proves to be the same as another pool, the waiting tickets become new there. A ticket that another
    process has sent goes from new to in flight directly.
    """

    NEW = "new"
    """Submitted, and in no queue yet."""
    LANE = "lane"
    """Due and never sent: in the lane of the session."""
    RETURNING = "returning"
    """Due again: ordered by the agent's start at the ticket's first attempt."""
    FRONT = "front"
    """Due and moved to the front by a person."""
    BACKING_OFF = "backing off"
    """Due at an instant."""
    FOLLOWING = "following"
    """Due when the ticket that writes the shared prefix is answered or ends, or a few seconds after it was sent."""
    UNFUNDED = "unfunded"
    """Due when the budget's account changes: an attempt that reserved from the budget ends, or a new period begins."""
    IN_FLIGHT = "in flight"
    """An attempt is upstream."""
    ENDED = "ended"
    """The client has an answer or a refusal, or has left."""

    __hash__ = object.__hash__  # Enum's `__hash__` is written in Python, and each step of each ticket calls it


_DUE = frozenset({EntryState.LANE, EntryState.RETURNING, EntryState.FRONT})
WAITING = _DUE | {EntryState.BACKING_OFF, EntryState.FOLLOWING, EntryState.UNFUNDED}
TRANSITIONS: dict[EntryState, frozenset[EntryState]] = {
    EntryState.NEW: _DUE | {EntryState.BACKING_OFF, EntryState.UNFUNDED, EntryState.IN_FLIGHT},
    EntryState.LANE: WAITING | {EntryState.IN_FLIGHT, EntryState.ENDED, EntryState.NEW},
    EntryState.RETURNING: WAITING | {EntryState.IN_FLIGHT, EntryState.ENDED, EntryState.NEW},
    EntryState.FRONT: WAITING | {EntryState.IN_FLIGHT, EntryState.ENDED, EntryState.NEW},
    EntryState.BACKING_OFF: WAITING | {EntryState.IN_FLIGHT, EntryState.ENDED, EntryState.NEW},
    EntryState.FOLLOWING: WAITING | {EntryState.IN_FLIGHT, EntryState.ENDED, EntryState.NEW},
    EntryState.UNFUNDED: WAITING | {EntryState.ENDED, EntryState.NEW},
    EntryState.IN_FLIGHT: _DUE | {EntryState.BACKING_OFF, EntryState.ENDED},
    EntryState.ENDED: frozenset(),
}
"""The states that may follow each state. A waiting ticket becomes new again when its pool proves to be another pool."""


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
    shed_at: float = _NEVER
    """The ticket's `shed_at`, or a later instant that the pool has computed."""
    shows_patience: bool = True
    """Whether a disconnect would show the client's patience: no byte was sent, and nothing else ended the ticket."""
    leaves_at: float = _NEVER
    """When the client may leave, as learned from clients of the same kind."""
    priority: Priority = Priority.NORMAL
    """The ticket's priority, or the priority that a person set."""
    # The queue alone uses the fields below.
    state: EntryState = EntryState.NEW
    order: int = 0
    """A smaller number is older."""
    since: float = _NEVER
    """The instant of the first submit."""
    agent_start_s: float = _NEVER
    """The agent's start at the ticket's first attempt or removal."""
    tree_start_s: float = _NEVER
    was_sent: bool = False
    """Whether an attempt was sent: later attempts are ordered by the agent's start at that time."""
    is_background: bool = False
    is_child: bool = False
    cache_entry: str = ""
    """The key of the prompt-cache entry that the ticket reads; empty: a warm entry would save nothing."""
    weight: float = 1.0
    bonus_s: float = 0.0
    front: int = 0
    """Negative after a move to the front; the smallest goes first."""
    agent: "Agent | None" = None
    """The agent that pays, set while the ticket is in a lane or in flight."""
    tree: "Tree | None" = None
    lane: "Lane | None" = None
    """The lane that holds the ticket, if any."""
    payer: "Agent | None" = None
    """The real agent behind a background call in flight."""
    charged_s: float = 0.0
    """Cost charged for the attempt in flight."""

    def __post_init__(self) -> None:
        ticket = self.ticket
        self.shed_at, self.priority = ticket.shed_at, ticket.priority
        if ticket.kind is CallKind.AUXILIARY:
            self.is_background = True
        elif ticket.parent_session:
            self.is_child = True

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
        self.order, self.since, self.was_sent = old.order, old.since, old.was_sent
        self.agent_start_s, self.tree_start_s = old.agent_start_s, old.tree_start_s

    def renew(self) -> None:
        """Become new for another pool, which has another virtual time. Keeps `since` and what a person has ordered."""
        self.become(EntryState.NEW)
        self.order, self.agent_start_s, self.tree_start_s = 0, _NEVER, _NEVER
        self.was_sent, self.cache_entry = False, ""

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
        self.shed_at += slept_s
        self.leaves_at += slept_s
        self.since += slept_s
        if self.attempt is not None:
            self.attempt.ticket = self.ticket
            self.attempt.admitted_at += slept_s

    def end_wait(self, now: float) -> float:
        """End the present wait, and return the length."""
        waited_s = max(0.0, now - self.wait_began_at)
        self.waited_s += waited_s
        return waited_s

    def weigh(self) -> None:
        """Compute the weight. Not while in a lane or in flight: costs were charged with the old weight."""
        self.weight = max(_LEAST_WEIGHT, _WEIGHTS[self.priority] * self.ticket.weight)


class Lane:
    """The waiting tickets of one session and class, oldest first."""

    __slots__ = ("name", "tickets")

    def __init__(self, name: tuple[str, Priority, bool]) -> None:
        self.name = name
        self.tickets: KeyedHeap[QueueEntry] = KeyedHeap()


class Tree(Share):
    """A session and all sub-agents below it, which share a position within the agent."""

    __slots__ = ("_roots", "children", "children_running", "lanes", "next", "own", "sessions")

    def __init__(self, root: str, start_s: float, roots: dict[str, str]) -> None:
        """`roots`: the agent's dict. A reference to the agent would make a cycle for the garbage collector."""
        super().__init__(root, start_s)
        self._roots = roots
        self.lanes: dict[tuple[str, Priority, bool], Lane] = {}
        self.own: KeyedHeap[Lane] = NOTHING
        self.children: KeyedHeap[Lane] = NOTHING
        self.children_running = 0
        self.sessions: list[str] = []
        self.next: QueueEntry | None = None

    def forgotten(self) -> None:
        """See `Share`."""
        for session in self.sessions:
            del self._roots[session]


class Agent(Share):
    """An agent, or the background calls of an agent."""

    __slots__ = ("next", "roots", "trees")

    def __init__(self, name: tuple[str, bool], start_s: float, credit_s: float) -> None:
        super().__init__(name, start_s)
        self.roots: dict[str, str] = {}
        """Session → the first session of the tree."""
        self.trees: Shares[Tree] = Shares(credit_s=credit_s)
        self.next: QueueEntry | None = None

    def root_of(self, ticket: Ticket) -> str:
        """The name of a ticket's tree."""
        known = self.roots.get(ticket.session) or self.roots.get(ticket.parent_session)
        return known or ticket.parent_session or ticket.session


class Lanes:
    """The tickets of one pool that wait only for their turn, and the agents that pay for attempts in flight."""

    def __init__(self, *, credit_s: float, cost_s: Callable[[Demand], float]) -> None:
        self._credit_s = credit_s
        self._cost_s = cost_s
        self._agents: Shares[Agent] = Shares(credit_s=credit_s)
        self.alone: QueueEntry | None = None
        """A ticket that arrived in an empty queue; in no lane until `_seat`. Only this class changes the field."""
        self._alone_since = 0.0

    def __repr__(self) -> str:
        return f"<Lanes of {self._agents!r}>"

    @property
    def now_s(self) -> float:
        """The pool's virtual time."""
        self._seat()
        return self._agents.now_s

    def next(self) -> QueueEntry | None:
        """The next ticket."""
        if self.alone is not None:
            return self.alone
        agent = self._agents.waiting.first
        return None if agent is None else agent.next

    def first(self) -> tuple[float, QueueEntry] | None:
        """The key of the next ticket's agent, and the next ticket."""
        self._seat()
        waiting = self._agents.waiting
        agent = waiting.first
        if agent is None:
            return None
        assert agent.next is not None, "an agent without tickets rests"
        return waiting.first_key, agent.next

    def enter(self, entry: QueueEntry, now: float) -> None:
        """Put a ticket in its lane."""
        if self.alone is not None:
            self._seat()
        if self._agents.waiting.first is None and not entry.is_child and not entry.is_background:
            self.alone, self._alone_since = entry, now
        else:
            self._enter(entry, now)

    def _seat(self) -> None:
        """Put the ticket that is alone in a lane, as if since its arrival; needed before all but its admission."""
        entry = self.alone
        if entry is not None:
            self.alone = None
            self._enter(entry, self._alone_since)

    def _enter(self, entry: QueueEntry, now: float) -> None:
        agent, tree = self._shares(entry)
        entry.agent, entry.tree = agent, tree
        name = (entry.ticket.session, entry.priority, entry.is_child)
        lane = tree.lanes.get(name)
        if lane is None:
            lane = tree.lanes[name] = Lane(name)
            if tree.own is NOTHING:
                tree.own, tree.children = KeyedHeap(), KeyedHeap()
        entry.lane = lane
        lane.tickets.put(entry, entry.order)
        # Only the first ticket of a lane affects the order of lanes, trees and agents.
        if _head_of(lane) is entry:
            self._refresh_lane(agent, tree, lane, now)

    def leave(self, entry: QueueEntry, now: float) -> None:
        """Take a ticket out of the lane. A ticket that was charged while alone is in no lane."""
        if self.alone is not None:
            self._seat()
        if entry.lane is None:
            return
        agent, tree, lane = entry.agent, entry.tree, entry.lane
        assert agent is not None
        assert tree is not None
        entry.lane = None
        lane.tickets.drop(entry)
        self._refresh_lane(agent, tree, lane, now)

    def revalue(self, entry: QueueEntry, now: float) -> None:
        """Reorder after a change of a ticket's bonus."""
        self._seat()
        assert entry.agent is not None
        assert entry.tree is not None
        assert entry.lane is not None
        # Only the first ticket of a lane affects the order of lanes, trees and agents.
        if _head_of(entry.lane) is entry:
            self._refresh_lane(entry.agent, entry.tree, entry.lane, now)

    def charge(self, entry: QueueEntry, now: float) -> None:
        """Charge the estimated cost of an admitted attempt. Then call `leave`; call `settle` when the attempt ends."""
        if entry is self.alone:
            self._charge_alone(entry, now)
            return
        self._seat()
        agent, tree = self._shares(entry)
        if not entry.was_sent:
            self._note_starts(entry, agent, tree)
            entry.was_sent = True
        self._serve(entry, agent, tree, self._cost_s(entry.ticket.demand), now)
        if entry.lane is None:
            self._refresh(agent, tree, now)

    def _charge_alone(self, entry: QueueEntry, now: float) -> None:
        """Charge the ticket that is alone, without a lane."""
        self.alone, since = None, self._alone_since
        agent, tree = self._shares(entry)
        cost_s, weight = self._cost_s(entry.ticket.demand), entry.weight
        tree_start_s = agent.trees.serve_at_once(
            tree, cost_s, since=since, now=now, weight=weight, floor_s=entry.tree_start_s
        )
        agent_start_s = self._agents.serve_at_once(
            agent, cost_s, since=since, now=now, weight=weight, floor_s=entry.agent_start_s
        )
        entry.agent_start_s = min(entry.agent_start_s, agent_start_s)
        entry.tree_start_s = min(entry.tree_start_s, tree_start_s)
        entry.agent, entry.tree, entry.charged_s, entry.was_sent = agent, tree, cost_s, True

    def settle(self, entry: QueueEntry, cost_s: float, now: float) -> None:
        """Replace the estimate by the actual cost of an ended attempt."""
        if self.alone is not None:
            self._seat()
        agent, tree, payer = entry.agent, entry.tree, entry.payer
        assert agent is not None
        assert tree is not None
        correction_s, weight = cost_s - entry.charged_s, entry.weight
        self._agents.settle(agent, correction_s, weight=weight)
        agent.trees.settle(tree, correction_s, weight=weight)
        tree.children_running -= entry.is_child
        self._refresh(agent, tree, now)
        if payer is not None:
            self._agents.charge_too(payer, correction_s, weight)
            self._refresh_agent(payer, now)
        entry.agent = entry.tree = entry.payer = None

    def note_position(self, entry: QueueEntry, now: float) -> None:
        """Note a waiting ticket's position, for a later ticket with the same request (`come_back_for`)."""
        self._seat()
        if not entry.was_sent:
            agent, tree = self._shares(entry)
            self._note_starts(entry, agent, tree)
            if not tree.waits:
                agent.trees.rest(tree, now)
            if not agent.waits:
                self._agents.rest(agent, now)

    def is_capped(self, entry: QueueEntry) -> bool:
        """Whether a ticket is held back because the tree has the maximum of sub-agents' attempts in flight."""
        tree = entry.tree
        return entry.is_child and tree is not None and tree.children_running >= _fan_out(entry)

    def tree_of(self, ticket: Ticket, *, is_background: bool) -> Tree | None:
        """The tree that would pay for a ticket; None: no such tree is remembered."""
        self._seat()
        agent = self._agents.by_name.get((ticket.agent, is_background))
        return None if agent is None else agent.trees.by_name.get(agent.root_of(ticket))

    def is_first_of_lane(self, entry: QueueEntry) -> bool:
        """Whether a ticket is the first of its lane."""
        self._seat()
        return entry.lane is not None and _head_of(entry.lane) is entry

    def rank(self, entry: QueueEntry) -> tuple[float, ...]:
        """The sort key of a ticket in a lane, among the pool's tickets in lanes, at this instant."""
        self._seat()
        assert entry.agent is not None
        assert entry.tree is not None
        bonus_s = entry.bonus_s
        return entry.agent.start_s - bonus_s, entry.tree.start_s - bonus_s, entry.since - bonus_s, entry.order

    def forecast(self, entries: Iterable[QueueEntry]) -> Iterator[tuple[float, int, QueueEntry]]:
        """Each ticket with the key that the agent will have at the ticket's turn, if no other tickets arrive."""
        self._seat()
        by_agent: dict[tuple[str, bool], dict[str, list[tuple[float, int, QueueEntry]]]] = {}
        for entry in entries:
            name = (entry.ticket.agent, entry.is_background)
            agent = self._agents.by_name.get(name)
            root = agent.root_of(entry.ticket) if agent else entry.ticket.parent_session or entry.ticket.session
            ranked = (entry.since - entry.bonus_s, entry.order, entry)
            by_agent.setdefault(name, {}).setdefault(root, []).append(ranked)
        for name, by_tree in by_agent.items():
            agent = self._agents.by_name.get(name)
            merged: list[tuple[float, int, QueueEntry]] = []
            for root, ranked_entries in by_tree.items():
                merged.extend(self._line_up(ranked_entries, agent.trees.start_of(root) if agent else 0.0))
            yield from self._line_up(merged, self._agents.start_of(name))

    def charge_again(self, entry: QueueEntry, now: float) -> None:
        """Charge an attempt in flight that was charged in a merged pool or in another process."""
        self._seat()
        # The old starts belong to another virtual time: with them, the next attempt could wait for ever.
        entry.agent_start_s = entry.tree_start_s = _NEVER
        agent, tree = self._shares(entry)
        self._note_starts(entry, agent, tree)
        self._serve(entry, agent, tree, entry.charged_s, now)
        self._refresh(agent, tree, now)

    def _serve(self, entry: QueueEntry, agent: Agent, tree: Tree, cost_s: float, now: float) -> None:
        weight = entry.weight
        entry.agent, entry.tree, entry.charged_s = agent, tree, cost_s
        if entry.is_background:
            entry.payer = self._agent((entry.ticket.agent, False), _NEVER)
            self._agents.charge_too(entry.payer, cost_s, weight)
            self._refresh_agent(entry.payer, now)
        self._agents.serve(agent, cost_s, weight=weight)
        agent.trees.serve(tree, cost_s, weight=weight)
        tree.children_running += entry.is_child

    def _note_starts(self, entry: QueueEntry, agent: Agent, tree: Tree) -> None:
        if agent.start_s < entry.agent_start_s:
            entry.agent_start_s = agent.start_s
        if tree.start_s < entry.tree_start_s:
            entry.tree_start_s = tree.start_s

    def _shares(self, entry: QueueEntry) -> tuple[Agent, Tree]:
        """The agent and tree that pay for a ticket. New shares get a start from the ticket's earlier starts, if any."""
        if entry.lane is not None:
            assert entry.agent is not None
            assert entry.tree is not None
            return entry.agent, entry.tree
        ticket = entry.ticket
        session, parent = ticket.session, ticket.parent_session
        agent = self._agent((ticket.agent, entry.is_background), entry.agent_start_s)
        roots = agent.roots
        root = roots.get(session) or roots.get(parent) or parent or session
        tree = agent.trees.by_name.get(root)
        if tree is None:
            tree = Tree(root, min(entry.tree_start_s, agent.trees.floor_s()), roots)
            agent.trees.add(tree)
        if session and session not in roots:
            roots[session] = root
            tree.sessions.append(session)
        if parent and parent not in roots:
            roots[parent] = root
            tree.sessions.append(parent)
        return agent, tree

    def _agent(self, name: tuple[str, bool], start_s: float) -> Agent:
        agent = self._agents.by_name.get(name)
        if agent is None:
            agent = Agent(name, min(start_s, self._agents.floor_s()), self._credit_s)
            self._agents.add(agent)
        return agent

    def _refresh_lane(self, agent: Agent, tree: Tree, lane: Lane, now: float) -> None:
        lanes = tree.children if lane.name[2] else tree.own
        first = lane.tickets.first
        if first is None:
            lanes.drop(lane)
            del tree.lanes[lane.name]
        else:
            lanes.put(lane, first.since - first.bonus_s, first.order)
        self._refresh(agent, tree, now)

    def _refresh(self, agent: Agent, tree: Tree, now: float) -> None:
        """Reorder a tree whose start, next ticket or bonus may have changed."""
        entry = tree.next = self._next_of(tree)
        if entry is None:
            agent.trees.rest(tree, now)
        else:
            agent.trees.wait(
                tree,
                now,
                bonus_s=entry.bonus_s,
                weight=entry.weight,
                rank=entry.order,
                floor_s=entry.tree_start_s,
            )
        self._refresh_agent(agent, now)

    def _refresh_agent(self, agent: Agent, now: float) -> None:
        tree = agent.trees.waiting.first
        entry = agent.next = None if tree is None else tree.next
        if entry is None:
            self._agents.rest(agent, now)
        else:
            self._agents.wait(
                agent,
                now,
                bonus_s=entry.bonus_s,
                weight=entry.weight,
                rank=entry.order,
                floor_s=entry.agent_start_s,
            )

    def _next_of(self, tree: Tree) -> QueueEntry | None:
        own, child = tree.own.first, tree.children.first
        if child is not None and (own is None or tree.children.first_key < tree.own.first_key):
            entry = _head_of(child)
            if tree.children_running < _fan_out(entry):
                return entry
        return None if own is None else _head_of(own)

    def _line_up(
        self, entries: list[tuple[float, int, QueueEntry]], start_s: float
    ) -> Iterator[tuple[float, int, QueueEntry]]:
        """The sorted entries, each with a key that counts the costs of the entries before."""
        for _, order, entry in sorted(entries, key=lambda entry: entry[:2]):
            yield start_s - entry.bonus_s, order, entry
            start_s += self._cost_s(entry.ticket.demand) / entry.weight


def _fan_out(entry: QueueEntry) -> float:
    """The maximum number of sub-agents' attempts in flight in a ticket's tree."""
    cap = entry.ticket.max_fan_out
    return _NEVER if cap is None else max(1, cap)


def _head_of(lane: Lane) -> QueueEntry:
    first = lane.tickets.first
    assert first is not None, "empty lanes are dropped"
    return first


class InFlight:
    """The entries of one pool with an attempt upstream; at most one attempt each."""

    def __init__(self) -> None:
        self.by_ticket: dict[str, QueueEntry] = {}
        """Oldest first. Only this class changes the dict."""
        self._by_request: dict[tuple[str, str], dict[str, QueueEntry]] = {}
        """Agent and request hash → entries by ticket; several at a time are normal."""

    def __len__(self) -> int:
        return len(self.by_ticket)

    def __iter__(self) -> Iterator[QueueEntry]:
        """Oldest first."""
        return iter(self.by_ticket.values())

    def __repr__(self) -> str:
        return f"<InFlight {len(self)}>"

    @property
    def attempts(self) -> Iterator[Attempt]:
        """Oldest first."""
        return (entry.attempt for entry in self.by_ticket.values() if entry.attempt is not None)

    def of(self, attempt: Attempt) -> QueueEntry | None:
        """The entry of an attempt; None: the attempt has ended."""
        entry = self.by_ticket.get(attempt.ticket.id)
        return entry if entry is not None and entry.attempt is attempt else None

    def of_ticket(self, ticket_id: str) -> QueueEntry | None:
        """The entry of a ticket; None: no attempt is upstream."""
        return self.by_ticket.get(ticket_id)

    def add(self, entry: QueueEntry) -> None:
        """Add an entry whose attempt was sent."""
        ticket = entry.ticket
        self.by_ticket[ticket.id] = entry
        self._by_request.setdefault((ticket.agent, ticket.request_hash), {})[ticket.id] = entry

    def remove(self, attempt: Attempt) -> None:
        """Remove the entry of an ended attempt."""
        ticket = attempt.ticket
        request = ticket.agent, ticket.request_hash
        self.by_ticket.pop(ticket.id).attempt = None
        alike = self._by_request[request]
        del alike[ticket.id]
        if not alike:
            del self._by_request[request]

    def alike(self, ticket: Ticket) -> Iterator[QueueEntry]:
        """Entries with the same agent and request; none if the hash is unknown."""
        return iter(
            self._by_request.get((ticket.agent, ticket.request_hash), {}).values() if ticket.request_hash else ()
        )
