"""Memory of a held flow: a proxy that holds many large requests, beside bare mitmdump with as many in flight."""

from dataclasses import dataclass
from pathlib import Path

from lab.bench.bare import __file__ as bare_script
from lab.bench.plan import LARGE_BYTES, REVERSE
from lab.bench.stack import MEASURABLE

_LATENCY_S = 600


@dataclass(frozen=True)
class Memory:
    held_flows: int
    body_bytes: int
    bare_bytes: float
    """Growth of the resident set for each flow in flight."""
    addon_bytes: float
    """For each held flow."""


def measure(stack, plan):
    """None where the system does not report memory. Two fresh proxies; the addon's has a single slot."""
    if not MEASURABLE:
        return None
    stack.proxies["memory-bare"] = stack.start_proxy("memory-bare", Path(bare_script))
    stack.start_addon("memory-addon", slots=1)
    bare_bytes = _growth(stack, "memory-bare", plan.held_flows)
    # One more than are held: the first one goes at once, and keeps the only slot.
    addon_bytes = _growth(stack, "memory-addon", plan.held_flows + 1)
    held = stack.proxies["memory-addon"].counters()["queued"]
    if held != plan.held_flows:
        raise SystemExit(f"{held} flows were held, not {plan.held_flows}")
    for variant in ("memory-bare", "memory-addon"):
        stack.ask("close", stack.route(variant, REVERSE))
        stack.proxies.pop(variant).process.kill()
    return Memory(plan.held_flows, LARGE_BYTES, bare_bytes, addon_bytes)


def _growth(stack, variant, flows):
    route, proxy = stack.route(variant, REVERSE), stack.proxies[variant]
    # With the connections open and used once, what grows is the flows.
    stack.ask("load", route, concurrency=flows, requests=flows, body_bytes=1_000, streamed=True)
    proxy.settle_down()
    before = proxy.rss_bytes()
    stack.pace(latency_s=_LATENCY_S)
    stack.ask("leave", route, concurrency=flows, body_bytes=LARGE_BYTES, streamed=True)
    proxy.settle_down()
    stack.pace()
    return (proxy.rss_bytes() - before) / flows
