"""`python -m lab.bench [--quick | --only TEXT [--json FILE]] [--rounds N]`: measure, print, and (a full run) write docs/bench.md.

Exit status 1: the check failed.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from lab.bench import (
    calls,
    cluster_scale,
    decisions,
    growth,
    inside,
    report,
    rounds,
    starts,
    watched,
)
from lab.bench.plan import FULL, QUICK
from lab.bench.stack import Stack
from lab.markdown import markdown_filled

PAGE = Path(__file__).parents[2] / "docs" / "bench.md"


@dataclass(frozen=True)
class Check:
    """Whether every request was scheduled, and no guard tripped."""

    sent: int
    tickets: int
    delivered: int
    guard_trips: int

    @property
    def passed(self):
        return self.sent == self.tickets == self.delivered and self.guard_trips == 0

    @property
    def text(self):
        return (
            f"Check {'passed' if self.passed else 'FAILED'}: {self.sent} requests were sent through the addon, "
            f"{self.tickets} were scheduled, {self.delivered} delivered; guard trips: {self.guard_trips}."
        )


def compare(stack, plan, tell):
    """The cells, and the check."""
    rows = rounds.measure(stack, plan.cells, min_rounds=plan.min_rounds, max_s=plan.max_s, tell=tell)
    sent = stack.sent["addon"]
    # A client has its answer a moment before the scheduler has counted it.
    counters = stack.proxies["addon"].counters_when(lambda seen: seen["delivered"] >= sent)
    return rows, Check(sent, counters["tickets"], counters["delivered"], counters["guard_trips"])


def on_uvloop(stack, plan):
    """Rows of the addon on uvloop (`hivemind run --loop uvloop`) beside the addon on asyncio; empty without uvloop."""
    if find_spec("uvloop") is None:
        return []
    stack.start_addon("uvloop", slots=256, loop="uvloop")
    rows = rounds.measure(stack, plan.loop_cells, ("addon", "uvloop"), min_rounds=plan.loop_rounds)
    stack.stop(stack.proxies.pop("uvloop").process)
    return rows


def run_cells(plan, tell=print):
    """Only some cells: their table and the check, and their cost (see `report.added`)."""
    with tempfile.TemporaryDirectory(prefix="hivemind-bench-") as folder, Stack(Path(folder)) as stack:
        rows, check = compare(stack, plan, tell)
    return f"{report.rows_table(rows)}\n\n{check.text}", check, report.added(rows)


def run(plan, tell=print):
    """Measure everything; the parts of the page and the check."""
    with tempfile.TemporaryDirectory(prefix="hivemind-bench-") as folder, Stack(Path(folder)) as stack:
        rows, check = compare(stack, plan, tell)
        tell("uvloop")
        looped = on_uvloop(stack, plan)
        tell("commands")
        called = starts.commands(stack, stack.proxies["addon"], plan.starts)
        stack.stop(stack.proxies.pop("addon").process)  # what is measured next has the machine for itself
        tell("growth")
        grown = growth.measure(stack, plan, tell)
        stack.stop(*(proxy.process for proxy in stack.proxies.values()))
        tell("starts")
        started = starts.starts(stack, plan.starts)
        tell("memory")
        held = watched.measure_memory(stack, plan)
        tell("event loop")
        watching = watched.measure(stack, plan.watched_flows, plan.watched_s)
    tell("core")
    intakes = inside.intake_times(plan.intakes)
    core = [decisions.time_calls(queued, plan.decisions) for queued in plan.queued]
    ticket_bytes = decisions.bytes_per_ticket(decisions.WEIGHED)
    tell("counts")
    with calls.counting() as (counting, questions):
        counted = calls.count(counting, questions, calls.CELLS[: plan.counted_cells])
    tell("cluster")
    scales = cluster_scale.measure(plan)
    results = report.Results(
        rows, check, looped, counted, held, watching, started, called, intakes, core, ticket_bytes, grown, scales
    )
    return report.parts(results), check


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m lab.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute instead of twelve; writes no page")
    parser.add_argument(
        "--only", metavar="TEXT", help="only the cells whose name has this, and nothing else; writes no page"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="so many rounds, however long they take")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"with --only: what {report.ADDED_AT} costs, here")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else FULL
    if options.rounds:
        plan = replace(plan, min_rounds=options.rounds, max_s=0)
    if options.json and options.only != report.ADDED_AT:
        parser.error(f'--json takes --only "{report.ADDED_AT}"')
    tell = partial(print, file=sys.stderr, flush=True)
    if options.only is not None:
        cells = tuple(cell for cell in plan.cells if options.only in cell.name)
        if not cells:
            parser.error(f"no cell has {options.only!r} in its name: {'; '.join(cell.name for cell in plan.cells)}")
        page, check, added = run_cells(replace(plan, cells=cells), tell)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(added))
    else:
        parts, check = run(plan, tell)
        page = "\n\n".join(parts.values())
        if not options.quick:
            PAGE.write_text(markdown_filled(PAGE.read_text(), parts))
    print(page)
    return 0 if check.passed else 1


if __name__ == "__main__":
    sys.exit(main())
