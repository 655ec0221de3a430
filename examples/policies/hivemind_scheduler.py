"""hivemind-scheduler 0.2.0 (PyPI, read 2026-11-28), as its proxy decides, written anew as a policy.

The state is of one upstream host that its table of providers lacks; the file of its package stands beside each part.
Streamed requests are not sent again. Budgets refuse nothing in its proxy, and priorities order only tasks that are
submitted by MCP, so neither is here.
"""

import math
from collections import deque

from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, GiveUp, Shed
from hivemind_addon.kernel.values.ticket import Attempt, Dimension, OutcomeKind, Reason

NEVER = math.inf


class Upstream:
    """The state before one host."""

    most, least, increase, decrease, latency_target_s, update_s = 5.0, 1.0, 0.5, 0.5, 2.0, 5.0
    requests_a_minute, tokens_a_minute = 60, 100_000
    """scheduler/providers.py: of a host that the table lacks."""

    def __init__(self):
        self.queue = deque()
        """Tickets that wait for a slot."""
        self.holding = {}
        """Tickets that hold a slot and do not run: in a backoff until the instant, or held by the rate limiter."""
        self.active = 0
        """Slots taken; a call keeps its slot through all its attempts (proxy/interceptor.py)."""
        self._concurrency = self.most
        self._latencies_s = deque(maxlen=20)
        self._updated_at = -NEVER
        self._errors = self._requests = 0
        self._open_until = None
        self._pause_until = -NEVER
        self._sent = deque()
        self._tokens = deque()

    @property
    def has_slot(self):
        """scheduler/admission.py"""
        return self.active < max(1, int(self._concurrency))

    def release(self):
        """scheduler/admission.py: the first waiter is woken, and waits again as the last where no slot is free."""
        self.active -= 1
        if not self.has_slot:
            self.queue.rotate(-1)

    def is_open(self, now):
        """scheduler/backpressure.py: the circuit breaker; after the cool-down all requests pass."""
        return self._open_until is not None and now <= self._open_until

    def took(self, latency_s, now):
        """scheduler/backpressure.py, record_latency"""
        self._latencies_s.append(latency_s)
        self._requests += 1
        if now - self._updated_at >= self.update_s:
            self._updated_at = now
            if sum(self._latencies_s) / len(self._latencies_s) <= self.latency_target_s:
                self._concurrency = min(self.most, self._concurrency + self.increase)
            else:
                self._concurrency = max(self.least, self._concurrency * self.decrease)

    def failed(self, now):
        """scheduler/backpressure.py, record_error"""
        self._errors += 1
        self._requests += 1
        self._concurrency = max(self.least, self._concurrency * self.decrease)
        if self._requests >= 20:
            if self._errors / self._requests >= 0.5:
                self._open_until = now + 10.0
            self._errors = self._requests = 0

    def succeeded(self, tokens, now):
        """scheduler/backpressure.py, record_success, and scheduler/rate_limiter.py, record_tokens"""
        self._requests += 1
        if self._open_until is not None and now > self._open_until:
            self._open_until = None
        self._tokens.append((now, tokens))

    def heard(self, hints, now):
        """scheduler/rate_limiter.py, update_from_headers: of the limits only that of requests is looked at."""
        if hints.retry_after_s is not None:
            self._pause_until = max(self._pause_until, now + hints.retry_after_s)
        for reading in hints.readings:
            left, limit = reading.remaining, reading.limit
            is_low = limit and left is not None and left <= 2 and left < limit / 10
            if is_low and reading.dimension is Dimension.REQUESTS:
                self._pause_until = max(self._pause_until, now + (reading.reset_in_s or 5.0))

    def goes_at(self, now):
        """scheduler/rate_limiter.py, throttle_remaining_seconds: when the next attempt may go."""
        at = self._pause_until
        for counted, most in ((self._sent, self.requests_a_minute), (self._tokens, self.tokens_a_minute)):
            while counted and now - counted[0][0] >= 60.0:
                counted.popleft()
            if sum(count for _, count in counted) >= most:
                at = max(at, counted[0][0] + 60.0)
        return at

    def send(self, now):
        """scheduler/rate_limiter.py, record_request"""
        self._sent.append((now, 1))


