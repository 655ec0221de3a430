"""What may be asked: a scheduler that asks the provider (whom it loses, no scheduler can be blamed for), and what a
limit leaves, computed anew from all that was ever taken.
"""

import math

from hivemind_addon.kernel.retry import RetryPolicy
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, GiveUp
from hivemind_addon.kernel.values.ticket import Attempt, Demand, OutcomeKind, Reason
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.world import World

_STEP_S = 0.02
"""From one attempt to the next, beside the jitter of the way: the provider has counted the last one by then."""
_RETRY = RetryPolicy()


class Oracle:
    """Sends whom the provider would serve at once, who has least time first; takes the scheduler's calls."""

    def __init__(self, world):
        self._world = world
        self._tickets, self._ready_at, self._attempts, self._ambiguous = {}, {}, {}, {}
        self._in_flight = set()
        self._wake_at = None
        self._sent_at = float("-inf")
        self._step_s = _STEP_S + world._scenario.way_jitter_s

    def submit(self, ticket, settings, now):
        self._tickets[ticket.id] = ticket
        self._ready_at[ticket.id] = now
        self._attempts[ticket.id] = self._ambiguous[ticket.id] = 0

    def poll(self, now):
        self._wake_at = None
        kept = {name: self._world._waiting[name] for name in self._tickets if name not in self._in_flight}
        owed = sum(self._world._waiting[name].turn.output_tokens for name in self._in_flight)
        instants = []
        for name in sorted(kept, key=lambda name: self._tickets[name].deadline_at):
            call = kept[name]
            provider = call.agent.upstream.provider
            into, out = call.agent.prompt_tokens(call.turn), call.turn.output_tokens
            demand = Demand(output_tokens=out, total_tokens=out if call.kept.request.prefixes else into + out)
            in_s = provider.serves_in_s(now, call.kept.request, demand, owed_tokens=owed)
            at = max(now + in_s, self._ready_at[name], self._sent_at + self._step_s)
            if at <= now:
                self._sent_at, self._wake_at = now, now + self._step_s
                self._in_flight.add(name)
                self._attempts[name] += 1
                return [Admitted(Attempt(ticket=self._tickets[name], number=self._attempts[name], admitted_at=now))]
            instants.append(at)
        later = [at for at in instants if at < float("inf")]
        self._wake_at = min(later, default=None)
        return []

    def next_wakeup(self):
        return self._wake_at

    def observe(self, attempt, hints, now, *, answered=True):
        pass

    def settle(self, attempt, result, now):
        outcome = result.outcome
        name = attempt.ticket.id
        self._in_flight.discard(name)
        self._ambiguous[name] += outcome.ambiguous
        if outcome.kind in (OutcomeKind.SUCCESS, OutcomeKind.CANCELLED):
            del self._tickets[name]
            return Finished()
        spent = self._ambiguous[name] > _RETRY.max_ambiguous or self._attempts[name] >= _RETRY.max_failures
        if result.client_saw_bytes or not outcome.retryable or spent:
            del self._tickets[name]
            return GiveUp(Reason.SPENT_ATTEMPTS)
        step_s = _RETRY.first_backoff_s * 2 ** (self._attempts[name] - 1)
        self._ready_at[name] = now + min(step_s, _RETRY.max_backoff_s)
        return Backoff(until=self._ready_at[name], reason=outcome.reason)

    def cancel(self, ticket_id, now):
        return self._tickets.pop(ticket_id, None) is not None


def run_oracle(scenario, *, seed):
    """One run under it."""
    world = World(scenario, seed=seed, policy=Policy.FIFO)
    world.scheduler = Oracle(world)
    return world.run()


def left(limit, taken, now):
    """What a limit whose first call came at 0 leaves now, by its definition alone. `taken`: instants and units."""
    amount, window_s, kind = limit.amount, limit.window_s, limit.windows.value

    def within(from_s, to_s):
        return sum(units for at, units in taken if from_s < at <= to_s)

    if limit.growth:
        last = within(now - 2 * window_s, now - window_s)
        return max(amount, limit.growth * last) - within(now - window_s, now)
    if limit.kind.value == "bucket":
        size, rate = limit.burst or amount, amount / window_s
        # It was full at some instant, at the latest at the beginning, and took what it could since.
        fulls = [(since, sum(units for at, units in taken if at >= since)) for since, _ in taken]
        fulls = [(0.0, within(-1, now)), (now, 0), *fulls]
        return min(size + rate * (now - since) - used for since, used in fulls)
    if kind == "log":
        return amount - within(now - window_s, now)
    if kind == "opened":
        opened_at, used = -math.inf, 0
        for at, units in taken:
            if at >= opened_at + window_s:
                opened_at, used = at, 0
            used += units
        return amount - (used if now < opened_at + window_s else 0)
    first_s = limit.full_in_s % window_s if kind == "clock" else 0.0

    def in_window(number):
        return sum(units for at, units in taken if (at - first_s) // window_s == number)

    passed = (now - first_s) / window_s
    this = math.floor(passed)
    before = in_window(this - 1) * (1 - (passed - this)) if kind == "counter" else 0
    return amount - before - in_window(this)
