"""The results as the tables of docs/bench.md."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from math import log
from pathlib import Path

from lab.bench import calls, cluster_scale
from lab.bench.stack import MEASURABLE, PINNED
from lab.markdown import markdown_table

_TITLES = (
    "Request, connections | direct p50 | bare p50 | addon p50 | p50 | first chunk | later pieces | throughput "
    "| processor time | bare req/s"
)
ADDED_AT = "1 KB plain, 1"
"""The cell whose cost stands beside direct."""
_BLOCKED_GOAL_S = 0.002
_DECISION_MEAN_GOAL_S = 50e-6
_DECISION_P99_GOAL_S = 0.0005
_HEAD_P99_GOAL_S = 0.001
_GOAL_QUEUED = 10_000
"""Up to so many tickets that wait."""
_ADDED_GOAL_S = 0.002
_LAG_GOAL_S = 0.010
_HELD_GOAL = 1.02
_IDLE_GOAL = 1.6
_LISTENING_GOAL = 1.5
_COMMAND_GOAL_S = 0.150


@dataclass(frozen=True)
class Results:
    """Of a whole run."""

    rows: list
    check: object
    looped: list
    """On uvloop; empty where uvloop is not installed."""
    counted: dict
    """The proxies' work for a request, by cell: see bench.calls."""
    held: object
    """Memory; None: this system does not tell."""
    watched: object
    starts: list
    commands: list
    intakes: dict
    core: list
    ticket_bytes: float
    grown: list
    scales: list
    """Of a cluster's coordinator."""


def parts(results):
    """The generated parts of docs/bench.md in Markdown, by the names of their marks."""
    return {
        "machine": _machine(),
        "rows": "\n\n".join([rows_table(results.rows), *_notes(results.rows), results.check.text]),
        "uvloop": _looped(results.looped),
        "counts": f"{calls.table(results.counted)}\n{_counted(results.counted)}",
        "inside": _inside(results),
        "around": _around(results),
        "growth": _grown(results.grown),
        "cluster": cluster_scale.table(results.scales),
    }


def _machine():
    python = f"Python {platform.python_version()}"
    packages = ", ".join(f"{name} {version(name)}" for name in ("mitmproxy", "hivemind-addon", "msgspec", "tiktoken"))
    pinning = "the proxy alone on one, client and provider on another" if PINNED else "not pinned"
    system = f"{platform.system()} {platform.machine()}"
    return f"{python}, {packages}; {system}, {_cpu()}, {os.cpu_count()} cores: {pinning}."


def _cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def rows_table(rows):
    lines = []
    for row in rows:
        cells = [
            row.cell.name,
            *(ms(row.value(variant, "p50_s")) for variant in ("direct", "bare", "addon")),
            _ratio(row, "p50_s"),
            _ratio(row, "first_p50_s") if row.cell.streamed else "",
            f"{_ratio(row, 'transit_p50_s')} ({ms(row.value('bare', 'transit_p50_s'))})"
            if row.cell.interval_ms
            else "",
            _ratio(row, "requests_per_s"),
            f"{_ratio(row, 'cpu_s')} ({ms(row.value('bare', 'cpu_s'))})" if MEASURABLE else "",
            f"{row.value('bare', 'requests_per_s'):.0f}",
        ]
        lines.append(" | ".join(cells))
    return f"{min(len(row.rounds) for row in rows)} rounds.\n\n{markdown_table(_TITLES, lines)}".rstrip()


def _ratio(row, what):
    low, high = row.spread(what)
    return f"{_mark(row.misses(what))}{row.ratio(what):.2f} [{low:.2f}-{high:.2f}]"


def added(rows):
    """The added time of a request of `ADDED_AT`; None where that cell was not measured."""
    row = next((row for row in rows if row.cell.name == ADDED_AT), None)
    if row is None:
        return None
    direct_s = row.value("direct", "p50_s")
    return {
        "added_ms": 1000 * (row.value("addon", "p50_s") - direct_s),
        "bare_added_ms": 1000 * (row.value("bare", "p50_s") - direct_s),
        "rounds": len(row.rounds),
        "machine": _machine(),
    }


