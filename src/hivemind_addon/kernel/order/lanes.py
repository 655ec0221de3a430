"""Agents, their trees of sessions, and the lanes in which the tickets of one session wait: who pays, and who is next.

Three levels, each by the same rule: the smallest `position - bonus` goes next.

    agent     its start in the pool's virtual time (`shares.py`), so that an agent with a thousand sessions takes
              no more than one with a single one, and fresh session names win nothing
    tree      a session and the sub-agents that it started, and theirs; its start in its agent's virtual time
    lane      one session's tickets of one class, in the order of their first submits; when the head came

Auxiliary calls, for which nobody waits, queue as an agent of their own; what they take is charged to the real agent
too, so that calling everything auxiliary wins nothing.

An attempt is charged when it goes, as estimated; when it ends, the estimate is replaced by what it really took.

Here are also the attempts of one pool that are upstream, by ticket and by what they ask for.
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
    """Where a ticket stands in its pool.

                      ┌──────────── its leader was sent, or an attempt of its own ended ─────────────┐
                      ▼                                                                              │
    NEW ──► LANE / RETURNING / FRONT ──admitted──► IN_FLIGHT ──to be tried again──► BACKING_OFF ─────┤
                  │   │                                │                                             │
                  │   ├──its prefix is being written──────────────────────────────► FOLLOWING ───────┤
                  │   └──its budget is reserved───────────────────────────────────► UNFUNDED ────────┘
                  └──shed, refused, cancelled──► ENDED ◄──the last attempt ended

    Any that waits may be moved to the front, and may end. One that backs off or follows is admitted where it is the
    breaker's probe. Any that waits is new in another pool where its own proves to be that one. One that was sent by
    another process is in flight at once.
    """

    NEW = "new"
    """It has come, and is in no queue yet."""
    LANE = "lane"
    """Due, and never sent: among the tickets of its session."""
    RETURNING = "returning"
    """Due again: it goes by the start that its agent had when it was first sent."""
    FRONT = "front"
    """Due, and moved to the front by a person."""
    BACKING_OFF = "backing off"
    """Due at an instant."""
    FOLLOWING = "following"
    """Due when the one that writes its prefix is answered."""
    UNFUNDED = "unfunded"
    """Due when an attempt that is paid from the same budget ends."""
    IN_FLIGHT = "in flight"
    """An attempt of it is upstream."""
    ENDED = "ended"
    """Its client has its answer or a refusal, or has gone."""

    __hash__ = object.__hash__  # an Enum's own is Python, and asked for at each step of each ticket


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
"""What may follow. A waiting ticket is new again when its pool proves to be another one."""


class QueueEntry(Struct, eq=False):
    """A ticket in its pool, from submit to its end."""

    ticket: Ticket
    wait_began_at: float
    """When it arrived, or when its last attempt ended."""
    not_before: float = _LONG_AGO
    """It backs off until this instant."""
    history: History = History()
    attempt: Attempt | None = None
    """While it is in flight."""
    waited_s: float = 0.0
    """Sum of the waits that are over."""
    shed_at: float = _NEVER
    """Its ticket's at first, or later where the pool knows better."""
    shows_patience: bool = True
    """Whether its client's wait tells of its patience: no byte has come, and nobody else has ended it."""
    leaves_at: float = _NEVER
    """When its client may leave, as far as is learned of its kind."""
    priority: Priority = Priority.NORMAL
    """Its ticket's at first, or what a person said."""
    # From here on the queue's own books.
    state: EntryState = EntryState.NEW
    order: int = 0
    """Smaller is older."""
    since: float = _NEVER
    """When it was first submitted."""
    agent_start_s: float = _NEVER
    """Of its agent when it was first sent, or when it was removed."""
    tree_start_s: float = _NEVER
    was_sent: bool = False
    """It goes by the start that its agent had when it was sent."""
    is_background: bool = False
    is_child: bool = False
    cache_entry: str = ""
    """What a warm prefix is cached under; empty: it saves nothing."""
    weight: float = 1.0
    bonus_s: float = 0.0
    front: int = 0
    """Negative for one that was moved to the front; the smallest goes first."""
    agent: "Agent | None" = None
    """Who pays: while it is in its lane, and while its attempt is in flight."""
    tree: "Tree | None" = None
    lane: "Lane | None" = None
    """While it is in it."""
    payer: "Agent | None" = None
    """The real agent of a background call in flight."""
    charged_s: float = 0.0
    """For the attempt in flight."""

    def __post_init__(self) -> None:
        ticket = self.ticket
        self.shed_at, self.priority = ticket.shed_at, ticket.priority
        if ticket.kind is CallKind.AUXILIARY:
            self.is_background = True
        elif ticket.parent_session:
            self.is_child = True

    def become(self, state: EntryState) -> None:
        """Go over to another state. Raises ContractError where the table has no such transition."""
        if state not in TRANSITIONS[self.state]:
            raise ContractError(f"{self.ticket.id}: {self.state.value} cannot become {state.value}")
        self.state = state

    def enrol(self, order: int, now: float) -> None:
        """Take its number; one that came back for another one's has that already."""
        self.weigh()
        self.order = self.order or order
        self.since = min(self.since, now)

    def come_back_for(self, old: "QueueEntry") -> None:
        """Take the position of an earlier ticket for the same request, which has ended."""
        self.order, self.since, self.was_sent = old.order, old.since, old.was_sent
        self.agent_start_s, self.tree_start_s = old.agent_start_s, old.tree_start_s

    def renew(self) -> None:
        """Its pool proved to be another one, with a virtual time of its own: its age is left, and a person's word."""
        self.become(EntryState.NEW)
        self.order, self.agent_start_s, self.tree_start_s = 0, _NEVER, _NEVER
        self.was_sent, self.cache_entry = False, ""

    def wake_up(self, slept_s: float) -> None:
        """The machine slept, and its client with it: what it waits for comes so much later."""
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
        """It goes, or goes no more; how long it has waited this time."""
        waited_s = max(0.0, now - self.wait_began_at)
        self.waited_s += waited_s
        return waited_s

    def weigh(self) -> None:
        """Take the weight of its class. Never while it is in a lane or in flight: it is charged by what it had."""
        self.weight = max(_LEAST_WEIGHT, _WEIGHTS[self.priority] * self.ticket.weight)


