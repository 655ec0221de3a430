"""The live screen `hivemind top`: Textual's own widgets, filled anew with every report, and keys as commands.

Nothing flickers: only what differs from the last report is changed, and who is selected stays selected.
"""

import asyncio
import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from glob import escape
from typing import ClassVar
from urllib.parse import quote

from msgspec.structs import replace
from rich.text import Text
from textual import events, on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Input, OptionList, Static
from textual.widgets.option_list import Option

from hivemind_addon.kernel.values.command import Cancel, MoveToFront, Pause, Resume, SetLimit, SetPriority
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.api.command import Command
from hivemind_addon.proxy.api.report import Report
from hivemind_addon.proxy.api.words import printable, several
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.tools.dash.agents import Grid, agent_cells, agents_grid
from hivemind_addon.tools.dash.family import Node, Sort, TreeLine, family, lines
from hivemind_addon.tools.dash.feed import Feed, ProxyGone
from hivemind_addon.tools.dash.glyphs import Tone
from hivemind_addon.tools.dash.picture import PictureLook, agents_title, budget_lines, head_lines, log_lines, section
from hivemind_addon.tools.dash.pools import PoolLines, pools

KEYS = (
    ("↑ ↓ j k", "select a pool, an agent, a session or a request; the mouse does, too"),
    ("enter", "list the requests of an agent or session, or hide them; so does a second click"),
    ("p", "pause or resume the selected pool; with no pool selected, all"),
    ("P", "pause or resume all pools; to pause all is asked once more"),
    ("l", "cap the concurrency of the selected pool, or of all: a number, or auto"),
    ("f", "move the first waiting request of the selected row to the front"),
    ("+ - =", "serve the selected agent in a higher or lower class; = is what it asks for"),
    ("c", "cancel the selected row's requests, after a question"),
    ("w", "show the selected request in mitmweb"),
    ("s", "sort by another column; a click on a column's title does, too"),
    ("/", "show only agents with this in their names, models or requests; esc shows all"),
    ("ctrl+p", "find a command by its name"),
    ("?", "this help"),
    ("q", "leave; the proxy goes on"),
)
_AT_ONCE = 50
"""Commands between two reports: a proxy cuts off who sends too many."""
_SIGNS = "● in flight   ○ queued   ↻ backing off   · idle   ‖ paused   ! provider down or spent   ◂ who waits for it"
_HINTS = (
    "? help  q quit  ctrl+p commands  / filter  s sort  enter requests  p pause  l cap  f front  +- priority  c cancel"
)
_LEAST_LOG, _LEAST_ROWS = 3, 9
_LOW_SCREEN = 16
"""Lines; below there is no room for what happened."""
_SORT_BY = {
    "place": Sort.PLACE,
    "starts in": Sort.PLACE,
    "state": Sort.ACTIVE,
    "agent": Sort.NAME,
    "waited": Sort.WAIT,
    "in": Sort.TOKENS,
    "cached": Sort.TOKENS,
    "out": Sort.TOKENS,
    "cost": Sort.COST,
    "lost": Sort.LOST,
    "context": Sort.CONTEXT,
    "a turn": Sort.GROWTH,
}
"""By the columns' titles, for the mouse."""