def _notes(rows):
    """Sums of the rows in words."""
    notes = []
    cost = added(rows)
    if cost is not None:
        added_s, bare_s = cost["added_ms"] / 1000, cost["bare_added_ms"] / 1000
        notes.append(
            f"Added to direct at 1 KB over one connection, plain HTTP: {_mark(added_s > _ADDED_GOAL_S)}{ms(added_s)} "
            f"(goal ≤ {ms(_ADDED_GOAL_S)}); by bare mitmdump {ms(bare_s)}."
        )
    busiest = max(rows, key=lambda row: row.others_busy())
    notes.append(
        f"Client and provider were busy for at most {busiest.others_busy():.0%} of the time while a proxy was measured "
        f"({busiest.cell.name}): they are not what is measured."
    )
    unpaced = [row for row in rows if not row.cell.interval_ms]
    if unpaced:
        spans = (
            f"{what} {min(values):.2f} to {max(values):.2f}"
            for what, values in (
                (name, [row.ratio(figure) for row in unpaced])
                for name, figure in (("p50", "p50_s"), ("throughput", "requests_per_s"), ("processor time", "cpu_s"))
            )
        )
        notes.append(f"In short, where answers come at once: {', '.join(spans)} of bare mitmdump.")
    goals = [row.misses(what) for row in rows for what in row.cell.goals]
    notes.append(f"{len(goals) - sum(goals)} of {len(goals)} goals of this table are met.")
    return notes


def _looped(rows):
    if not rows:
        return "uvloop is not installed."
    lines = []
    for row in rows:
        cells = []
        for what in ("p50_s", "requests_per_s", "cpu_s"):
            low, high = row.spread(what, "uvloop", "addon")
            cells.append(f"{row.ratio(what, 'uvloop', 'addon'):.2f} [{low:.2f}-{high:.2f}]")
        lines.append(f"{row.cell.name} | {' | '.join(cells)}")
    table = markdown_table("uvloop ÷ asyncio | p50 | throughput | processor time", lines)
    return f"{len(rows[0].rounds)} rounds.\n\n{table}"


def _counted(counted):
    """Counts that have to hold on every machine."""
    ours = [variants["addon"].numbers for variants in counted.values()]
    # Mitmproxy's own page is asked in another way whether a request is for it.
    hooks = all(one["hooks called"] <= one[calls.LISTENERS] and not one.get("addons asked") for one in ours)
    left = max(one[calls.LEFT] for one in ours)
    return (
        f"{_mark(not hooks)}Hooks: {'only listeners are called, and each once at most' if hooks else 'others than listeners are asked'}. "
        f"{_mark(left >= 1)}Left to the cycle collector by a request: {left:.1f} objects at most (goal 0)."
    )


def _inside(results):
    lines = []
    for name, time in results.intakes.items():
        goal = f"median ≤ {ms(_BLOCKED_GOAL_S)}"
        lines.append(_timed(f"a 1 MB body's intake, {name}", time, ms, goal, time.median_s > _BLOCKED_GOAL_S))
    for row in results.core:
        time, head, has_goal = row.decision, row.head, row.queued <= _GOAL_QUEUED
        missed = has_goal and (time.p99_s > _DECISION_P99_GOAL_S or time.mean_s > _DECISION_MEAN_GOAL_S)
        goal = f"mean ≤ {us(_DECISION_MEAN_GOAL_S)}, p99 ≤ {us(_DECISION_P99_GOAL_S)}" if has_goal else ""
        lines.append(_timed(f"a decision, {row.queued:,} queued", time, us, goal, missed))
        missed, goal = has_goal and head.p99_s > _HEAD_P99_GOAL_S, f"p99 ≤ {us(_HEAD_P99_GOAL_S)}" if has_goal else ""
        lines.append(_timed(f"an answer's head, {row.queued:,} queued", head, us, goal, missed))
    watched = results.watched
    lag, goal = watched.lag, f"worst ≤ {ms(_LAG_GOAL_S)}"
    lines.append(_timed(f"the loop's delay, {watched.held} held", lag, ms, goal, lag.max_s > _LAG_GOAL_S))
    lines.append(_timed(f"`/report.json` meanwhile, {watched.page_bytes / 1000:,.0f} KB", watched.page, ms))
    table = markdown_table("What | Median | Mean | p99 | Worst | Goal", lines)
    return f"{table}\nA queued ticket takes {results.ticket_bytes:,.0f} bytes."


