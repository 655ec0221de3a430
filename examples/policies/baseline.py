"""A serious baseline: what a careful engineer writes in an evening, with the values of the kernel alone.

Each reported limit is a bucket or a window. Refusals that no report explains lead to a pause and a pace. The attempts
in flight follow AIMD. While the provider is down, one probe at a time goes. Agents share by start-time fair queueing, a
ticket whose client leaves soon goes first, and small tickets pass a ticket that waits for a window. Failures are tried
again with jitter until the client would leave.
"""

import math
from collections import Counter, deque

from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, GiveUp
from hivemind_addon.kernel.values.ticket import Attempt, Dimension, OutcomeKind, Reason

NEVER = math.inf
MOST_FAILURES = 12  # tries of a ticket that fail otherwise than by a limit
HURRY = 0.2  # share of a client's patience that is left when its ticket goes first
FIRST_SLOTS = 16.0
ROW = 5  # failures in a row that mean that the provider is down
CHANCE_S = 60.0  # a refusal that stands alone for so long was chance
PROBE_S = 20.0  # a probe that is silent for so long is followed by another
MARGIN_S = 0.3  # clocks and headers are rounded


class Meter:
    """One limit that headers report: a bucket that fills all the time, or a window that fills at its end."""

    def __init__(self, reading):
        self.dimension, self.window_s = reading.dimension, reading.window_s
        self.limit, self.level, self.at = reading.limit, reading.limit, 0.0
        self.resets_at, self.bucket_votes, self.heard = 0.0, 0, -1

    def learn(self, reading, number, now):
        """A report in the head of the answer to the `number`-th attempt of the pool."""
        if number < self.heard or reading.remaining is None:
            return
        self.heard, self.at = number, now
        self.limit = reading.limit or self.limit
        self.level = reading.remaining - reading.granularity / 2
        if reading.reset_in_s is not None:
            if reading.remaining < self.limit:
                full_in_s = (1 - reading.remaining / self.limit) * self.window_s
                is_bucket = abs(reading.reset_in_s - full_in_s) < 1.5 + reading.granularity / self.limit * self.window_s
                self.bucket_votes = max(-5, min(5, self.bucket_votes + (1 if is_bucket else -2)))
            self.resets_at = now + reading.reset_in_s

    @property
    def is_bucket(self):
        return self.bucket_votes > 0

    def free(self, reserved, now):
        """Units that no attempt has taken or reserved."""
        if self.is_bucket:
            level = min(self.limit, self.level + (now - self.at) * self.limit / self.window_s)
        else:
            level = self.level if now < self.resets_at + MARGIN_S else self.limit
        return level - reserved

    def fits_at(self, amount, reserved, now):
        """When so many units are free; more than the limit go when all are."""
        short = min(amount, self.limit) - self.free(reserved, now)
        if short <= 0 or not amount:
            return now
        if self.is_bucket:
            return now + short * self.window_s / self.limit
        return self.resets_at + MARGIN_S if self.resets_at + MARGIN_S > now else NEVER


