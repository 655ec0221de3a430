"""Which requests a provider refuses, and when that tells of nobody but themselves.

A 429 may be about one request: a retired model, a shape or a size that is not allowed, a tier without credit. Seen in
2026 at several providers and gateways, without a retry-after and without headers. Sent again it is refused again,
while all others are answered. So a request is one witness of a limit, however often it is refused:

    its first refusal                                                            counts
    refused again; another was refused since for the first time, none passed     counts: a limit still stands
    refused again, else                                                          is the request's own affair

And who goes to see whether a limit still stands is one that was not refused, where there is one (`selector.py`).
"""

from hivemind_addon.api.ticket import Attempt, Ticket

_MOST = 256
_NONE = -1


class RefusedRequests:
    """One pool's, the last refused last. A client that comes back with the same request is known by it."""

    def __init__(self) -> None:
        self._stamps: dict[tuple[str, str], int] = {}
        """Of the last attempt of each."""
        self._passed = self._first_refused = _NONE
        """The stamps of the newest attempts that passed, and that were the first of their request to be refused."""

    def __repr__(self) -> str:
        return f"<RefusedRequests {len(self._stamps)}>"

    def __len__(self) -> int:
        return len(self._stamps)

    def __contains__(self, ticket: Ticket) -> bool:
        return bool(self._stamps) and _name(ticket) in self._stamps

    def refused(self, attempt: Attempt) -> bool:
        """An attempt was refused. Whether that tells of a limit."""
        name = _name(attempt.ticket)
        before = self._stamps.pop(name, None)
        self._stamps[name] = attempt.stamp
        if len(self._stamps) > _MOST:
            del self._stamps[next(iter(self._stamps))]
        if before is None:
            self._first_refused = attempt.stamp
            return True
        return self._passed < before < self._first_refused

    def passed(self, attempt: Attempt) -> None:
        """The provider has taken an attempt."""
        if self._stamps:
            self._stamps.pop(_name(attempt.ticket), None)
        self._passed = max(self._passed, attempt.stamp)


def _name(ticket: Ticket) -> tuple[str, str]:
    return ticket.agent, ticket.request_hash or ticket.id
