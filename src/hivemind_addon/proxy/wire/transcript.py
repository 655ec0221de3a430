"""A model call's bodies as a person reads them: who said what, what was thought, which tools were called.

Answers are assembled from their streams, as far as these came: broken and cut ones too. Nothing here raises on what
others send; what cannot be read is left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import assert_never

import msgspec
from msgspec import Struct, field

from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire.dialect import dialect_of, event_name
from hivemind_addon.proxy.wire.sse import SseEvent
from hivemind_addon.system.json_values import read_value

_Members = Mapping[str, object]


class Part(Struct):
    """One piece of a conversation."""

    heading: str
    """What it is: `user`, `text`, `thinking`, `tool call Read`, `tool result`."""
    text: str = ""


class Transcript(Struct):
    """One body, readable."""

    parts: list[Part] = field(default_factory=list)
    """Oldest first."""
    model: str = ""
    stop: str = ""
    """Why the answer ended, in the provider's word; empty: it has not, or it does not say."""
    error: str = ""
    """What an error answer or an error event says."""
    is_tail: bool = False
    """It is only the end of a long answer."""
    unsaid: bool = False
    """It has something that says nothing to people: encrypted thinking, a compaction, an empty result, sound."""


def answer_of(dialect: DialectName, body: bytes) -> Transcript:
    """An answer, streamed or plain, complete or not."""
    plain = read_value(body) if body.lstrip()[:1] == b"{" else None
    if isinstance(plain, dict):
        return _Assembly(dialect).plain(plain)
    parser = dialect_of(dialect).parser()
    return _Assembly(dialect).stream([*parser.feed(body), *parser.finish()])


def answer_of_events(dialect: DialectName, events: Iterable[SseEvent]) -> Transcript:
    """A streamed answer that was cut into events already."""
    return _Assembly(dialect).stream(events)


def request_of(dialect: DialectName, body: bytes) -> Transcript:
    """A request: its instructions, then its messages."""
    top = read_value(body)
    if not isinstance(top, dict):
        return Transcript()
    parts: list[Part] = []
    for name in ("system", "instructions"):
        parts += [Part("system", text) for text in (_text(top.get(name)),) if text]
    conversation = top.get("input" if dialect is DialectName.OPENAI_RESPONSES else "messages")
    if isinstance(conversation, str):
        parts.append(Part("user", conversation))
    for message in _members_in(conversation):
        parts += _message_parts(message)
    if isinstance(prompt := top.get("prompt"), str):
        parts.append(Part("user", prompt))
    return Transcript(parts=parts, model=_word(top.get("model")))


