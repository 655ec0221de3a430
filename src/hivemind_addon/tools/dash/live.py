"""The live screen: the picture anew with every report, and a person's keys as commands to the proxy."""

import asyncio
import os
import re
import sys
from glob import escape
from typing import ClassVar
from urllib.parse import quote

from msgspec.structs import replace
from rich.text import Text
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from hivemind_addon.api.command import (
    Cancel,
    Command,
    MoveToFront,
    Pause,
    Resume,
    SetLimit,
    SetPriority,
)
from hivemind_addon.api.report import Report
from hivemind_addon.api.ticket import Priority
from hivemind_addon.api.words import printable
from hivemind_addon.system.clock import Clock
from hivemind_addon.tools.dash.family import Node
from hivemind_addon.tools.dash.feed import Feed, ProxyGone
from hivemind_addon.tools.dash.glyphs import Tone
from hivemind_addon.tools.dash.picture import Picture, PictureLook, picture
from hivemind_addon.tools.dash.pools import PoolLines

KEYS = (
    ("↑ ↓ j k", "select a pool, an agent, a session or a request"),
    ("enter", "list the requests of an agent or session, or hide them"),
    ("p", "pause or resume the selected pool; with no pool selected, all"),
    ("P", "pause or resume all pools"),
    ("l", "cap the concurrency of the selected pool, or of all: a number, or auto"),
    ("f", "move the first waiting request of the selected row to the front"),
    ("+ - =", "serve the selected agent in a higher or lower class; = is what it asks for"),
    ("c", "cancel the selected row's requests, after a question"),
    ("w", "show the selected request in mitmweb"),
    ("s", "sort by another column"),
    ("/", "show only agents with this in their names, models or requests; esc shows all"),
    ("?", "this help"),
    ("q", "leave; the proxy goes on"),
)
_AT_ONCE = 50
"""Commands between two reports: a proxy cuts off who sends too many."""
_SIGNS = "● in flight   ○ waits, # its place   ↻ backing off   · idle   ‖ paused   ! provider down or spent"
_HINTS = "? help  q quit  ↑↓ select  enter requests  p pause  l limit  f front  +- priority  c cancel  s sort  / filter"


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

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; overflow: hidden; }
    #picture { height: 1fr; text-wrap: nowrap; text-overflow: clip; }
    .note { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #said { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", priority=False),
        Binding("ctrl+z", "suspend_process"),
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("pageup", "move(-10)"),
        Binding("pagedown,space", "move(10)"),
        Binding("home,g", "move(-1000000)"),
        Binding("end,G", "move(1000000)"),
        Binding("enter", "list_requests"),
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

    def __init__(self, feed: Feed, *, clock: Clock, note: str = "") -> None:
        """`note`: a line below the picture."""
        super().__init__(ansi_color=True)
        self._note = note
        self._feed = feed
        self._clock = clock
        self._look = PictureLook(height=24)
        self._report: Report | None = None
        self._picture: Picture | None = None
        self._gone: ProxyGone | None = None
        self._gone_at = 0.0
        self._heard = asyncio.Event()
        """Set with every report."""

    def compose(self) -> ComposeResult:
        """The picture, and what was said last."""
        yield Static(id="picture")
        if self._note:
            yield Static(self._note, classes="note", markup=False)
        yield Static(_HINTS, id="said", markup=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self._follow()

    def on_unmount(self) -> None:
        """Read no more."""
        self._feed.close()

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
        self._look = replace(
            self._look, width=event.size.width, height=max(1, event.size.height - 1 - bool(self._note))
        )
        self._draw()

    def _draw(self) -> None:
        if self._report is None:
            words = self._gone.reason if self._gone else "looking for the proxy"
            self._show(Text(words, Tone.FAINT))
            return
        gone = ""
        if self._gone is not None:
            gone = f"{self._gone.reason} ({self._clock.monotonic() - self._gone_at:.0f} s)"
        look = replace(self._look, gone=gone)
        drawn = picture(self._report, look)
        if look.selected not in drawn.rows:  # it is over: the first row is as good as any
            look = replace(look, selected=drawn.rows[0] if drawn.rows else None)
            drawn = picture(self._report, look)
        self._look, self._picture = look, drawn
        self._show(drawn.text)

    def _show(self, text: Text) -> None:
        self.query_one("#picture", Static).update(text)

    def _say(self, words: str, tone: str = "") -> None:
        self.query_one("#said", Static).update(Text(printable(words), tone, no_wrap=True, overflow="ellipsis"))

    # Looking ---------------------------------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Select another row."""
        if self._picture and (rows := self._picture.rows):
            at = rows.index(self._look.selected) if self._look.selected in rows else 0
            self._look = replace(self._look, selected=rows[max(0, min(len(rows) - 1, at + by))])
            self._draw()

    def action_list_requests(self) -> None:
        """List the selected row's requests, or hide them."""
        if (node := self._node) is not None:
            self._look = replace(self._look, opened=(self._look.opened or frozenset()) ^ {node.id})
            self._draw()

    def action_sort(self) -> None:
        """By the next column."""
        self._look = replace(self._look, sort=self._look.sort.next())
        self._say(f"sorted by {self._look.sort.value}")
        self._draw()

    def action_filter(self) -> None:
        """Ask for a part of a name."""
        self.push_screen(QuestionScreen("show only"), self._filter)

    def action_unfilter(self) -> None:
        """Show everybody."""
        self._filter("")

    def _filter(self, pattern: str | None) -> None:
        if pattern is None:
            return
        self._look = replace(self._look, pattern=pattern)
        self._say(_HINTS)
        self._draw()

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(HelpScreen())

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
    def _node(self) -> Node | None:
        """The selected row of the tree, if it is one."""
        line = self._picture.nodes.get(self._look.selected or "") if self._picture else None
        return line.node if line else None

    # Steering --------------------------------------------------------------------------------------------------------

    @property
    def _pool(self) -> PoolLines | None:
        """The selected row, if it is a pool's; else all pools are meant."""
        return self._picture.pools.get(self._look.selected or "") if self._picture else None

    @property
    def _pool_glob(self) -> str:
        return escape(str(self._pool.key)) if self._pool else "*"

    def action_pause(self) -> None:
        """Pause the selected pool or all, or let go on."""
        self._pause(self._pool_glob)

    def action_pause_all(self) -> None:
        """Pause every pool, or let all go on."""
        self._pause("*")

    def _pause(self, glob: str) -> None:
        pools = self._report.snapshot.pools if self._report else ()
        meant = [pool for pool in pools if glob in ("*", escape(str(pool.key)))]
        stands = bool(meant) and all(pool.paused for pool in meant)
        self._send(Resume(glob) if stands else Pause(glob))

    def action_limit(self) -> None:
        """Ask for a cap."""
        glob = self._pool_glob
        whose = str(self._pool.key) if self._pool else "all pools"
        self.push_screen(
            QuestionScreen(f"limit of {whose}, a number or auto"), lambda words: self._limit(glob, words or "")
        )

    def _limit(self, glob: str, words: str) -> None:
        if not words:
            self._say("the limit stays as it is")
        elif words.casefold() == "auto":
            self._send(SetLimit(None, glob))
        elif words.isdecimal():
            self._send(SetLimit(int(words), glob))
        else:
            self._say(f"{words!r} is neither a number nor auto: nothing was done")

    def action_front(self) -> None:
        """Move the first that waits to the front."""
        waiting = [one for one in self._node.tickets if one.state != "in flight"] if self._node else []
        if waiting:
            self._send(MoveToFront(min(waiting, key=lambda one: one.position).ticket.id))
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
        commands = [Cancel(one.ticket.id) for one in tickets]
        what = f"request {tickets[0].ticket.id}" if len(tickets) == 1 else f"{len(tickets)} requests"

        def decided(sure: bool | None) -> None:
            if sure:
                self._send(*commands)
            else:
                self._say("nothing was cancelled")

        self.push_screen(ConfirmScreen(f"cancel {what} of {tickets[0].ticket.agent}?"), decided)

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