class HivemindScheduler:
    """hivemind-scheduler 0.2.0: AIMD on latency and errors, 60 requests a minute, a breaker, three re-sends"""

    watches = False
    reaps_after_s = 300.0
    """The client's read time-out (proxy/interceptor.py)."""
    attempts = 4
    retryable = frozenset({429, 500, 502, 503, 529})
    slot_s = 120.0
    """Wait for a slot."""

    def __init__(self, rng):
        self._rng = rng
        self._upstreams = {}
        self._refused = []
        self._numbers = {}
        self._polled_at = -NEVER

    def submit(self, ticket, settings, now):
        upstream = self._upstreams.setdefault(ticket.pool.host, Upstream())
        if upstream.is_open(now):
            self._refused.append(Shed(ticket, Reason.BREAKER, 10.0))
        else:
            upstream.queue.append(ticket)
            self._numbers[ticket.id] = 0

    def poll(self, now):
        self._polled_at = now
        decisions = [*self._refused]
        self._refused.clear()
        for upstream in self._upstreams.values():
            for ticket in [one for one in upstream.queue if one.arrived_at + self.slot_s <= now]:
                upstream.queue.remove(ticket)
                del self._numbers[ticket.id]
                decisions.append(Shed(ticket, Reason.CONCURRENCY, 1.0))
            while upstream.queue and upstream.has_slot:
                ticket = upstream.queue.popleft()
                upstream.active += 1
                upstream.holding[ticket.id] = ticket, now
            for ticket, not_before in tuple(upstream.holding.values()):
                if not_before <= now and upstream.goes_at(now) <= now:
                    upstream.send(now)
                    del upstream.holding[ticket.id]
                    self._numbers[ticket.id] += 1
                    decisions.append(Admitted(Attempt(ticket, self._numbers[ticket.id], now)))
        return decisions

    def next_wakeup(self):
        now, instants = self._polled_at, []
        for upstream in self._upstreams.values():
            instants += [ticket.arrived_at + self.slot_s for ticket in upstream.queue]
            opens_at = upstream.goes_at(now) if upstream.holding else NEVER
            instants += [max(not_before, opens_at) for _, not_before in upstream.holding.values()]
        return min((at for at in instants if at > now), default=None)

    def observe(self, attempt, hints, now, *, answered=True):
        self._upstreams[attempt.ticket.pool.host].heard(hints, now)

    def settle(self, attempt, result, now):
        ticket, outcome, latency_s = attempt.ticket, result.outcome, now - attempt.admitted_at
        upstream = self._upstreams[ticket.pool.host]
        is_success = outcome.kind is OutcomeKind.SUCCESS
        if outcome.kind is not OutcomeKind.CANCELLED:
            is_cut = outcome.status is None and latency_s < self.reaps_after_s
            may_repeat = attempt.number < self.attempts and not ticket.streamed and not is_success
            if is_success or (outcome.status is not None and not ticket.streamed):
                upstream.took(latency_s, now)
            if may_repeat and (is_cut or outcome.status in self.retryable):
                upstream.failed(now)
                step_s = min(2.0 ** (attempt.number - 1) * self._rng.uniform(0.75, 1.25), 30.0)  # proxy/retry.py
                until = now + max(step_s, outcome.retry_after_s or 0.0)
                upstream.holding[ticket.id] = ticket, until
                return Backoff(until, outcome.reason)
            if is_success or (outcome.status is not None and not ticket.streamed):
                used = result.usage
                tokens = used.total_input_tokens + used.output_tokens if used else ticket.demand.input_tokens
                upstream.succeeded(tokens, now)
        upstream.release()
        del self._numbers[ticket.id]
        if is_success or outcome.kind is OutcomeKind.CANCELLED:
            return Finished()
        return GiveUp(Reason.SPENT_ATTEMPTS if attempt.number > 1 else Reason.NOT_RETRYABLE)

    def cancel(self, ticket_id, now):
        self._refused = [shed for shed in self._refused if shed.ticket.id != ticket_id]
        for upstream in self._upstreams.values():
            if upstream.holding.pop(ticket_id, None) is not None:
                upstream.release()
            upstream.queue = deque(ticket for ticket in upstream.queue if ticket.id != ticket_id)
        return self._numbers.pop(ticket_id, None) is not None
