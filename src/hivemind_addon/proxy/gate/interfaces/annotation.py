"""What mitmweb and the console show of a scheduled flow: comment, marker, and the answer as it grows.

An update of a flow makes mitmweb hash its bodies on the event loop, with or without a browser (100 flows of 1 MB:
100 ms, 2026-08). So texts are looked at once a second, and of the flows whose text changed a few are drawn at a time.

Where there is no view, only the end is written, and only if somebody may read it: a file of flows (`-w`), an addon that
is neither mitmproxy's nor ours and is handed flows, or a filter that asks for what we write.

What is ours is in `flow.metadata`, as plain JSON, and so in files too: a history can be read where no scheduler runs,
and what a person wrote is told from what we wrote after a reload and in a replay, too.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.hooks import UpdateHook
from msgspec import Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import replace

from hivemind_addon.proxy.record.history import TicketHistory, final_line, newest_line, present_line
from hivemind_addon.proxy.run.refresh_timer import REFRESHES_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mitmproxy import http
    from mitmproxy.flow import Flow

    from hivemind_addon.kernel.values.snapshot import TicketView
    from hivemind_addon.proxy.gate.exchange import Exchange
    from hivemind_addon.proxy.record.history import Histories
    from hivemind_addon.proxy.run.driver import Driver

KEY = "hivemind"
"""In `flow.metadata`."""
TURNS_KEY = "hivemind_turns"
"""Of a WebSocket's flow: number of a turn → its line."""
SIZE_KEY = "hivemind_frame_bytes"
"""Of a WebSocket's flow: how large its frames are, as of its newest turn's end."""
SOCKET_BYTES = 16_000_000
"""Of a WebSocket's frames a view keeps so many; mitmproxy would keep all of them for as long as it is open."""
MOST_TURNS = 100
"""The newest ones."""
WAITS = ":hourglass_flowing_sand:"
"""The marker of a held flow: `~marker hourglass`."""
LOST = ":warning:"
"""Of one whose client got no answer."""
BYTES_PER_REFRESH = 2_000_000
"""What is hashed at once: about 2 ms."""
UPDATE_BYTES = 100_000
"""What an update costs besides, as bytes."""
LOOKS_PER_REFRESH = 100
GUESS_S = 10.0
"""So long an expected start stands where nothing else has changed: mitmweb drops what a person is typing into a
comment whenever the flow is drawn anew."""
LIVE_BODY_BYTES = 2_000_000
"""A longer answer is shown again when it is complete."""


class Annotation(Struct):
    """Ours in one flow."""

    dialect: str
    """The packaged wire format's name."""
    history: TicketHistory
    comment: str = ""
    """As we wrote it last."""
    marker: str = ""
    """As we set it last."""


class Written(Struct):
    """The part of an annotation that says what is ours."""

    comment: str = ""
    marker: str = ""


class _Written(Struct):
    hivemind: Written = field(default_factory=Written)


def annotation_of(flow: Flow) -> Annotation | None:
    """The flow's annotation; None: it has none, or one that another version wrote."""
    try:
        return convert(flow.metadata[KEY], Annotation)
    except (KeyError, ValidationError):
        return None


def written_of(flow: Flow) -> Written:
    """What we wrote on the flow last; nothing where it has no annotation."""
    try:
        return convert(flow.metadata, _Written).hivemind
    except ValidationError:
        return Written()


def write(flow: Flow, dialect: str, history: TicketHistory, comment: str, marker: str) -> bool:
    """Put comment, marker and history on the flow; a person's own comment and marker stay. False: nothing is new."""
    before = written_of(flow)
    if (before.comment, before.marker) == (comment, marker):
        return False
    if flow.comment in ("", before.comment):
        flow.comment = comment
    if flow.marked in ("", before.marker):
        flow.marked = marker
    flow.metadata[KEY] = to_builtins(Annotation(dialect=dialect, history=history, comment=comment, marker=marker))
    return True


def is_touched(flow: Flow) -> bool:
    """Whether a person wrote a comment on the flow, or marked it."""
    ours = written_of(flow)
    return flow.comment not in ("", ours.comment) or flow.marked not in ("", ours.marker)


def write_turn(flow: Flow, exchange: Exchange, history: TicketHistory, line: str, marker: str) -> bool:
    """Put the line of a WebSocket's turn on its flow, beside those of the turns before. False: nothing is new.

    The history is the newest turn's.
    """
    lines = flow.metadata.setdefault(TURNS_KEY, {})
    lines[str(exchange.turn)] = line
    while len(lines) > MOST_TURNS:
        del lines[next(iter(lines))]
    comment = "\n".join(f"{lines[number]} turn {number}" for number in reversed(lines))
    return write(flow, exchange.dialect.name, history, comment, marker)