class Lane:
    """One session's tickets of one class, oldest first."""

    __slots__ = ("name", "tickets")

    def __init__(self, name: tuple[str, Priority, bool]) -> None:
        self.name = name
        self.tickets: KeyedHeap[QueueEntry] = KeyedHeap()


class Tree(Share):
    """A session and its sub-agents."""

    __slots__ = ("_roots", "children", "children_running", "lanes", "next", "own", "sessions")

    def __init__(self, root: str, start_s: float, roots: dict[str, str]) -> None:
        """`roots`: its agent's. The agent itself would be in a circle with its trees, left to the collector."""
        super().__init__(root, start_s)
        self._roots = roots
        self.lanes: dict[tuple[str, Priority, bool], Lane] = {}
        self.own: KeyedHeap[Lane] = NOTHING
        self.children: KeyedHeap[Lane] = NOTHING
        self.children_running = 0
        self.sessions: list[str] = []
        self.next: QueueEntry | None = None

    def forgotten(self) -> None:
        """See Share."""
        for session in self.sessions:
            del self._roots[session]


class Agent(Share):
    """One agent, or its background calls."""

    __slots__ = ("next", "roots", "trees")

    def __init__(self, name: tuple[str, bool], start_s: float, credit_s: float) -> None:
        super().__init__(name, start_s)
        self.roots: dict[str, str] = {}
        """The first session of the tree that a session belongs to."""
        self.trees: Shares[Tree] = Shares(credit_s=credit_s)
        self.next: QueueEntry | None = None

    def root_of(self, ticket: Ticket) -> str:
        """The name of a ticket's tree."""
        known = self.roots.get(ticket.session) or self.roots.get(ticket.parent_session)
        return known or ticket.parent_session or ticket.session


