"""Replayed flows: they run on mitmproxy's own layer, without our gate, and are held in the ordinary hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mitmproxy import http

    from hivemind_addon.proxy.mitm.intake import Intake


class Replays:
    """An addon of the addon, whose hooks are there only while they are needed.

    mitmproxy looks for the attribute each time. Each hook that an addon has costs every request some 30 µs (2026-11).
    """

    name = "hivemind_replays"

    def __init__(self) -> None:
        self.intake: Intake | None = None

    def hear(self) -> None:
        """A flow is replayed; its hooks come now."""
        self.request = self._asked
        self.response = self._answered
        self.error = self._failed

    async def _asked(self, flow: http.HTTPFlow) -> None:
        """Hold a replayed request, anew."""
        if self.intake is None or flow.is_replay != "request" or flow.response or not self.intake.claims(flow):
            return
        exchange = self.intake.intake(flow)
        if exchange is None:
            return
        self.intake.replays[flow.id] = exchange
        if not exchange.enter():
            await exchange.hold()
        exchange.sent()
        flow.response = exchange.refusal

    def _answered(self, flow: http.HTTPFlow) -> None:
        """Settle a replay's attempt; it is not tried again."""
        exchange = self.intake.replays.get(flow.id) if self.intake else None
        if exchange and flow.response and not exchange.over:
            exchange.head(flow.response)
            exchange.collected(flow.response, flow.response.raw_content or b"")
        self._failed(flow)

    def _failed(self, flow: http.HTTPFlow) -> None:
        """A replay is over."""
        if self.intake is None:
            return
        if exchange := self.intake.replays.pop(flow.id, None):
            exchange.finished()
        if not self.intake.replays and hasattr(self, "request"):
            del self.request, self.response, self.error
