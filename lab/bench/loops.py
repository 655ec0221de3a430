"""The addon on uvloop (`hivemind run --loop uvloop`) beside the addon on asyncio."""

from importlib.util import find_spec

from lab.bench.rounds import Row, sample

VARIANTS = ("addon", "uvloop")
AVAILABLE = find_spec("uvloop") is not None


def measure(stack, plan):
    """Rows of some cells; none where uvloop is not installed."""
    if not AVAILABLE:
        return []
    proxy = stack.start_addon("uvloop", slots=256, loop="uvloop")
    for cell in plan.loop_cells:
        for variant in VARIANTS:
            sample(stack, cell, variant, requests=cell.concurrency)
    rounds = []
    for number in range(plan.loop_rounds):
        order = VARIANTS if number % 2 == 0 else VARIANTS[::-1]
        rounds.append([{variant: sample(stack, cell, variant) for variant in order} for cell in plan.loop_cells])
    stack.stop(proxy.process)
    del stack.proxies["uvloop"]
    return [Row(cell, samples) for cell, samples in zip(plan.loop_cells, zip(*rounds, strict=True), strict=True)]
