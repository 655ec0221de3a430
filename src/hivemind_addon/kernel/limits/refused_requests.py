"""The requests that a provider refuses, and whether a refusal is evidence of a limit.

A 429 may be about its request: a retired model, a shape or a size that is not allowed, a tier without credit. Several
providers and gateways answered so in 2026, without a retry-after and without headers. The request is refused each time,
while others are answered. Or a 429 may meet any request by chance: a gateway's upstream is full. Therefore:

- A repeated refusal is no evidence while other requests pass and none of them is refused, or if the request is far
  larger than all that passed.
- When a request as large passes between two refusals of a request, the earlier refusals were no evidence either.
- The request itself is at fault when three others as large have passed, and chance would hardly ever refuse a request
  as often. Nor would a limit, of the pool or of the agent, that refuses the others as often as it has done meanwhile.
  For a minute, a limit of the agent alone may be the cause.
- While no request of the pool has passed, the whole model may be at fault: then passes of other models of the account
  count too. Afterwards they prove nothing, because the model may have a limit of its own.
- Attempts disprove a refusal if they pass although they were sent just after the refused attempt, before its refusal
  came, beside as many others, and are as large together. Where many refusals are disproved, chance refuses: no refusal
  is evidence then, until so many come in a row as chance hardly ever brings.

The probe of a limit is a ticket that was not refused, if there is any (`selector.py`).
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hivemind_addon.kernel.limits.owner import Owner
from hivemind_addon.kernel.values.ticket import Attempt, Ticket

_MOST = 64
_GIANT = 10
"""A request that is larger by this factor than all that passed is refused for the size."""
_UNSURE = 3
"""The size of a model's request may be overestimated by this factor until the model's first answer."""
_NONE = -1
_LEAST_PASSED = 3
_LEAST_S = 60.0
_HARDLY_EVER = 1e-6
_SELDOM = 1e-4
"""The probability of the request's refusals if a limit of the pool refuses all requests alike."""
_HARDLY_A_ROW = 1e-5
_LEAST_SHARE = 0.0099
"""Three refusals in a row are hardly ever chance where none was before."""
_LATE_SHARE = 1.5
"""The share of refusals may be larger by this factor than the mean over past attempts shows."""
_SHARE_OVER = 50
_RECENT = 16
_MOST_COUNTED = 16.0
_BESIDE_S = 1.0
"""In this time few limits let one more request pass."""
_MANY = 0.4
"""Share of disproved refusals that shows chance: few attempts can disprove a refusal."""


@dataclass(slots=True, eq=False)
class _Refused:
    """A request that was refused and has not passed since."""

    last: Attempt
    """The last refused attempt."""
    since: float
    """Monotonic instant of the first refusal."""
    at: float
    """Monotonic instant of the last refusal."""
    stamps: list[int] = field(default_factory=list)
    """Stamps of the attempts whose refusals counted as evidence."""
    times: int = 1
    passed: int = 0
    """Other requests as large that passed, sent after the last refused attempt of their time."""
    beside: int = 0
    """Refusals of other requests of the pool since the first refusal."""
    agents_beside: int = 0
    """The same of the agent's other requests."""
    agents_passed: int = 0
    """Other requests of the agent that passed since the first refusal."""
    against: float = 0.0
    """Tokens of the attempts that disprove the first refusal."""


