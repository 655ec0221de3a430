"""The requests that a provider refuses, and whether a refusal is evidence of a limit.

A 429 may be about its request: a retired model, a shape or a size that is not allowed, a tier without credit. Several
providers and gateways answered so in 2026, without a retry-after and without headers. The request is refused each time,
while others are answered. Therefore:

- A repeated refusal is no evidence while other requests pass and none of them is refused.
- When a request as large passes between two refusals of a request, the earlier refusals were no evidence either.

The probe of a limit is a ticket that was not refused, if there is any (`selector.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hivemind_addon.kernel.values.ticket import Attempt, Ticket

_MOST = 64
_NONE = -1


@dataclass(slots=True, eq=False)
class _Refused:
    """A request that was refused and has not passed since."""

    last: Attempt
    """The last refused attempt."""
    stamps: list[int] = field(default_factory=list)
    """Stamps of the attempts whose refusals counted as evidence."""
    was_passed: bool = False
    """Whether another request as large passed that was sent after the last refused attempt."""
    is_its_own: bool = False
    """Whether `was_passed` held at a later refusal: no limit refuses this request."""


class RefusedRequests:
    """The refused requests of one pool, the last refused last. Recognises a request that a client sends again."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], _Refused] = {}
        self._passed_stamp = _NONE
        """Stamp of the newest attempt that passed."""

    def __repr__(self) -> str:
        return f"<RefusedRequests {len(self._requests)}>"

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, ticket: Ticket) -> bool:
        return bool(self._requests) and _name(ticket) in self._requests

    def passed(self, attempt: Attempt) -> None:
        """Note an accepted attempt."""
        self._passed_stamp = max(self._passed_stamp, attempt.stamp)
        if not self._requests:
            return
        self._requests.pop(_name(attempt.ticket), None)
        for request in self._requests.values():
            request.was_passed = request.was_passed or _proves(attempt, request.last)

    def refused(self, attempt: Attempt) -> tuple[bool, Sequence[int]]:
        """Note a refused attempt. Returns whether it is evidence, and stamps of earlier evidence to take back."""
        name = _name(attempt.ticket)
        newest = next(reversed(self._requests), None)
        request = self._requests.pop(name, None)
        if request is None:
            self._requests[name] = _Refused(attempt, [attempt.stamp])
            if len(self._requests) > _MOST:
                del self._requests[next(iter(self._requests))]
            return True, ()
        self._requests[name] = request
        tells = newest != name or self._passed_stamp < request.last.stamp
        request.is_its_own = request.is_its_own or request.was_passed
        request.last, request.was_passed = attempt, False
        if request.is_its_own:
            before, request.stamps = request.stamps, []
            return False, before
        if tells:
            request.stamps.append(attempt.stamp)
        return tells, ()


def _name(ticket: Ticket) -> tuple[str, str]:
    return ticket.agent, ticket.request_hash or ticket.id


def _proves(passed: Attempt, refused: Attempt) -> bool:
    """Whether an accepted attempt was sent after a refused one and is as large, so that no limit refused that."""
    mine, theirs = passed.demand, refused.demand
    is_as_large = mine.input_tokens >= theirs.input_tokens and mine.total_tokens >= theirs.total_tokens
    return is_as_large and passed.stamp > refused.stamp