class _Assembly:
    """One answer, put together."""

    def __init__(self, dialect: DialectName) -> None:
        self._dialect = dialect
        self._out = Transcript()
        self._open: dict[object, Part] = {}
        """Pieces that a stream goes on with, by the place that it gives them."""

    def plain(self, top: _Members) -> Transcript:
        """An answer that is one JSON object."""
        out = self._out
        if error := _error_text(top):
            out.error = error
        out.model = _word(top.get("model"))
        match self._dialect:
            case DialectName.ANTHROPIC_MESSAGES:
                out.parts = [part for block in _members_in(top.get("content")) for part in _block_parts(block, "text")]
                out.stop = _word(top.get("stop_reason"))
            case DialectName.OPENAI_CHAT:
                for choice in _members_in(top.get("choices")):
                    message = choice.get("message")
                    spoken = message if isinstance(message, dict) else {"content": choice.get("text")}
                    out.unsaid = out.unsaid or bool(spoken.get("audio"))
                    out.parts += _message_parts(spoken, heading="text")
                    out.stop = _word(choice.get("finish_reason")) or out.stop
            case DialectName.OPENAI_RESPONSES:
                self._take_response(top)
            case DialectName.OLLAMA:
                self._ollama(top)
            case _:
                assert_never(self._dialect)
        return self._closed()

    def stream(self, events: Iterable[SseEvent]) -> Transcript:
        """An answer that came as events."""
        readers: Mapping[DialectName, Callable[[str, _Members], None]] = {
            DialectName.ANTHROPIC_MESSAGES: self._anthropic,
            DialectName.OPENAI_CHAT: lambda _, top: self._chat(top),
            DialectName.OPENAI_RESPONSES: self._responses,
            DialectName.OLLAMA: lambda _, top: self._ollama(top),
        }
        read = readers[self._dialect]
        for event in events:
            top = read_value(event.data)
            if isinstance(top, dict):
                if error := _error_text(top):
                    self._out.error = error
                read(event_name(event), top)
        return self._closed()

    def _closed(self) -> Transcript:
        for part in self._out.parts:
            if part.heading.startswith("tool call"):
                part.text = _pretty(part.text)
        self._out.unsaid = self._out.unsaid or any(not part.text and part.heading != "text" for part in self._out.parts)
        self._out.parts = [part for part in self._out.parts if part.text or part.heading.startswith("tool call")]
        return self._out

    def _part(self, place: object, heading: str) -> Part:
        """The piece at a place, begun where it is new."""
        key = repr(place)  # a provider may number its blocks by what cannot be a key
        part = self._open.get(key)
        if part is None:
            part = self._open[key] = Part(heading)
            self._out.parts.append(part)
        return part

    # One event each ---------------------------------------------------------------------------------------------------

    def _anthropic(self, name: str, top: _Members) -> None:
        index = top.get("index")
        match name:
            case "message_start":
                self._out.model = _word(_members(top.get("message")).get("model"))
            case "content_block_start":
                block = _members(top.get("content_block"))
                for part in _block_parts(block, "text"):
                    begun = self._part(index, part.heading)
                    begun.text = "" if part.text == "{}" else part.text
            case "content_block_delta":
                delta = _members(top.get("delta"))
                for key, heading in (("text", "text"), ("thinking", "thinking"), ("partial_json", "tool call")):
                    if isinstance(piece := delta.get(key), str):
                        self._part(index, heading).text += piece
            case "message_delta":
                self._out.stop = _word(_members(top.get("delta")).get("stop_reason")) or self._out.stop

    def _chat(self, top: _Members) -> None:
        self._out.model = self._out.model or _word(top.get("model"))
        for choice in _members_in(top.get("choices")):
            place = choice.get("index", 0)
            delta = _members(choice.get("delta")) or {"content": choice.get("text")}
            self._out.unsaid = self._out.unsaid or bool(delta.get("audio"))
            # Two names for one thing; a server that sends both sends the same text twice.
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            spoken = (thought, "thinking"), (delta.get("content"), "text"), (delta.get("refusal"), "text")
            for piece, heading in spoken:
                if isinstance(piece, str) and piece:
                    self._part((place, heading), heading).text += piece
            calls = [*_members_in(delta.get("tool_calls")), {"function": delta.get("function_call")}]
            for call in calls:
                function = _members(call.get("function"))
                if function:
                    part = self._part((place, "call", call.get("index", 0)), "tool call")
                    if part.heading == "tool call":  # some servers repeat the name
                        part.heading = f"tool call {_word(function.get('name'))}".rstrip()
                    part.text += _word(function.get("arguments"))
            self._out.stop = _word(choice.get("finish_reason")) or self._out.stop

    def _responses(self, name: str, top: _Members) -> None:
        if name in {"response.created", "response.in_progress"}:
            self._out.model = _word(_members(top.get("response")).get("model"))
        elif name in {"response.completed", "response.incomplete", "response.failed"}:
            self._take_response(_members(top.get("response")))
        elif name in {"response.output_item.added", "response.output_item.done"}:
            item, place = _members(top.get("item")), top.get("output_index")
            for number, part in enumerate(_message_parts(item, heading="text")):
                self._part((place, number), part.heading).text = part.text  # when it is done, what was put together
        elif name.endswith(".delta") and isinstance(piece := top.get("delta"), str) and "audio" not in name:
            heading = "thinking" if "reasoning" in name else "tool call" if "call" in name else "text"
            self._part((top.get("output_index"), 0), heading).text += piece

    def _take_response(self, response: _Members) -> None:
        out = self._out
        out.model = _word(response.get("model")) or out.model
        details = _members(response.get("incomplete_details"))
        out.stop = _word(details.get("reason")) or _word(response.get("status")) or out.stop
        if error := _error_text(response):
            out.error = error
        items = list(_members_in(response.get("output")))
        out.unsaid = out.unsaid or any(item.get("type") != "message" for item in items)
        parts = [part for item in items for part in _message_parts(item, heading="text")]
        if parts:
            out.parts = parts

    def _ollama(self, top: _Members) -> None:
        self._out.model = self._out.model or _word(top.get("model"))
        message = _members(top.get("message"))
        spoken = (
            (message.get("thinking") or top.get("thinking"), "thinking"),
            (message.get("content") or top.get("response"), "text"),
        )
        for piece, heading in spoken:
            if isinstance(piece, str) and piece:
                self._part(heading, heading).text += piece
        self._out.parts += _call_parts(message)
        self._out.stop = _word(top.get("done_reason")) or self._out.stop


