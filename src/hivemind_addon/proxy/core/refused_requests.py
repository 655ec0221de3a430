"""Which requests a provider refuses, and when that tells of nobody but themselves.

A 429 may be about one request: a retired model, a shape or a size that is not allowed, a tier without credit. Seen in
2026 at several providers and gateways, without a retry-after and without headers. Sent again it is refused again, while
others are answered. So a request that is refused again tells nothing new where others have passed meanwhile and none
was refused. And where one as large has passed between two of its refusals, none of these ever told of a limit.

Who goes to see whether a limit still stands is one that was not refused, where there is one (`selector.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hivemind_addon.api.ticket import Attempt, Ticket

_MOST = 64
_NONE = -1


@dataclass(slots=True, eq=False)
class _Refused:
    """One request."""

    last: Attempt
    """Its last attempt that was refused."""
    stamps: list[int] = field(default_factory=list)
    """Of its attempts that told of a limit."""
    was_passed: bool = False
    """Whether another one that is as large and was sent since then has passed."""
    is_its_own: bool = False
    """Whether that was so when it was refused again: no limit refuses it."""


class RefusedRequests:
    """One pool's, the last refused last. A client that comes back with the same request is known by it."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], _Refused] = {}
        self._passed_stamp = _NONE
        """Of the newest attempt that passed."""

    def __repr__(self) -> str:
        return f"<RefusedRequests {len(self._requests)}>"

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, ticket: Ticket) -> bool:
        return bool(self._requests) and _name(ticket) in self._requests

    def passed(self, attempt: Attempt) -> None:
        """The provider has taken an attempt."""
        self._passed_stamp = max(self._passed_stamp, attempt.stamp)
        if not self._requests:
            return
        self._requests.pop(_name(attempt.ticket), None)
        for request in self._requests.values():
            request.was_passed = request.was_passed or _proves(attempt, request.last)

    def refused(self, attempt: Attempt) -> tuple[bool, Sequence[int]]:
        """An attempt was refused. Whether that tells of a limit, and the stamps of those that did not after all."""
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
    """Whether an attempt that passed shows that no limit refused another one: it was sent later, and is as large."""
    mine, theirs = passed.demand, refused.demand
    is_as_large = mine.input_tokens >= theirs.input_tokens and mine.total_tokens >= theirs.total_tokens
    return is_as_large and passed.stamp > refused.stamp
