"""Many samples of a call, summed up."""

from dataclasses import dataclass
from statistics import mean, median, quantiles


@dataclass(frozen=True)
class Timing:
    """Seconds."""

    median_s: float
    p99_s: float
    mean_s: float
    max_s: float

    @classmethod
    def of(cls, samples):
        """Of at least two samples."""
        return cls(median(samples), quantiles(samples, n=100, method="inclusive")[98], mean(samples), max(samples))
