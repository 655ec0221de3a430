"""Who asks, as a tree: agents, their sessions, the sub-agents that these started, and the requests of each. Pure."""

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from math import inf

from msgspec import Struct, field

from hivemind_addon.kernel.values.snapshot import RequestState, TicketView
from hivemind_addon.proxy.api.report import ContextPressure, Report, SessionStats

_ACTIVE_S = 60.0
"""Whoever was seen in the last minute is active: between two calls an agent runs its tools."""


IDLE = "idle"
"""An agent or a session that has no request."""
_UNKNOWN_S = 1e9
"""Of whom nothing tells when they go, they come after those of whom something does."""
_Key = tuple[str, str]
"""Agent and session."""
_MANY_TOKENS = 1e9
_DEEPEST = 12
"""Levels of sub-agents; whoever is deeper stands below its agent itself."""


class Sort(Enum):
    """What the tree is ordered by."""

    PLACE = "who goes next"
    ACTIVE = "active first"
    NAME = "name"
    WAIT = "longest wait"
    TOKENS = "tokens"
    COST = "cost"
    LOST = "lost"
    CONTEXT = "fullest context"
    GROWTH = "fastest growing context"

    def next(self) -> "Sort":
        """The one after this; the first after the last."""
        every = list(Sort)
        return every[(every.index(self) + 1) % len(every)]


class NodeKind(Enum):
    """What a node stands for."""

    AGENT = "agent"
    SESSION = "session"
    TICKET = "ticket"


class Node(Struct, eq=False):
    """One row of the tree. What it counts includes its children's."""

    id: str
    """Stays the same from report to report."""
    kind: NodeKind
    name: str
    stats: SessionStats
    """What came of all its requests; `tickets` has those that have not ended."""
    detail: str = ""
    """Of the name, what tells sessions of one agent apart."""
    tickets: list[TicketView] = field(default_factory=list)
    """That have not ended; the ones in flight first, then by place."""
    children: "list[Node]" = field(default_factory=list)
    context: ContextPressure | None = None
    """A session's own; an agent's fullest. None: nothing is known of it."""

    @property
    def agent(self) -> str:
        """Whose it is."""
        return self.stats.agent

    @property
    def model(self) -> str:
        """Of its newest request."""
        return self.stats.model

    @property
    def waiting(self) -> list[TicketView]:
        """Its requests that are not upstream."""
        return [one for one in self.tickets if one.state is not RequestState.IN_FLIGHT]

    @property
    def next_request(self) -> TicketView | None:
        """Of those that wait, the one that is likely to go first."""
        return min(self.waiting, key=_going, default=None)

    @property
    def state(self) -> str:
        """In one word: as its request that is likely to go first; else `in flight`, `queued` far behind, or `idle`."""
        if (first := self.next_request) is not None:
            return first.state.value
        if self.tickets:
            return RequestState.IN_FLIGHT.value
        return RequestState.QUEUED.value if self.stats.live else IDLE

    @property
    def wait_s(self) -> float:
        """The longest present wait."""
        return max((one.waited_s for one in self.waiting), default=0.0)

    @property
    def starts_in_s(self) -> float | None:
        """When the first of them that waits is likely to go; None: none waits, or nothing tells."""
        return min((one.starts_in_s for one in self.waiting if one.starts_in_s is not None), default=None)

    @property
    def in_flight(self) -> int:
        """Requests that are upstream."""
        return sum(one.state is RequestState.IN_FLIGHT for one in self.tickets)

    def take(self, other: "Node") -> None:
        """Count another one's numbers here, too."""
        self.stats += other.stats
        self.tickets = self.tickets + other.tickets


class TreeLine(Struct, frozen=True):
    """A node where it stands in the tree."""

    node: Node
    depth: int
    is_open: bool = False
    """Its requests are listed below it."""
    is_last: bool = False
    """Of those that stand below the same node."""


def _going(view: TicketView) -> tuple[float, int]:
    """Who goes first, in whichever pool."""
    return _UNKNOWN_S if view.starts_in_s is None else view.starts_in_s, view.position


def family(report: Report, *, sort: Sort = Sort.PLACE, pattern: str = "") -> list[Node]:
    """The agents with everything below them, in order; `pattern` is looked for in names, models and requests' ids."""
    sessions = _sessions(report)
    roots: dict[str, list[Node]] = {}
    by_name: dict[str, list[Node]] = {}
    for node in sessions.values():
        by_name.setdefault(node.name, []).append(node)
    parents = {key: _parent(node, sessions, by_name) for key, node in sessions.items()}
    for key, node in sessions.items():
        parent = parents[key]
        if parent is not None and _is_rooted(key, parents):
            sessions[parent].children.append(node)
        else:
            roots.setdefault(node.agent, []).append(node)
    agents = [_agent(name, nodes) for name, nodes in roots.items()]
    if pattern:
        agents = [agent for agent in agents if _matches(agent, pattern.casefold())]
    _order(agents, sort)
    return agents