def _around(results):
    lines = []
    if results.held is not None:
        held = results.held
        lines.append(
            _beside(
                f"a request of {held.body_bytes // 1000} KB: held ({held.held_flows} of them), in flight through bare",
                f"{held.addon_bytes / 1000:.0f} KB, {held.bare_bytes / 1000:.0f} KB",
                held.addon_bytes / held.bare_bytes,
                _HELD_GOAL,
            )
        )
    bare, *ours = results.starts
    for one in ours:
        times = f"{one.listening_s:.2f} s ({one.cpu_s:.2f}), {bare.listening_s:.2f} s ({bare.cpu_s:.2f})"
        goal = _LISTENING_GOAL if one.name == "hivemind run" else None
        lines.append(_beside(f"`{one.name}`: start to first answer", times, one.listening_s / bare.listening_s, goal))
        if bare.idle_bytes:
            weights = f"{one.idle_bytes / 1e6:.0f} MB, {bare.idle_bytes / 1e6:.0f} MB"
            lines.append(_beside(f"`{one.name}`: memory, idle", weights, one.idle_bytes / bare.idle_bytes, _IDLE_GOAL))
    for one in results.commands:
        goal = f"≤ {ms(_COMMAND_GOAL_S)}" if one.name.startswith("hivemind") else ""
        mark = _mark(bool(goal) and one.wall_s > _COMMAND_GOAL_S)
        lines.append(f"`{one.name}` | {mark}{one.wall_s * 1e3:.0f} ms ({one.cpu_s * 1e3:.0f}) | | {goal}")
    return markdown_table("What (of it processor time) | | Beside bare | Goal", lines)


def _beside(what, values, ratio, goal):
    mark = _mark(goal is not None and ratio > goal)
    return f"{what} | {values} | {mark}{ratio:.2f} | {f'≤ {goal}' if goal else ''}"


def _grown(grown):
    """Marked: figures that grow faster than the logarithm of the number."""
    first, last = grown[0], grown[-1]
    most = log(last.agents) / log(first.agents)
    figures = {
        "p50": (lambda one: one.row.value("addon", "p50_s"), ms),
        "p50, addon ÷ bare": (lambda one: one.row.ratio("p50_s"), "{:.2f}".format),
        "first chunk": (lambda one: one.row.value("addon", "first_p50_s"), ms),
        "processor time a request": (lambda one: one.row.value("addon", "cpu_s"), ms),
        "a decision, 10,000 queued, mean": (lambda one: one.decision_s, us),
        "an answer's head, mean": (lambda one: one.head_s, us),
        "`/report.json`": (lambda one: one.page_s, ms),
        "`hivemind status`": (lambda one: one.status_s, ms),
    }
    lines = []
    for name, (figure, unit) in figures.items():
        growth = figure(last) / figure(first) if figure(first) else 0.0
        lines.append(" | ".join([name, *(unit(figure(one)) for one in grown), f"{_mark(growth > most)}{growth:.2f}"]))
    names = " | ".join(f"{one.agents:,}" for one in grown)
    table = markdown_table(f"Agents that the scheduler knows | {names} | last ÷ first", lines)
    each_bytes = (last.rss_bytes - first.rss_bytes) / (last.agents - first.agents)
    return (
        f"{table}\n`!` marks more than {most:.1f} times from {first.agents:,} to {last.agents:,}. "
        f"An agent takes about {each_bytes / 1000:.1f} KB of the proxy's memory."
    )


def _timed(what, time, unit, goal="", missed=False):
    figures = " | ".join(unit(seconds) for seconds in (time.median_s, time.mean_s, time.p99_s, time.max_s))
    return f"{what} | {figures} | {_mark(missed)}{goal}"


def _mark(missed):
    return "**!** " if missed else ""


def ms(seconds):
    return f"{seconds * 1e3:.2f} ms"


def us(seconds):
    return f"{seconds * 1e6:.0f} µs"
