"""`hivemind capture show`: a capture in a terminal. One row a session, time from left to right, totals below."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from math import ceil

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hivemind_addon.kernel.values.snapshot import CONCURRENCY
from hivemind_addon.kernel.values.ticket import Dimension, OutcomeKind, PoolKey
from hivemind_addon.plugins.captures.model import Capture, LimitSeen
from hivemind_addon.plugins.captures.rows import SessionCell, SessionRow, rows
from hivemind_addon.proxy.api.words import brief, several, short

_GLYPHS = {
    SessionCell.NOTHING: (" ", ""),
    SessionCell.QUEUED: ("░", "yellow"),
    SessionCell.ANSWERED: ("█", "green"),
    SessionCell.TRIED: ("▒", "red"),
    SessionCell.FAILED: ("\N{BOX DRAWINGS LIGHT DIAGONAL CROSS}", "bold red"),
    SessionCell.LOST: ("✗", "bold white on red"),
}
_LEGEND = (
    (SessionCell.QUEUED, "waits"),
    (SessionCell.ANSWERED, "answered"),
    (SessionCell.TRIED, "attempt that fails"),
    (SessionCell.FAILED, "its failure"),
    (SessionCell.LOST, "lost"),
)
_LEAST_NAME, _MOST_NAME = 14, 40
_LEAST_TIME = 20
_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
_TICK_CELLS = 12


def show(capture: Capture, *, name: str, width: int) -> RenderableType:
    """The capture, in `width` columns. `name`: of its file."""
    parts: list[RenderableType] = [*_head(capture, name), Text()]
    if capture.calls:
        totals = Table.grid(padding=(0, 1))
        for title, words in _totals(capture):
            totals.add_row(Text(title, style="bold"), words)
        parts += [*_timeline(capture, width), Text(), totals]
    return Group(*parts, *(Text(f"damaged: {what}", style="bold red") for what in capture.damage))


def _head(capture: Capture, name: str) -> Iterator[Text]:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(capture.began_wall)) if capture.began_wall else ""
    by = f"hivemind {capture.proxy_version}" if capture.proxy_version else "another program"
    words = "with content" if capture.content else "without content"
    yield Text.assemble((name, "bold"), f"   {began}, {brief(capture.ended_s)}, recorded by {by}, {words}")
    agents, sessions = _count(call.agent for call in capture.calls), _count(call.session for call in capture.calls)
    attempts = sum(len(call.attempts) for call in capture.calls)
    if not capture.calls:
        yield Text("no call had ended when it did", style="yellow")
        return
    yield Text(
        f"{several(len(capture.calls), 'call')} in {several(attempts, 'attempt')}, "
        f"{several(agents, 'agent')}, {several(sessions, 'session')}"
    )


def _timeline(capture: Capture, width: int) -> Iterator[Text]:
    columns = _columns(width)
    counts = sum(size for _, size in columns)
    named = max((len(_name(row)) for row in rows(capture, 1)), default=0)
    name_width = max(_LEAST_NAME, min(named, _MOST_NAME, width - counts - _LEAST_TIME - 2, width // 3))
    time_width = max(_LEAST_TIME, width - name_width - counts - 2)
    head = Text(f"{'':{name_width}} ")
    head.append(_axis(capture.ended_s, time_width), style="dim")
    head.append("".join(f"{title:>{size}}" for title, size in columns), style="dim")
    yield head
    for row in rows(capture, time_width):
        yield _row(row, name_width, columns)
    legend = Text(" " * (name_width + 1))
    for cell, words in _LEGEND:
        glyph, style = _GLYPHS[cell]
        legend.append(glyph, style=style).append(f" {words}   ", style="dim")
    if len(legend.plain) > width:
        legend = legend[name_width + 1 :]
    yield legend


def _columns(width: int) -> tuple[tuple[str, int], ...]:
    """Titles and sizes of what is counted in each row, as far as there is room."""
    least = (("calls", 6), ("waited", 8))
    if width < 100:
        return least
    return (("calls", 6), ("retries", 8), ("waited", 8), ("tokens", 8))


def _row(row: SessionRow, name_width: int, columns: Iterable[tuple[str, int]]) -> Text:
    line = Text(_cut(_name(row), name_width).ljust(name_width) + " ", style="" if row.depth == 0 else "dim")
    for cell in row.cells:
        glyph, style = _GLYPHS[cell]
        line.append(glyph, style=style)
    values = {
        "calls": str(row.calls),
        "retries": str(row.retries) if row.retries else "",
        "waited": brief(row.waited_s) if row.waited_s >= 0.05 else "",
        "tokens": short(row.tokens),
    }
    for title, size in columns:
        line.append(f"{values[title]:>{size}}")
    if row.lost:
        line.stylize("red", 0, name_width)
    return line


def _name(row: SessionRow) -> str:
    session = "" if row.session in (row.agent, "") else f" {row.session.rpartition('/')[2][:8]}"
    return f"{'  ' * (row.depth - 1)}└ {session.strip() or row.agent}" if row.depth else f"{row.agent}{session}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _axis(ended_s: float, width: int) -> str:
    """A ruler: instants, each above its cell."""
    wanted_s = ended_s * _TICK_CELLS / width
    step_s = next((step for step in _STEPS_S if step >= wanted_s), _STEPS_S[-1] * max(1, ceil(wanted_s / _STEPS_S[-1])))
    line = [" "] * width
    for number in range(int(ended_s / step_s) + 1 if step_s else 1):
        place = int(number * step_s / ended_s * width) if ended_s else 0
        label = f"|{brief(number * step_s)}"
        if place + len(label) <= width:
            line[place : place + len(label)] = label
    return "".join(line)


def _totals(capture: Capture) -> Iterator[tuple[str, str]]:
    ends = Counter(call.end for call in capture.calls)
    yield ("calls", ", ".join(f"{count} {end}" for end, count in ends.most_common()))
    attempts = [attempt for call in capture.calls for attempt in call.attempts]
    kinds = Counter("answered" if one.kind is OutcomeKind.SUCCESS else one.reason for one in attempts)
    yield ("attempts", ", ".join(f"{count} {words}" for words, count in kinds.most_common(8)))
    waits = sorted(call.waited_s for call in capture.calls)
    middle, most = waits[len(waits) // 2], waits[-1]
    late = waits[min(len(waits) - 1, ceil(0.95 * len(waits)) - 1)]
    yield ("waited", f"p50 {brief(middle)}, p95 {brief(late)}, most {brief(most)}, all {brief(sum(waits))}")
    usages = [attempt.usage for attempt in attempts if attempt.usage is not None]
    if usages:
        read, output = sum(one.cache_read_tokens for one in usages), sum(one.output_tokens for one in usages)
        fresh = sum(one.input_tokens + one.cache_write_tokens for one in usages)
        yield ("tokens", f"{short(fresh)} in, {short(read)} read from the prompt cache, {short(output)} out")
    yield from _limits(capture)


def _limits(capture: Capture) -> Iterator[tuple[str, str]]:
    last: dict[PoolKey, dict[str, LimitSeen]] = defaultdict(dict)
    for limit in capture.limits:
        last[limit.pool][limit.meter] = limit
    moves: dict[PoolKey, list[int]] = defaultdict(list)
    for move in capture.moves:
        moves[move.pool].append(move.limit)
    for number, pool in enumerate(dict.fromkeys((*(call.pool for call in capture.calls), *last))):
        told = [limit_words(limit) for limit in last[pool].values() if limit.meter != CONCURRENCY]
        if moves[pool]:
            low, high = min(moves[pool]), max(moves[pool])
            told.append(f"{low} at a time" if low == high else f"{low} to {high} at a time, at last {moves[pool][-1]}")
        yield ("" if number else "limits", f"{pool}: {'; '.join(told) or 'none were told'}")


def limit_words(limit: LimitSeen) -> str:
    """In words: `50 requests per min (window)`."""
    what = limit.dimension.value.replace("_", " ") if limit.dimension else limit.meter
    per = f" per {_WINDOWS.get(limit.window_s, brief(limit.window_s))}" if limit.window_s else ""
    kind = f" ({limit.kind})" if limit.kind in ("bucket", "window") else ""
    number = short(limit.limit) if limit.dimension is not Dimension.REQUESTS else f"{limit.limit:g}"
    return f"{number} {what}{per}{kind}"


_WINDOWS = {1.0: "s", 60.0: "min", 3600.0: "h", 86_400.0: "day"}


def _count(names: Iterable[str]) -> int:
    return len(set(names))
