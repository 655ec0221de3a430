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
from dataclasses import dataclass, field
from enum import Enum

from msgspec import Struct

from hivemind_addon.api.ticket import CallKind, Demand, Priority, Reservation, Ticket
from hivemind_addon.proxy.core.retry import History
from hivemind_addon.proxy.core.shares import Share, Shares
from hivemind_addon.system.heap import KeyedHeap

_NEVER = float("inf")
_LONG_AGO = float("-inf")
_WEIGHTS = {Priority.CRITICAL: 4.0, Priority.HIGH: 2.0, Priority.NORMAL: 1.0, Priority.LOW: 0.5}
_LEAST_WEIGHT = 0.001


@dataclass(frozen=True, slots=True)
class PlaceWorth:
    """What a ticket's place is worth; may be given to the ticket that comes back for it."""

    order: int
    """Smaller is older."""
    since: float
    """When it was first submitted."""
    agent_start_s: float
    tree_start_s: float
    was_sent: bool
    """It goes by the start that its agent had when it was sent."""


class Spot(Enum):
    """Where a place is kept while it waits."""

    LANE = "lane"
    RETURNING = "returning"
    """It was sent before, and is due again."""
    FRONT = "front"
    LATER = "later"
    """It backs off."""
    ASIDE = "aside"
    """It follows a leader."""


@dataclass(slots=True, eq=False)
class Place:
    """A ticket in its pool, from submit to its end; in the queue while it waits."""

    ticket: Ticket
    wait_began_at: float
    """When it arrived, or when its last attempt ended."""
    standing: PlaceWorth | None = None
    """Brought by a ticket that comes back; left by one that was removed."""
    not_before: float = _LONG_AGO
    """It backs off until this instant."""
    history: History = field(default_factory=History)
    waited_s: float = 0.0
    """Sum of the waits that are over."""
    shed_at: float = field(init=False)
    """Its ticket's, or later where the pool knows better."""
    shows_patience: bool = True
    """Whether its client's wait tells of its patience: no byte has come, and nobody else has ended it."""
    leaves_at: float = _NEVER
    """When its client may leave, as far as is learned of its kind."""
    priority: Priority = field(init=False)
    """Its ticket's, or what a person said."""
    # From here on the queue's own books.
    order: int = 0
    since: float = 0.0
    agent_start_s: float = _NEVER
    """Of its agent when it was first sent, or when it was removed."""
    tree_start_s: float = _NEVER
    was_sent: bool = False
    is_background: bool = False
    is_child: bool = False
    cache_entry: str = ""
    """What a warm prefix is cached under; empty: it saves nothing."""
    weight: float = 1.0
    bonus_s: float = 0.0
    front: int = 0
    """Negative for one that was moved to the front; the smallest goes first."""
    spot: Spot = Spot.LATER
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
        self.shed_at = self.ticket.shed_at
        self.priority = self.ticket.priority

    def enrol(self, order: int, now: float) -> None:
        """Take its number, or what its standing says."""
        ticket = self.ticket
        self.is_background = ticket.kind is CallKind.AUXILIARY
        self.is_child = bool(ticket.parent_session) and not self.is_background
        self.weigh()
        if (standing := self.standing) is None:
            self.order, self.since = order, now
        else:
            self.order, self.since, self.was_sent = standing.order, standing.since, standing.was_sent
            self.agent_start_s, self.tree_start_s = standing.agent_start_s, standing.tree_start_s

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
        self.tickets: KeyedHeap[Place] = KeyedHeap()


class Tree(Share):
    """A session and its sub-agents."""

    __slots__ = ("children", "children_running", "lanes", "next", "own", "sessions")

    def __init__(self, root: str, start_s: float) -> None:
        super().__init__(root, start_s)
        self.lanes: dict[tuple[str, Priority, bool], Lane] = {}
        self.own: KeyedHeap[Lane] = KeyedHeap()
        self.children: KeyedHeap[Lane] = KeyedHeap()
        self.children_running = 0
        self.sessions: list[str] = []
        self.next: Place | None = None


