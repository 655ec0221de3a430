"""`python -m bench.where`: in which packages the proxy spends the processor time of a request, bare mitmdump beside the addon.

Sampled by processor time; what a library needs counts for the package that called it.
"""

import sys
from dataclasses import dataclass

from bench.calls import counting
from bench.plan import SMALL_BYTES, Cell
from bench.rounds import sample

CONNECTIONS = 20
_TURNS = 4
"""Of each proxy, so that what drifts is no variant's burden."""


@dataclass(frozen=True)
class Spent:
    """For one request, in seconds."""

    by_package: dict[str, float]
    collector_s: float
    """Of it the cycle collector's."""


def measure(stack, questions, requests, *, streamed=True):
    """By proxy. The collector runs as it does for users."""
    cell = Cell(SMALL_BYTES, streamed, CONNECTIONS, requests)
    told = {variant: {} for variant in questions}
    cpu_s = dict.fromkeys(questions, 0.0)
    for variant in questions:
        sample(stack, cell, variant, requests=CONNECTIONS)
    for turn in range(_TURNS):
        for variant in sorted(questions, reverse=turn % 2 == 0):
            questions[variant].ask("sample")
            cpu_s[variant] += sample(stack, cell, variant).cpu_s / _TURNS
            for name, count in questions[variant].ask("sampled").items():
                told[variant][name] = told[variant].get(name, 0) + count
    return {variant: _spent(told[variant], cpu_s[variant], requests * _TURNS) for variant in questions}


def _spent(told, cpu_s, requests):
    collector_s = told.pop("seconds") / requests
    samples = sum(told.values())
    return Spent({name: cpu_s * count / samples for name, count in told.items()}, collector_s)


def table(spent):
    """In Markdown."""
    bare, ours = spent["bare"], spent["addon"]
    lines = ["| Processor time of a request | bare | addon |", "| --- | --- | --- |"]
    for name in sorted({*bare.by_package, *ours.by_package}, key=lambda name: -ours.by_package.get(name, 0)):
        cells = [_ms(one.by_package.get(name, 0)) for one in (bare, ours)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    totals = [_ms(sum(one.by_package.values())) for one in (bare, ours)]
    lines.append(f"| all | {' | '.join(totals)} |")
    lines.append(f"| of it the cycle collector | {_ms(bare.collector_s)} | {_ms(ours.collector_s)} |")
    return "\n".join(lines)


def _ms(seconds):
    return f"{seconds * 1e3:.2f} ms" if seconds >= 0.000_005 else ""


def main():
    with counting() as (stack, questions):
        print(table(measure(stack, questions, 600)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
