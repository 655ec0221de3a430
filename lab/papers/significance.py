"""Whether it was chance: the exact sign test over pairs. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SignTest:
    """Two ways on the same seeds, seed by seed: no assumption but that chance prefers neither."""

    better: int
    """Seeds on which the second has less than the first."""
    worse: int
    ties: int

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float]) -> "SignTest":
        """Of as many values each; less is better."""
        pairs = list(zip(first, second, strict=True))
        better, worse = sum(two < one for one, two in pairs), sum(two > one for one, two in pairs)
        return cls(better, worse, len(pairs) - better - worse)

    @property
    def p(self) -> float:
        """How likely so uneven a result is by chance, either way round; ties say nothing. 1 where all are ties."""
        count = self.better + self.worse
        tail = sum(math.comb(count, rare) for rare in range(min(self.better, self.worse) + 1))
        return min(1.0, 2 * tail / (1 << count))

    def __str__(self) -> str:
        total = self.better + self.worse + self.ties
        p = "p < 0.0001" if self.p < 0.0001 else f"p = {self.p:.4f}"
        return f"{self.better} of {total}, {p}"
