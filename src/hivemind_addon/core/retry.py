"""Retry policy: whether and when a failed attempt is tried again. Pure; the scheduler asks it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How patient we are with one ticket. Refusals that waiting cures (429, 529) end only with the deadline."""

    max_failures: int = 10
    """Attempts that may end in 500, 502, a cut or a reset, before the provider's answer goes to the client.
    With 15 % random faults, 9 lose one request in a million."""
    max_ambiguous: int = 4
    """Re-sends after an attempt that ended without a status and may have been billed."""
    first_backoff_s: float = 0.5
    """Before the second attempt; doubles from one to the next."""
    max_backoff_s: float = 30.0
