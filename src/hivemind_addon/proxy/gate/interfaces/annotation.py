"""Shows scheduled flows in mitmweb and the console: comment, marker, and the growing answer.

An update of a flow makes mitmweb hash the bodies on the event loop, with or without a browser (100 flows of 1 MB:
100 ms, 2026-08). So texts are checked once a second, and only a few of the flows with a new text are drawn at a time.

Without a view, only the end is written, and only if somebody may read it: a file of flows (`-w`), an addon that is
neither mitmproxy's nor ours and receives flows, or a filter on the fields that we write.

Our data is plain JSON in `flow.metadata`, and so also in files: a history can be read without a scheduler, and after a
reload or in a replay the code can still distinguish a person's text from ours.
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
"""Key in `flow.metadata`."""
TURNS_KEY = "hivemind_turns"
"""Key on a WebSocket's flow: number of a turn → line of the turn."""
SIZE_KEY = "hivemind_frame_bytes"
"""Key on a WebSocket's flow: the size of the frames at the end of the newest turn."""
SOCKET_BYTES = 16_000_000
"""Bytes of a WebSocket's frames that a view keeps; mitmproxy would keep all frames until the WebSocket closes."""
MOST_TURNS = 100
"""Only the newest turns are kept."""
WAITS = ":hourglass_flowing_sand:"
"""The marker of a held flow: `~marker hourglass`."""
LOST = ":warning:"
"""The marker of a flow whose client got no answer."""
BYTES_PER_REFRESH = 2_000_000
"""Bytes hashed per refresh: about 2 ms."""
UPDATE_BYTES = 100_000
"""The fixed cost of an update, in bytes."""
LOOKS_PER_REFRESH = 100
GUESS_S = 10.0
"""An expected start is shown for this time if nothing else changes: whenever a flow is drawn anew, mitmweb drops the
comment that a person is typing."""
LIVE_BODY_BYTES = 2_000_000
"""A longer answer is shown again when complete."""


class Annotation(Struct):
    """Our data in a flow."""

    dialect: str
    """Name of the packaged wire format."""
    history: TicketHistory
    comment: str = ""
    """The last comment that we wrote."""
    marker: str = ""
    """The last marker that we set."""


class Written(Struct):
    """The part of an annotation that identifies our own texts."""

    comment: str = ""
    marker: str = ""


class _Written(Struct):
    hivemind: Written = field(default_factory=Written)


def annotation_of(flow: Flow) -> Annotation | None:
    """The flow's annotation; None: missing, or written by another version."""
    try:
        return convert(flow.metadata[KEY], Annotation)
    except (KeyError, ValidationError):
        return None


def written_of(flow: Flow) -> Written:
    """The texts that we wrote on the flow last; empty without an annotation."""
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
    """Whether a person wrote a comment on the flow, or marked the flow."""
    ours = written_of(flow)
    return flow.comment not in ("", ours.comment) or flow.marked not in ("", ours.marker)


def write_turn(flow: Flow, exchange: Exchange, history: TicketHistory, line: str, marker: str) -> bool:
    """Put the line of a WebSocket's turn on the flow, beside the earlier turns. False: nothing is new.

    The history is the newest turn's.
    """
    lines = flow.metadata.setdefault(TURNS_KEY, {})
    lines[str(exchange.turn)] = line
    while len(lines) > MOST_TURNS:
        del lines[next(iter(lines))]
    comment = "\n".join(f"{lines[number]} turn {number}" for number in reversed(lines))
    return write(flow, exchange.dialect.name, history, comment, marker)


class Annotator:
    """Writes on flows, and has them drawn again in a view (mitmweb, the console)."""

    def __init__(self, *, histories: Histories, driver: Driver, live: Mapping[str, Exchange]) -> None:
        """`live`: flow id → exchange whose ticket has not ended."""
        self.wake: Callable[[], None] | None = None
        """Requests a call of `refresh`; None: no view to draw for."""
        self.is_read: Callable[[], bool] = lambda: True
        """Whether somebody may read the texts on flows although there is no view."""
        self._histories = histories
        self._driver = driver
        self._live = live
        self._views: dict[str, TicketView] = {}
        self._to_look: deque[Exchange] = deque()
        self._to_draw: dict[str, http.HTTPFlow] = {}
        """The longest due first."""
        self._to_draw_soon: dict[str, http.HTTPFlow] = {}
        """Drawn before `_to_draw`."""
        self._guessed: dict[str, tuple[str, float]] = {}
        """Ticket → last text without the expected start, and the time of this text."""
        self._rest = 0
        """Refreshes until all texts are checked again."""

    def __repr__(self) -> str:
        return f"<Annotator of {len(self._live)} flows, {len(self._to_draw_soon) + len(self._to_draw)} to draw>"

    @property
    def shown_bytes(self) -> float:
        """Bytes of a WebSocket's newest frames to keep: all for readers of flows, none without any reader."""
        if self.is_read():
            return math.inf
        return 0 if self.wake is None else SOCKET_BYTES

    def begun(self) -> None:
        """Another flow is live."""
        if self.wake is not None:
            self.wake()

    def show(self, exchange: Exchange) -> None:
        """A flow becomes held or goes on: draw the flow soon."""
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
        """Write the end of a ticket on the flow, for any reader."""
        if self.wake is None and not self.is_read():
            return
        self._guessed.pop(exchange.ticket.id, None)
        history = self._histories.of(exchange.ticket.id)
        if history is not None and history.end:
            _write(exchange, history, final_line(history), LOST if history.is_lost else "")
            if self.wake is not None:
                flow = exchange.shown_on or exchange.flow
                self._to_draw_soon[flow.id] = flow  # mitmproxy does not report the end of some flows
                self.wake()

    def refresh(self) -> bool:
        """Check some texts and draw some flows. True: more is left to do."""
        self._rest = max(0, self._rest - 1)
        if self._live and not self._to_look and not self._rest:
            # No checks in this turn: with many flows the snapshot takes some milliseconds.
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
            return  # ended or gone on since the snapshot, and shown then
        marker = WAITS if history.waits else ""
        is_new = False
        if self._is_due(exchange.ticket.id, present_line(history, replace(view, starts_in_s=None))):
            is_new = _write(exchange, history, present_line(history, view), marker)
        flow = exchange.shown_on or exchange.flow
        if (is_new or _has_grown(exchange)) and flow.id not in self._to_draw_soon:
            self._to_draw.setdefault(flow.id, flow)

    def _is_due(self, ticket_id: str, line: str) -> bool:
        """Whether to write a text anew: at once if more has changed than the expected start."""
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
                continue  # the end was drawn when mitmproxy reported the end
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
    """Whether the client has got more of the answer than the flow shows."""
    response = exchange.flow.response
    if exchange.over or exchange.delivered is None or response is None:
        return False
    return _size(response) < len(exchange.delivered) <= LIVE_BODY_BYTES
