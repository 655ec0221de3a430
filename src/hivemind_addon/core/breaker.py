"""The breaker: holds everything while a provider is down, and sends one probe at a time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When the breaker opens and how often it probes."""

    failures_to_open: int = 6
    """Consecutive hard failures, of at least two sessions."""
    first_probe_s: float = 1.0
    """From opening to the first probe; doubles with each probe that fails, ±25 %."""
    max_probe_s: float = 15.0