class Pool:
    """One provider's limits, and the tickets that wait for them."""

    def __init__(self, settings):
        self.most = settings.concurrency.maximum
        self.meters = {}
        self.waiting = {}  # ticket's id -> Entry
        self.in_flight = {}  # ticket's id -> attempt's number in this pool, attempt
        self.sent = 0
        self.slots, self.lowered_at = min(FIRST_SLOTS, self.most), -NEVER
        self.ceiling, self.tries_at, self.try_s = NEVER, -NEVER, 20.0  # slots that were refused, and when to try again
        self.proven = 1.0  # the most slots with which an attempt succeeded
        self.opens_at, self.pauses, self.refused_at = -NEVER, 0, -NEVER  # after refusals
        self.taken = deque(maxlen=500)  # instant and tokens of attempts that no limit refused
        self.rate, self.paced_at, self.next_at = None, 0.0, -NEVER  # tokens a second; None: no pace
        self.failures, self.failing_since, self.probes, self.probe_at = Counter(), -NEVER, 0, -NEVER
        self.virtual, self.agents = 0.0, {}  # start-time fair queueing

    def reserved(self, meter):
        """Units of the attempts that the last report of a meter did not count."""
        is_output = meter.dimension is Dimension.OUTPUT_TOKENS
        return sum(
            attempt.ticket.demand.of(meter.dimension)
            for number, attempt in self.in_flight.values()
            if is_output or number > meter.heard
        )

    def fits_at(self, ticket, now):
        """When the meters admit a ticket, and whether a window is the reason."""
        at, by_window = now, False
        for meter in self.meters.values():
            fits_at = meter.fits_at(ticket.demand.of(meter.dimension), self.reserved(meter), now)
            if fits_at > at:
                at, by_window = fits_at, not meter.is_bucket
        return at, by_window

    def gate_at(self, now):
        """When any attempt may go: slots, pauses, the pace, and the probe while the provider is down."""
        if self.probes:
            newest_at = max((attempt.admitted_at for _, attempt in self.in_flight.values()), default=-NEVER)
            return max(now, self.opens_at, self.probe_at, newest_at + PROBE_S)
        return NEVER if len(self.in_flight) >= int(self.slots) else max(now, self.opens_at, self.next_at)

    def take(self, now):
        """The ticket that goes now, or None and the instant to look again."""
        wake_at = min((entry.due_at for entry in self.waiting.values() if entry.due_at > now), default=NEVER)
        due = [entry for entry in self.waiting.values() if entry.due_at <= now]
        if not due:
            return None, wake_at
        gate_at = self.gate_at(now)
        if gate_at > now:
            return None, min(wake_at, gate_at)
        for entry in sorted(due, key=lambda entry: entry.key(now)):
            fits_at, by_window = self.fits_at(entry.ticket, now)
            if fits_at <= now:
                return entry, NEVER
            wake_at = min(wake_at, fits_at)
            if not by_window:
                break  # a bucket that others drain never fills
        return None, wake_at

    def send(self, entry, now):
        del self.waiting[entry.ticket.id]
        self.sent += 1
        attempt = Attempt(entry.ticket, entry.number, now)
        self.in_flight[entry.ticket.id] = self.sent, attempt
        if self.rate:
            self.rate *= 1.003 ** (now - self.grown_at)
            self.grown_at, self.next_at = now, now + size(entry.ticket) / self.rate
        self.virtual = max(self.virtual, entry.start)
        self.agents[entry.ticket.agent] = max(self.agents.get(entry.ticket.agent, 0), entry.start) + size(entry.ticket)
        return Admitted(attempt)

    def is_up(self, started_at, now):
        """The provider answers an attempt; attempts from before the failures show nothing."""
        if started_at < self.failing_since:
            return
        self.failures.clear()
        self.failing_since = -NEVER
        if self.probes:
            self.probes, self.slots, self.ceiling = 0, max(self.slots, self.proven), NEVER
            for entry in self.waiting.values():
                entry.due_at = min(entry.due_at, now)

    def succeeded(self, attempt, now):
        """The provider served an attempt."""
        self.is_up(attempt.admitted_at, now)
        self.pauses, self.proven = 0, max(self.proven, len(self.in_flight) + 1.0)
        self.taken.append((now, size(attempt.ticket)))
        if self.rate:
            self.rate = None if now - self.paced_at > 300 else self.rate * (1.02 if now - self.paced_at > 60 else 1.005)

    def grow(self, now):
        """An attempt that used the last slot succeeded."""
        most = self.most if now >= self.tries_at else min(self.most, self.ceiling)
        self.slots = max(self.slots, min(most, self.slots + (1 if self.ceiling == NEVER else 2 / self.slots)))

    def refused(self, ticket, retry_after_s, started_at, rng, now):
        """A rate limit refused."""
        if started_at < self.lowered_at:  # sent before the pause began
            return
        again, self.lowered_at, self.refused_at = now - self.refused_at < CHANCE_S, now, now
        self.pauses = min(self.pauses + 1, 6)
        self.opens_at = max(self.opens_at, now + (retry_after_s or rng.uniform(0.5, 1) * 2.0**self.pauses / 2))
        if again and self.fits_at(ticket, now)[0] <= now:  # no chance, and no report explains the refusal
            flying = sum(size(attempt.ticket) for _, attempt in self.in_flight.values())
            recent = [(at, tokens) for at, tokens in self.taken if now - at <= 60]
            seconds = max(1.0, now - recent[0][0]) if recent else 10.0
            recent = (flying + sum(tokens for _, tokens in recent)) / seconds
            self.rate, self.paced_at = max(0.9 * recent, size(ticket) / 60), now
            self.grown_at = now

    def overloaded(self, started_at, now):
        """The provider refused because of the attempts in flight."""
        if started_at >= self.lowered_at:
            self.try_s = min(300.0, 2 * self.try_s) if self.slots > self.ceiling else self.try_s
            self.slots = self.ceiling = max(1.0, 0.7 * self.slots, min(int(self.slots), len(self.in_flight)))
            self.lowered_at, self.tries_at = now, now + self.try_s

    def failed(self, session, rng, now):
        """The provider may be down."""
        self.failing_since = now if not self.failures else self.failing_since
        self.failures[session] += 1
        if self.probes or (self.failures.total() >= ROW and len(self.failures) > 1):
            self.probes = min(self.probes + 1, 5)
            self.probe_at = now + min(15.0, rng.uniform(0.75, 1.25) * 2.0 ** (self.probes - 1))


