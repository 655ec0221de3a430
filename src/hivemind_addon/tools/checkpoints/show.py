"""A checkpoint as a person reads it in a terminal: the newest of it, unless all is asked for."""

from collections.abc import Iterator
from datetime import datetime

from hivemind_addon.api.words import several, short
from hivemind_addon.proxy.checkpoint.store import Checkpoint, CheckpointHead
from hivemind_addon.tools.checkpoints.prompt import INSTRUCTIONS, parts_of

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


def lines(checkpoint: Checkpoint, *, full: bool) -> Iterator[str]:
    """Its head, then its pieces, oldest first."""
    yield from _head(checkpoint.head)
    parts = parts_of(checkpoint)
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
        yield from part.text.translate(_TEXT_CONTROLS).splitlines() if full else _clipped(part.text)


def local(wall: float) -> str:
    """An instant as clocks on the wall here show it."""
    return f"{datetime.fromtimestamp(wall).astimezone():%Y-%m-%d %H:%M}"


def _head(head: CheckpointHead) -> Iterator[str]:
    session = "" if head.session == head.agent else f", session {head.session}"
    yield f"checkpoint  {head.id}, kept {local(head.kept_wall)}"
    yield f"agent       {head.agent}{session}"
    if head.task:
        yield f"task        {head.task}"
    yield f"model       {head.model or 'unnamed'} ({head.host}{head.path})"
    yield f"size        {several(head.messages, 'message')}, {short(head.body_bytes)} bytes"
    yield f"why         {head.reason}"


def _clipped(text: str) -> Iterator[str]:
    """The beginning and what is left out."""
    beginning = text[:_CHARS].translate(_TEXT_CONTROLS)
    lines = [line[:_LINE_CHARS] for line in beginning.splitlines()[:_LINES]]
    yield from lines
    left = len(text) - sum(len(line) + 1 for line in lines)
    if left > 0:
        yield f"(… {several(left, 'more character')})"
