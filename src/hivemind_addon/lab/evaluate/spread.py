"""A figure over the seeds: its median, its range, and how sure its mean is. Pure; the same numbers each time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

_RESAMPLES = 400
_TAIL = 0.025


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over the seeds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """At least one value."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """At least one value; of a single one, or of equal ones, the interval is the value itself."""
        mean = fmean(values)
        if len(set(values)) == 1:
            return cls(mean, mean, mean)
        rng = random.Random(0)
        means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(_RESAMPLES))
        return cls(mean, means[int(_TAIL * _RESAMPLES)], means[int((1 - _TAIL) * _RESAMPLES) - 1])

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0
