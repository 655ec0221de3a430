"""Simulated services that are no models, as strict as theirs: what each answers, and what it counted. Pure.

SimGithub   5,000 calls an hour and 30 searches a minute, told by headers; 900 points a minute (a write takes five)
            and 100 calls at a time, told by nothing but a 403 with a retry-after of a minute. What is refused by a
            secondary limit counts in it.
SimSearch   100 calls a minute, told by nothing but a 429 with a retry-after
"""

import math
import random
from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol

_HOUR_S, _MINUTE_S = 3600.0, 60.0
_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class ServiceReply(NamedTuple):
    """One answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    takes_s: float
    """From the call to its head."""


class SimService(Protocol):
    """Decides as a call comes. `ended` follows each call once, when its answer has gone."""

    refused: Counter[str]
    """By which limit."""
    calls: int

    def came(self, method: str, path: str, now: float, wall: float) -> ServiceReply:
        """Answer a call."""

    def ended(self) -> None:
        """A call is over."""


class _Window:
    """So much in each span that begins with its first call."""

    def __init__(self, limit: int, span_s: float) -> None:
        self.limit, self.span_s = limit, span_s
        self.used, self.resets_at = 0, -math.inf

    def take(self, now: float) -> bool:
        """Whether one more fits; what does not is not counted."""
        if now >= self.resets_at:
            self.used, self.resets_at = 0, now + self.span_s
        self.used += 1
        if self.used > self.limit:
            self.used = self.limit
            return False
        return True


class SimGithub:
    """One account."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._windows = {"core": _Window(5000, _HOUR_S), "search": _Window(30, _MINUTE_S)}
        self._points: deque[tuple[float, int]] = deque()
        self._in_flight = 0
        self.refused: Counter[str] = Counter()
        self.calls = 0

    def __repr__(self) -> str:
        return f"<SimGithub {self.calls} calls, {self.refused.total()} refused>"

    def came(self, method: str, path: str, now: float, wall: float) -> ServiceReply:
        """Answer a call."""
        self.calls += 1
        self._in_flight += 1
        self._points.append((now, 1 if method in _READS else 5))
        while self._points[0][0] <= now - _MINUTE_S:
            self._points.popleft()
        resource = "search" if path.startswith("/search/") else "core"
        if self._in_flight > 100:
            return self._refuse("concurrency", resource, now, wall)
        if sum(points for _, points in self._points) > 900:
            return self._refuse("points", resource, now, wall)
        if not self._windows[resource].take(now):
            self.refused[resource] += 1
            body = b'{"message": "API rate limit exceeded for user ID 1."}'
            return ServiceReply(403, self._headers(resource, now, wall), body, 0.05)
        takes_s = self._rng.uniform(0.15, 0.6)
        return ServiceReply(200 if method in _READS else 201, self._headers(resource, now, wall), b"{}", takes_s)

    def ended(self) -> None:
        """A call is over."""
        self._in_flight -= 1

    def _refuse(self, limit: str, resource: str, now: float, wall: float) -> ServiceReply:
        self.refused[limit] += 1
        body = b'{"message": "You have exceeded a secondary rate limit. Please wait a few minutes."}'
        headers = {**self._headers(resource, now, wall), "retry-after": "60"}
        return ServiceReply(403, headers, body, 0.05)

    def _headers(self, resource: str, now: float, wall: float) -> Mapping[str, str]:
        window = self._windows[resource]
        return {
            "content-type": "application/json",
            "x-ratelimit-limit": str(window.limit),
            "x-ratelimit-remaining": str(window.limit - window.used),
            "x-ratelimit-reset": str(math.ceil(wall + max(0.0, window.resets_at - now))),
            "x-ratelimit-resource": resource,
        }


class SimSearch:
    """One key."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._window = _Window(100, _MINUTE_S)
        self.refused: Counter[str] = Counter()
        self.calls = 0

    def __repr__(self) -> str:
        return f"<SimSearch {self.calls} calls, {self.refused.total()} refused>"

    def came(self, method: str, path: str, now: float, wall: float) -> ServiceReply:  # noqa: ARG002 - as every service
        """Answer a call."""
        self.calls += 1
        if self._window.take(now):
            return ServiceReply(200, {"content-type": "application/json"}, b"{}", self._rng.uniform(0.4, 1.5))
        self.refused["minute"] += 1
        left_s = math.ceil(self._window.resets_at - now)
        headers = {"content-type": "application/json", "retry-after": str(left_s)}
        return ServiceReply(429, headers, b'{"detail": {"error": "too many requests"}}', 0.05)

    def ended(self) -> None:
        """A call is over: nothing counts how many there are at a time."""
