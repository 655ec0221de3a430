"""`python -m lab.bench.calls [--only CELL] [--top N]`: counts the work of a request. No time is measured: on a busy machine, too,
the numbers are the same again.

Bare mitmdump beside the addon, with single requests; the least of some requests, so that events of every second are
left out. Python calls count each start of a function and each resumption of a generator or coroutine.
"""

import argparse
import select
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lab.bench.plan import read_plan
from lab.bench.stack import HERE, Questions, Stack
from lab.markdown import markdown_table

REQUESTS = 9
WARM_UP = 3
CELLS = read_plan("counts")["cells"]
CALLS = "Python calls"
LISTENERS = "listeners"
"""Addons that have a hook of a request, for each hook."""
LEFT = "objects left to the collector"
FIRST = read_plan("counts")["first"]
"""The order of the table; the folders of the addon follow."""
_STILL_S = 0.04
_MOST_WAITS = 50


@dataclass(frozen=True)
class Counts:
    """Of a request of a cell through a proxy."""

    numbers: dict[str, float]
    left: dict[str, float]
    """Objects that only the collector frees, by type."""
    steps: dict[str, float]
    """The interpreter's instructions in each function."""
    functions: dict[str, float]
    """The calls of each of our functions."""
    origins: dict[str, float]
    """Who made tasks, futures, timers and callbacks; whose hooks were called."""


def _still(questions):
    """The counts when nothing happens any more."""
    before = questions.ask("read")
    for _ in range(_MOST_WAITS):
        select.select([], [], [], _STILL_S)
        now = questions.ask("read")
        if now.get(CALLS) == before.get(CALLS):
            break
        before = now
    return before


@contextmanager
def counting():
    """Both proxies of a stack with the script that counts, and their `Questions`."""
    with (
        tempfile.TemporaryDirectory(prefix="hivemind-calls-") as folder,
        Stack(Path(folder), HERE / "counted.py") as stack,
    ):
        yield stack, {name: Questions(stack.proxies[name].counters_port) for name in ("bare", "addon")}


def measure(stack, questions, cell, variant):
    """A cell through a proxy."""
    asked = questions[variant]

    def send(requests):
        stack.pace(interval_s=cell.interval_ms / 1000)
        answer = stack.ask(
            "load",
            stack.route(variant, cell.mode, cell.format),
            concurrency=1,
            requests=requests,
            body_bytes=cell.body_bytes,
            streamed=cell.streamed,
            format=cell.format,
        )
        if answer["failures"]:
            raise SystemExit(f"{cell.name}, {variant}: {answer['failures']}")

    send(WARM_UP)
    _still(asked)
    asked.ask("collect")
    send(cell.requests)
    _still(asked)
    left = asked.ask("collect")
    asked.ask("begin")
    samples = []
    before = _still(asked)
    told_before = {what: Counter(asked.ask(what)) for what in ("steps", "top", "origins")}
    for _ in range(cell.requests):
        send(1)
        after = _still(asked)
        samples.append(Counter(after) - Counter(before))
        before = after
    told = {what: _each(Counter(asked.ask(what)) - earlier, cell.requests) for what, earlier in told_before.items()}
    asked.ask("end")
    names = {name for sample in samples for name in sample}
    numbers = {name: min(sample[name] for sample in samples) for name in names}
    numbers[LEFT] = sum(left.values()) / cell.requests
    numbers[LISTENERS] = sum(asked.ask("listeners").values())
    return Counts(numbers, _each(left, cell.requests), told["steps"], told["top"], told["origins"])


def count(stack, questions, cells):
    """Each cell through both proxies."""
    return {
        cell: {variant: measure(stack, questions, cell, variant) for variant in ("bare", "addon")} for cell in cells
    }


def _each(counts, requests):
    return {name: count / requests for name, count in sorted(counts.items(), key=lambda item: -item[1])}


def table(counted):
    """All cells in Markdown: bare's number and ours."""
    cells = list(counted)
    numbers = [counted[cell][variant].numbers for cell in cells for variant in ("bare", "addon")]
    names = {name for one in numbers for name, number in one.items() if number}
    rows = [*(name for name in FIRST if name in names), *sorted(names - set(FIRST))]
    lines = []
    for name in rows:
        pairs = [
            ", ".join(_number(counted[cell][variant].numbers.get(name, 0)) for variant in ("bare", "addon"))
            for cell in cells
        ]
        lines.append(f"{name} | {' | '.join(pairs)}")
    return markdown_table(f"one request: bare, addon | {' | '.join(cell.name for cell in cells)}", lines)


def _number(number):
    return f"{number:.1f}".removesuffix(".0")


def details(counted, most):
    """For each cell the objects left to the collector, and our functions with the most calls."""
    lines = []
    for cell, variants in counted.items():
        for title, numbers in (
            ("left to the collector through bare", variants["bare"].left),
            ("left to the collector through the addon", variants["addon"].left),
            ("made by, through bare", variants["bare"].origins),
            ("made by, through the addon", variants["addon"].origins),
            ("instructions by function", variants["addon"].steps),
            ("calls of our functions", variants["addon"].functions),
        ):
            lines += [f"\n{cell.name}: {title}"]
            lines += [f"{_number(number):>8}  {name}" for name, number in list(numbers.items())[:most]]
    return "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m lab.bench.calls", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="the cells whose name has this, `1 KB plain` for example"
    )
    parser.add_argument(
        "--top",
        type=int,
        default=0,
        metavar="N",
        help="the functions with the most instructions and calls, and garbage by type",
    )
    parser.add_argument("--requests", type=int, default=REQUESTS, metavar="N")
    options = parser.parse_args(arguments)
    cells = [replace(cell, requests=options.requests) for cell in CELLS if options.only in cell.name]
    if not cells:
        parser.error(f"no cell has {options.only!r} in its name: {'; '.join(cell.name for cell in CELLS)}")
    with counting() as (stack, questions):
        counted = count(stack, questions, cells)
    print(table(counted))
    if options.top:
        print(details(counted, options.top))
    return 0


if __name__ == "__main__":
    sys.exit(main())
