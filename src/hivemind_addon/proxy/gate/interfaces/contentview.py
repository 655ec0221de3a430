"""The view in which mitmweb and the console show a scheduled request and its answer: its history, and who said what.

It reads what is kept with the flow and nothing else, so it works for flows from a file, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mitmproxy import contentviews, http

from hivemind_addon.formats.base.patterns import path_matches
from hivemind_addon.formats.profile.formats import USUAL
from hivemind_addon.formats.wire.decoding import BodyDecoder, DecodeError
from hivemind_addon.formats.wire.dialect import dialect_named
from hivemind_addon.formats.wire.frames import Asking, read_asked
from hivemind_addon.formats.wire.transcript import Part, Transcript, answer_of, request_of
from hivemind_addon.proxy.gate.interfaces.annotation import KEY, Annotation, annotation_of
from hivemind_addon.proxy.record.history import PAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mitmproxy.contentviews import Metadata, SyntaxHighlight

    from hivemind_addon.proxy.record.history import TicketHistory

WIDTH = 110
"""Neither interface wraps lines."""
PART_CHARS = 6_000
"""More of one piece is cut: files that agents have read are long, and the raw view has all of them."""
ALL_CHARS = 150_000
"""The whole page; mitmproxy makes it on the event loop."""
_PRIORITY = 5.0
"""Before all of mitmproxy's own, which say 1 or 2."""
_PATHS = {
    "/messages": "anthropic",
    "/responses": "openai-responses",
    "/api/chat": "ollama",
    "/api/generate": "ollama",
    ":generatecontent": "gemini",
    ":streamgeneratecontent": "gemini",
    "/converse": "bedrock-converse",
    "/converse-stream": "bedrock-converse",
    "/v2/chat": "cohere",
}
"""For flows that were not scheduled, when a person chooses this view."""


class ExchangeView(contentviews.Contentview):
    """Registered once; holds nothing."""

    @property
    def name(self) -> str:
        """As interfaces list it."""
        return "hivemind"

    @property
    def syntax_highlight(self) -> SyntaxHighlight:
        """Prose."""
        return "none"

    def render_priority(self, data: bytes, metadata: Metadata) -> float:
        """First choice for scheduled flows, never chosen for any other."""
        is_ours = metadata.flow is not None and KEY in metadata.flow.metadata and _is_shown(data, metadata)
        return _PRIORITY if is_ours else -1

    def prettify(self, data: bytes, metadata: Metadata) -> str:
        """The page."""
        flow = metadata.flow
        if not isinstance(flow, http.HTTPFlow) or not _is_shown(data, metadata):
            raise ValueError("not a model call")
        annotation = annotation_of(flow)
        by_path = (name for end, name in _PATHS.items() if path_matches(f"*{end}", flow.request.path))
        dialect = dialect_named(annotation.dialect if annotation else next(by_path, USUAL))
        if metadata.websocket_message is not None:  # its story is on the flow: this may be any of its turns
            return _bounded(_request_page(None, request_of(dialect, data)))
        if metadata.http_message is flow.request:
            pages = _request_page(annotation, request_of(dialect, data))
        else:
            pages = _answer_page(annotation, answer_of(dialect, _decoded(data, metadata.http_message)))
        return _bounded(pages)


def _is_shown(data: bytes, metadata: Metadata) -> bool:
    """Whether it is a body, or a WebSocket's frame that begins a turn: of single events there is nothing to tell."""
    message = metadata.websocket_message
    if message is not None:
        return message.from_client and read_asked(data).what is Asking.TURN
    return _is_body(metadata)


def _is_body(metadata: Metadata) -> bool:
    flow = metadata.flow
    message = metadata.http_message
    return isinstance(flow, http.HTTPFlow) and (message is flow.request or message is flow.response)


def _decoded(data: bytes, message: http.Message | None) -> bytes:
    """The body without its content coding; mitmproxy undoes none of which only the beginning is there."""
    if message is None or data != message.raw_content:
        return data
    try:
        return BodyDecoder(message.headers.get("content-encoding", "")).feed(data)
    except DecodeError:
        return data


def _request_page(annotation: Annotation | None, said: Transcript) -> Iterator[str]:
    """The newest message first: of a long conversation that is what a person looks for."""
    if annotation is not None:
        yield from _head(annotation, said.model)
        if not annotation.history.end:
            yield from _happened(annotation.history)
    system = [part for part in said.parts if part.heading == "system"]
    spoken = [part for part in said.parts if part.heading != "system"]
    if len(spoken) > 1:
        yield f"{len(spoken)} pieces of conversation, the newest first.\n"
    yield from _parts(reversed(spoken))
    yield from _parts(system)


def _answer_page(annotation: Annotation | None, said: Transcript) -> Iterator[str]:
    if annotation is not None:
        yield from _head(annotation, said.model)
    yield from _parts(said.parts)
    if said.error:
        yield from _parts([Part("error", said.error)])
    if said.stop:
        yield f"\nstopped: {said.stop}\n"
    if annotation is not None:
        yield from _happened(annotation.history)


def _happened(history: TicketHistory) -> Iterator[str]:
    if history.moments:
        yield _ruled("what happened")
        yield from (f"{moment.after_s:8.1f} s  {_wrapped(moment.text)}\n" for moment in history.moments)


def _head(annotation: Annotation, model: str) -> Iterator[str]:
    history = annotation.history
    parent = f", child of {history.parent_session}" if history.parent_session else ""
    rows = {
        "model": model or history.model,
        "agent": history.agent,
        "session": "" if history.session == history.agent else history.session + parent,
        "kind": f"{history.kind}, {history.priority} priority",
        "pool": history.pool,
        "ticket": history.ticket_id,
        "state": _state(annotation),
    }
    yield from (f"{name:8} {_wrapped(text)}\n" for name, text in rows.items() if text)


def _state(annotation: Annotation) -> str:
    """The comment without what other rows say: of a WebSocket the newest turn's."""
    history = annotation.history
    columns = annotation.comment.partition(f"[{history.ticket_id}]")[0].split(PAD)
    return ", ".join(text for column in columns if (text := column.strip()) and text != history.agent)


def _parts(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        yield _ruled(part.heading)
        text = part.text.strip("\n")
        if text:
            yield f"{_wrapped(text[:PART_CHARS])}\n"
        if len(text) > PART_CHARS:
            yield f"… and {len(text) - PART_CHARS:,} characters more\n"


def _ruled(heading: str) -> str:
    return f"\n── {heading} {'─' * max(4, 60 - len(heading))}\n"


def _wrapped(text: str) -> str:
    return "\n".join(piece for line in text.split("\n") for piece in _pieces(line))


def _pieces(line: str) -> Iterator[str]:
    """A line in pieces that are no longer than the page is wide."""
    while len(line) > WIDTH:
        at = line.rfind(" ", WIDTH // 2, WIDTH + 1)
        end = at if at > 0 else WIDTH
        yield line[:end]
        line = line[end:].removeprefix(" ")
    yield line


def _bounded(pages: Iterable[str]) -> str:
    text: list[str] = []
    room = ALL_CHARS
    for page in pages:
        if room <= 0:
            text.append("\n… the rest is in the raw view\n")
            break
        text.append(page)
        room -= len(page)
    return "".join(text)
