"""`python -m bench [--quick]`: measure, print, and (a full run) write docs/bench.md. Exit status 1: the check failed."""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import decisions, inside, memory, report, rounds
from bench.plan import FULL, QUICK
from bench.stack import Stack

PAGE = Path(__file__).parents[1] / "docs" / "bench.md"


@dataclass(frozen=True)
class Check:
    """Whether what was measured is what was meant: every request scheduled, and no guard tripped."""

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


def run(plan, command, tell=print):
    """Measure everything; the page and the check."""
    with tempfile.TemporaryDirectory(prefix="hivemind-bench-") as folder, Stack(Path(folder)) as stack:
        rows = rounds.measure(stack, plan, tell)
        sent = stack.sent["addon"]
        # A client has its answer a moment before the scheduler has counted it.
        counters = stack.proxies["addon"].counters_when(lambda seen: seen["delivered"] >= sent)
        check = Check(sent, counters["tickets"], counters["delivered"], counters["guard_trips"])
        for proxy in stack.proxies.values():  # what is measured next has the machine for itself
            proxy.process.kill()
        tell("memory")
        held = memory.measure(stack, plan)
    tell("event loop and core")
    intakes = inside.intake_times(plan.intakes)
    core = [decisions.time_calls(queued, plan.decisions) for queued in plan.queued]
    ticket_bytes = decisions.bytes_per_ticket(decisions.WEIGHED)
    return report.page(rows, held, intakes, core, ticket_bytes, check, command), check


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute instead of five; writes no page")
    quick = parser.parse_args(arguments).quick
    page, check = run(
        QUICK if quick else FULL,
        "python -m bench --quick" if quick else "make bench",
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(page)
    if not quick:
        PAGE.write_text(page)
    return 0 if check.passed else 1


if __name__ == "__main__":
    sys.exit(main())
