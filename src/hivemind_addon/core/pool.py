"""One provider limit domain: its meters, concurrency limit, breaker and queue."""

from dataclasses import dataclass, field

from hivemind_addon.core.aimd import ConcurrencySettings
from hivemind_addon.core.breaker import BreakerSettings
from hivemind_addon.core.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a profile says about its pools."""

    concurrency: ConcurrencySettings = field(default_factory=ConcurrencySettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
