"""Who asks, as a tree: agents, their sessions, the sub-agents that these started, and the requests of each. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hivemind_addon.api.report import Report, SessionTally
from hivemind_addon.api.snapshot import TicketView
from hivemind_addon.api.ticket import Usage

_ACTIVE_S = 60.0
"""Whoever was seen in the last minute is active: between two calls an agent runs its tools."""


_DEEPEST = 12
"""Levels of sub-agents; whoever is deeper stands below its agent itself."""


class Sort(Enum):
    """What the tree is ordered by."""

    ACTIVE = "active first"
    NAME = "name"
    WAIT = "longest wait"
    TOKENS = "tokens"
    COST = "cost"
    LOST = "lost"

    def next(self) -> "Sort":
        """The one after this; the first after the last."""
        every = list(Sort)
        return every[(every.index(self) + 1) % len(every)]


class NodeKind(Enum):
    """What a node stands for."""

    AGENT = "agent"
    SESSION = "session"
    TICKET = "ticket"


@dataclass(slots=True, eq=False)
class Node:
    """One row of the tree. What it counts includes its children's."""

    id: str
    """Stays the same from report to report."""
    kind: NodeKind
    name: str
    agent: str
    detail: str = ""
    """Of the name, what tells sessions of one agent apart."""
    model: str = ""
    tickets: list[TicketView] = field(default_factory=list)
    """That have not ended; the ones in flight first, then by place."""
    children: "list[Node]" = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    tokens: int = 0
    """What was booked, as is `micro_usd`."""
    wasted_tokens: int = 0
    """Of these, what came to nothing."""
    micro_usd: int = 0
    wasted_micro_usd: int = 0
    is_priced: bool = True
    delivered: int = 0
    lost: int = 0
    refused: int = 0
    shed: int = 0
    cancelled: int = 0
    retries_absorbed: int = 0
    seen_ago_s: float = 0.0
    live: int = 0
    """Requests that have not ended, also those that the report does not list."""

    @property
    def wait_s(self) -> float:
        """The longest present wait."""
        return max((one.waited_s for one in self.tickets if one.state != "in flight"), default=0.0)

    @property
    def in_flight(self) -> int:
        """Requests that are upstream."""
        return sum(one.state == "in flight" for one in self.tickets)

    def take(self, other: "Node") -> None:
        """Count another one's numbers here, too."""
        one, two = self.usage, other.usage
        self.usage = Usage(
            input_tokens=one.input_tokens + two.input_tokens,
            cache_read_tokens=one.cache_read_tokens + two.cache_read_tokens,
            cache_write_tokens=one.cache_write_tokens + two.cache_write_tokens,
            output_tokens=one.output_tokens + two.output_tokens,
        )
        self.tokens += other.tokens
        self.wasted_tokens += other.wasted_tokens
        self.micro_usd += other.micro_usd
        self.wasted_micro_usd += other.wasted_micro_usd
        self.is_priced = self.is_priced and other.is_priced
        self.delivered += other.delivered
        self.lost += other.lost
        self.refused += other.refused
        self.shed += other.shed
        self.cancelled += other.cancelled
        self.retries_absorbed += other.retries_absorbed
        self.seen_ago_s = min(self.seen_ago_s, other.seen_ago_s)
        self.live += other.live
        self.model = self.model or other.model
        self.tickets = self.tickets + other.tickets


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A node where it stands in the tree."""

    node: Node
    depth: int
    is_open: bool = False
    """Its requests are listed below it."""
    is_last: bool = False
    """Of those that stand below the same node."""


def family(report: Report, *, sort: Sort = Sort.ACTIVE, pattern: str = "") -> list[Node]:
    """The agents with everything below them, in order; `pattern` is looked for in names, models and requests' ids."""
    sessions = _sessions(report)
    roots: dict[str, list[Node]] = {}
    by_name: dict[str, list[Node]] = {}
    for node, _ in sessions.values():
        by_name.setdefault(node.name, []).append(node)
    parents = {key: _parent(key, parent, sessions, by_name) for key, (_, parent) in sessions.items()}
    for key, (node, _) in sessions.items():
        parent = parents[key]
        if parent is not None and _is_rooted(key, parents):
            sessions[parent][0].children.append(node)
        else:
            roots.setdefault(node.agent, []).append(node)
    agents = [_agent(name, nodes) for name, nodes in roots.items()]
    if pattern:
        agents = [agent for agent in agents if _matches(agent, pattern.casefold())]
    _order(agents, sort)
    return agents


