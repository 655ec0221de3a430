"""The pieces of a conversation as a person reads them, from the values of any dialect.

Nothing here raises on what others send; what cannot be read is left out.
"""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct, field

from hivemind_addon.formats.base.json_values import read_value

Values = Mapping[str, object]


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


class Assembly:
    """One answer, put together from the pieces of a stream or of a whole body."""

    def __init__(self) -> None:
        self.out = Transcript()
        self._open: dict[object, Part] = {}
        """Pieces that a stream goes on with, by the place that it gives them."""

    def close(self) -> Transcript:
        """What was put together."""
        out, kept = self.out, []
        for part in out.parts:
            if part.heading.startswith("tool call"):
                part.text = pretty(part.text)
                kept.append(part)
            elif part.text:
                kept.append(part)
            if not part.text and part.heading != "text":
                out.unsaid = True
        out.parts = kept
        return self.out

    def said(self) -> str:
        """All that the model wrote so far: text, thinking, the names of tools and what they are called with."""
        return "".join(part.heading.partition("tool call ")[2] + part.text for part in self.out.parts)

    def part(self, place: object, heading: str) -> Part:
        """The piece at a place, begun where it is new."""
        try:
            part = self._open.get(place)
        except TypeError:  # a provider may number its blocks by what cannot be a key
            place = repr(place)
            part = self._open.get(place)
        if part is None:
            part = self._open[place] = Part(heading)
            self.out.parts.append(part)
        return part


def message_parts(message: Values, *, heading: str = "") -> Iterator[Part]:
    """The pieces of one message of any dialect, or of one item of Responses."""
    kind, role = word_of(message.get("type")), word_of(message.get("role"))
    heading = heading or role or "message"
    if kind == "reasoning":
        yield Part("thinking", text_of(message.get("summary")) or text_of(message.get("content")))
    elif kind.endswith("_call_output"):
        yield Part("tool result", text_of(message.get("output")))
    elif kind.endswith("_call"):
        arguments = message.get("arguments", message.get("input", message.get("action")))
        name = word_of(message.get("name")) or kind.removesuffix("_call")
        yield Part(f"tool call {name}", pretty(arguments))
    else:
        thought = message.get("thinking") or message.get("reasoning_content") or message.get("reasoning")
        if text := text_of(thought):
            yield Part("thinking", text)
        content = message.get("content")
        if role == "tool" and isinstance(content, str):
            yield Part("tool result", content)
        elif isinstance(content, str):
            yield Part(heading, content)
        else:
            for block in objects_in(content):
                yield from block_parts(block, "tool result" if role == "tool" else heading)
        if text := text_of(message.get("refusal")):
            yield Part(heading, text)
        if images := message.get("images"):
            yield Part(heading, f"({len(images) if isinstance(images, list) else 1} images)")
        yield from call_parts(message)


def block_parts(block: Values, heading: str) -> Iterator[Part]:
    """One content block."""
    match kind := word_of(block.get("type")):
        case "text" | "input_text" | "output_text" | "refusal" | "summary_text" | "":
            yield Part(heading, word_of(block.get("text")) or word_of(block.get("refusal")))
        case "thinking" | "redacted_thinking":
            yield Part("thinking", word_of(block.get("thinking")) or ("" if kind == "thinking" else "(redacted)"))
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            yield Part(f"tool call {word_of(block.get('name'))}", pretty(block.get("input")))
        case _ if kind.endswith("tool_result"):
            failed = " (failed)" if block.get("is_error") is True else ""
            yield Part(f"tool result{failed}", text_of(block.get("content")))
        case _:
            yield Part(heading, f"({kind})")


def calls_in(message: Values) -> list[Values]:
    """The tool calls that hang on a message or a piece of one; `function_call` is their older name."""
    calls = objects_in(message.get("tool_calls"))
    if "function_call" in message:
        calls.append({"function": message["function_call"]})
    return calls


def call_parts(message: Values) -> Iterator[Part]:
    """The tool calls that hang on a message."""
    for call in calls_in(message):
        function = members_of(call.get("function")) or members_of(call.get("custom"))
        if function:
            arguments = function.get("arguments", function.get("input"))
            yield Part(f"tool call {word_of(function.get('name'))}", pretty(arguments))


def text_of(value: object) -> str:
    """The text of a string, of a list of blocks, or of anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        blocks = (part if isinstance(part, dict) else {"text": text_of(part)} for part in value)
        return "\n".join(part.text for block in blocks for part in block_parts(block, ""))
    return "" if value is None else pretty(value)


def pretty(value: object) -> str:
    """JSON for people; a text that holds none, such as half of one, as it is."""
    if isinstance(value, str):
        read = read_value(value.encode(errors="replace"))
        if not isinstance(read, dict | list):
            return value
        value = read
    return "" if value is None else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def error_text(top: Values) -> str:
    """What an error object says; of Responses also inside `response`."""
    error = top.get("error") or (members_of(top["response"]).get("error") if "response" in top else None)
    if error is None:
        if top.get("type") != "error":
            return ""
        error = top  # an event of Responses
    if isinstance(error, str):
        return error
    members = members_of(error)
    kind = word_of(members.get("type")).removeprefix("error") or word_of(members.get("code"))
    return ": ".join(word for word in (kind, word_of(members.get("message"))) if word)


def word_of(value: object) -> str:
    """The value where it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def members_of(value: object) -> Values:
    """The value where it is an object, else one without members."""
    return value if isinstance(value, dict) else {}


def objects_in(value: object) -> list[Values]:
    """The objects in a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
