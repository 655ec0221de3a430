"""What input costs, and what turns would take at least: with a prompt cache that forgets nothing. Pure."""

from collections import Counter

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim.workload import Crowd

_WRITE, _READ = 1.25, 0.1
"""What an input token costs that is written to or read from a prompt cache, of one that is neither."""


def input_cost(*, uncached_tokens: int, written_tokens: int, cached_tokens: int) -> float:
    """Of one prompt, in uncached tokens."""
    return uncached_tokens + written_tokens * _WRITE + cached_tokens * _READ


class Ideal:
    """What the turns of all crowds take at least."""

    def __init__(self) -> None:
        self.cost = 0.0
        """Of their input, in uncached tokens."""
        self._written: set[str] = set()
        """Crowds whose shared instructions the cache holds."""

    def __repr__(self) -> str:
        return f"<Ideal {self.cost:,.0f} tokens>"

    def book(self, crowd: Crowd, *, prompt_tokens: int, marked: int, output_tokens: int) -> Counter[Dimension]:
        """What one turn takes of each limit. `marked`: tokens of the agent's last answered prompt."""
        read = 0
        if crowd.caches:
            read = marked or (crowd.shared_tokens if crowd.name in self._written else 0)
            self._written.add(crowd.name)
        new = prompt_tokens - read
        self.cost += read * _READ + new * (_WRITE if crowd.caches else 1.0)
        return Counter(
            {
                Dimension.REQUESTS: 1,
                Dimension.INPUT_TOKENS: new,
                Dimension.OUTPUT_TOKENS: output_tokens,
                Dimension.TOTAL_TOKENS: new + output_tokens,
            }
        )
