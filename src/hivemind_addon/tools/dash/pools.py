"""The pools: what is upstream against the limit, what waits, and every limit with its level and its end. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text

from hivemind_addon.kernel.values.snapshot import MeterView, PoolView, WindowView
from hivemind_addon.kernel.values.ticket import PoolKey, Reason
from hivemind_addon.proxy.api.pool_words import (
    cap_words,
    maximum_words,
    meter_words,
    slots_used,
    troubles,
    window_words,
)
from hivemind_addon.proxy.api.report import PoolStats, Report
from hivemind_addon.proxy.api.words import count, printable, several, span
from hivemind_addon.tools.dash.glyphs import Tone, bar, cut_middle, padded, sentence, spark

_BAR = 12
_SPARK, _WIDE, _WIDE_SPARK = 12, 160, 24
"""A sparkline's width, and what it is on screens that are wide."""
_LOW, _USED = 0.1, 0.8
"""A meter below the one, and a window above the other, is pointed out."""
_BESIDE = 36
"""What the figures beside a name take at least; a name is cut only where it leaves them no room."""
_METER_WIDTH = 59
_RECENT_S = 300.0
_MOVES = 3


class PoolLines(Struct, frozen=True):
    """One pool: its first line, and the ones that may be left out when there is no room."""

    id: str
    key: PoolKey
    head: Text
    more: tuple[Text, ...]


def pool_id(key: PoolKey) -> str:
    """By which a pool is selected."""
    return f"pool {key}"


def pools(report: Report, width: int) -> list[PoolLines]:
    """Every pool, the busiest first."""
    stats_by_key = {stats.key: stats for stats in report.stats.pools}
    ordered = sorted(report.snapshot.pools, key=lambda pool: (-(pool.queued + pool.in_flight), str(pool.key)))
    name_width = min(max((cell_len(printable(str(pool.key))) for pool in ordered), default=0), width - _BESIDE)
    lines, shown = [], set[tuple[str, str, str, tuple[str, ...]]]()
    for pool in ordered:
        # A limit that several pools draw on is shown with the first of them.
        limits = {meter: (pool.key.host, pool.key.account, meter.name, meter.shared_by) for meter in pool.meters}
        meters = [meter for meter in pool.meters if not meter.shared_by or limits[meter] not in shown]
        shown.update(limits.values())
        lines.append(_pool(pool, meters, stats_by_key.get(pool.key), name_width, width))
    return lines


def _pool(
    pool: PoolView, meters: Sequence[MeterView], stats: PoolStats | None, name_width: int, width: int
) -> PoolLines:
    shown = padded(cut_middle(printable(str(pool.key)), name_width), name_width)
    share = pool.in_flight / pool.limit if pool.limit else 0.0
    history = stats.history if stats else ()
    mark, tone = _mark(pool)
    columns = _WIDE_SPARK if width >= _WIDE else _SPARK
    pieces = [
        (0, shown, Tone.TITLE),
        (0, mark, tone),
        (5, bar(share, _BAR), Tone.GOOD),
        (0, slots_used(pool).rjust(len(f"{pool.limit} of {pool.limit} in flight")).ljust(18), ""),
        (4, spark([one.in_flight for one in history], columns, most=pool.limit), Tone.GOOD),
        (0, f"{pool.queued:>4,} queued", Tone.WAITS if pool.queued else Tone.FAINT),
        (2, spark([one.queued for one in history], columns), Tone.WAITS),
        (3, _waits(stats).ljust(27), ""),
    ]
    held = Counter(view.limit.name for view in pool.tickets if view.limit is not None)
    more = [*_meters(meters, held, pool.windows, width), *_notes(pool, stats, width)]
    return PoolLines(pool_id(pool.key), pool.key, sentence(pieces, width), tuple(more))


def _mark(pool: PoolView) -> tuple[str, Tone]:
    """One sign for what keeps the pool."""
    hardest = next(iter(troubles(pool)), None)
    if hardest is None or hardest is Reason.BLOCKED:
        return "●" if pool.in_flight else "·", Tone.GOOD
    return "‖" if hardest is Reason.PAUSED else "!", Tone.BAD


def _rates(stats: PoolStats | None) -> str:
    """Tokens a minute; empty: there were none."""
    if stats is None or not (stats.input_tokens_per_minute or stats.output_tokens_per_minute):
        return ""
    return f"{count(stats.input_tokens_per_minute)} tokens in, {count(stats.output_tokens_per_minute)} out a minute"


