"""Contexts as rows for programs and tables, with what a running proxy knows of them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from hivemind_addon.plugins.contexts.reading.tree import TreePlace
from hivemind_addon.plugins.contexts.store import ContextHead
from hivemind_addon.proxy.api.control import UnreadableReport, control_socket, read_report
from hivemind_addon.proxy.api.report import ContextPressure
from hivemind_addon.proxy.api.words import brief, count, dollars
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.tools.commands.printing import Row, Words

_PATIENCE_S = 2.0
"""A proxy that hangs must not keep what is on the disk from its reader."""

COLUMNS = {
    "id": "ID",
    "agent": "agent",
    "kept_wall": "kept",
    "version": "version",
    "messages": "messages",
    "tokens": "tokens",
    "window_share": "full",
    "cache_lapses_in_s": "cache",
    "spent_micro_usd": "cost",
    "task": "task",
    "model": "model",
}
VERSION_COLUMNS = {
    "version": "version",
    "kept_wall": "kept",
    "messages": "messages",
    "tokens": "tokens",
    "body_bytes": "bytes",
    "spent_micro_usd": "cost",
    "model": "model",
    "reason": "why",
}
SPARE = ("model", "version", "messages", "task", "kept_wall")
"""The first one is the first that a narrow terminal does without."""


def pressures(port: int) -> dict[tuple[str, str], ContextPressure]:
    """By agent and session; nothing where no proxy runs, or none that answers."""
    with suppress(OSError, UnreadableReport, FolderNotPrivate):
        report = read_report(control_socket(port), timeout_s=_PATIENCE_S)
        if report is not None:
            return {(one.agent, one.session): one for one in report.contexts}
    return {}


def tree_rows(places: Sequence[TreePlace], known: Mapping[tuple[str, str], ContextPressure]) -> Iterator[Row]:
    """A row for each, in this order. What is not known is None.

    A session's size now stands at its newest context alone: the others are of its past, or of another worker's.
    """
    seen: set[tuple[str, str]] = set()
    for place in places:
        head = place.head
        key = head.agent, head.session
        now = known.get(key) if key not in seen else None
        seen.add(key)
        yield {
            **row(head),
            "parent": place.parent,
            "depth": place.depth,
            "window_tokens": now.window_tokens if now else None,
            "window_share": now.share if now else None,
            "growth_per_turn": round(now.growth_per_turn) if now else None,
            "cache_lapses_in_s": now.cache_lapses_in_s if now else None,
            "compactions": now.compactions if now else None,
            "lost_tokens": now.lost_tokens if now else None,
        }


def row(head: ContextHead) -> dict[str, object]:
    """A version's, without nested values."""
    values = msgspec.structs.asdict(head)
    del values["spent"]
    return values | {"spent_tokens": head.spent.tokens, "spent_micro_usd": head.spent.micro_usd}


WORDS: Words = {
    "tokens": lambda tokens: count(tokens) if tokens else "",
    "body_bytes": count,
    "window_share": lambda share: f"{share:.0%}",
    "cache_lapses_in_s": lambda lapses_in_s: brief(lapses_in_s) if lapses_in_s else "cold",
    "spent_micro_usd": lambda micro_usd: dollars(micro_usd) if micro_usd else "",
}
