"""The papers' own figures, read in November 2026. docs/papers.md names the texts."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """From the least to the most, in per cent unless said otherwise."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g}" if self.least < self.most else f"{self.most:g}"


# HiveMind ------------------------------------------------------------------------------------------------------------

LOST: Mapping[str, tuple[int, int]] = {
    "micro-10": (100, 0),
    "replay-11": (73, 0),
    "stress": (100, 10),
    "micro-50": (100, 0),
}
"""Scenario → agents lost without and with HiveMind, in per cent. Of the other three no figure is at hand."""
LOST_WITHOUT, LOST_WITH = Range(72, 100), Range(0, 18)
"""Over their seven scenarios."""
LESS_WASTE = Range(48, 100)
"""Wasted compute that is saved."""
OVERHEAD_MS = 3.0
"""Added to a request before Ollama: less than this."""
LOST_WITHOUT_RETRY = Range(36, 73)
"""In the paper's own ablation."""
FALSIFIED_ABOVE = 0.20
"""Agents lost, of thirty, in a new workload with other dynamics: more would prove the claim wrong."""

# AgentRM -------------------------------------------------------------------------------------------------------------

P95_LESS, LANE_WASTE_LESS, THROUGHPUT_MORE = 86, 96, 168
"""Of AgentRM's MLFQ beside a baseline without a name, in per cent."""
ZOMBIES = (29, 0)
"""Without and with."""

# The article on fleets -----------------------------------------------------------------------------------------------

LAYERED_ATTEMPTS = 27
"""Attempts for a request where SDK, gateway and agent each try three times."""
PHILOSOPHERS_DEADLOCKED = (95, 100)
"""Of 20 runs each with three GPT-5.2 that act at once: without and with talk, in per cent."""
WORDS_KEPT = 0.42
"""How often an agent did as announced."""
WORDS_KEPT_AT_BEST = 0.76
"""The same of five Gemini 2.5 Flash that talk three times before they act."""