class Annotator:
    """Writes on flows; where there is a view (mitmweb, the console) it also has them drawn again."""

    def __init__(self, *, histories: Histories, driver: Driver, live: Mapping[str, Exchange]) -> None:
        """`live`: flow id → exchange whose ticket has not ended."""
        self.wake: Callable[[], None] | None = None
        """Has `refresh` called; None: there is no view, and nobody to draw for."""
        self.is_read: Callable[[], bool] = lambda: True
        """Whether anybody may read what is written on flows though there is no view."""
        self._histories = histories
        self._driver = driver
        self._live = live
        self._views: dict[str, TicketView] = {}
        self._to_look: deque[Exchange] = deque()
        self._to_draw: dict[str, http.HTTPFlow] = {}
        """The longest due first."""
        self._to_draw_soon: dict[str, http.HTTPFlow] = {}
        """Before those."""
        self._guessed: dict[str, tuple[str, float]] = {}
        """Ticket → what was said of it last but for its expected start, and when that was."""
        self._rest = 0
        """Refreshes until all texts are looked at again."""

    def __repr__(self) -> str:
        return f"<Annotator of {len(self._live)} flows, {len(self._to_draw_soon) + len(self._to_draw)} to draw>"

    @property
    def shown_bytes(self) -> float:
        """How much of a WebSocket's frames is to stay, the newest: all for who reads flows, none where nobody does."""
        if self.is_read():
            return math.inf
        return 0 if self.wake is None else SOCKET_BYTES

    def begun(self) -> None:
        """There is one more live flow."""
        if self.wake is not None:
            self.wake()

    def show(self, exchange: Exchange) -> None:
        """A flow is held, or goes: draw it soon."""
        if self.wake is None:
            return
        history = self._histories.of(exchange.ticket.id)
        if history is not None and not history.end:
            _write(exchange, history, newest_line(history), WAITS if history.waits else "")
        flow = exchange.shown_on or exchange.flow
        self._to_draw.pop(flow.id, None)
        self._to_draw_soon[flow.id] = flow
        self.wake()

    def ended(self, exchange: Exchange) -> None:
        """Write down what became of a ticket, for whoever reads it."""
        if self.wake is None and not self.is_read():
            return
        self._guessed.pop(exchange.ticket.id, None)
        history = self._histories.of(exchange.ticket.id)
        if history is not None and history.end:
            _write(exchange, history, final_line(history), LOST if history.is_lost else "")
            if self.wake is not None:
                flow = exchange.shown_on or exchange.flow
                self._to_draw_soon[flow.id] = flow  # some flows end and mitmproxy does not tell
                self.wake()

    def refresh(self) -> bool:
        """Look at some texts and draw some flows. True: there is more to do."""
        self._rest = max(0, self._rest - 1)
        if self._live and not self._to_look and not self._rest:
            # No looks in this turn: of many flows it takes some milliseconds.
            self._views = {view.ticket.id: view for pool in self._driver.snapshot().pools for view in pool.tickets}
            self._to_look.extend(self._live.values())
            self._rest = max(REFRESHES_PER_S, 2 * len(self._live) // LOOKS_PER_REFRESH)
        else:
            for _ in range(min(LOOKS_PER_REFRESH, len(self._to_look))):
                self._look(self._to_look.popleft())
        if flows := self._next_flows():
            ctx.master.addons.trigger(UpdateHook(flows))
        return bool(self._live or self._to_draw_soon or self._to_draw)

    def _look(self, exchange: Exchange) -> None:
        history, view = self._histories.of(exchange.ticket.id), self._views.get(exchange.ticket.id)
        if exchange.over or history is None or view is None or history.waits != bool(view.position):
            return  # it has ended, or gone on since the snapshot, and was shown then
        marker = WAITS if history.waits else ""
        is_new = False
        if self._is_due(exchange.ticket.id, present_line(history, replace(view, starts_in_s=None))):
            is_new = _write(exchange, history, present_line(history, view), marker)
        flow = exchange.shown_on or exchange.flow
        if (is_new or _has_grown(exchange)) and flow.id not in self._to_draw_soon:
            self._to_draw.setdefault(flow.id, flow)

    def _is_due(self, ticket_id: str, line: str) -> bool:
        """Whether to write a text anew: at once where more has changed than the guess of when it goes."""
        now = self._driver.clock.monotonic()
        said, said_at = self._guessed.get(ticket_id, ("", now))
        if line == said and now - said_at < GUESS_S:
            return False
        self._guessed[ticket_id] = line, now
        return True

    def _next_flows(self) -> list[http.HTTPFlow]:
        chosen: list[http.HTTPFlow] = []
        room = BYTES_PER_REFRESH
        while room > 0 and (due := self._to_draw_soon or self._to_draw):
            flow = due.pop(next(iter(due)))
            exchange = self._live.get(flow.id)
            if exchange is None and not flow.live:
                continue  # its end was drawn when mitmproxy told of it
            if exchange is not None and _has_grown(exchange):
                assert flow.response
                assert exchange.delivered is not None
                flow.response.data.content = bytes(exchange.delivered)
            room -= UPDATE_BYTES + _size(flow.request) + _size(flow.response)
            chosen.append(flow)
        return chosen


def _write(exchange: Exchange, history: TicketHistory, line: str, marker: str) -> bool:
    if exchange.shown_on is not None:
        return write_turn(exchange.shown_on, exchange, history, line, marker)
    return write(exchange.flow, exchange.dialect.name, history, line, marker)


def _size(message: http.Message | None) -> int:
    return len(message.raw_content or b"") if message else 0


def _has_grown(exchange: Exchange) -> bool:
    """Whether more of the answer has gone to the client than the flow shows."""
    response = exchange.flow.response
    if exchange.over or exchange.delivered is None or response is None:
        return False
    return _size(response) < len(exchange.delivered) <= LIVE_BODY_BYTES