class PoolList(OptionList):
    """The pools: the first line of each can be selected, what it says of its limits stands below it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
        Binding("space", "page_down", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="pools", compact=True)
        self._shown: list[tuple[str | None, Text]] = []

    @property
    def selected(self) -> str | None:
        """The id of the selected pool; None: there is none."""
        return None if self.highlighted is None else self.get_option_at_index(self.highlighted).id

    def show(self, rows: list[tuple[str | None, Text]]) -> None:
        """Lines with the ids of those that can be selected."""
        if rows == self._shown:
            return
        ids = [row_id for row_id, _ in rows]
        if ids == [row_id for row_id, _ in self._shown]:
            for index, ((_, old), (_, new)) in enumerate(zip(self._shown, rows, strict=True)):
                if old != new:
                    self.replace_option_prompt_at_index(index, new)
        else:
            selected, scrolled = self.selected, self.scroll_offset.y
            self.set_options(Option(text, row_id, disabled=row_id is None) for row_id, text in rows)
            # The lines below a pool have no id either.
            self.highlighted = ids.index(selected) if selected and selected in ids else 0 if rows else None
            self.scroll_to(y=scrolled, animate=False)
        self._shown = rows

    def action_cursor_down(self) -> None:
        """Below the last pool the agents begin."""
        if self.highlighted is None or not any(row_id for row_id, _ in self._shown[self.highlighted + 1 :]):
            table = self.screen.query_one(AgentTable)
            if table.row_count:
                table.move_cursor(row=0)
                self.screen.set_focus(table)
        else:
            super().action_cursor_down()

    def action_cursor_up(self) -> None:
        """There is nothing above the first."""
        if self.highlighted:
            super().action_cursor_up()


class AgentTable(DataTable[Text]):
    """The agents' rows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
        Binding("space", "page_down", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="agents", cursor_type="row", cell_padding=1)
        self._columns_shown: list[tuple[str, int]] = []
        self._ids: list[str] = []
        """Of the rows from top to bottom. To the table a row is its number: who moves changes cells, and no rows."""
        self._cells: list[list[Text]] = []

    @property
    def selected(self) -> str | None:
        """The id of the selected row; None: there is none."""
        return self._ids[self.cursor_row] if 0 <= self.cursor_row < len(self._ids) else None

    def show(self, grid: Grid, rows: dict[str, list[Text]]) -> None:
        """Rows by their ids, with a cell for each column of the grid."""
        selected, ids, cells = self.selected, list(rows), list(rows.values())
        columns = [(column.title, grid.width_of(column.title)) for column in grid.columns]
        if columns != self._columns_shown:
            self.clear(columns=True)
            self._cells = []
            for column in grid.columns:
                label = Text(column.title, Tone.FAINT, justify="right" if column.right else "left")
                self.add_column(label, width=grid.width_of(column.title), key=column.title)
        for number in range(len(cells), len(self._cells)):
            self.remove_row(str(number))
        for number, (old_row, row) in enumerate(zip(self._cells, cells, strict=False)):
            for (title, _), old, new in zip(columns, old_row, row, strict=True):
                if old != new:
                    self.update_cell(str(number), title, new)
        for number in range(len(self._cells), len(cells)):
            self.add_row(*cells[number], key=str(number))
        self._columns_shown, self._ids, self._cells = columns, ids, cells
        if selected in rows and self.selected != selected:
            self.move_cursor(row=ids.index(selected))

    def action_cursor_up(self) -> None:
        """Above the first row the pools end."""
        pool_list = self.screen.query_one(PoolList)
        if self.cursor_row <= 0 and pool_list.option_count:
            pool_list.action_last()
            self.screen.set_focus(pool_list)
        else:
            super().action_cursor_up()


