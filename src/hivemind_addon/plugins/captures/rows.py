"""A capture's sessions as rows of cells, each a span of time: a night in a terminal's width. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.plugins.captures.model import Capture, CapturedCall


class SessionCell(IntEnum):
    """What is seen in a cell; where several things are, the last of these."""

    NOTHING = 0
    QUEUED = 1
    """It waits to be sent."""
    ANSWERED = 2
    """An attempt that is answered in the end."""
    TRIED = 3
    """An attempt that fails in the end."""
    FAILED = 4
    """Its failure."""
    LOST = 5
    """The call's end without an answer."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session."""

    agent: str
    session: str
    depth: int
    """0: nobody started it; 1: a sub-agent of the row before it that has depth 0, and so on."""
    models: tuple[str, ...]
    cells: tuple[SessionCell, ...]
    calls: int
    retries: int
    """Attempts after a call's first one."""
    lost: int
    """Calls that ended without an answer."""
    waited_s: float
    tokens: int
    """Input and output of all attempts, cached input included."""


def rows(capture: Capture, width: int) -> tuple[SessionRow, ...]:
    """Every session of the capture, those that another one started below it; else by their first call."""
    sessions: defaultdict[tuple[str, str], list[CapturedCall]] = defaultdict(list)
    for call in capture.calls:
        sessions[call.agent, call.session].append(call)
    span_s = capture.ended_s / max(1, width) or 1.0
    return tuple(_row(sessions[key], depth, span_s, width) for key, depth in _tree(sessions))


def is_lost(call: CapturedCall) -> bool:
    """Whether its client has no answer, and did not go by itself."""
    return call.end not in ("delivered", "cancelled")


def _tree(sessions: dict[tuple[str, str], list[CapturedCall]]) -> Iterator[tuple[tuple[str, str], int]]:
    """Keys and depths, parents before their children; a session that is its own ancestor is nobody's child."""
    by_session = {session: (agent, session) for agent, session in sessions}
    parents: dict[tuple[str, str], tuple[str, str]] = {}
    for key, calls in sessions.items():
        named = next((call.parent_session for call in calls if call.parent_session), "")
        above = by_session.get(named)
        line = above
        while line is not None and line != key:
            line = parents.get(line)
        if above is not None and line is None:
            parents[key] = above
    children: defaultdict[tuple[str, str] | None, list[tuple[str, str]]] = defaultdict(list)
    for key in sessions:
        children[parents.get(key)].append(key)
    waiting = [(key, 0) for key in reversed(children[None])]
    while waiting:
        key, depth = waiting.pop()
        yield key, depth
        waiting += [(child, depth + 1) for child in reversed(children[key])]


def _row(calls: Sequence[CapturedCall], depth: int, span_s: float, width: int) -> SessionRow:
    attempts = [attempt for call in calls for attempt in call.attempts]
    usages = [attempt.usage for attempt in attempts if attempt.usage is not None]
    models = Counter(call.model for call in calls)
    return SessionRow(
        agent=calls[0].agent,
        session=calls[0].session,
        depth=depth,
        models=tuple(model for model, _ in models.most_common()),
        cells=_cells(calls, span_s, width),
        calls=len(calls),
        retries=sum(max(0, len(call.attempts) - 1) for call in calls),
        lost=sum(is_lost(call) for call in calls),
        waited_s=sum(call.waited_s for call in calls),
        tokens=sum(usage.total_input_tokens + usage.output_tokens for usage in usages),
    )


def _cells(calls: Iterable[CapturedCall], span_s: float, width: int) -> tuple[SessionCell, ...]:
    cells = [SessionCell.NOTHING] * width

    def fill(begin_s: float, end_s: float, what: SessionCell) -> None:
        for place in range(_place(begin_s, span_s, width), _place(end_s, span_s, width) + 1):
            cells[place] = max(cells[place], what)

    for call in calls:
        free_s = call.at_s
        for attempt in call.attempts:
            end_s = attempt.at_s + attempt.ended_after_s
            if attempt.at_s - free_s >= span_s / 4:
                fill(free_s, attempt.at_s, SessionCell.QUEUED)
            succeeded = attempt.kind is OutcomeKind.SUCCESS
            fill(attempt.at_s, end_s, SessionCell.ANSWERED if succeeded else SessionCell.TRIED)
            if not succeeded:
                fill(end_s, end_s, SessionCell.FAILED)
            free_s = end_s
        if call.ended_s - free_s >= span_s / 4:
            fill(free_s, call.ended_s, SessionCell.QUEUED)
        if is_lost(call):
            fill(call.ended_s, call.ended_s, SessionCell.LOST)
    return tuple(cells)


def _place(at_s: float, span_s: float, width: int) -> int:
    return min(width - 1, max(0, int(at_s / span_s)))