def size(ticket):
    """The tokens of a ticket, and something for the request."""
    return 200 + max(ticket.demand.total_tokens, ticket.demand.input_tokens)


class Entry:
    """A waiting ticket."""

    def __init__(self, ticket, start):
        self.ticket, self.start = ticket, start
        self.number, self.failures, self.due_at = 1, 0, -NEVER

    def key(self, now):
        ticket = self.ticket
        left_s, patience_s = ticket.deadline_at - now, ticket.deadline_at - ticket.arrived_at
        hurries = left_s < HURRY * patience_s
        return (ticket.priority, not hurries, left_s if hurries else self.start)


class Baseline:
    """buckets and windows, a pause and a pace, AIMD slots, a probe, a fair queue, retries until the deadline"""

    def __init__(self, rng):
        self.rng = rng
        self.pools = {}
        self.entries = {}  # ticket's id -> Entry, from submit to the end
        self.wake_at = NEVER

    def submit(self, ticket, settings, now):
        pool = self.pools.setdefault(ticket.pool, Pool(settings))
        start = max(pool.virtual, pool.agents.get(ticket.agent, 0.0))
        self.entries[ticket.id] = pool.waiting[ticket.id] = Entry(ticket, start)

    def poll(self, now):
        decisions, self.wake_at = [], NEVER
        for pool in self.pools.values():
            while pool.waiting:
                entry, wake_at = pool.take(now)
                if entry is None:
                    self.wake_at = min(self.wake_at, wake_at)
                    break
                decisions.append(pool.send(entry, now))
        return decisions

    def next_wakeup(self):
        return None if self.wake_at == NEVER else self.wake_at

    def observe(self, attempt, hints, now, *, answered=True):
        pool = self.pools[attempt.ticket.pool]
        number, _ = pool.in_flight[attempt.ticket.id]
        for reading in hints.readings:
            if reading.limit and reading.meter not in pool.meters:
                pool.meters[reading.meter] = Meter(reading)
            if reading.meter in pool.meters:
                pool.meters[reading.meter].learn(reading, number, now)
        if answered:
            pool.is_up(attempt.admitted_at, now)

    def settle(self, attempt, result, now):
        ticket, outcome, kind = attempt.ticket, result.outcome, result.outcome.kind
        pool, entry = self.pools[ticket.pool], self.entries[ticket.id]
        was_full = len(pool.in_flight) >= int(pool.slots)
        del pool.in_flight[ticket.id]
        wait_s = outcome.retry_after_s or 0.0
        if kind is OutcomeKind.SUCCESS:
            pool.succeeded(attempt, now)
            if was_full:
                pool.grow(now)
        elif kind is OutcomeKind.THROTTLED:
            pool.refused(ticket, outcome.account_block_s or outcome.retry_after_s, attempt.admitted_at, self.rng, now)
        elif kind is OutcomeKind.OVERLOADED:
            pool.overloaded(attempt.admitted_at, now)
            pool.failed(ticket.session, self.rng, now)
        elif kind is OutcomeKind.FAILED:
            pool.failed(ticket.session, self.rng, now)
        if kind in (OutcomeKind.SUCCESS, OutcomeKind.CANCELLED):
            del self.entries[ticket.id]
            return Finished()
        wait_s = max(wait_s, outcome.account_block_s or 0.0)
        if kind is not OutcomeKind.THROTTLED and not pool.probes:
            entry.failures += kind is not OutcomeKind.OVERLOADED
            wait_s = max(wait_s, self.rng.uniform(0.5, 1) * min(30.0, 2.0 ** min(attempt.number, 6) / 2))
        is_curable = (outcome.retryable or outcome.account_block_s) and result.may_repeat
        if result.client_saw_bytes or not is_curable or entry.failures >= MOST_FAILURES:
            del self.entries[ticket.id]
            return GiveUp(Reason.NOT_RETRYABLE)
        if now + wait_s >= ticket.deadline_at:
            del self.entries[ticket.id]
            return GiveUp(Reason.DEADLINE)
        entry.number, entry.due_at = attempt.number + 1, now + wait_s
        pool.waiting[ticket.id] = entry
        return Backoff(entry.due_at, outcome.reason)

    def cancel(self, ticket_id, now):
        for pool in self.pools.values():
            pool.waiting.pop(ticket_id, None)
        return self.entries.pop(ticket_id, None) is not None
