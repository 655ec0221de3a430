"""Who may steer from the page: keys that open its steering once, and the tokens of pages that have used one.

    key     handed over by the control socket, which only its owner may open; good once, for a minute
    token   what the page gets for it, and sends with each command; good until the page gives it back, twelve hours
            have passed without it, or the process ends

Both are random, and kept in memory as digests only. Time is passed, in seconds of a monotonic clock.
"""

import hashlib
import secrets
from dataclasses import dataclass

KEY_LASTS_S = 60.0
IDLE_S = 12 * 3600.0
MOST = 100
"""Keys and tokens at a time, each; the oldest goes first."""
_BYTES = 32


@dataclass(slots=True)
class _Known:
    user: str
    ends_at: float


class PageSessions:
    """Keys and tokens of one process."""

    def __init__(self) -> None:
        self._keys: dict[bytes, _Known] = {}
        self._tokens: dict[bytes, _Known] = {}

    def make_key(self, user: str, now: float) -> str:
        """A key for a person of this machine; `user`: the name in the journal, may be empty."""
        return _made(self._keys, user, now + KEY_LASTS_S)

    def open(self, key: str, now: float) -> tuple[str, str] | None:
        """The token and the user of a page that has this key, which is good for nothing more; None: it is not good."""
        known = self._keys.pop(_digest(key), None)
        if known is None or now >= known.ends_at:
            return None
        return _made(self._tokens, known.user, now + IDLE_S), known.user

    def user_of(self, token: str, now: float) -> str | None:
        """Whose token it is; None: nobody's (any more)."""
        digest = _digest(token)
        known = self._tokens.get(digest)
        if known is None:
            return None
        if now >= known.ends_at:
            del self._tokens[digest]
            return None
        known.ends_at = now + IDLE_S
        return known.user

    def close(self, token: str) -> None:
        """The page steers no more."""
        self._tokens.pop(_digest(token), None)


def _made(things: dict[bytes, _Known], user: str, ends_at: float) -> str:
    word = secrets.token_urlsafe(_BYTES)
    things[_digest(word)] = _Known(user, ends_at)
    if len(things) > MOST:
        del things[next(iter(things))]
    return word


def _digest(word: str) -> bytes:
    return hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()