class RefusedRequests:
    """The refused requests of one pool, the last refused last. Recognises a request that a client sends again."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], _Refused] = {}
        self._recent: deque[Attempt] = deque(maxlen=_RECENT)
        """The last attempts that passed."""
        self._passed_stamp = _NONE
        """Stamp of the newest attempt that passed."""
        self._largest = math.inf
        """Tokens of the largest request that passed; infinite: none did."""
        self._share = 0.0
        """Share of attempts that were refused although their request passed later."""
        self._row = 0
        """Refusals since the last pass."""
        self._since = math.inf
        """Monotonic instant of the first refusal, while no request has passed."""
        self._is_model = False
        """Whether each request of the model is at fault, as far as is known."""
        self._counted = self._disproved = 0.0
        """First refusals of requests, and the disproved part. Old refusals count less."""

    def __repr__(self) -> str:
        return f"<RefusedRequests {len(self._requests)}>"

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, ticket: Ticket) -> bool:
        return bool(self._requests) and _name(ticket) in self._requests

    @property
    def is_new(self) -> bool:
        """Whether no request of the pool has passed since the start."""
        return self._largest == math.inf

    @property
    def are_chance(self) -> bool:
        """Whether chance refuses, as far as is known, and no limit."""
        return self._disproved >= max(1.0, _MANY * self._counted)

    def passed(self, attempt: Attempt) -> None:
        """Note an accepted attempt. Called once for each."""
        self._recent.append(attempt)
        self._row, self._is_model = 0, False
        self._passed_stamp = max(self._passed_stamp, attempt.stamp)
        tokens = attempt.demand.total_tokens
        if self.is_new:
            for other in self._requests.values():
                other.passed = 0
        self._largest = tokens if self.is_new else max(self._largest, tokens)
        request = self._requests.pop(_name(attempt.ticket), None) if self._requests else None
        times = 0 if request is None else request.times
        self._share += (times - (times + 1) * self._share) / (_SHARE_OVER + times)
        for (agent, _), other in self._requests.items():
            other.passed += _proves(attempt, other.last)
            other.agents_passed += agent == attempt.ticket.agent
            self._disprove(other, attempt)

    def passed_elsewhere(self, attempt: Attempt) -> None:
        """Note an accepted attempt of another model of the account. Called once for each."""
        if self.is_new:
            for other in self._requests.values():
                other.passed += _proves(attempt, other.last, _UNSURE)

    def refused(self, attempt: Attempt, now: float, pending: Iterable[Attempt] = ()) -> tuple[Owner, Sequence[int]]:
        """Note a refusal. Returns the owner, and stamps of earlier evidence to take back.

        `pending`: the model's attempts in flight. Earlier ones may have taken what was left of a limit of the model.
        """
        name, ticket = _name(attempt.ticket), attempt.ticket
        self._row += 1
        if max(self._share, _LEAST_SHARE) ** self._row < _HARDLY_A_ROW:
            self._disproved = 0.0
        newest = next(reversed(self._requests), None)
        request = self._requests.pop(name, None)
        for (agent, _), other in self._requests.items():
            other.beside += 1
            other.agents_beside += agent == ticket.agent
        if request is None:
            request = self._requests[name] = _Refused(attempt, now, now)
            if len(self._requests) > _MOST:
                del self._requests[next(iter(self._requests))]
            self._counted += 1
            if self._counted > _MOST_COUNTED:
                self._counted, self._disproved = self._counted / 2, self._disproved / 2
            for passed in self._recent:
                self._disprove(request, passed)
            self._since = min(self._since, now)
            return self._evidence(request, is_evidence=not self._is_model), ()
        self._requests[name] = request
        is_giant = attempt.demand.total_tokens > _GIANT * self._largest
        tells = newest != name or (self._passed_stamp < request.last.stamp and not is_giant)
        request.last, request.at, request.times = attempt, now, request.times + 1
        if request.passed:
            is_proved = self._is_at_fault(request, attempt, now, pending)
            if is_proved or self._is_model or not self.is_new:
                before, request.stamps = request.stamps, []
                return Owner.REQUEST if is_proved else Owner.UNKNOWN, before
        return self._evidence(request, is_evidence=tells), ()

    def _is_at_fault(self, request: _Refused, attempt: Attempt, now: float, pending: Iterable[Attempt]) -> bool:
        """Whether a request was just refused although no limit refuses the request, nor chance."""
        chance = max(_LATE_SHARE * self._share, _LEAST_SHARE)
        if request.passed < _LEAST_PASSED or chance**request.times > _HARDLY_EVER:
            return False
        ticket = attempt.ticket
        least_s = min(_LEAST_S, (ticket.deadline_at - ticket.arrived_at) / 2)
        if self.is_new:
            is_model = now - self._since >= least_s and all(other.stamp > attempt.stamp for other in pending)
            self._is_model |= is_model
            return is_model
        lasted_s = now - request.since
        share = request.beside / (request.beside + request.passed)
        if request.agents_passed or (request.agents_beside and lasted_s < 2 * least_s):
            share = max(share, request.agents_beside / (request.agents_beside + request.agents_passed))
        return lasted_s >= least_s and share**request.times < _SELDOM

    def _evidence(self, request: _Refused, *, is_evidence: bool) -> Owner:
        if not is_evidence or self.are_chance:
            return Owner.UNKNOWN
        request.stamps.append(request.last.stamp)
        return Owner.LIMIT

    def _disprove(self, request: _Refused, passed: Attempt) -> None:
        """Count an attempt that passed against the first refusal of a request."""
        refused, before = request.last, request.against
        until = min(request.at, refused.admitted_at + _BESIDE_S)
        is_beside = refused.stamp < passed.stamp and passed.admitted_at < until
        if request.times == 1 and is_beside and passed.in_flight >= refused.in_flight:
            request.against += max(1, passed.demand.total_tokens)
            self._disproved += before < max(1, refused.demand.total_tokens) <= request.against


def _name(ticket: Ticket) -> tuple[str, str]:
    return ticket.agent, ticket.request_hash or ticket.id


def _proves(passed: Attempt, refused: Attempt, unsure: float = 1) -> bool:
    """Whether an accepted attempt was sent after a refused one and is as large, so that no limit refused that."""
    mine, theirs = passed.demand, refused.demand
    is_as_large = (
        unsure * mine.input_tokens >= theirs.input_tokens and unsure * mine.total_tokens >= theirs.total_tokens
    )
    return is_as_large and passed.stamp > refused.stamp