def _waits(stats: PoolStats | None) -> str:
    if stats is None or stats.wait_p50_s is None or stats.wait_p95_s is None:
        return ""
    return f"waits p50 {span(stats.wait_p50_s)}, p95 {span(stats.wait_p95_s)}"


def _meters(
    meters: Sequence[MeterView], held: Mapping[str, int], windows: Sequence[WindowView], width: int
) -> Iterator[Text]:
    """Meters and windows, as many beside each other as there is room for; `held`: who waits for which."""
    cells = [_meter(meter, held.get(meter.name, 0)) for meter in meters] + [_window(window) for window in windows]
    each = max(1, width // _METER_WIDTH)
    for start in range(0, len(cells), each):
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        for cell in cells[start : start + each]:
            line.append(cell)
            line.pad_right(max(0, _METER_WIDTH - cell.cell_len))
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
        yield line


def _meter(meter: MeterView, held: int) -> Text:
    share = meter.level / meter.limit if meter.limit > 0 else 0.0
    level, full = meter_words(meter)
    if not held:
        return _level(meter.name, share, level, full, is_low=share < _LOW)
    line = _level(meter.name, share, f"{level} ◂ {held:,}", full, is_low=share < _LOW)  # it binds
    line.stylize(Tone.BAD, 0, 2 + len(meter.name))
    return line


def _window(window: WindowView) -> Text:
    used, ends = window_words(window)
    status = "" if window.status in ("", "allowed") else window.status
    left = 1 - (window.used or 0.0)
    return _level(
        window.name,
        left,
        used,
        ", ".join(filter(None, (ends, printable(status)))),
        is_low=left < 1 - _USED or bool(status),
    )


def _level(name: str, share: float, level: str, end: str, *, is_low: bool) -> Text:
    line = Text("  ", no_wrap=True, end="")
    line.append(padded(printable(name), 13))
    line.append(" ").append(bar(share, _BAR), Tone.WAITS if is_low else Tone.GOOD)
    line.append(f" {level:<14} ", Tone.WAITS if is_low else None)
    line.append(end, Tone.FAINT)
    return line


def _notes(pool: PoolView, stats: PoolStats | None, width: int) -> Iterator[Text]:
    """What else is known: learned limits, what the limit did of late, who is sparing it."""
    learned = [f"learned {printable(one.text)}" for one in pool.learned]
    moves = list(_moves(stats)) if stats else []
    absorbed = stats.retries_absorbed if stats else 0
    pieces = [
        *(
            (0, printable(text), Tone.WAITS if why is Reason.BLOCKED else Tone.BAD)
            for why, text in troubles(pool).items()
        ),
        (1, cap_words(pool), Tone.WAITS),
        (1, maximum_words(pool.maximum_from), Tone.WAITS),
        (2, _rates(stats), ""),
        (2, f"{pool.bypassing} past the scheduler" if pool.bypassing else "", Tone.BAD),
        (3, "; ".join(learned), ""),
        (3, printable(pool.sharing), ""),
        *((3, _shared(pool, meter), "") for meter in pool.meters if meter.shared_by),
        *((5 + 3 * number, f"limit {move}", Tone.FAINT) for number, move in enumerate(moves)),
        (4, f"{absorbed:,} retries absorbed" if absorbed else "", Tone.FAINT),
        (6, f"{stats.throttled:,} refused upstream" if stats and stats.throttled else "", Tone.FAINT),
        (3, several(stats.garbage, "garbage answer") if stats and stats.garbage else "", Tone.WAITS),
    ]
    if any(text for _, text, _ in pieces):
        line = Text("  ", no_wrap=True, end="")
        line.append(sentence(pieces, width - 2, between=" · "))
        yield line


def _shared(pool: PoolView, meter: MeterView) -> str:
    others = ", ".join(printable(group) for group in meter.shared_by if group != pool.key.model_group)
    return f"{printable(meter.name)} shared with {others}"


def _moves(stats: PoolStats) -> Iterator[str]:
    """How the concurrency limit moved of late, the newest first."""
    for move, before in zip_longest(stats.moves[:_MOVES], stats.moves[1 : _MOVES + 1]):
        if move is not None and move.ago_s < _RECENT_S:
            was = "" if before is None else f"{before.limit} "
            yield f"{was}→ {move.limit} {span(move.ago_s)} ago ({printable(move.reason)})"
