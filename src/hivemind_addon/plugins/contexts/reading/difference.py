"""What came, went and changed from one version of a conversation to another, message by message.

A compaction is one that loses most of its messages and gains a summary: that is seen at once. Marks of a prompt cache
are no change, since agents move them on with every request.
"""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from enum import Enum

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base.json_values import read_value
from hivemind_addon.formats.wire.transcript import Part, dialect_named
from hivemind_addon.plugins.contexts.reading.prompt import answer_parts
from hivemind_addon.plugins.contexts.store import Context, ContextHead
from hivemind_addon.proxy.api.words import printable, several, short

_SHOWN = 6
"""Of messages in a row: the first ones and the last one, unless all are asked for."""
_COMPACTED = 0.7
"""What is shorter than this share of what it was has lost more than an edit takes."""
_MARK = "cache_control"
_Values = dict[str, object]


class MessageChange(Enum):
    """What became of a run of messages."""

    SAME = "same"
    CAME = "came"
    WENT = "went"
    CHANGED = "changed"


class DiffMessage(Struct, frozen=True):
    """One message."""

    index: int
    """Its place in its version, counted from 1."""
    heading: str
    """Who said it, or which tool."""
    excerpt: str
    """The beginning of what it says, in one line."""
    chars: int
    """Of all that it says."""


class DiffRun(Struct, frozen=True):
    """Messages in a row to which the same happened."""

    change: MessageChange
    before: tuple[DiffMessage, ...] = ()
    after: tuple[DiffMessage, ...] = ()
    """CHANGED: as many as `before`, each in the place of one of them."""


class ContextDiff(Struct, frozen=True):
    """From one version to another."""

    before: ContextHead
    after: ContextHead
    runs: tuple[DiffRun, ...]
    members: tuple[str, ...]
    """Other members of the request's body that differ: `model`, `tools`, `system`."""


def difference(before: Context, after: Context) -> ContextDiff:
    """Compare two contexts, of one conversation or of two."""
    old, new = _read(before), _read(after)
    keys = sorted(old.members.keys() | new.members.keys())
    members = tuple(key for key in keys if old.members.get(key) != new.members.get(key))
    return ContextDiff(before.head, after.head, tuple(_runs(old, new)), members)


def lines(found: ContextDiff, *, width: int, full: bool = False) -> Iterator[str]:
    """For a terminal of so many columns; a run of many messages is cut to some of them unless `full`."""
    before, after = found.before, found.after
    yield f"from  {_version(before)}"
    yield f"to    {_version(after)}"
    yield ", ".join(_sums(found)) or "no message differs"
    if found.members:
        yield f"also changed: {', '.join(map(printable, found.members))}"
    for run in found.runs:
        yield ""
        if run.change is MessageChange.SAME:
            yield f"  ({several(len(run.before), 'message')} alike)"
        elif run.change is MessageChange.CHANGED:
            for old, new in zip(run.before, run.after, strict=True):
                yield _line("-", old, width)
                yield _line("+", new, width)
        else:
            sign, messages = ("-", run.before) if run.change is MessageChange.WENT else ("+", run.after)
            yield from _cut(sign, messages, width, full=full)


class _Reading(Struct):
    messages: list[bytes]
    """Each as JSON, in one way of writing."""
    shown: list[DiffMessage]
    members: dict[str, bytes]


def _read(context: Context) -> _Reading:
    dialect = dialect_named(context.head.dialect)
    top = read_value(context.body)
    members: _Values = dict(top) if isinstance(top, dict) else {}
    messages: list[object] = []
    for way in dialect.plan.messages.ways:
        messages += _taken(members, way)
    plain = [_unmarked(one) for one in messages]
    written = [msgspec.json.encode(one, order="deterministic") for one in plain]
    shown = [
        _shown(number, list(dialect.message_parts(one)) if isinstance(one, dict) else [Part("user", str(one))])
        for number, one in enumerate(plain, start=1)
    ]
    if answer := answer_parts(context):
        shown.append(_shown(len(shown) + 1, answer))
        written.append(_said(answer))
    rest = {key: msgspec.json.encode(_unmarked(value), order="deterministic") for key, value in members.items()}
    return _Reading(written, shown, rest)


