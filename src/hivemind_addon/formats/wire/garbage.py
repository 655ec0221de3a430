"""Whether a complete answer is garbage, as far as that can be told for sure: a false alarm pays for an answer twice.

empty          nothing was said and no tool called, and no reason for it: after a tool's result a model may have nothing
               to add, and an answer may have been cut at its maximum, refused or filtered
repetition     it was cut at its maximum while its last 2,000 characters were one piece of at most 200, again and again;
               or it ended by itself and nearly all of it (8,000 characters or more) was that
junk           one of twenty characters, and at least twenty, are replacement or control characters
truncated      it ended by itself, and the arguments of a tool call, or a JSON text, never close their first bracket
"""

from collections.abc import Sequence

from msgspec import Raw

from hivemind_addon.formats.base.json_values import read_value
from hivemind_addon.formats.wire.transcript import Part, Transcript

_NATURAL = frozenset({"end_turn", "stop", "completed", "tool_use", "tool_calls", "function_call"})
_CUT = frozenset({"max_tokens", "length", "max_output_tokens", "model_context_window_exceeded"})
_TOOL_RESULTS = (b'"tool_result"', b'"tool"', b'"function"', b'_output"')

_TAIL_CHARS = 2_000
_PERIOD_CHARS = 200
_LONG_CHARS = 8_000
_NEARLY_ALL = 0.9
_KEY_CHARS = 30
"""Of the end, by which its period is found."""
_LEAST_JUNK = 20
_JUNK_SHARE = 0.05
_JUDGED_CHARS = 20_000
_REPLACED = "�"
_CONTROLS = bytes({*range(32), 0x7F} - set(b"\t\n\r\f\b\x1b"))


def garbage_in(answer: Transcript, *, after_tool: bool) -> str:
    """What is wrong with it, in words that stay the same; empty: nothing that is sure.

    `after_tool`: the request's last message is a tool's result; of an answer that says something it does not matter.
    """
    if not answer.parts:
        if answer.unsaid or answer.is_tail:
            return ""
        is_legal = answer.stop and (answer.stop not in _NATURAL or (after_tool and not answer.stop.startswith("tool")))
        return "" if is_legal else "empty answer"
    if _repeats(answer.parts[-1], answer.stop):
        return "endless repetition"
    if answer.is_tail:
        return ""
    if _is_junk("".join([part.text[:_JUDGED_CHARS] for part in answer.parts if not _is_call(part)])):
        return "encoding junk"
    if answer.stop in _NATURAL:
        for part in answer.parts:
            if _is_call(part) and _never_closes(part.text, ("{", "[")):
                return "truncated tool arguments"
        for part in answer.parts:
            if part.heading == "text" and _never_closes(part.text, ('{"', '[{"')):
                return "truncated JSON"
    return ""


def is_after_tool(messages: Sequence[Raw]) -> bool:
    """Whether a request's last message is a tool's result, in whatever format."""
    last = bytes(messages[-1]) if messages else b""
    return any(mark in last for mark in _TOOL_RESULTS)


def _is_call(part: Part) -> bool:
    return part.heading.startswith("tool call")


def _repeats(part: Part, stop: str) -> bool:
    text = part.text
    if len(text) < _TAIL_CHARS + _PERIOD_CHARS:
        return False
    tail = text[-_TAIL_CHARS:]
    place = tail.rfind(tail[-_KEY_CHARS:], 0, len(tail) - 1)
    period = len(tail) - _KEY_CHARS - place
    if place < 0 or period > _PERIOD_CHARS:
        return False
    if stop in _CUT:
        return _has_period(text, period, _TAIL_CHARS)
    return not _is_call(part) and _has_period(text, period, max(_LONG_CHARS, round(_NEARLY_ALL * len(text))))


def _has_period(text: str, period: int, chars: int) -> bool:
    """Whether each of the last characters is the one that stands a period before it."""
    return len(text) >= chars + period and text[-chars:] == text[-chars - period : -period]


def _is_junk(text: str) -> bool:
    if len(text) < _LEAST_JUNK:
        return False
    raw = text.encode(errors="replace")  # in UTF-8 no other character has these bytes
    junk = len(raw) - len(raw.translate(None, _CONTROLS)) + text.count(_REPLACED)
    return junk >= max(_LEAST_JUNK, _JUNK_SHARE * len(text))


def _never_closes(text: str, starts: tuple[str, ...]) -> bool:
    """Whether a text is JSON that ends before its first bracket is closed. What follows that is not looked at."""
    text = text.strip()
    if not text.startswith(starts) or read_value(text.encode(errors="replace")) is not None:
        return False
    depth, in_string, escaped = 0, False, False
    for char in text:
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if not depth:
                return False
    return True