class FilterLine(Input):
    """What is looked for, while it is written."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "app.unfilter", show=False, priority=True)]


class HelpScreen(ModalScreen[None]):
    """The keys; any of them closes it."""

    CSS = """
    HelpScreen { align: center middle; background: transparent; }
    HelpScreen Static { width: auto; max-width: 100%; border: round ansi_default; padding: 0 1; }
    HelpScreen Static { background: ansi_default; }
    """

    def compose(self) -> ComposeResult:
        """One line a key."""
        text = Text(no_wrap=True, overflow="ellipsis")
        for keys, meaning in KEYS:
            text.append(f"{keys:<8}", Tone.TITLE).append(f" {meaning}\n")
        text.append(f"\n{_SIGNS}", Tone.FAINT)
        yield Static(text)

    def on_key(self, event: events.Key) -> None:
        """Close it."""
        event.stop()
        self.dismiss()


class ConfirmScreen(ModalScreen[bool]):
    """A question at the bottom; only `y` is a yes."""

    CSS = """
    ConfirmScreen { align: left bottom; background: transparent; }
    ConfirmScreen Static { height: 1; background: ansi_default; }
    """

    def __init__(self, asks: str) -> None:
        super().__init__()
        self._asks = asks

    def compose(self) -> ComposeResult:
        """One line."""
        yield Static(Text(f"{printable(self._asks)} y/n", Tone.BANNER, no_wrap=True, overflow="ellipsis"))

    def on_key(self, event: events.Key) -> None:
        """Answered."""
        event.stop()
        self.dismiss(event.key in ("y", "Y"))


class QuestionScreen(ModalScreen[str | None]):
    """A question at the bottom with a line to write in; None: it was left."""

    CSS = """
    QuestionScreen { align: left bottom; background: transparent; }
    QuestionScreen Horizontal { height: 1; background: ansi_default; }
    QuestionScreen Static { width: auto; }
    QuestionScreen Input { width: 1fr; height: 1; border: none; padding: 0; background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "leave", priority=True)]

    def __init__(self, asks: str) -> None:
        super().__init__()
        self._asks = asks

    def compose(self) -> ComposeResult:
        """The question, and the line."""
        with Horizontal():
            yield Static(Text(f"{printable(self._asks)}: ", Tone.TITLE))
            yield Input(compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answered."""
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Not answered."""
        self.dismiss(None)


class Top(App[None]):
    """Watches one proxy until its person leaves."""

    TITLE = "hivemind top"
    CSS = """
    Screen { background: ansi_default; overflow: hidden; }
    .lines { height: auto; text-wrap: nowrap; text-overflow: clip; }
    .line { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #pools, #agents {
        background: ansi_default; color: ansi_default; background-tint: ansi_default 0%;
        border: none; padding: 0; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0;
        scrollbar-background: ansi_default; scrollbar-background-hover: ansi_default;
        scrollbar-background-active: ansi_default;
        scrollbar-color: ansi_bright_black; scrollbar-color-hover: ansi_cyan; scrollbar-color-active: ansi_cyan;
    }
    #agents { height: 1fr; }
    #agents > .datatable--header, #agents > .datatable--even-row, #agents > .datatable--odd-row,
    #agents > .datatable--header-hover, #agents > .datatable--hover, #agents > .datatable--cursor,
    #agents > .datatable--header-cursor,
    #pools > .option-list--option-highlighted, #pools > .option-list--option-hover,
    #pools > .option-list--option-disabled {
        background: ansi_default; background-tint: ansi_default 0%; color: ansi_default; text-style: none;
    }
    #agents > .datatable--hover, #pools > .option-list--option-hover { text-style: underline; }
    #agents:focus > .datatable--cursor, #pools:focus > .option-list--option-highlighted {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    #filter { height: 1; display: none; }
    #filter Static { width: auto; }
    #filter Input { width: 1fr; height: 1; border: none; padding: 0; background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", priority=False),
        Binding("ctrl+z", "suspend_process"),
        Binding("home,g", "first", priority=False),
        Binding("end,G", "last", priority=False),
        Binding("p", "pause"),
        Binding("P", "pause_all"),
        Binding("l", "limit"),
        Binding("f", "front"),
        Binding("plus", "priority(-1)"),
        Binding("minus", "priority(1)"),
        Binding("equals_sign,0", "priority(0)"),
        Binding("c", "cancel"),
        Binding("w", "web"),
        Binding("s", "sort"),
        Binding("slash", "filter"),
        Binding("escape", "unfilter"),
        Binding("question_mark,h", "help"),
    ]

    def __init__(self, feed: Feed, *, clock: Clock, note: str = "", look: PictureLook | None = None) -> None:
        """`note`: lines below the picture; `look`: how it is looked at first."""
        super().__init__(ansi_color=True)
        self._note = note
        self._feed = feed
        self._clock = clock
        self._look = look or PictureLook()
        self._height = 24
        self._report: Report | None = None
        self._blocks: dict[str, PoolLines] = {}
        self._rows: dict[str, TreeLine] = {}
        self._shown: dict[str, Text] = {}
        """What stands in the parts that are no tables."""
        self._gone: ProxyGone | None = None
        self._gone_at = 0.0
        self._heard = asyncio.Event()
        """Set with every report."""

    def compose(self) -> ComposeResult:
        """What a person has to know, the pools, the agents, what happened, and what was said last."""
        yield Static("looking for the proxy", id="head", classes="lines", markup=False)
        yield Static(id="pools-title", classes="line")
        yield PoolList()
        yield Static(id="budgets", classes="lines")
        yield Static(id="agents-title", classes="line")
        yield AgentTable()
        yield Static(id="log-title", classes="line")
        yield Static(id="log", classes="lines")
        if self._note:
            yield Static(self._note, classes="lines", markup=False)
        with Horizontal(id="filter"):
            yield Static(Text("show only: ", Tone.TITLE))
            yield FilterLine(compact=True)
        yield Static(_HINTS, id="said", classes="line", markup=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self._main.set_focus(self._main.query_one(PoolList))
        self._follow()

    def on_unmount(self) -> None:
        """Read no more."""
        self._feed.close()

    @property
    def _main(self) -> Screen[object]:
        """The screen below every question."""
        return self.screen_stack[0]

    @work
    async def _follow(self) -> None:
        async for one in self._feed.news():
            if isinstance(one, Report):
                self._report, self._gone = one, None
            elif self._gone is None:
                self._gone, self._gone_at = one, self._clock.monotonic()
            else:
                self._gone = one
            self._heard.set()
            self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Draw it in its new size."""
        self._look, self._height = replace(self._look, width=event.size.width), event.size.height
        self._draw()

    def _draw(self) -> None:
        if self._report is None:
            words = self._gone.reason if self._gone else "looking for the proxy"
            self._show("head", Text(words, Tone.FAINT))
            return
        gone = ""
        if self._gone is not None:
            gone = f"{self._gone.reason} ({self._clock.monotonic() - self._gone_at:.0f} s)"
        report, look = self._report, replace(self._look, gone=gone)
        inner = replace(look, width=max(1, look.width - 1))  # beside a scrollbar
        blocks = pools(report, inner.width)
        tree = list(lines(family(report, sort=look.sort, pattern=look.pattern), look.opened))
        head, budgets = head_lines(report, look), list(budget_lines(report.snapshot.budgets, look.width))
        log = log_lines(report, look) if self._height >= _LOW_SCREEN else []
        # With the columns' titles and what was said.
        taken = len(head) + len(budgets) + 2 + len(self._note.splitlines())
        pool_room, log_room = _rooms(self._height - taken, blocks, len(tree), len(log))
        self._blocks, self._rows = {block.id: block for block in blocks}, {line.node.id: line for line in tree}
        faint = partial(_faint, is_old=bool(gone))
        with self.batch_update():
            self._show("head", _stacked(head))
            self._show("pools-title", section("pools" if blocks else "pools: no model call yet", look.width))
            shown = self._main.query_one(PoolList)
            shown.styles.height = pool_room
            shown.show([(row_id, faint(line)) for row_id, line in _pool_rows(blocks, pool_room)] if pool_room else [])
            self._show("budgets", _stacked(map(faint, budgets)))
            self._show("agents-title", agents_title(tree, look))
            grid = agents_grid(max(1, inner.width - 2), tree, report.snapshot.budgets)
            cells = agent_cells(grid, tree, report.snapshot.budgets)
            rows = {
                line.node.id: [faint(cell) for cell in grid.drawn(each)] for line, each in zip(tree, cells, strict=True)
            }
            self._main.query_one(AgentTable).show(grid, rows)
            self._show("log-title", section("what happened", look.width) if log_room else Text(""))
            self._show("log", _stacked(map(faint, log[-log_room:] if log_room else [])))

    def _show(self, part: str, text: Text) -> None:
        if self._shown.get(part) != text:
            self._shown[part] = text
            widget = self._main.query_one(f"#{part}", Static)
            widget.update(text)
            widget.display = bool(text.plain)

    def _say(self, words: str, tone: str = "") -> None:
        self._main.query_one("#said", Static).update(Text(printable(words), tone, no_wrap=True, overflow="ellipsis"))

    # Looking ---------------------------------------------------------------------------------------------------------

    def action_first(self) -> None:
        """Select the first pool, or where there is none the first agent."""
        shown = self._main.query_one(PoolList)
        if shown.option_count:
            shown.action_first()
            self._main.set_focus(shown)
        else:
            self._select_agent(0)

    def action_last(self) -> None:
        """Select the last row."""
        self._select_agent(self._main.query_one(AgentTable).row_count - 1)

    def _select_agent(self, row: int) -> None:
        table = self._main.query_one(AgentTable)
        if table.row_count:
            table.move_cursor(row=row)
            self._main.set_focus(table)

    @on(DataTable.RowSelected)
    def list_requests(self) -> None:
        """List the selected row's requests, or hide them."""
        if (node := self._node) is not None:
            self._look = replace(self._look, opened=(self._look.opened or frozenset()) ^ {node.id})
            self._draw()

    @on(DataTable.HeaderSelected)
    def sort_by_title(self, event: DataTable.HeaderSelected) -> None:
        """By the column that was clicked."""
        sort = _SORT_BY.get(event.column_key.value or "")
        if sort is not None:
            self._sort(sort)

    def action_sort(self) -> None:
        """By the next column."""
        self._sort(self._look.sort.next())

    def _sort(self, sort: Sort) -> None:
        self._look = replace(self._look, sort=sort)
        self._say(f"sorted by {sort.value}")
        self._draw()

    def action_filter(self) -> None:
        """Write a part of a name; what is shown follows each letter."""
        self._main.query_one("#filter").display = True
        line = self._main.query_one(FilterLine)
        line.value = self._look.pattern
        self._main.set_focus(line)  # at once: the next key is its first letter

    @on(Input.Changed, "FilterLine")
    def follow_filter(self, event: Input.Changed) -> None:
        """Show only those with what is written."""
        self._look = replace(self._look, pattern=event.value)
        self._draw()

    @on(Input.Submitted, "FilterLine")
    def keep_filter(self) -> None:
        """It stands, and keys are commands again."""
        self._main.query_one("#filter").display = False
        self._select_agent(0)

    def action_unfilter(self) -> None:
        """Show everybody."""
        self._look = replace(self._look, pattern="")
        self._say(_HINTS)
        if self._main.query_one("#filter").display:
            self._main.query_one("#filter").display = False
            self._main.set_focus(self._main.query_one(AgentTable))
        self._draw()

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(HelpScreen())

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:  # noqa: ARG002 - Textual passes it
        """Everything that keys do, by name, and each pool's pause."""
        for pool in self._report.snapshot.pools if self._report else ():
            name, glob = printable(str(pool.key)), escape(str(pool.key))
            deed = "Resume" if pool.paused else "Pause"
            yield SystemCommand(f"{deed} {name}", "What waits in it is kept", partial(self._pause, glob))
            yield SystemCommand(
                f"Cap {name}", "How many calls may be in flight at most", partial(self._ask_cap, glob, name)
            )
        yield SystemCommand("Pause or resume all pools", "key P", self.action_pause_all)
        yield SystemCommand(
            "Cap all pools", "How many calls may be in flight at most", partial(self._ask_cap, "*", "all pools")
        )
        if (node := self._node) is not None:
            who = printable(node.agent)
            yield SystemCommand(f"Raise the priority of {who}", "key +", partial(self.action_priority, -1))
            yield SystemCommand(f"Lower the priority of {who}", "key -", partial(self.action_priority, 1))
            yield SystemCommand(f"Give {who} the priority that it asks for", "key =", partial(self.action_priority, 0))
            if (first := node.next_request) is not None:
                yield SystemCommand(f"Move {first.ticket.id} of {who} to the front", "key f", self.action_front)
            if node.tickets:
                yield SystemCommand(
                    f"Cancel {several(len(node.tickets), 'request')} of {who}", "key c", self.action_cancel
                )
        for sort in Sort:
            yield SystemCommand(f"Sort by {sort.value}", "key s", partial(self._sort, sort))
        yield SystemCommand("Filter agents", "key /", self.action_filter)
        yield SystemCommand("Show all agents", "key esc", self.action_unfilter)
        yield SystemCommand("Show it in mitmweb", "key w", self.action_web)
        yield SystemCommand("Keys", "key ?", self.action_help)
        yield SystemCommand("Quit", "q; the proxy goes on", self.exit)

    def action_web(self) -> None:
        """Lead to the selected request in mitmweb; a browser is opened where there is a screen for one."""
        web = self._report.proxy.web if self._report else ""
        if not web:
            self._say("this proxy has no page: `hivemind run --web` starts it with mitmweb")
            return
        node = self._node
        what = "" if node is None else node.tickets[0].ticket.id if node.tickets else f'"{re.escape(node.agent)}"'
        url = f"{web}#/flows?s={quote(f'~comment {what}')}" if what else web
        self._say(url)
        if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            self.open_url(url)

    @property
    def _selected(self) -> str:
        """The row that is selected where the keys go; what is under a question stays so."""
        table, shown = self._main.query_one(AgentTable), self._main.query_one(PoolList)
        return ((table if self._main.focused is not shown else shown).selected) or ""

    @property
    def _node(self) -> Node | None:
        """The selected row of the tree, if it is one."""
        line = self._rows.get(self._selected)
        return line.node if line else None

    # Steering --------------------------------------------------------------------------------------------------------

    @property
    def _pool_glob(self) -> str:
        """The selected row, if it is a pool's; else all pools are meant."""
        block = self._blocks.get(self._selected)
        return escape(str(block.key)) if block else "*"

    def action_pause(self) -> None:
        """Pause the selected pool or all, or let go on."""
        self._pause(self._pool_glob)

    def action_pause_all(self) -> None:
        """Pause every pool, or let all go on."""
        self._pause("*")

    def _pause(self, glob: str) -> None:
        pools_now = self._report.snapshot.pools if self._report else ()
        meant = [pool for pool in pools_now if glob in ("*", escape(str(pool.key)))]
        if meant and all(pool.paused for pool in meant):
            self._send(Resume(glob))
        elif glob == "*":
            self._confirm(
                "pause all pools? Every agent's next request waits.", Pause(glob), refused="nothing was paused"
            )
        else:
            self._send(Pause(glob))

    def _confirm(self, asks: str, *commands: Command, refused: str) -> None:
        """Ask once more where it hurts."""

        def decided(sure: bool | None) -> None:
            if sure:
                self._send(*commands)
            else:
                self._say(refused)

        self.push_screen(ConfirmScreen(asks), decided)

    def action_limit(self) -> None:
        """Ask for a cap."""
        block = self._blocks.get(self._selected)
        self._ask_cap(self._pool_glob, str(block.key) if block else "all pools")

    def _ask_cap(self, glob: str, whose: str) -> None:
        self.push_screen(
            QuestionScreen(f"cap of {whose}, a number or auto"), lambda words: self._limit(glob, words or "")
        )

    def _limit(self, glob: str, words: str) -> None:
        if not words:
            self._say("the cap stays as it is")
        elif words.casefold() == "auto":
            self._send(SetLimit(None, glob))
        elif words.isdecimal():
            self._send(SetLimit(int(words), glob))
        else:
            self._say(f"{words!r} is neither a number nor auto: nothing was done")

    def action_front(self) -> None:
        """Move the first that waits to the front."""
        first = self._node.next_request if self._node else None
        if first is not None:
            self._send(MoveToFront(first.ticket.id))
        else:
            self._say("nothing waits in this row")

    def action_priority(self, by: int) -> None:
        """Serve the selected agent in another class; 0: in the one that it asks for."""
        if self._node is None or self._report is None:
            self._say("select an agent first")
            return
        agent = self._node.agent
        if not by:
            self._send(SetPriority(escape(agent), None))
            return
        ours = {one.agent: one.priority for one in self._report.snapshot.priorities}
        asked = min((one.ticket.priority for one in self._node.tickets), default=Priority.NORMAL)
        wanted = ours.get(escape(agent), asked) + by
        self._send(SetPriority(escape(agent), Priority(max(Priority.CRITICAL, min(Priority.LOW, wanted)))))

    def action_cancel(self) -> None:
        """Ask whether to end the selected row's requests."""
        tickets = self._node.tickets if self._node else []
        if not tickets:
            self._say("no request runs or waits in this row")
            return
        what = f"request {tickets[0].ticket.id}" if len(tickets) == 1 else f"{len(tickets)} requests"
        self._confirm(
            f"cancel {what} of {tickets[0].ticket.agent}?",
            *(Cancel(one.ticket.id) for one in tickets),
            refused="nothing was cancelled",
        )

    @work
    async def _send(self, *commands: Command) -> None:
        """One after the other; what the last one came to is shown."""
        done = 0
        for number, command in enumerate(commands, start=1):
            said = await self._feed.send(command)
            done += said.done
            told = said.text if len(commands) == 1 else f"{done} of {len(commands)} done; the last: {said.text}"
            self._say(told, "" if said.done else Tone.WAITS)
            if number % _AT_ONCE == 0:
                self._heard.clear()
                await self._heard.wait()


def _rooms(left: int, blocks: Sequence[PoolLines], rows: int, logged: int) -> tuple[int, int]:
    """Lines for the pools and for what happened, without their titles; the agents get the others, a title included."""
    left -= 2 + bool(logged)
    wanted = sum(1 + len(block.more) for block in blocks)
    log_room = max(0, min(logged, max(_LEAST_LOG, left // 5)))
    pool_room = min(wanted, max(left - log_room - min(rows, _LEAST_ROWS), min(len(blocks), left // 2), 1))
    row_room = max(1, left - log_room - pool_room)
    if row_room > rows:  # the log gets what is left over
        log_room = min(logged, log_room + row_room - rows)
    return pool_room, log_room


def _pool_rows(blocks: Sequence[PoolLines], room: int) -> Iterable[tuple[str | None, Text]]:
    """The pools' lines with the ids of those that can be selected: what says more gives way where there is no room."""
    shares = [len(block.more) for block in blocks]
    while sum(shares) > max(0, room - len(blocks)):
        most = max(shares)
        shares[len(shares) - 1 - shares[::-1].index(most)] -= 1
    for block, share in zip(blocks, shares, strict=True):
        yield block.id, block.head
        yield from ((None, line) for line in block.more[:share])


def _stacked(parts: Iterable[Text]) -> Text:
    return Text("\n", no_wrap=True, end="").join(parts)


def _faint(line: Text, *, is_old: bool) -> Text:
    if is_old:
        line.stylize(Tone.FAINT)
    return line
