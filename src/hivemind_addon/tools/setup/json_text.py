"""JSON changed as a text: what is not ours keeps every byte of its form.

A new member becomes the first of its object, so that no line of the user's has to change for a comma.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hivemind_addon.tools.setup.model import HasComments, SetupTrouble, Value

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|,(?=(?:\s|//[^\n]*|/\*.*?\*/)*[}\]])', re.DOTALL)
_STEP = "  "


class _Member(Struct, frozen=True):
    key: str
    begin: int
    value_begin: int
    end: int


def read(text: str) -> Mapping[str, Any]:
    """What it says. Raises HasComments, SetupTrouble (without the file's name)."""
    if not text.strip():
        return {}
    try:
        data = json.loads(text)
    except ValueError as error:
        try:
            json.loads(_TOKENS.sub(lambda found: found[0] if found[0].startswith('"') else "", text))
        except ValueError:
            raise SetupTrouble(f"is no JSON ({error}); mend it first") from error
        raise HasComments("has comments, which would be lost; add this by hand") from error
    if not isinstance(data, dict):
        raise SetupTrouble("is no JSON object; mend it first")
    return data


def put(text: str, path: Sequence[str], value: Value) -> str:
    """With a value where there is none; objects on the way are made."""
    if not text.strip():
        text = "{}\n"
    begin, depth = _space(text, 0), 0
    for key in path[:-1]:
        member = _find(text, begin, key)
        if member is None:
            break
        begin, depth = member.value_begin, depth + 1
    for key in reversed(path[depth + 1 :]):
        value = {key: value}
    first = next(_members(text, begin), None)
    name = json.dumps(path[depth], ensure_ascii=False)
    if first and "\n" not in text[begin : first.begin]:
        return f"{text[: first.begin]}{name}: {json.dumps(value, ensure_ascii=False)}, {text[first.begin :]}"
    # Objects are indented as the first member of this one is; else by two spaces more than the line it begins in.
    inner = _indent(text, first.begin) if first else _indent(text, begin) + _STEP
    shown = json.dumps(value, indent=_step(inner, depth + 1), ensure_ascii=False).replace("\n", f"\n{inner}")
    added = f"\n{inner}{name}: {shown}"
    if first:
        return f"{text[: begin + 1]}{added},{text[begin + 1 :]}"
    end = text.index("}", begin)
    return f"{text[: begin + 1]}{added}\n{_indent(text, begin)}{text[end:]}"


def take(text: str, path: Sequence[str]) -> str:
    """Without a value that is there."""
    begin = _space(text, 0)
    for key in path[:-1]:
        member = _find(text, begin, key)
        assert member is not None, path
        begin = member.value_begin
    members = list(_members(text, begin))
    index = next(index for index, member in enumerate(members) if member.key == path[-1])
    if len(members) == 1:
        return text[: begin + 1] + text[text.index("}", members[0].end) :]
    if index == 0 and "\n" in text[begin : members[1].begin]:
        return text[: begin + 1] + text[text.index(",", members[0].end) + 1 :]
    if index == 0:
        return text[: members[0].begin] + text[members[1].begin :]
    return text[: members[index - 1].end] + text[members[index].end :]


def _members(text: str, begin: int) -> Iterator[_Member]:
    """Of the object that begins there; the text is sound."""
    at = _space(text, begin + 1)
    while text[at] == '"':
        key, end = _DECODER.raw_decode(text, at)
        value_begin = _space(text, _space(text, end) + 1)
        _, value_end = _DECODER.raw_decode(text, value_begin)
        yield _Member(key, at, value_begin, value_end)
        at = _space(text, value_end)
        at = _space(text, at + 1) if text[at] == "," else at


def _find(text: str, begin: int, key: str) -> _Member | None:
    # Of two members with one key the later counts.
    return next((member for member in reversed(list(_members(text, begin))) if member.key == key), None)


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _indent(text: str, at: int) -> str:
    """What the line that holds this place begins with."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _step(inner: str, depth: int) -> int | str:
    return inner[: len(inner) // depth] or len(_STEP)
