"""Contexts as a tree: sessions, and below each the sub-agents that it started. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from hivemind_addon.plugins.contexts.store import ContextHead

_DEEPEST = 6
"""Levels that are indented; whoever is deeper stands at the last one."""
_Key = tuple[str, str]
"""Agent and session."""


class TreePlace(Struct, frozen=True):
    """One context where it stands in the tree."""

    head: ContextHead
    depth: int = 0
    parent: str = ""
    """Id of the context whose session started this one's; empty: none that is listed."""
    rails: str = ""
    """What is drawn before it: which lines above go on, and its own branch."""


def tree(heads: Sequence[ContextHead]) -> list[TreePlace]:
    """Every context once: those whose parent is not among them by the newest of the family, children below theirs.

    `heads`: newest first.
    """
    sessions: dict[_Key, list[ContextHead]] = {}
    for head in heads:
        sessions.setdefault((head.agent, head.session), []).append(head)
    parents = {key: _parent(key, of_session[0], sessions) for key, of_session in sessions.items()}
    children: dict[_Key, list[_Key]] = {}
    roots: dict[_Key, None] = {}
    for key in sessions:
        if (parent := parents[key]) is not None and _root(key, parents) is not None:
            children.setdefault(parent, []).append(key)
        roots.setdefault(_root(key, parents) or key)
    return [place for root in roots for place in _below(root, sessions, children, parents)]


def family(head: ContextHead, heads: Sequence[ContextHead]) -> list[ContextHead]:
    """A context, and those of the sessions that its own has started, and of theirs."""
    places = tree(heads)
    at = next((number for number, place in enumerate(places) if place.head.id == head.id), None)
    if at is None:
        return [head]
    below, mine = [head], (head.agent, head.session)
    inside = {mine}
    by_id = {place.head.id: place.head for place in places}
    for place in places[at + 1 :]:
        parent = by_id.get(place.parent)
        if parent is not None and (parent.agent, parent.session) in inside:
            inside.add((place.head.agent, place.head.session))
            below.append(place.head)
    return below


def of_agent(agent: str, heads: Sequence[ContextHead]) -> list[ContextHead]:
    """An agent's own contexts and its sub-agents', whatever these are called; newest first, as `heads` are."""
    places = tree(heads)
    mine: set[str] = set()
    for place in places:  # parents stand before their children
        if place.head.agent == agent or place.parent in mine:
            mine.add(place.head.id)
    return [head for head in heads if head.id in mine]


def _parent(key: _Key, head: ContextHead, sessions: Mapping[_Key, object]) -> _Key | None:
    """The session that started one: its agent's of that name, else the only one of that name."""
    agent, session = key
    parent = head.parent_session
    if not parent or parent == session:
        return None
    if (agent, parent) in sessions:
        return agent, parent
    named = [one for one in sessions if one[1] == parent]
    return named[0] if len(named) == 1 else None


def _root(key: _Key, parents: Mapping[_Key, _Key | None]) -> _Key | None:
    """The uppermost session above one; None: they name each other in a circle."""
    seen = {key}
    while (parent := parents[key]) is not None:
        if parent in seen:
            return None
        seen.add(parent)
        key = parent
    return key


def _below(
    root: _Key,
    sessions: Mapping[_Key, Sequence[ContextHead]],
    children: Mapping[_Key, Sequence[_Key]],
    parents: Mapping[_Key, _Key | None],
) -> Iterator[TreePlace]:
    """A session and all that is below it, without recursion: requests say how deep that is."""
    waiting: list[tuple[_Key, tuple[bool, ...]]] = [(root, ())]
    while waiting:
        key, lasts = waiting.pop()
        parent = parents[key] if lasts else None
        parent_id = sessions[parent][0].id if parent is not None else ""
        below = children.get(key, ())
        newest, *others = sessions[key]
        rails = _rails(lasts)
        yield TreePlace(newest, len(lasts), parent_id, rails)
        for other in others:  # the same session's: from before a compaction, or of another worker
            yield TreePlace(other, len(lasts), parent_id, _passing(lasts))
        waiting += [(child, (*lasts, child == below[-1])) for child in reversed(below)]


def _rails(lasts: tuple[bool, ...]) -> str:
    """`├╴` before one that others follow, `└╴` before the last one."""
    shown = lasts[:_DEEPEST]
    above = "".join("  " if is_last else "│ " for is_last in shown[:-1])
    return above + ("└╴" if shown[-1] else "├╴") if shown else ""


def _passing(lasts: tuple[bool, ...]) -> str:
    """Before another context of the same session."""
    return "".join("  " if is_last else "│ " for is_last in lasts[:_DEEPEST])
