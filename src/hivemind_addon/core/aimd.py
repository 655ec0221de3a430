"""Additive increase, multiplicative decrease: how many attempts may be in flight at once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    """Where the concurrency limit starts and how far it may move."""

    initial: int = 4
    """With nothing known about the provider."""
    maximum: int = 256
    decrease: float = 0.7
    """The factor that one overload applies."""
