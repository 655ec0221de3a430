"""A conversation as Markdown, which any agent takes as a prompt; and its parts as people read them."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from hivemind_addon.formats.wire.transcript import Part, answer_of, dialect_named, request_of
from hivemind_addon.plugins.contexts.reading.answer import UNKNOWN_RESULT
from hivemind_addon.plugins.contexts.store import Context

INSTRUCTIONS = ("system", "developer")
"""Headings of what a program tells its model, not of what was said."""
_FENCE = re.compile(r"^\s*(`{3,})", re.MULTILINE)


def parts_of(context: Context) -> list[Part]:
    """What was said, oldest first: what was sent, then what the model answered."""
    return [*request_of(dialect_named(context.head.dialect), bytes(context.body)).parts, *answer_parts(context)]


def answer_parts(context: Context) -> list[Part]:
    """The model's newest answer; empty: none came whole, or a later version has it among its messages."""
    if not context.answer:
        return []
    answer = answer_of(dialect_named(context.head.dialect), context.answer)
    return [Part("assistant", part.text) if part.heading == "text" else part for part in answer.parts]


def prompt_of(context: Context) -> str:
    """All that was said, without the instructions of the program that said it."""
    return "\n\n".join(_pieces(context)) + "\n"


def _pieces(context: Context) -> Iterator[str]:
    head = context.head
    kept = f"{datetime.fromtimestamp(head.kept_wall, UTC):%Y-%m-%d %H:%M} UTC"
    yield "# A conversation to be continued"
    yield (
        f"It was kept at {kept} ({head.reason}). Everything that was said is below, oldest first, with the tool calls "
        "that were made and what they gave. Go on where it ends; do not repeat what is done."
    )
    parts = parts_of(context)
    if parts and parts[-1].heading.startswith("tool call"):
        parts.append(Part("tool result", UNKNOWN_RESULT))
    for part in parts:
        if part.heading in INSTRUCTIONS or not (part.text or part.heading.startswith("tool call")):
            continue
        yield f"## {part.heading[:1].upper()}{part.heading[1:]}"
        yield _fenced(part.text) if part.heading.startswith("tool ") else part.text


def _fenced(text: str) -> str:
    """As a block, whose fence is longer than any that is in it."""
    longest = max((len(fence) for fence in _FENCE.findall(text)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