class Lanes:
    """The tickets of one pool that wait for nothing but their turn, and who pays for those in flight."""

    def __init__(self, *, credit_s: float, cost_s: Callable[[Demand], float]) -> None:
        self._credit_s = credit_s
        self._cost_s = cost_s
        self._agents: Shares[Agent] = Shares(credit_s=credit_s)
        self.alone: QueueEntry | None = None
        """It came when nobody waited, and is in no lane before anything but its own admission is asked for. Only this
        class changes it.
        """
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
        """The next ticket, and its agent's key."""
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
        """The one that is alone is in its lane from now on, as if it had always been."""
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
        # Behind others of its lane it changes nothing yet.
        if _head_of(lane) is entry:
            self._refresh_lane(agent, tree, lane, now)

    def leave(self, entry: QueueEntry, now: float) -> None:
        """Take a ticket out of its lane; one that was charged while it was alone is in none."""
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
        """A ticket's bonus changed in its lane."""
        self._seat()
        assert entry.agent is not None
        assert entry.tree is not None
        assert entry.lane is not None
        # Behind others of its lane it changes nothing yet.
        if _head_of(entry.lane) is entry:
            self._refresh_lane(entry.agent, entry.tree, entry.lane, now)

    def charge(self, entry: QueueEntry, now: float) -> None:
        """An attempt goes: who pays is charged what it is expected to take. Then take it out of its lane, if it is in.

        `settle` it when it ends.
        """
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
        """Nobody waits beside it: it comes, is charged, and goes."""
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
        """An attempt ended, and took so much."""
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
        """Write down what a waiting ticket's position is worth, for one that comes back for it."""
        self._seat()
        if not entry.was_sent:
            agent, tree = self._shares(entry)
            self._note_starts(entry, agent, tree)
            if not tree.waits:
                agent.trees.rest(tree, now)
            if not agent.waits:
                self._agents.rest(agent, now)

    def is_capped(self, entry: QueueEntry) -> bool:
        """Whether a ticket in its lane lets others pass because its tree has in flight what its agent was granted."""
        tree = entry.tree
        return entry.is_child and tree is not None and tree.children_running >= _fan_out(entry)

    def tree_of(self, ticket: Ticket, *, is_background: bool) -> Tree | None:
        """The tree that would pay for a ticket; None: nobody remembers it."""
        self._seat()
        agent = self._agents.by_name.get((ticket.agent, is_background))
        return None if agent is None else agent.trees.by_name.get(agent.root_of(ticket))

    def is_first_of_lane(self, entry: QueueEntry) -> bool:
        """Whether a ticket is in its lane and the first there."""
        self._seat()
        return entry.lane is not None and _head_of(entry.lane) is entry

    def rank(self, entry: QueueEntry) -> tuple[float, ...]:
        """What a ticket in its lane is sorted by among all in their lanes, at this instant."""
        self._seat()
        assert entry.agent is not None
        assert entry.tree is not None
        bonus_s = entry.bonus_s
        return entry.agent.start_s - bonus_s, entry.tree.start_s - bonus_s, entry.since - bonus_s, entry.order

    def forecast(self, entries: Iterable[QueueEntry]) -> Iterator[tuple[float, int, QueueEntry]]:
        """Each of these tickets with the key that its agent will have when its turn comes, if nothing else comes."""
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
        """An attempt in flight was charged for elsewhere: in a pool that proved to be this one, or another process."""
        self._seat()
        # The starts that it had are of another virtual time: by them its next attempt could wait for ever.
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
        """Who pays for a ticket; made new where nobody remembers them, with the start that its standing grants."""
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
        """The tree's next ticket, its start or its bonus may have changed."""
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
        """The entries in their order, each with the key that the ones before leave it."""
        for _, order, entry in sorted(entries, key=lambda entry: entry[:2]):
            yield start_s - entry.bonus_s, order, entry
            start_s += self._cost_s(entry.ticket.demand) / entry.weight


def _fan_out(entry: QueueEntry) -> float:
    """Attempts of sub-agents that a ticket's tree may have in flight."""
    cap = entry.ticket.max_fan_out
    return _NEVER if cap is None else max(1, cap)


def _head_of(lane: Lane) -> QueueEntry:
    first = lane.tickets.first
    assert first is not None, "empty lanes are dropped"
    return first


class InFlight:
    """The entries of one pool whose attempts are upstream; each has one at most."""

    def __init__(self) -> None:
        self.by_ticket: dict[str, QueueEntry] = {}
        """The oldest first. Only this class changes it."""
        self._by_request: dict[tuple[str, str], dict[str, QueueEntry]] = {}
        """By agent and hash: several at one time are nobody's mistake."""

    def __len__(self) -> int:
        return len(self.by_ticket)

    def __iter__(self) -> Iterator[QueueEntry]:
        """The oldest first."""
        return iter(self.by_ticket.values())

    def __repr__(self) -> str:
        return f"<InFlight {len(self)}>"

    @property
    def attempts(self) -> Iterator[Attempt]:
        """The oldest first."""
        return (entry.attempt for entry in self.by_ticket.values() if entry.attempt is not None)

    def of(self, attempt: Attempt) -> QueueEntry | None:
        """Whose attempt it is; None: it has ended."""
        entry = self.by_ticket.get(attempt.ticket.id)
        return entry if entry is not None and entry.attempt is attempt else None

    def of_ticket(self, ticket_id: str) -> QueueEntry | None:
        """A ticket's entry; None: it has no attempt upstream."""
        return self.by_ticket.get(ticket_id)

    def add(self, entry: QueueEntry) -> None:
        """Its attempt was sent."""
        ticket = entry.ticket
        self.by_ticket[ticket.id] = entry
        self._by_request.setdefault((ticket.agent, ticket.request_hash), {})[ticket.id] = entry

    def remove(self, attempt: Attempt) -> None:
        """It has ended."""
        ticket = attempt.ticket
        request = ticket.agent, ticket.request_hash
        self.by_ticket.pop(ticket.id).attempt = None
        alike = self._by_request[request]
        del alike[ticket.id]
        if not alike:
            del self._by_request[request]

    def alike(self, ticket: Ticket) -> Iterator[QueueEntry]:
        """Those with the same request of the same agent; none where its hash is unknown."""
        return iter(
            self._by_request.get((ticket.agent, ticket.request_hash), {}).values() if ticket.request_hash else ()
        )