def lines(agents: Sequence[Node], opened: frozenset[str] | None, depth: int = 0) -> Iterator[TreeLine]:
    """The tree from top to bottom, with the requests of those that are open; None: where one has several."""
    for number, node in enumerate(agents, start=1):
        listed = list(_requests(node)) if opened is None or node.id in opened else []
        if opened is None and len(listed) == 1:
            listed = []
        yield TreeLine(node, depth, bool(listed), number == len(agents))
        yield from lines([*listed, *node.children], opened, depth + 1)


def _requests(node: Node) -> Iterator[Node]:
    """A node's own requests, not its children's; a request has none."""
    if node.kind is NodeKind.TICKET:
        return
    below = {one.ticket.id for child in node.children for one in child.tickets}
    for view in node.tickets:
        ticket = view.ticket
        if ticket.id not in below:
            whose = SessionStats(ticket.agent, ticket.session, model=ticket.model)
            yield Node(f"ticket {ticket.id}", NodeKind.TICKET, ticket.id, whose, ticket.kind.value, tickets=[view])


def _sessions(report: Report) -> dict[_Key, Node]:
    """Every session that is known, by agent and name."""
    found: dict[_Key, Node] = {}
    for stats in report.stats.sessions:
        found[stats.agent, stats.session] = _session(stats)
    for pool in report.snapshot.pools:
        for view in pool.tickets:
            ticket = view.ticket
            key = ticket.agent, ticket.session
            if key not in found:
                found[key] = _session(SessionStats(*key, parent_session=ticket.parent_session, model=ticket.model))
            found[key].tickets.append(view)
    for context in report.contexts:
        if (node := found.get((context.agent, context.session))) is not None:
            node.context = context
    for node in found.values():
        node.tickets.sort(key=_in_flight_first)
    return found


def _session(stats: SessionStats) -> Node:
    return Node(f"session {(stats.agent, stats.session)}", NodeKind.SESSION, stats.session, stats)


def _parent(node: Node, sessions: dict[_Key, Node], by_name: dict[str, list[Node]]) -> _Key | None:
    """The session that started one: its agent's of that name, else the only one of that name."""
    agent, session, parent = node.agent, node.name, node.stats.parent_session
    if not parent or parent == session:
        return None
    if (agent, parent) in sessions:
        return agent, parent
    named = by_name.get(parent, [])
    return (named[0].agent, parent) if len(named) == 1 else None


def _is_rooted(key: _Key, parents: dict[_Key, _Key | None]) -> bool:
    """Whether the way up ends soon: requests can name each other in a circle, or in a chain without end."""
    place: _Key | None = key
    for _ in range(_DEEPEST):
        if place is None:
            return True
        place = parents[place]
    return False


def _agent(name: str, sessions: list[Node]) -> Node:
    """An agent above its sessions; its only one is not shown apart."""
    for node in sessions:
        _gather(node)
    agent = Node(f"agent {name}", NodeKind.AGENT, name, SessionStats(name, "", seen_ago_s=inf))
    for node in sessions:
        agent.take(node)
    agent.context = max((node.context for node in sessions if node.context is not None), key=_fullness, default=None)
    if len(sessions) == 1:
        agent.children = sessions[0].children
        agent.detail = "" if sessions[0].name == name else sessions[0].name
    else:
        agent.children = sessions
    agent.tickets.sort(key=_in_flight_first)
    return agent


def _gather(node: Node) -> None:
    for child in node.children:
        _gather(child)
        node.take(child)


def _in_flight_first(view: TicketView) -> tuple[float, int]:
    return _going(view) if view.position else (-1.0, 0)


def _matches(node: Node, pattern: str) -> bool:
    words = (node.name, node.agent, node.detail, node.model, *(one.ticket.id for one in node.tickets))
    return any(pattern in word.casefold() for word in words) or any(_matches(child, pattern) for child in node.children)


def _order(nodes: list[Node], sort: Sort) -> None:
    nodes.sort(key=lambda node: (_rank(node, sort), natural(node.name)))
    for node in nodes:
        _order(node.children, sort)


def _rank(node: Node, sort: Sort) -> tuple[float, int]:
    is_idle = not node.tickets and not node.stats.live
    match sort:
        case Sort.PLACE:  # those that wait in their order, then those that run, then the others
            if (first := node.next_request) is not None:
                return _going(first)
            return inf, is_idle + (is_idle and node.stats.seen_ago_s > _ACTIVE_S)
        case Sort.ACTIVE:
            return float(is_idle and node.stats.seen_ago_s > _ACTIVE_S), 0
        case Sort.NAME:
            return 0, 0
        case Sort.WAIT:
            return -node.wait_s, 0
        case Sort.TOKENS:
            return -node.stats.tokens, 0
        case Sort.COST:
            return -node.stats.micro_usd, 0
        case Sort.LOST:
            return -node.stats.lost, 0
        case Sort.CONTEXT:
            return (0 if node.context is None else -_fullness(node.context)), 0
        case Sort.GROWTH:
            return (0 if node.context is None else -node.context.growth_per_turn), 0


def _fullness(context: ContextPressure) -> float:
    """Those whose context windows are known come first, the others by their tokens."""
    return context.tokens / _MANY_TOKENS if context.share is None else 1 + context.share


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that puts `agent-2` before `agent-10`."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d{1,18})", name) if part]
