"""The results as a page."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from bench.decisions import IN_FLIGHT
from bench.stack import MEASURABLE, PINNED

_GOALS = {"p50_s": 1.10, "first_p50_s": 1.10, "requests_per_s": 0.90}
_COLUMNS = (
    "Request, connections",
    "direct p50",
    "bare p50",
    "addon p50",
    "p50 addon ÷ bare",
    "first chunk",
    "throughput",
    "processor time",
    "bare req/s",
    "p50 bare ÷ direct",
)
_BLOCKED_GOAL_S = 0.002
_DECISION_P99_GOAL_S = 0.001
_DECISION_MEAN_GOAL_S = 50e-6
WHERE = """\
## Where the processor time goes

Sampled once (2026-11-22, stacks of both event loops 800 times a second, 2,500 plain requests of 1 KB over 20
connections, other load on the machine): the shares are rough. Of what the addon adds to bare mitmdump:

| Share | What |
| --- | --- |
| 28 % | mitmproxy's own code, which becomes slower beside more code and data, and has more garbage to collect |
| 20 % | the request: JSON, who asks, fingerprints, estimate, the ticket |
| 15 % | the scheduler's own decisions: arrival, admission, head, end |
| 9 % | the layer and the exchange |
| 9 % | observers: stats, ticket histories, metrics, log |
| 7 % | the answer: head, limits, outcome, usage |
| 6 % | tiktoken; about 0.1 ms for each KB of new text that is short enough to be counted |
| 6 % | the rest: own headers, the proxy's own pages, comment and story, the driver |

Besides tiktoken's no single function has more than 2 % of it. With a body of 600 KB the one pass over its JSON is the
largest part: 14 %. The garbage collector takes about a tenth of the proxy's processor time (bare: a twentieth); most of
what it frees are the cycles of mitmproxy's ended flows. Collecting all generations less often would save half of it,
and keep the bodies of ended flows in memory that much longer; collecting only the younger ones less often saves
nothing that could be measured.

The event loop does not wait for the disk: with journal, event log and capture on, its thread opened, read, wrote and
synced no file in 200 streamed requests (`strace`); the only calls on files were mitmproxy's own, which looks at its
scripts once a second. An agents file adds one `stat` every two seconds."""
"""Not measured by a run; measured anew by hand when the way of a request changes."""


def page(rows, memory, intakes, core, ticket_bytes, check, command):
    """Everything in Markdown."""
    rounds = min(len(row.rounds) for row in rows)
    parts = [
        "# Benchmarks",
        _command(command),
        _machine(),
        "## A request's way",
        _setting(rounds),
        rows_table(rows),
        check.text,
        WHERE,
        "## Event loop, core, memory",
        _inside(memory, intakes, core, ticket_bytes),
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
        "`/v1/messages` through a reverse proxy (two rows: forward proxy with TLS on both sides), closed loop over "
        "keep-alive connections (their number is the row's last), answers of 8 pieces that the simulated provider sends at once "
        "unless the row says otherwise. Every request is the first of a session, so that nothing known makes it "
        "cheaper; the pool's profile says `concurrency: {initial: 256}`, so that no request waits for a slot of the "
        f"addon. {rounds} interleaved rounds of direct, bare, addon; a ratio is the median of the rounds' own "
        "ratios, its range in brackets. Processor time: of the proxy's event loop for one request, addon ÷ bare (and "
        "bare's), which other load on the machine disturbs least. Goals: p50 ≤ 1.10, first chunk ≤ 1.10, throughput ≥ 0.90 of bare mitmdump; "
        "`!` marks what misses its goal."
    )


def rows_table(rows):
    lines = [f"| {' | '.join(_COLUMNS)} |", "| --- " * len(_COLUMNS) + "|"]
    for row in rows:
        cells = [
            row.cell.name,
            *(ms(row.value(variant, "p50_s")) for variant in ("direct", "bare", "addon")),
            _ratio(row, "p50_s"),
            _ratio(row, "first_p50_s") if row.cell.streamed else "",
            _ratio(row, "requests_per_s"),
            f"{row.ratio('cpu_s'):.2f} ({ms(row.value('bare', 'cpu_s'))})" if MEASURABLE else "",
            f"{row.value('bare', 'requests_per_s'):.0f}",
            f"{row.ratio('p50_s', 'bare', 'direct'):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(row, what):
    ratio = row.ratio(what)
    low, high = row.spread(what)
    goal = _GOALS[what]
    missed = ratio > goal if goal > 1 else ratio < goal
    return f"{'**!** ' if missed else ''}{ratio:.2f} [{low:.2f}-{high:.2f}]"


def _inside(memory, intakes, core, ticket_bytes):
    lines = ["| What | Median | Mean | p99 | Goal |", "| --- | --- | --- | --- | --- |"]
    for name, time in intakes.items():
        missed = time.median_s > _BLOCKED_GOAL_S
        goal = f"median ≤ {ms(_BLOCKED_GOAL_S)}"
        lines.append(_timed(f"event loop blocked by a 1 MB body, {name}", time, ms, goal, missed))
    for row in core:
        time = row.decision
        missed = time.p99_s > _DECISION_P99_GOAL_S or time.mean_s > _DECISION_MEAN_GOAL_S
        goal = f"p99 < {us(_DECISION_P99_GOAL_S)}, mean < {us(_DECISION_MEAN_GOAL_S)}"
        lines.append(_timed(f"a decision, {row.queued:,} queued", time, us, goal, missed))
        lines.append(_timed(f"an answer's head, {row.queued:,} queued", row.head, us))
    setting = (
        "A decision is a ticket's arrival or an attempt's end, and what goes because of it, in a pool with four meters "
        f"and {IN_FLIGHT} attempts in flight, whose tickets are of 200 sessions of 50 agents. "
        f"A queued ticket takes {ticket_bytes:,.0f} bytes."
    )
    notes = [setting]
    if memory is not None:
        ratio = memory.addon_bytes / memory.bare_bytes
        notes.append(
            f"Memory: a held flow with a body of {memory.body_bytes // 1000} KB takes "
            f"{memory.addon_bytes / 1000:.0f} KB of the proxy's resident set ({memory.held_flows} held), one in flight "
            f"through bare mitmdump {memory.bare_bytes / 1000:.0f} KB: {ratio:.2f} of it."
        )
    return "\n\n".join(["\n".join(lines), *notes])


def _timed(what, time, unit, goal="", missed=False):
    mark = "**!** " if missed else ""
    return f"| {what} | {unit(time.median_s)} | {unit(time.mean_s)} | {unit(time.p99_s)} | {mark}{goal} |"


def ms(seconds):
    return f"{seconds * 1e3:.2f} ms"


def us(seconds):
    return f"{seconds * 1e6:.0f} µs"
