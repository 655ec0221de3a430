"""The agents' rows: what each waits for and why, when it is likely to go, what it has used. Pure.

Their columns have fixed widths, as many as there is room for: numbers that change must not make the others jump. On a
narrow screen a column of what has never happened (losses, waste) comes when it happens first.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.text import Text

from hivemind_addon.kernel.values.snapshot import BudgetView, RequestState
from hivemind_addon.kernel.values.spend import Scope
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.api.report import ContextPressure, SessionStats
from hivemind_addon.proxy.api.words import brief, count, dollars, ordinal, printable, span
from hivemind_addon.tools.dash.family import Node, NodeKind, TreeLine
from hivemind_addon.tools.dash.glyphs import Tone, bar, cut, cut_middle

_GAP = 2


class Column(Struct, frozen=True):
    """One column of a grid."""

    title: str
    rank: int
    """The ones with the highest rank are left out first."""
    width: int
    """Of its cells; of a growing column the least."""
    grows: int = 0
    """Its part of the width that is left over; 0: it keeps its width."""
    right: bool = False
    least: int = 0
    """So narrow it becomes before one of rank 1 or 0 is left out; 0: it keeps its width."""


class GridCell(Struct, frozen=True):
    """One cell's text, without control characters."""

    text: str
    style: str = ""
    marked: int = 0
    """So many of its characters are the name of what binds."""

    def drawn(self, width: int, *, right: bool = False) -> Text:
        """In exactly so many cells."""
        shown = cut(self.text, width)
        padding = " " * (width - cell_len(shown))
        text = Text(padding if right else "", no_wrap=True, end="").append(shown, self.style or None)
        if self.marked:
            text.stylize(Tone.BAD, 0, self.marked)
        return text if right else text.append(padding)


