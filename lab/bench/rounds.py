"""The comparison: every variant of every cell, round after round, and what the rounds say together."""

from dataclasses import dataclass
from statistics import median
from time import perf_counter

from lab.bench.stack import VARIANTS


@dataclass(frozen=True)
class Sample:
    """A variant of a cell in a round."""

    p50_s: float
    first_p50_s: float
    transit_p50_s: float
    """From the provider's write to the client's read, of the pieces after the first; 0: none tells."""
    requests_per_s: float
    cpu_s: float
    """Processor time of the proxy for a request; 0: direct, or not known."""
    others_busy: float = 0.0
    """The share of the time that client and provider used of their core."""


@dataclass(frozen=True)
class Row:
    """A cell over all rounds."""

    cell: object
    rounds: tuple[dict[str, Sample], ...]

    def value(self, variant, what):
        """The median over the rounds."""
        return median(getattr(samples[variant], what) for samples in self.rounds)

    def ratio(self, what, variant="addon", base="bare"):
        """The median of the rounds' own ratios."""
        return median(getattr(samples[variant], what) / getattr(samples[base], what) for samples in self.rounds)

    def spread(self, what, variant="addon", base="bare"):
        """The smallest and the largest of them."""
        ratios = [getattr(samples[variant], what) / getattr(samples[base], what) for samples in self.rounds]
        return min(ratios), max(ratios)

    def others_busy(self):
        """The largest median share of their core that client and provider used beside a proxy."""
        return max(self.value(variant, "others_busy") for variant in ("bare", "addon"))

    def misses(self, what):
        """Whether it has a goal and misses it. What comes in numbers a second is to be large."""
        goal = self.cell.goals.get(what)
        if goal is None:
            return False
        ratio = self.ratio(what)
        return ratio < goal if what == "requests_per_s" else ratio > goal


def measure(stack, cells, variants=VARIANTS, *, min_rounds, max_s=0.0, tell=lambda _: None):
    """All rows. Rounds go on while the next one is likely to end within `max_s`. Raises SystemExit on a failure.

    Every second round goes the other way round, so that what drifts is no variant's burden.
    """
    rounds = []
    began = perf_counter()
    for cell in cells:  # connections are opened, and whatever is lazy is loaded
        for variant in variants:
            sample(stack, cell, variant, requests=cell.concurrency)
    warm_s = perf_counter() - began
    began = perf_counter()
    while True:
        order = variants if len(rounds) % 2 == 0 else variants[::-1]
        rounds.append([{variant: sample(stack, cell, variant) for variant in order} for cell in cells])
        spent_s = perf_counter() - began
        tell(f"round {len(rounds)}: {spent_s:.0f} s")
        if len(rounds) >= min_rounds and warm_s + spent_s * (1 + 1 / len(rounds)) > max_s:
            break
    return [Row(cell, samples) for cell, samples in zip(cells, zip(*rounds, strict=True), strict=True)]


def sample(stack, cell, variant, *, requests=None, sessions=0):
    """A load, and the costs. Raises SystemExit when a request failed."""
    stack.pace(interval_s=cell.interval_ms / 1000)
    proxy = stack.proxies.get(variant)
    before_s, others_before_s = proxy.cpu_s() if proxy else 0.0, stack.others_cpu_s()
    answer = stack.ask(
        "load",
        stack.route(variant, cell.mode, cell.format),
        concurrency=cell.concurrency,
        requests=requests or cell.requests,
        body_bytes=cell.body_bytes,
        streamed=cell.streamed,
        sessions=sessions,
        own=not (cell.is_first or sessions),
        format=cell.format,
    )
    if answer["failures"]:
        failures = answer["failures"]
        raise SystemExit(f"{cell.name}, {variant}: {len(failures)} requests failed, the first with {failures[0]}")
    stack.sent[variant] += requests or cell.requests
    others_busy = (stack.others_cpu_s() - others_before_s) / answer["duration_s"]
    if proxy:
        proxy.write_held()  # what a cell leaves to be done later is its own burden, too
    return Sample(
        p50_s=median(answer["latencies_s"]),
        first_p50_s=median(answer["firsts_s"]),
        transit_p50_s=median(answer["transits_s"] or [0.0]),
        requests_per_s=len(answer["latencies_s"]) / answer["duration_s"],
        cpu_s=((proxy.cpu_s() if proxy else 0.0) - before_s) / len(answer["latencies_s"]),
        others_busy=others_busy,
    )
