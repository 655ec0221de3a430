"""The results as a page."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from math import log
from pathlib import Path

from lab.bench import calls, cluster_scale, where
from lab.bench.decisions import AGENTS, IN_FLIGHT, SESSIONS
from lab.bench.stack import MEASURABLE, PINNED

_COLUMNS = (
    "Request, connections",
    "direct p50",
    "bare p50",
    "addon p50",
    "p50",
    "first chunk",
    "later pieces",
    "throughput",
    "processor time",
    "bare req/s",
)
ADDED_AT = "1 KB plain, 1"
"""The cell whose cost is told beside direct."""
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
DISK = """\
The event loop does not wait for the disk: with journal, event log and capture on, its thread opened, read, wrote and
synced no file in 200 streamed requests (`strace`); the only calls on files were mitmproxy's own, which looks at its
scripts once a second. An agents file adds one `stat` every two seconds."""
"""Not measured by a run; measured anew by hand when the way of a request changes."""


@dataclass(frozen=True)
class Results:
    """Of a whole run."""

    rows: list
    check: object
    looped: list
    """On uvloop; empty: it is not installed."""
    counted: dict
    """What the proxies did for a request, by cell: see bench.calls."""
    spent: dict
    """Where the time went, by proxy: see bench.where."""
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


def page(results, command):
    """Everything in Markdown."""
    rounds = min(len(row.rounds) for row in results.rows)
    parts = [
        "# Benchmarks",
        _command(command),
        _machine(),
        "## A request's way",
        _setting(rounds),
        rows_table(results.rows),
        *_notes(results.rows),
        results.check.text,
        *_looped(results.looped),
        "## What a request makes the proxy do",
        COUNTED,
        calls.table(results.counted),
        _counted(results.counted),
        "## Where the processor time goes",
        SAMPLED,
        where.table(results.spent),
        DISK,
        "## Event loop and core",
        _inside(results),
        "## Memory, starts, commands",
        _around(results),
        "## With more agents",
        *_grown(results.grown),
        cluster_scale.section(results.scales),
    ]
    return "\n\n".join(parts) + "\n"


def _command(command):
    return (
        f"What the addon costs beside bare mitmdump, in one run on one machine: `{command}`. "
        "The ratios are what counts; the absolute numbers are this machine's."
    )


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


def _setting(rounds):
    return (
        "`/v1/messages` through a reverse proxy unless the row says otherwise (forward: a forward proxy, TLS on both "
        "sides; Gemini: `:streamGenerateContent?alt=sse`; Bedrock: `/converse-stream`, signed, with binary answers), "
        "closed loop over kept connections (their number is the row's last), answers of 8 pieces that the provider "
        "sends at once or so many milliseconds apart. Journal, control socket and all other options are as "
        "users have them. Each connection is an agent's, whose requests say the same and go on in one session; in rows of a new "
        "agent each request is the first of a session and of an agent, as few are; the pool's "
        "profile says `concurrency: {initial: 256}`, so that no request waits for a slot of the addon. "
        f"{rounds} rounds of direct, bare, addon, each second one the other way round. p50 to processor time: addon ÷ "
        "bare, the median of the rounds' own ratios, their range in brackets. Later pieces: from the provider's write to the client's read, of "
        "the pieces after the first (bare's in brackets). Processor time: of all threads of the proxy for one request, "
        "with what is left to be written when its session is silent, "
        "which other load on the machine disturbs least (bare's in brackets). `!` marks what misses its goal: p50 ≤ "
        "0.85, throughput ≥ 1.15, of 1 KB over 20 and 200 connections ≤ 0.65 and ≥ 1.50; first chunk ≤ 0.90; later "
        "pieces ≤ 1.00; processor time ≤ 0.80."
    )


def rows_table(rows):
    lines = [f"| {' | '.join(_COLUMNS)} |", "| --- " * len(_COLUMNS) + "|"]
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
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(row, what):
    low, high = row.spread(what)
    return f"{_mark(row.misses(what))}{row.ratio(what):.2f} [{low:.2f}-{high:.2f}]"


def added(rows):
    """What a request of `ADDED_AT` costs more than direct, for `hivemind lab papers`; None: it was not measured."""
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
    """What the rows say together."""
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
        return ()
    lines = ["| uvloop ÷ asyncio | p50 | throughput | processor time |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = []
        for what in ("p50_s", "requests_per_s", "cpu_s"):
            low, high = row.spread(what, "uvloop", "addon")
            cells.append(f"{row.ratio(what, 'uvloop', 'addon'):.2f} [{low:.2f}-{high:.2f}]")
        lines.append(f"| {row.cell.name} | {' | '.join(cells)} |")
    return (
        f"## On uvloop\n\nThe addon as `hivemind run` starts it beside the addon as above, in `mitmdump -s`, {len(rows[0].rounds)} rounds.",
        "\n".join(lines),
    )


COUNTED = (
    "Counted, not timed, so the same on every machine: bare's number and ours, of one request over a kept connection "
    "(`python -m lab.bench.calls`, which also tells our functions with the most calls). Python calls count each start of a "
    "function and each resumption of a generator or coroutine; addons asked: how often an addon was looked at for a "
    "hook; hooks called: how many had it."
)


def _counted(counted):
    """What has to be so, whatever the machine."""
    ours = [variants["addon"].numbers for variants in counted.values()]
    # Mitmproxy's own page is asked in another way whether a request is for it.
    hooks = all(one["hooks called"] <= one[calls.LISTENERS] and not one.get("addons asked") for one in ours)
    left = max(one[calls.LEFT] for one in ours)
    return (
        f"{_mark(not hooks)}Hooks: {'only listeners are called, and each once at most' if hooks else 'others than listeners are asked'}. "
        f"{_mark(left >= 1)}Left to the cycle collector by a request: {left:.1f} objects at most (goal 0)."
    )


SAMPLED = (
    f"Streamed requests of 1 KB over {where.CONNECTIONS} connections, sampled by processor time; what a library needs counts for the "
    "package that called it (`python -m lab.bench.where`)."
)


def _inside(results):
    lines = ["| What | Median | Mean | p99 | Worst | Goal |", "| --- | --- | --- | --- | --- | --- |"]
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
    setting = (
        "A decision is a ticket's arrival or an attempt's end, and what goes because of it, in a pool with four meters "
        f"and {IN_FLIGHT} attempts in flight, whose tickets are of {SESSIONS} sessions of {AGENTS} agents. "
        f"A queued ticket takes {results.ticket_bytes:,.0f} bytes. The loop's delay is its own work's only: requests of "
        "600 KB are held, one goes each second, `/report.json` is fetched each second and `hivemind top` is open."
    )
    return "\n".join(lines) + f"\n\n{setting}"


def _around(results):
    lines = ["| What (of it processor time) | | Beside bare | Goal |", "| --- | --- | --- | --- |"]
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
        lines.append(f"| `{one.name}` | {mark}{one.wall_s * 1e3:.0f} ms ({one.cpu_s * 1e3:.0f}) | | {goal} |")
    return "\n".join(lines)


def _beside(what, values, ratio, goal):
    mark = _mark(goal is not None and ratio > goal)
    return f"| {what} | {values} | {mark}{ratio:.2f} | {f'≤ {goal}' if goal else ''} |"


def _grown(grown):
    """What grows faster than the logarithm of the number is marked."""
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
    names = " | ".join(f"{one.agents:,}" for one in grown)
    lines = [f"| Agents that the scheduler knows | {names} | last ÷ first |", "| --- " * (len(grown) + 2) + "|"]
    for name, (figure, unit) in figures.items():
        growth = figure(last) / figure(first) if figure(first) else 0.0
        values = " | ".join(unit(figure(one)) for one in grown)
        lines.append(f"| {name} | {values} | {_mark(growth > most)}{growth:.2f} |")
    each_bytes = (last.rss_bytes - first.rss_bytes) / (last.agents - first.agents)
    return (
        (
            "Streamed requests of 1 KB over 20 connections, of so many agents in turn. `!` marks what grows faster than the "
            f"logarithm of their number: more than {most:.1f} times from {first.agents:,} to {last.agents:,}."
        ),
        "\n".join(lines),
        f"An agent takes about {each_bytes / 1000:.1f} KB of the proxy's memory.",
    )


def _timed(what, time, unit, goal="", missed=False):
    figures = " | ".join(unit(seconds) for seconds in (time.median_s, time.mean_s, time.p99_s, time.max_s))
    return f"| {what} | {figures} | {_mark(missed)}{goal} |"


def _mark(missed):
    return "**!** " if missed else ""


def ms(seconds):
    return f"{seconds * 1e3:.2f} ms"


def us(seconds):
    return f"{seconds * 1e6:.0f} µs"