def lines(agents: Sequence[Node], opened: frozenset[str] | None, depth: int = 0) -> Iterator[TreeLine]:
    """The tree from top to bottom, with the requests of those that are open; None: all are."""
    for number, node in enumerate(agents, start=1):
        is_open = node.kind is not NodeKind.TICKET and (opened is None or node.id in opened)
        yield TreeLine(node, depth, is_open, number == len(agents))
        below = [*(_requests(node) if is_open else ()), *node.children]
        yield from lines(below, opened, depth + 1)


def _requests(node: Node) -> Iterator[Node]:
    """A node's own requests, not its children's."""
    below = {one.ticket.id for child in node.children for one in child.tickets}
    for view in node.tickets:
        ticket = view.ticket
        if ticket.id not in below:
            name = f"ticket {ticket.id}"
            yield Node(
                name, NodeKind.TICKET, ticket.id, ticket.agent, ticket.kind.value, model=ticket.model, tickets=[view]
            )


def _sessions(report: Report) -> dict[tuple[str, str], tuple[Node, str]]:
    """Every session that is known, by agent and name, and the name of the one that started it."""
    found: dict[tuple[str, str], tuple[Node, str]] = {}
    for tally in report.tally.sessions:
        found[tally.agent, tally.session] = _session(tally), tally.parent_session
    for pool in report.snapshot.pools:
        for view in pool.tickets:
            ticket = view.ticket
            key = ticket.agent, ticket.session
            if key not in found:
                node = Node(f"session {key}", NodeKind.SESSION, ticket.session, ticket.agent, model=ticket.model)
                found[key] = node, ticket.parent_session
            found[key][0].tickets.append(view)
    for node, _ in found.values():
        node.tickets.sort(key=lambda one: one.position)
    return found


def _session(tally: SessionTally) -> Node:
    return Node(
        id=f"session {(tally.agent, tally.session)}",
        kind=NodeKind.SESSION,
        name=tally.session,
        agent=tally.agent,
        model=tally.model,
        usage=tally.usage,
        tokens=tally.tokens,
        wasted_tokens=tally.wasted_tokens,
        micro_usd=tally.micro_usd,
        wasted_micro_usd=tally.wasted_micro_usd,
        is_priced=tally.is_priced,
        delivered=tally.delivered,
        lost=tally.lost,
        refused=tally.refused,
        shed=tally.shed,
        cancelled=tally.cancelled,
        retries_absorbed=tally.retries_absorbed,
        seen_ago_s=tally.seen_ago_s,
        live=tally.live,
    )


_Key = tuple[str, str]


def _parent(
    key: _Key, parent: str, sessions: dict[_Key, tuple[Node, str]], by_name: dict[str, list[Node]]
) -> _Key | None:
    """The session that started one: its agent's of that name, else the only one of that name."""
    agent, session = key
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
    agent = Node(f"agent {name}", NodeKind.AGENT, name, name, seen_ago_s=min(node.seen_ago_s for node in sessions))
    for node in sessions:
        agent.take(node)
    if len(sessions) == 1:
        agent.children = sessions[0].children
        agent.detail = "" if sessions[0].name == name else sessions[0].name
    else:
        agent.children = sessions
    agent.tickets.sort(key=lambda one: one.position)
    return agent


def _gather(node: Node) -> None:
    for child in node.children:
        _gather(child)
        node.take(child)


def _matches(node: Node, pattern: str) -> bool:
    words = (node.name, node.agent, node.detail, node.model, *(one.ticket.id for one in node.tickets))
    return any(pattern in word.casefold() for word in words) or any(_matches(child, pattern) for child in node.children)


def _order(nodes: list[Node], sort: Sort) -> None:
    nodes.sort(key=lambda node: (_rank(node, sort), natural(node.name)))
    for node in nodes:
        _order(node.children, sort)


def _rank(node: Node, sort: Sort) -> float:
    match sort:
        case Sort.ACTIVE:
            return not node.tickets and not node.live and node.seen_ago_s > _ACTIVE_S
        case Sort.NAME:
            return 0
        case Sort.WAIT:
            return -node.wait_s
        case Sort.TOKENS:
            return -node.tokens
        case Sort.COST:
            return -node.micro_usd
        case Sort.LOST:
            return -node.lost


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that puts `agent-2` before `agent-10`."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d{1,18})", name) if part]
