"""`python -m lab.bench.where [--top N] [--large] [--plain]`: in which packages the proxy spends the processor time of a request, bare mitmdump beside the addon.

Sampled by processor time; time inside a library counts for the package that called the library.
"""

import argparse
import sys
from collections import Counter
from dataclasses import dataclass

from lab.bench.calls import counting
from lab.bench.plan import LARGE_BYTES, SMALL_BYTES, Cell
from lab.bench.rounds import sample
from lab.markdown import markdown_table

CONNECTIONS = 20
_TURNS = 4
"""Of each proxy, so that drift is no variant's burden."""


@dataclass(frozen=True)
class Spent:
    """For a request, in seconds."""

    by_package: dict[str, float]
    by_function: dict[str, float]
    collector_s: float
    """The cycle collector's part."""


def measure(stack, questions, requests, *, body_bytes=SMALL_BYTES, streamed=True):
    """By proxy. The collector runs as for users."""
    cell = Cell(body_bytes, streamed, CONNECTIONS, requests)
    told = {variant: [] for variant in questions}
    loop_s, others_s = dict.fromkeys(questions, 0.0), dict.fromkeys(questions, 0.0)
    for variant in questions:
        sample(stack, cell, variant, requests=CONNECTIONS)
    for turn in range(_TURNS):
        for variant in sorted(questions, reverse=turn % 2 == 0):
            proxy = stack.proxies[variant]
            questions[variant].ask("sample")
            before_s = proxy.loop_cpu_s()
            spent_s = sample(stack, cell, variant).cpu_s
            own_s = (proxy.loop_cpu_s() - before_s) / requests
            loop_s[variant] += own_s / _TURNS
            others_s[variant] += max(0.0, spent_s - own_s) / _TURNS
            told[variant].append(questions[variant].ask("sampled"))
    return {
        variant: _spent(told[variant], loop_s[variant], others_s[variant], requests * _TURNS) for variant in questions
    }


def _spent(told, loop_s, others_s, requests):
    packages, functions = (sum((Counter(one[what]) for one in told), Counter()) for what in ("packages", "functions"))
    each_s = loop_s / max(1, packages.total())
    return Spent(
        {name: each_s * count for name, count in packages.items()} | {"other threads": others_s},
        {name: each_s * count for name, count in functions.items()},
        sum(one["collector_s"] for one in told) / requests,
    )


def table(spent):
    """In Markdown."""
    bare, ours = spent["bare"], spent["addon"]
    lines = []
    for name in sorted({*bare.by_package, *ours.by_package}, key=lambda name: -ours.by_package.get(name, 0)):
        cells = [_ms(one.by_package.get(name, 0)) for one in (bare, ours)]
        lines.append(f"{name} | {' | '.join(cells)}")
    totals = [_ms(sum(one.by_package.values())) for one in (bare, ours)]
    lines.append(f"all | {' | '.join(totals)}")
    lines.append(f"of it the cycle collector | {_ms(bare.collector_s)} | {_ms(ours.collector_s)}")
    return markdown_table("Processor time of a request | bare | addon", lines)


def _ms(seconds):
    return f"{seconds * 1e3:.2f} ms" if seconds >= 0.000_005 else ""


def top(spent, most):
    """The functions in which the most time is spent, their libraries included."""
    lines = []
    for variant, one in spent.items():
        lines += [f"\nthrough {variant}"]
        for name, seconds in sorted(one.by_function.items(), key=lambda item: -item[1])[:most]:
            lines.append(f"{_ms(seconds):>10}  {name}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="python -m lab.bench.where", description=__doc__)
    parser.add_argument("--top", type=int, default=0, metavar="N", help="the functions that take the most")
    parser.add_argument("--large", action="store_true", help="600 KB instead of 1 KB")
    parser.add_argument("--plain", action="store_true", help="answers in one piece")
    options = parser.parse_args()
    with counting() as (stack, questions):
        body_bytes, requests = (LARGE_BYTES, 250) if options.large else (SMALL_BYTES, 600)
        spent = measure(stack, questions, requests, body_bytes=body_bytes, streamed=not options.plain)
    print(table(spent))
    if options.top:
        print(top(spent, options.top))
    return 0


if __name__ == "__main__":
    sys.exit(main())
