"""Eight at once, first come, first served, a pause after each refusal, five tries."""

from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, GiveUp
from hivemind_addon.kernel.values.ticket import Attempt, OutcomeKind, Reason


class Minimal:
    def __init__(self, rng):
        self.rng, self.waiting = rng, {}  # waiting: ticket's id -> ticket and number of the next attempt
        self.in_flight, self.opens_at, self.now = 0, 0.0, 0.0

    def submit(self, ticket, settings, now):
        self.waiting[ticket.id] = ticket, 1

    def poll(self, now):
        self.now, go = now, []
        while self.waiting and self.in_flight < 8 and self.opens_at <= now:
            ticket, number = self.waiting.pop(next(iter(self.waiting)))
            self.in_flight += 1
            go.append(Admitted(Attempt(ticket, number, now)))
        return go

    def next_wakeup(self):
        return self.opens_at if self.waiting and self.opens_at > self.now else None

    def observe(self, attempt, hints, now, *, answered=True): ...  # `hints.readings`: the limits in the headers

    def settle(self, attempt, result, now):
        self.in_flight -= 1
        outcome, ticket = result.outcome, attempt.ticket
        if outcome.kind in (OutcomeKind.SUCCESS, OutcomeKind.CANCELLED):
            return Finished()
        if result.client_saw_bytes or not outcome.retryable or attempt.number == 5:
            return GiveUp(Reason.SPENT_ATTEMPTS)
        self.opens_at = now + max(outcome.retry_after_s or 0, self.rng.uniform(0.5, 1) * 2**attempt.number)
        self.waiting[ticket.id] = ticket, attempt.number + 1
        return Backoff(self.opens_at, outcome.reason)

    def cancel(self, ticket_id, now):
        return self.waiting.pop(ticket_id, None) is not None