def _message_parts(message: _Members, *, heading: str = "") -> Iterator[Part]:
    """The pieces of one message of any dialect, or of one item of Responses."""
    kind, role = _word(message.get("type")), _word(message.get("role"))
    heading = heading or role or "message"
    if kind == "reasoning":
        yield Part("thinking", _text(message.get("summary")) or _text(message.get("content")))
    elif kind.endswith("_call_output"):
        yield Part("tool result", _text(message.get("output")))
    elif kind.endswith("_call"):
        arguments = message.get("arguments", message.get("input", message.get("action")))
        name = _word(message.get("name")) or kind.removesuffix("_call")
        yield Part(f"tool call {name}", _pretty(arguments))
    else:
        thought = message.get("thinking") or message.get("reasoning_content") or message.get("reasoning")
        if text := _text(thought):
            yield Part("thinking", text)
        content = message.get("content")
        if role == "tool" and isinstance(content, str):
            yield Part("tool result", content)
        elif isinstance(content, str):
            yield Part(heading, content)
        else:
            for block in _members_in(content):
                yield from _block_parts(block, "tool result" if role == "tool" else heading)
        if text := _text(message.get("refusal")):
            yield Part(heading, text)
        if images := message.get("images"):
            yield Part(heading, f"({len(images) if isinstance(images, list) else 1} images)")
        yield from _call_parts(message)


def _block_parts(block: _Members, heading: str) -> Iterator[Part]:
    """One content block."""
    match kind := _word(block.get("type")):
        case "text" | "input_text" | "output_text" | "refusal" | "summary_text" | "":
            yield Part(heading, _word(block.get("text")) or _word(block.get("refusal")))
        case "thinking" | "redacted_thinking":
            yield Part("thinking", _word(block.get("thinking")) or ("" if kind == "thinking" else "(redacted)"))
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            yield Part(f"tool call {_word(block.get('name'))}", _pretty(block.get("input")))
        case _ if kind.endswith("tool_result"):
            failed = " (failed)" if block.get("is_error") is True else ""
            yield Part(f"tool result{failed}", _text(block.get("content")))
        case _:
            yield Part(heading, f"({kind})")


def _call_parts(message: _Members) -> Iterator[Part]:
    """The tool calls that hang on a message."""
    for call in [*_members_in(message.get("tool_calls")), {"function": message.get("function_call")}]:
        function = _members(call.get("function")) or _members(call.get("custom"))
        if function:
            arguments = function.get("arguments", function.get("input"))
            yield Part(f"tool call {_word(function.get('name'))}", _pretty(arguments))


def _text(value: object) -> str:
    """The text of a string, of a list of blocks, or of anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        blocks = (part if isinstance(part, dict) else {"text": _text(part)} for part in value)
        return "\n".join(part.text for block in blocks for part in _block_parts(block, ""))
    return "" if value is None else _pretty(value)


def _pretty(value: object) -> str:
    """JSON for people; a text that holds none, such as half of one, as it is."""
    if isinstance(value, str):
        read = read_value(value.encode(errors="replace"))
        if not isinstance(read, dict | list):
            return value
        value = read
    return "" if value is None else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _error_text(top: _Members) -> str:
    """What an error object says; of Responses also inside `response`."""
    error = top.get("error") or _members(top.get("response")).get("error")
    if error is None and top.get("type") == "error":  # an event of Responses
        error = top
    if isinstance(error, str):
        return error
    members = _members(error)
    kind = _word(members.get("type")).removeprefix("error") or _word(members.get("code"))
    return ": ".join(word for word in (kind, _word(members.get("message"))) if word)


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _members(value: object) -> _Members:
    return value if isinstance(value, dict) else {}


def _members_in(value: object) -> Iterator[_Members]:
    """The objects in a list."""
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))
