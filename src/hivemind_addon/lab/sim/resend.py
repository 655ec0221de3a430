"""How long a client waits before it sends again what failed: as the providers' SDKs do. Pure."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SdkBackoff:
    """Between the re-sends of one request."""

    first_s: float = 0.5
    """Doubles from one re-send to the next."""
    max_s: float = 8.0
    retry_after_max_s: float = 60.0
    """A longer retry-after is not obeyed."""

    def wait_s(self, retry: int, retry_after_s: float | None, rng: random.Random) -> float:
        """Before re-send number `retry`, counted from 0."""
        if retry_after_s is not None and 0 < retry_after_s <= self.retry_after_max_s:
            return retry_after_s
        return min(self.first_s * 2.0**retry, self.max_s) * (1 - 0.25 * rng.random())