class Agent(Share):
    """One agent, or its background calls."""

    __slots__ = ("next", "roots", "trees")

    def __init__(self, name: tuple[str, bool], start_s: float, credit_s: float) -> None:
        super().__init__(name, start_s)
        self.roots: dict[str, str] = {}
        """The first session of the tree that a session belongs to."""
        self.trees: Shares[Tree] = Shares(credit_s=credit_s, forgotten=self._forget)
        self.next: Place | None = None

    def root_of(self, ticket: Ticket) -> str:
        """The name of a ticket's tree."""
        known = self.roots.get(ticket.session) or self.roots.get(ticket.parent_session)
        return known or ticket.parent_session or ticket.session

    def _forget(self, tree: Tree) -> None:
        for session in tree.sessions:
            del self.roots[session]


class Lanes:
    """The tickets of one pool that wait for nothing but their turn, and who pays for those in flight."""

    def __init__(self, *, credit_s: float, cost_s: Callable[[Demand], float]) -> None:
        self._credit_s = credit_s
        self._cost_s = cost_s
        self._agents: Shares[Agent] = Shares(credit_s=credit_s)

    def __repr__(self) -> str:
        return f"<Lanes of {self._agents!r}>"

    @property
    def now_s(self) -> float:
        """The pool's virtual time."""
        return self._agents.now_s

    def first(self) -> tuple[float, Place] | None:
        """The next ticket, and its agent's key."""
        first = self._agents.first()
        if first is None:
            return None
        assert first[1].next is not None, "an agent without tickets rests"
        return first[0], first[1].next

    def enter(self, place: Place, now: float) -> None:
        """Put a ticket in its lane."""
        agent, tree = self._shares(place)
        place.agent, place.tree = agent, tree
        name = (place.ticket.session, place.priority, place.is_child)
        lane = tree.lanes.get(name)
        if lane is None:
            lane = tree.lanes[name] = Lane(name)
        place.lane = lane
        lane.tickets.put(place, place.order)
        # Behind others of its lane it changes nothing yet.
        if _head_of(lane) is place:
            self._refresh_lane(agent, tree, lane, now)

    def leave(self, place: Place, now: float) -> None:
        """Take a ticket out of its lane."""
        agent, tree, lane = place.agent, place.tree, place.lane
        assert agent is not None
        assert tree is not None
        assert lane is not None
        place.lane = None
        lane.tickets.drop(place)
        self._refresh_lane(agent, tree, lane, now)

    def revalue(self, place: Place, now: float) -> None:
        """A ticket's bonus changed in its lane."""
        assert place.agent is not None
        assert place.tree is not None
        assert place.lane is not None
        self._refresh_lane(place.agent, place.tree, place.lane, now)

    def charge(self, place: Place, now: float) -> None:
        """An attempt goes: who pays is charged what it is expected to take. Then take it out of its lane, if it is in.

        `settle` it when it ends.
        """
        agent, tree = self._shares(place)
        if not place.was_sent:
            self._note_starts(place, agent, tree)
            place.was_sent = True
        self._serve(place, agent, tree, self._cost_s(place.ticket.demand), now)
        if place.lane is None:
            self._refresh(agent, tree, now)

    def settle(self, place: Place, cost_s: float, now: float) -> None:
        """An attempt ended, and took so much."""
        agent, tree, payer = place.agent, place.tree, place.payer
        assert agent is not None
        assert tree is not None
        correction_s, weight = cost_s - place.charged_s, place.weight
        self._agents.settle(agent, correction_s, weight=weight)
        agent.trees.settle(tree, correction_s, weight=weight)
        tree.children_running -= place.is_child
        self._refresh(agent, tree, now)
        if payer is not None:
            self._agents.charge_too(payer, correction_s, weight=weight)
            self._refresh_agent(payer, now)
        place.agent = place.tree = place.payer = None

    def leave_standing(self, place: Place) -> None:
        """Write down what a waiting ticket's place is worth."""
        if not place.was_sent:
            self._note_starts(place, *self._shares(place))
        place.standing = PlaceWorth(
            place.order, place.since, place.agent_start_s, place.tree_start_s, was_sent=place.was_sent
        )

    def is_capped(self, place: Place) -> bool:
        """Whether a ticket in its lane lets others pass because its tree has in flight what its agent was granted."""
        tree = place.tree
        return place.is_child and tree is not None and tree.children_running >= _fan_out(place)

    def tree_of(self, ticket: Ticket, *, is_background: bool) -> Tree | None:
        """The tree that would pay for a ticket; None: nobody remembers it."""
        agent = self._agents.get((ticket.agent, is_background))
        return None if agent is None else agent.trees.get(agent.root_of(ticket))

    def is_first_of_lane(self, place: Place) -> bool:
        """Whether a ticket is in its lane and the first there."""
        return place.lane is not None and _head_of(place.lane) is place

    def rank(self, place: Place) -> tuple[float, ...]:
        """What a ticket in its lane is sorted by among all in their lanes, at this instant."""
        assert place.agent is not None
        assert place.tree is not None
        bonus_s = place.bonus_s
        return place.agent.start_s - bonus_s, place.tree.start_s - bonus_s, place.since - bonus_s, place.order

    def forecast(self, places: Iterable[Place]) -> Iterator[tuple[float, int, Place]]:
        """Each of these tickets with the key that its agent will have when its turn comes, if nothing else comes."""
        by_agent: dict[tuple[str, bool], dict[str, list[tuple[float, int, Place]]]] = {}
        for place in places:
            name = (place.ticket.agent, place.is_background)
            agent = self._agents.get(name)
            root = agent.root_of(place.ticket) if agent else place.ticket.parent_session or place.ticket.session
            entry = (place.since - place.bonus_s, place.order, place)
            by_agent.setdefault(name, {}).setdefault(root, []).append(entry)
        for name, by_tree in by_agent.items():
            agent = self._agents.get(name)
            merged: list[tuple[float, int, Place]] = []
            for root, entries in by_tree.items():
                merged.extend(self._line_up(entries, agent.trees.start_of(root) if agent else 0.0))
            yield from self._line_up(merged, self._agents.start_of(name))

    def adopt(self, place: Place, now: float) -> None:
        """Take over an attempt in flight that another pool has charged for."""
        agent, tree = self._shares(place)
        self._serve(place, agent, tree, place.charged_s, now)
        self._refresh(agent, tree, now)

    def _serve(self, place: Place, agent: Agent, tree: Tree, cost_s: float, now: float) -> None:
        weight = place.weight
        place.agent, place.tree, place.charged_s = agent, tree, cost_s
        if place.is_background:
            place.payer = self._agent((place.ticket.agent, False), _NEVER)
            self._agents.charge_too(place.payer, cost_s, weight=weight)
            self._refresh_agent(place.payer, now)
        self._agents.serve(agent, cost_s, weight=weight)
        agent.trees.serve(tree, cost_s, weight=weight)
        tree.children_running += place.is_child

    def _note_starts(self, place: Place, agent: Agent, tree: Tree) -> None:
        place.agent_start_s = min(place.agent_start_s, agent.start_s)
        place.tree_start_s = min(place.tree_start_s, tree.start_s)

    def _shares(self, place: Place) -> tuple[Agent, Tree]:
        """Who pays for a ticket; made new where nobody remembers them, with the start that its standing grants."""
        if place.lane is not None:
            assert place.agent is not None
            assert place.tree is not None
            return place.agent, place.tree
        ticket = place.ticket
        agent = self._agent((ticket.agent, place.is_background), place.agent_start_s)
        root = agent.root_of(ticket)
        tree = agent.trees.get(root)
        if tree is None:
            tree = Tree(root, min(place.tree_start_s, agent.trees.floor_s()))
            agent.trees.add(tree)
        for session in (ticket.session, ticket.parent_session):
            if session and session not in agent.roots:
                agent.roots[session] = root
                tree.sessions.append(session)
        return agent, tree

    def _agent(self, name: tuple[str, bool], start_s: float) -> Agent:
        agent = self._agents.get(name)
        if agent is None:
            agent = Agent(name, min(start_s, self._agents.floor_s()), self._credit_s)
            self._agents.add(agent)
        return agent

    def _refresh_lane(self, agent: Agent, tree: Tree, lane: Lane, now: float) -> None:
        lanes = tree.children if lane.name[2] else tree.own
        first = lane.tickets.first()
        if first is None:
            lanes.drop(lane)
            del tree.lanes[lane.name]
        else:
            lanes.put(lane, first[1].since - first[1].bonus_s, first[1].order)
        self._refresh(agent, tree, now)

    def _refresh(self, agent: Agent, tree: Tree, now: float) -> None:
        """The tree's next ticket, its start or its bonus may have changed."""
        place = tree.next = self._next_of(tree)
        if place is None:
            agent.trees.rest(tree, now)
        else:
            agent.trees.wait(
                tree,
                now,
                bonus_s=place.bonus_s,
                weight=place.weight,
                rank=place.order,
                floor_s=place.tree_start_s,
            )
        self._refresh_agent(agent, now)

    def _refresh_agent(self, agent: Agent, now: float) -> None:
        first = agent.trees.first()
        place = agent.next = None if first is None else first[1].next
        if place is None:
            self._agents.rest(agent, now)
        else:
            self._agents.wait(
                agent,
                now,
                bonus_s=place.bonus_s,
                weight=place.weight,
                rank=place.order,
                floor_s=place.agent_start_s,
            )

    def _next_of(self, tree: Tree) -> Place | None:
        own = tree.own.first()
        child = tree.children.first()
        if child is not None and (own is None or child[0] < own[0]):
            place = _head_of(child[1])
            if tree.children_running < _fan_out(place):
                return place
        return None if own is None else _head_of(own[1])

    def _line_up(self, entries: list[tuple[float, int, Place]], start_s: float) -> Iterator[tuple[float, int, Place]]:
        """The entries in their order, each with the key that the ones before leave it."""
        for _, order, place in sorted(entries, key=lambda entry: entry[:2]):
            yield start_s - place.bonus_s, order, place
            start_s += self._cost_s(place.ticket.demand) / place.weight


