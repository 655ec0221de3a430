"""A context as a person reads it in a terminal: the newest of it, unless all is asked for."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from hivemind_addon.plugins.contexts.reading.prompt import INSTRUCTIONS, parts_of
from hivemind_addon.plugins.contexts.store import Context, ContextHead
from hivemind_addon.proxy.api.words import dollars, printable, several, short

RULE = "── "
"""What headings begin with."""
_PARTS = 12
_LINES = 12
_CHARS = 1200
_LINE_CHARS = 300
_TEXT_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}
"""What a tool has printed must not steer the reader's terminal."""


def without_controls(text: str) -> str:
    """A text of several lines for a terminal."""
    return text.translate(_TEXT_CONTROLS)


def lines(context: Context, *, full: bool, versions: Sequence[ContextHead] = ()) -> Iterator[str]:
    """Its head, then its pieces, oldest first. `versions`: all that are kept of it."""
    yield from _head(context, versions)
    parts = parts_of(context)
    spoken = parts if full else [part for part in parts if part.heading not in INSTRUCTIONS]
    shown = spoken if full else spoken[-_PARTS:]
    if len(parts) > len(shown):
        yield ""
        instructions = len(parts) - len(spoken)
        hidden = [several(len(spoken) - len(shown), "earlier piece")] if len(spoken) > len(shown) else []
        hidden += [several(instructions, "instruction") + " to the model"] if instructions else []
        yield f"({' and '.join(hidden)} not shown: --full shows all)"
    for part in shown:
        yield ""
        yield f"{RULE}{part.heading}"
        yield from without_controls(part.text).splitlines() if full else _clipped(part.text)


def local(wall: float) -> str:
    """An instant as clocks on the wall here show it."""
    return f"{datetime.fromtimestamp(wall).astimezone():%Y-%m-%d %H:%M}"


def _head(context: Context, versions: Sequence[ContextHead]) -> Iterator[str]:
    head = context.head
    session = "" if head.session == head.agent else f", session {printable(head.session)}"
    parent = f" of {printable(head.parent_session)}" if head.parent_session else ""
    version = f"@{head.version}" if head.version else ""
    kept = f" ({several(len(versions), 'version')} kept)" if len(versions) > 1 else ""
    yield f"context  {head.id}{version}{kept}, {local(head.kept_wall)}"
    yield f"agent    {printable(head.agent)}{session}{parent}"
    if head.task:
        yield f"task     {printable(head.task)}"
    yield f"model    {printable(head.model) or 'unnamed'} ({head.host}{head.path})"
    tokens = f", {short(head.tokens)} tokens" if head.tokens else ""
    yield f"size     {several(head.messages, 'message')}, {short(head.body_bytes)} bytes{tokens}"
    if head.spent.tokens:
        yield f"cost     {dollars(head.spent.micro_usd)} for {short(head.spent.tokens)} tokens so far"
    yield f"why      {head.reason}"
    if context.answer:
        yield "answer   the model's newest answer came whole: it is the last of what follows"


def _clipped(text: str) -> Iterator[str]:
    """The beginning and what is left out."""
    beginning = without_controls(text[:_CHARS])
    lines = [line[:_LINE_CHARS] for line in beginning.splitlines()[:_LINES]]
    yield from lines
    left = len(text) - sum(len(line) + 1 for line in lines)
    if left > 0:
        yield f"(… {several(left, 'more character')})"
