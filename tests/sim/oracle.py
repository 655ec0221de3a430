"""A scheduler that may ask the provider: whom it loses, no scheduler can be blamed for."""

from hivemind_addon.kernel.retry import RetryPolicy
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Finished, GiveUp
from hivemind_addon.kernel.values.ticket import Attempt, Demand, OutcomeKind, Reason
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.world import World

_STEP_S = 0.02
"""From one attempt to the next: the provider has counted the last one by then."""
_RETRY = RetryPolicy()


class Oracle:
    """Sends whom the provider would serve at once, who has least time first; takes the scheduler's calls."""

    is_idle = False

    def __init__(self, world):
        self._world = world
        self._tickets, self._ready_at, self._attempts, self._ambiguous = {}, {}, {}, {}
        self._in_flight = set()
        self._wake_at = None
        self._sent_at = float("-inf")

    def submit(self, ticket, settings, now):
        self._tickets[ticket.id] = ticket
        self._ready_at[ticket.id] = now
        self._attempts[ticket.id] = self._ambiguous[ticket.id] = 0

    def poll(self, now):
        self._wake_at = None
        kept = {name: self._world._waiting[name] for name in self._tickets if name not in self._in_flight}
        owed = sum(self._world._waiting[name].agent.turn.output_tokens for name in self._in_flight)
        instants = []
        for name in sorted(kept, key=lambda name: self._tickets[name].deadline_at):
            call = kept[name]
            provider = call.agent.upstream.provider
            into, out = call.agent.prompt_tokens, call.agent.turn.output_tokens
            demand = Demand(output_tokens=out, total_tokens=out if call.kept.request.prefixes else into + out)
            in_s = provider.serves_in_s(now, call.kept.request, demand, owed_tokens=owed)
            at = max(now + in_s, self._ready_at[name], self._sent_at + _STEP_S)
            if at <= now:
                self._sent_at, self._wake_at = now, now + _STEP_S
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

    def drain_events(self):
        return []


def run_oracle(scenario, *, seed):
    """One run under it."""
    world = World(scenario, seed=seed, policy=Policy.FIFO)
    world.scheduler = Oracle(world)
    return world.run()
