"""What a request that is over hands to who keeps conversations, and what is read of that later, in a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hivemind_addon.formats.base.memo import by_thing
from hivemind_addon.formats.wire import frames
from hivemind_addon.formats.wire.decoding import DecodeError, decode
from hivemind_addon.plugins.captures.redact import PLAIN_QUERY, PlainHeaders
from hivemind_addon.plugins.contexts.chain import items_of, named_answer, put_together
from hivemind_addon.plugins.contexts.from_request import SentRequest, plain_body
from hivemind_addon.proxy.host.flow_parts import plain_request
from hivemind_addon.proxy.run.append_file import breathe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mitmproxy import http

    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.formats.wire.description import PlainRequest
    from hivemind_addon.formats.wire.dialect import Dialect
    from hivemind_addon.kernel.values.ticket import Ticket
    from hivemind_addon.plugins.contexts.store import ContextStore
    from hivemind_addon.proxy.gate.exchange import Exchange

MAX_ANSWER_BYTES = 1024 * 1024
"""A longer answer is not kept."""
_MADE_ANEW = frozenset(
    (
        *("accept-encoding", "connection", "content-encoding", "content-length", "date", "host", "keep-alive"),
        *("te", "transfer-encoding", "upgrade", "via"),
    )
)
"""Headers that belong to one connection, or to the coding of one body."""


@dataclass(eq=False, slots=True)
class HandedOver:
    """What a request leaves, as references: nothing of it was read or copied."""

    ticket: Ticket
    arrived_wall: float
    """When it came, in epoch seconds."""
    flow: http.HTTPFlow
    unedited: PlainRequest | None
    """As its client sent it, where that is another one than the flow's."""
    profile: Profile
    dialect: Dialect
    tokens: int
    is_answered: bool
    """Its answer came through whole."""
    frames: Sequence[tuple[str, bytes]]
    """Its answer, where it was a turn of a WebSocket."""
    warm_up: bytes
    """What it goes on from, where that was a WebSocket's warm-up; empty: something else, or nothing."""
    has_past: bool
    """It names an earlier answer."""

    @property
    def body_bytes(self) -> int:
        """Of the request."""
        return len(self.flow.request.raw_content or b"" if self.unedited is None else self.unedited.body)


def handed_over(exchange: Exchange) -> HandedOver:
    """As it is now: what belongs to its flow may yet come."""
    used, clock = exchange.used, exchange.driver.clock
    is_counted = used is not None and used.reported
    return HandedOver(
        ticket=exchange.ticket,
        arrived_wall=clock.wall() - (clock.monotonic() - exchange.ticket.arrived_at),
        flow=exchange.flow,
        unedited=exchange.unedited,
        profile=exchange.profile,
        dialect=exchange.dialect,
        tokens=(used if used is not None and is_counted else exchange.estimate.expected).total_input_tokens,
        is_answered=exchange.is_answered,
        frames=exchange.frames,
        warm_up=exchange.warm_up,
        has_past=exchange.facts.continues,
    )


def whole_answer(handed: HandedOver) -> bytes:
    """What came back, decoded; empty where it did not come through whole, or is too long."""
    if not handed.is_answered:
        return b""
    if handed.frames:
        body = frames.answered(list(handed.frames))
        return body if len(body) <= MAX_ANSWER_BYTES else b""
    response = handed.flow.response
    body = response.raw_content or b"" if response is not None else b""
    coding = response.headers.get("content-encoding", "") if response is not None else ""
    try:
        return decode(body, coding, MAX_ANSWER_BYTES, is_answer=True)
    except DecodeError:
        return b""


def sent_request(
    flow: http.HTTPFlow, profile: Profile, dialect: Dialect, unedited: PlainRequest | None = None
) -> SentRequest:
    """A flow's request without its credentials, and without what a new connection makes anew.

    `unedited`: as its client sent it, where that is another one.
    """
    request = unedited or plain_request(flow)
    kept = _plain_headers(profile)
    written = ((name, kept.written(name, value.encode("utf-8", "replace"))) for name, value in request.headers.items())
    port = "" if request.port == (443 if request.scheme == "https" else 80) else f":{request.port}"
    path, _, query = request.path.partition("?")
    told = "&".join(one for one in query.split("&") if one.partition("=")[0] in PLAIN_QUERY)
    return SentRequest(
        dialect=dialect,
        method=flow.request.method,
        url=f"{request.scheme}://{request.host}{port}{path}{'?' if told else ''}{told}",
        headers={
            name: value.decode("utf-8", "replace")
            for name, value in written
            if value is not None and name not in _MADE_ANEW
        },
        body=request.body,
        encoding=request.headers.get("content-encoding", ""),
    )


@by_thing
def _plain_headers(profile: Profile) -> PlainHeaders:
    return PlainHeaders((profile,))


def whole_request(handed: HandedOver, store: ContextStore) -> SentRequest:
    """The request as it was sent; where it names an earlier answer that is kept, with what was said before."""
    request = sent_request(handed.flow, handed.profile, handed.dialect, handed.unedited)
    if not handed.has_past:
        return request
    body = plain_body(request)
    breathe()
    whole = None
    if handed.warm_up:
        whole = put_together(body, handed.warm_up)
    elif (earlier := store.answered_as(named_answer(body))) is not None:
        whole = put_together(body, bytes(earlier.body), items_of(handed.dialect, earlier.answer))
    return replace(request, body=whole or body, encoding="")
