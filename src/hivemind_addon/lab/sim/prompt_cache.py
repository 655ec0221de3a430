"""The prompt cache of the simulated provider. Pure.

An entry can be read once the answer of the call that wrote it has begun; it lives for the cache's time from the start
of the last call that wrote or read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of a prompt, up to one of its marks."""

    key: str
    """Equal for equal beginnings only."""
    tokens: int
    """From the prompt's first token to the mark."""


@dataclass(slots=True)
class _Entry:
    usable_at: float
    expires_at: float


class SimPromptCache:
    """What one provider has cached. Time must not go back between calls."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._entries: dict[str, _Entry] = {}

    def __repr__(self) -> str:
        return f"<PromptCache {len(self._entries)} entries>"

    def cached_tokens(self, prefixes: Sequence[Prefix], now: float) -> int:
        """How many tokens a call that starts now reads from it."""
        return max((prefix.tokens for prefix in prefixes if self._is_usable(prefix.key, now)), default=0)

    def write(self, prefixes: Sequence[Prefix], now: float, *, usable_at: float) -> None:
        """A call that starts now was let through; its answer begins at `usable_at`."""
        for prefix in prefixes:
            entry = self._entries.get(prefix.key)
            if entry is None or entry.expires_at <= now:
                self._entries[prefix.key] = _Entry(usable_at, now + self._ttl_s)
            else:
                entry.usable_at = min(entry.usable_at, usable_at)
                entry.expires_at = now + self._ttl_s

    def _is_usable(self, key: str, now: float) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.usable_at <= now < entry.expires_at
