"""The requests that a provider refuses, and whether a refusal is evidence of a limit.

A 429 may be about its request: a retired model, a shape or a size that is not allowed, a tier without credit. Several
providers and gateways answered so in 2026, without a retry-after and without headers. The request is refused each time,
while others are answered. Therefore:

- A repeated refusal is no evidence while other requests pass and none of them is refused, or if the request is far
  larger than all that passed.
- When a request as large passes between two refusals of a request, the earlier refusals were no evidence either.
- The request itself is at fault when three others as large have passed, and chance would hardly ever refuse a request
  as often. For a minute, a limit of its agent alone may be the cause.

The probe of a limit is a ticket that was not refused, if there is any (`selector.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hivemind_addon.kernel.limits.owner import Owner
from hivemind_addon.kernel.values.ticket import Attempt, Ticket

_MOST = 64
_GIANT = 10
"""A request that is larger by this factor than all that passed is refused for the size."""
_NONE = -1
_LEAST_PASSED = 3
_LEAST_S = 60.0
_HARDLY_EVER = 1e-6
_LEAST_SHARE = 0.0099
"""Three refusals in a row are hardly ever chance where none was before."""
_SHARE_OVER = 50


@dataclass(slots=True, eq=False)
class _Refused:
    """A request that was refused and has not passed since."""

    last: Attempt
    """The last refused attempt."""
    since: float
    """Monotonic instant of the first refusal."""
    stamps: list[int] = field(default_factory=list)
    """Stamps of the attempts whose refusals counted as evidence."""
    times: int = 1
    passed: int = 0
    """Other requests as large that passed, sent after the last refused attempt of their time."""


class RefusedRequests:
    """The refused requests of one pool, the last refused last. Recognises a request that a client sends again."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], _Refused] = {}
        self._passed_stamp = _NONE
        """Stamp of the newest attempt that passed."""
        self._largest = math.inf
        """Tokens of the largest request that passed; infinite: none did."""
        self._share = 0.0
        """Share of attempts that were refused although their request passed later."""

    def __repr__(self) -> str:
        return f"<RefusedRequests {len(self._requests)}>"

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, ticket: Ticket) -> bool:
        return bool(self._requests) and _name(ticket) in self._requests

    def passed(self, attempt: Attempt) -> None:
        """Note an accepted attempt, once."""
        if attempt.has_passed:
            return
        attempt.has_passed = True
        self._passed_stamp = max(self._passed_stamp, attempt.stamp)
        tokens = attempt.demand.total_tokens
        self._largest = tokens if self._largest == math.inf else max(self._largest, tokens)
        request = self._requests.pop(_name(attempt.ticket), None) if self._requests else None
        times = 0 if request is None else request.times
        self._share += (times - (times + 1) * self._share) / (_SHARE_OVER + times)
        for other in self._requests.values():
            other.passed += _proves(attempt, other.last)

    def refused(self, attempt: Attempt, now: float) -> tuple[Owner, Sequence[int]]:
        """Note a refusal by a rate limit. Returns the owner, and stamps of earlier evidence to take back."""
        name, ticket = _name(attempt.ticket), attempt.ticket
        newest = next(reversed(self._requests), None)
        request = self._requests.pop(name, None)
        if request is None:
            self._requests[name] = _Refused(attempt, now, [attempt.stamp])
            if len(self._requests) > _MOST:
                del self._requests[next(iter(self._requests))]
            return Owner.LIMIT, ()
        self._requests[name] = request
        is_giant = attempt.demand.total_tokens > _GIANT * self._largest
        tells = newest != name or (self._passed_stamp < request.last.stamp and not is_giant)
        request.last, request.times = attempt, request.times + 1
        if request.passed:
            before, request.stamps = request.stamps, []
            is_chance = max(self._share, _LEAST_SHARE) ** request.times > _HARDLY_EVER
            least_s = min(_LEAST_S, (ticket.deadline_at - ticket.arrived_at) / 2)
            is_proved = request.passed >= _LEAST_PASSED and not is_chance and now - request.since >= least_s
            return Owner.REQUEST if is_proved else Owner.UNKNOWN, before
        if tells:
            request.stamps.append(attempt.stamp)
        return Owner.LIMIT if tells else Owner.UNKNOWN, ()


def _name(ticket: Ticket) -> tuple[str, str]:
    return ticket.agent, ticket.request_hash or ticket.id


def _proves(passed: Attempt, refused: Attempt) -> bool:
    """Whether an accepted attempt was sent after a refused one and is as large, so that no limit refused that."""
    mine, theirs = passed.demand, refused.demand
    is_as_large = mine.input_tokens >= theirs.input_tokens and mine.total_tokens >= theirs.total_tokens
    return is_as_large and passed.stamp > refused.stamp