class Grid:
    """The columns that fit into a width."""

    def __init__(self, columns: Sequence[Column], width: int) -> None:
        chosen = list(columns)
        while len(chosen) > 1 and _least(chosen) > width:
            last = max(chosen, key=lambda column: column.rank)
            if last.rank <= 1 and any(column.least for column in chosen):
                chosen = _shrunk(chosen, _least(chosen) - width)
                continue
            chosen.remove(last)
        left = max(0, width - _least(chosen))
        parts = sum(column.grows for column in chosen)
        self._width = width
        self._widths = {column.title: column.width + left * column.grows // max(1, parts) for column in chosen}
        self.columns = chosen

    def width_of(self, title: str) -> int:
        """How wide a column's cells are; 0: it is left out."""
        return self._widths.get(title, 0)

    def heading(self) -> Text:
        """The line above the rows."""
        return self.row([GridCell(column.title, Tone.FAINT) for column in self.columns])

    def drawn(self, cells: Mapping[str, GridCell]) -> list[Text]:
        """One line's cells, by their column's title, each as wide as its column; one that is missing is empty."""
        empty = GridCell("")
        return [cells.get(one.title, empty).drawn(self._widths[one.title], right=one.right) for one in self.columns]

    def rows(self, cells: Iterable[dict[str, GridCell]]) -> Iterable[Text]:
        """Lines, from cells by their column's title; a cell that is missing is empty."""
        empty = GridCell("")
        for one in cells:
            yield self.row([one.get(column.title, empty) for column in self.columns])

    def row(self, cells: Sequence[GridCell]) -> Text:
        """One line of cells, one for each column that fits."""
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        for index, (column, cell) in enumerate(zip(self.columns, cells, strict=True)):
            if index:
                line.append(" " * _GAP)
            line.append(cell.drawn(self._widths[column.title], right=column.right))
        line.truncate(self._width)
        return line


def _shrunk(columns: Sequence[Column], by: int) -> list[Column]:
    """Those that may become narrower are so, by as much as it takes or they can."""
    made = []
    for column in columns:
        less = min(by, column.width - column.least) if column.least else 0
        by -= less
        made.append(replace(column, width=column.width - less, least=0))
    return made


def _least(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


_COLUMNS = (
    Column("place", 2, 5, right=True),
    Column("agent", 0, 14, grows=2, least=8),
    Column("state", 0, 38, grows=3, least=12),
    Column("starts in", 1, 9, right=True),
    Column("waited", 3, 6, right=True),
    Column("request", 18, 12),
    Column("prio", 11, 8),
    Column("in", 9, 6, right=True),
    Column("cached", 13, 6, right=True),
    Column("out", 10, 5, right=True),
    Column("cost", 4, 7, right=True),
    Column("in vain", 7, 7, right=True),
    Column("budget", 8, 10),
    Column("context", 8, 10),
    Column("a turn", 12, 6, right=True),
    Column("warm", 14, 6, right=True),
    Column("done", 6, 5, right=True),
    Column("lost", 5, 4, right=True),
    Column("refused", 16, 7, right=True),
    Column("retries", 15, 7, right=True),
    Column("model", 17, 12, grows=1),
)
"""At 120 columns an operator sees who does what, how full the contexts are, what was asked and spent, what in vain, and
of which budget."""
_BEYOND_ALL = 100
_ROOMY, _ROOMY_STATE = 130, 50
"""So wide a screen has room for a limit, and for how many others wait for it."""
_SOME_ROOM = 90
_WITH_REQUESTS: Mapping[str, dict[str, int]] = {"request": {"rank": 2}, "agent": {"width": 13}}
_NAMED = re.compile("[:,;]")
"""Before one of these, what keeps a request is named."""
_BUDGET_BAR = 5
_NEARLY = 0.85
_BESIDE = " · "
_LEAST_DETAIL = 8


def agents_grid(
    width: int, lines: Sequence[TreeLine], budgets: Sequence[BudgetView], *, requests: bool = False
) -> Grid:
    """The columns for a width and all lines of the tree, shown or not: what none of them has gives way to the rest.

    `requests`: their ids are worth more than most.
    """
    every = [line.node.stats for line in lines]
    has_any = {
        "in vain": any(stats.wasted_micro_usd for stats in every),
        "budget": any(view.budget.scope is Scope.AGENT for view in budgets),
        "context": any(line.node.context for line in lines),
        "a turn": any(line.node.context and line.node.context.growth_per_turn for line in lines),
        "warm": any(line.node.context and line.node.context.cache_lapses_in_s is not None for line in lines),
        "lost": any(stats.lost for stats in every),
        "refused": any(stats.refused for stats in every),
        "retries": any(stats.retries_absorbed for stats in every),
    }
    columns = [one if has_any.get(one.title, True) else replace(one, rank=one.rank + _BEYOND_ALL) for one in _COLUMNS]
    if width >= _ROOMY:
        columns = [replace(one, width=_ROOMY_STATE) if one.title == "state" else one for one in columns]
    if requests:
        changed = {**_WITH_REQUESTS, "state": {"width": 33 if width < _SOME_ROOM else 40}}
        columns = [replace(one, **changed.get(one.title, {})) for one in columns]
    return Grid(columns, width)


def agent_rows(grid: Grid, lines: Iterable[TreeLine], budgets: Sequence[BudgetView]) -> list[Text]:
    """One row for each line of the tree."""
    return list(grid.rows(agent_cells(grid, lines, budgets)))


def agent_cells(grid: Grid, lines: Iterable[TreeLine], budgets: Sequence[BudgetView]) -> Iterator[dict[str, GridCell]]:
    """The cells of each line of the tree by their columns' titles."""
    own = {view.budget.name: view for view in reversed(budgets) if view.budget.scope is Scope.AGENT}
    return (_cells(line, grid.width_of("agent"), own) for line in lines)


def _cells(line: TreeLine, name_width: int, budgets: Mapping[str, BudgetView]) -> dict[str, GridCell]:
    node = line.node
    faint = "" if node.tickets else Tone.FAINT.value
    cells = {
        "agent": GridCell(_name(line, name_width), Tone.TITLE if node.kind is NodeKind.AGENT else faint),
        "state": state_of(node),
        "model": GridCell(printable(node.model), Tone.FAINT),
    }
    if (first := node.next_request) is not None:
        starts_in_s = first.starts_in_s
        cells["place"] = GridCell(ordinal(first.position), Tone.WAITS)
        cells["waited"] = GridCell(brief(round(node.wait_s)), Tone.WAITS)
        cells["starts in"] = (
            GridCell("?", Tone.FAINT) if starts_in_s is None else GridCell(f"~{brief(round(starts_in_s))}")
        )
    if node.tickets:
        shown = first or node.tickets[0]
        cells["request"] = GridCell(printable(shown.ticket.id), Tone.FAINT)
    cells["prio"] = GridCell(priority_of(node), Tone.FAINT)
    if node.kind is NodeKind.TICKET:
        demand = node.tickets[0].ticket.demand
        cells["in"] = GridCell(f"~{count(demand.input_tokens)}", Tone.FAINT)
        return cells
    stats, usage = node.stats, node.stats.usage
    into = usage.total_input_tokens
    cells |= {
        "in": GridCell(count(into), faint),
        "cached": GridCell(f"{usage.cache_read_tokens / into:.0%}" if into else "", faint),
        "out": GridCell(count(usage.output_tokens), faint),
        "cost": GridCell(_cost(stats), faint),
        "in vain": GridCell(dollars(stats.wasted_micro_usd) if stats.wasted_micro_usd else "", faint),
        "done": GridCell(count(stats.delivered), faint),
        "lost": GridCell(count(stats.lost) if stats.lost else "", Tone.BAD),
        "refused": GridCell(count(stats.refused) if stats.refused else "", Tone.WAITS),
        "retries": GridCell(count(stats.retries_absorbed) if stats.retries_absorbed else "", faint),
    }
    if node.context is not None:
        cells |= _context(node.context)
    if node.kind is NodeKind.AGENT and node.name in budgets:
        cells["budget"] = _budget(budgets[node.name])
    return cells


def _name(line: TreeLine, width: int) -> str:
    node = line.node
    indent = "  " * (line.depth - 1) + ("└ " if line.is_last else "├ ") if line.depth else ""
    sign = "▾ " if line.is_open and node.tickets else ""
    room = max(4, width - len(indent) - len(sign))
    name = printable(node.name)
    if node.kind is NodeKind.SESSION:
        name = name.removeprefix(f"{printable(node.agent)}/")
    elif node.detail and (left := room - cell_len(name) - len(_BESIDE)) >= _LEAST_DETAIL:
        name += _BESIDE + cut_middle(printable(node.detail), left)
    return f"{indent}{sign}{cut_middle(name, room)}"


def state_of(node: Node) -> GridCell:
    """What a node's requests do, in words: the first that waits says why."""
    first, waiting, flying, seen_ago_s = node.next_request, len(node.waiting), node.in_flight, node.stats.seen_ago_s
    if first is not None:
        why = printable(first.why or first.reason)
        more = [f"{waiting} {RequestState.QUEUED}"] * (waiting > 1) + [f"{flying} {RequestState.IN_FLIGHT}"] * bool(
            flying
        )
        sign = "↻" if first.state is RequestState.BACKING_OFF else "○"
        text = f"{sign} {why}" + (f" ({', '.join(more)})" if more else "")
        return GridCell(text, Tone.WAITS, marked=len(sign) + 1 + len(_NAMED.split(why)[0]))
    if not node.tickets and node.stats.live:
        return GridCell(f"○ {node.state} far behind", Tone.WAITS)
    if not node.tickets:
        return GridCell(f"· {node.state} {span(seen_ago_s)}" if seen_ago_s >= 1 else f"· {node.state}", Tone.FAINT)
    attempt = max(one.attempts for one in node.tickets)
    again = f", attempt {attempt}" if attempt > 1 and flying == 1 else ""
    return GridCell(f"● {flying} {node.state}" if flying > 1 else f"● {node.state}{again}", Tone.GOOD)


def priority_of(node: Node) -> str:
    """The highest that its requests have; empty: it has none."""
    if not node.tickets:
        return ""
    return Priority(min(one.ticket.priority for one in node.tickets)).name.lower()


def _cost(stats: SessionStats) -> str:
    if not stats.micro_usd:
        return "" if stats.is_priced else "?"
    return dollars(stats.micro_usd) + ("" if stats.is_priced else "+")


def _budget(view: BudgetView) -> GridCell:
    share = view.spent_share
    return GridCell(f"{bar(share, _BUDGET_BAR)} {share:>4.0%}", Tone.WAITS if share >= _NEARLY else Tone.GOOD)


def _context(context: ContextPressure) -> dict[str, GridCell]:
    """How full it is, what a turn adds, and how long the provider's cache stays warm."""
    share, lapses_in_s = context.share, context.cache_lapses_in_s
    full = (
        GridCell(count(context.tokens), Tone.FAINT)
        if share is None
        else GridCell(f"{bar(share, _BUDGET_BAR)} {share:>4.0%}", Tone.WAITS if context.is_full else Tone.GOOD)
    )
    grows = f"+{count(context.growth_per_turn)}" if context.growth_per_turn >= 1 else ""
    warm = "" if lapses_in_s is None else brief(round(lapses_in_s)) if lapses_in_s else "cold"
    return {"context": full, "a turn": GridCell(grows, Tone.FAINT), "warm": GridCell(warm, Tone.FAINT)}
