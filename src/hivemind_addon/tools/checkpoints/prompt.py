"""A conversation as Markdown, which any agent takes as a prompt; and its parts as people read them."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from hivemind_addon.proxy.checkpoint.store import Checkpoint
from hivemind_addon.proxy.wire.transcript import Part, dialect_named, request_of

INSTRUCTIONS = ("system", "developer")
"""Headings of what a program tells its model, not of what was said."""
_FENCE = re.compile(r"^\s*(`{3,})", re.MULTILINE)


def parts_of(checkpoint: Checkpoint) -> list[Part]:
    """What was said, oldest first."""
    return request_of(dialect_named(checkpoint.head.dialect), bytes(checkpoint.body)).parts


def prompt_of(checkpoint: Checkpoint) -> str:
    """All that was said, without the instructions of the program that said it."""
    return "\n\n".join(_pieces(checkpoint)) + "\n"


def _pieces(checkpoint: Checkpoint) -> Iterator[str]:
    head = checkpoint.head
    stopped = f"{datetime.fromtimestamp(head.kept_wall, UTC):%Y-%m-%d %H:%M} UTC"
    yield "# A conversation to be continued"
    yield (
        f"It was stopped at {stopped}: {head.reason}. Everything that was said is below, oldest first, with the tool "
        "calls that were made and what they gave. Go on where it ends; do not repeat what is done."
    )
    for part in parts_of(checkpoint):
        if part.heading in INSTRUCTIONS or not (part.text or part.heading.startswith("tool call")):
            continue
        yield f"## {part.heading[:1].upper()}{part.heading[1:]}"
        yield _fenced(part.text) if part.heading.startswith("tool ") else part.text


def _fenced(text: str) -> str:
    """As a block, whose fence is longer than any that is in it."""
    longest = max((len(fence) for fence in _FENCE.findall(text)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