def _taken(members: _Values, way: Sequence[str]) -> list[object]:
    """What is at the end of a way, which is no other member of the body then."""
    if not way or way[0] not in members:
        return []
    value: object = members[way[0]]
    if len(way) > 1:
        inner = dict(value) if isinstance(value, dict) else {}
        taken = _taken(inner, way[1:])
        members[way[0]] = inner
        return taken
    if not isinstance(value, list | str):
        return []
    del members[way[0]]
    return value if isinstance(value, list) else [value]


def _said(parts: Sequence[Part]) -> bytes:
    return msgspec.json.encode([(part.heading, part.text) for part in parts])


def _shown(index: int, parts: Sequence[Part]) -> DiffMessage:
    told = [part for part in parts if part.text or part.heading.startswith("tool")]
    headings = list(dict.fromkeys(part.heading for part in told)) or ["(nothing)"]
    text = next((part.text for part in told if part.text), "")
    return DiffMessage(
        index=index,
        heading=" + ".join((*headings[:2], *(["…"] if headings[2:] else ()))),
        excerpt=printable(" ".join(text[:1000].split())),
        chars=sum(len(part.text) for part in told),
    )


def _runs(old: _Reading, new: _Reading) -> Iterator[DiffRun]:
    matcher = SequenceMatcher(None, old.messages, new.messages, autojunk=False)
    for tag, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        before, after = tuple(old.shown[old_from:old_to]), tuple(new.shown[new_from:new_to])
        match tag:
            case "equal":
                yield DiffRun(MessageChange.SAME, before, after)
            case "replace" if [one.heading for one in before] == [one.heading for one in after]:
                yield DiffRun(MessageChange.CHANGED, before, after)
            case _:
                if before:
                    yield DiffRun(MessageChange.WENT, before)
                if after:
                    yield DiffRun(MessageChange.CAME, after=after)


def _unmarked(value: object) -> object:
    """Without the marks of a prompt cache, wherever they stand in a message."""
    if isinstance(value, dict):
        return {key: _unmarked(one) for key, one in value.items() if key != _MARK}
    return [_unmarked(one) for one in value] if isinstance(value, list) else value


def _version(head: ContextHead) -> str:
    tokens = f", {short(head.tokens)} tokens" if head.tokens else ""
    return f"{head.id}@{head.version}: {several(head.messages, 'message')}, {short(head.body_bytes)} bytes{tokens}"


def _sums(found: ContextDiff) -> Iterator[str]:
    """What happened, in words."""
    for change, word in (
        (MessageChange.CAME, "came"),
        (MessageChange.WENT, "went"),
        (MessageChange.CHANGED, "changed"),
    ):
        runs = [run for run in found.runs if run.change is change]
        if number := sum(max(len(run.before), len(run.after)) for run in runs):
            yield f"{several(number, 'message')} {word}"
    before, after = found.before, found.after
    if after.body_bytes < before.body_bytes * _COMPACTED:
        yield f"compacted to {after.body_bytes / before.body_bytes:.0%} of its bytes"


def _cut(sign: str, messages: Sequence[DiffMessage], width: int, *, full: bool) -> Iterator[str]:
    if full or len(messages) <= _SHOWN + 1:
        yield from (_line(sign, one, width) for one in messages)
        return
    yield from (_line(sign, one, width) for one in messages[: _SHOWN - 1])
    hidden = messages[_SHOWN - 1 : -1]
    yield f"{sign}     (… {several(len(hidden), 'message')}, {short(sum(one.chars for one in hidden))} characters)"
    yield _line(sign, messages[-1], width)


def _line(sign: str, message: DiffMessage, width: int) -> str:
    size = short(message.chars)
    line = f"{sign} {message.index:>3} {message.heading}: {message.excerpt}"
    room = max(20, width - len(size) - 2)
    return f"{line[: room - 1]}…  {size}" if len(line) > room else f"{line:<{room}}  {size}"