def _fan_out(place: Place) -> float:
    """Attempts of sub-agents that a ticket's tree may have in flight."""
    cap = place.ticket.max_fan_out
    return _NEVER if cap is None else max(1, cap)


def _head_of(lane: Lane) -> Place:
    first = lane.tickets.first()
    assert first is not None, "empty lanes are dropped"
    return first[1]


class Flight(Struct, frozen=True):
    """One attempt upstream."""

    place: Place
    reservation: Reservation
    demand: Demand
    """What is reserved for it."""
    stamp: int
    """Counts the pool's admissions and settles: what a header can know."""
    in_flight: int
    """Attempts of the pool at its admission, itself counted."""
    is_probe: bool

    @property
    def ticket(self) -> Ticket:
        """Whose attempt it is."""
        return self.reservation.ticket


class Flights:
    """Each ticket has one at most."""

    def __init__(self) -> None:
        self._by_ticket: dict[str, Flight] = {}
        self._by_request: dict[tuple[str, str], dict[str, Flight]] = {}
        """By agent and hash: several at one time are nobody's mistake."""

    def __len__(self) -> int:
        return len(self._by_ticket)

    def __iter__(self) -> Iterator[Flight]:
        """The oldest first."""
        return iter(self._by_ticket.values())

    def __repr__(self) -> str:
        return f"<Flights {len(self)}>"

    def of(self, reservation: Reservation) -> Flight | None:
        """The attempt of a reservation; None: it has ended."""
        flight = self._by_ticket.get(reservation.ticket.id)
        return flight if flight is not None and flight.reservation.attempt == reservation.attempt else None

    def of_ticket(self, ticket_id: str) -> Flight | None:
        """A ticket's attempt; None: it has none upstream."""
        return self._by_ticket.get(ticket_id)

    def add(self, flight: Flight) -> None:
        """An attempt was sent."""
        ticket = flight.ticket
        self._by_ticket[ticket.id] = flight
        self._by_request.setdefault((ticket.agent, ticket.request_hash), {})[ticket.id] = flight

    def remove(self, flight: Flight) -> None:
        """It has ended."""
        ticket = flight.ticket
        del self._by_ticket[ticket.id]
        alike = self._by_request[ticket.agent, ticket.request_hash]
        del alike[ticket.id]
        if not alike:
            del self._by_request[ticket.agent, ticket.request_hash]

    def alike(self, ticket: Ticket) -> Iterator[Flight]:
        """Attempts for the same request of the same agent; none where its hash is unknown."""
        return iter(
            self._by_request.get((ticket.agent, ticket.request_hash), {}).values() if ticket.request_hash else ()
        )
