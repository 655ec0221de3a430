"""When a call that an agent made now would be sent, without making it.

A guest is seated in the queue's order where the call would stand, and the queue is played through with it
(`forecast.py`): so it is as good a guess as those of the tickets that wait, and has the same bounds. What comes in
after it is not known: calls of a higher class, or of agents that owe less, may still go first.
"""

from hivemind_addon.api.command import WaitView
from hivemind_addon.api.spend import Shortage
from hivemind_addon.api.ticket import Reason
from hivemind_addon.proxy.core.capacity import Capacity
from hivemind_addon.proxy.core.fair_queue import FairQueue
from hivemind_addon.proxy.core.lanes import Place
from hivemind_addon.proxy.core.pool_view import starts_at
from hivemind_addon.proxy.core.turn import Turn

_NEVER = float("inf")
_WITHOUT_FORECAST = (Reason.PAUSED, Reason.FUNDS, Reason.FAN_OUT)
"""Until a person says so, or a running attempt of its own ends."""


def foresee(
    guest: Place, short: Shortage | None, *, capacity: Capacity, queue: FairQueue, turn: Turn, now: float
) -> WaitView:
    """What a call would meet. `guest` is no ticket of this pool; `short`: what its budgets lack."""
    pool = str(capacity.key)
    if closure := capacity.wall.stands(now):
        return WaitView(pool, closure.until - now, 0, f"{Reason.WALL.value}: {closure.reason}")
    if short is not None and not short.may_pass:
        return WaitView(pool, short.renews_in_s, 0, f"{Reason.BUDGET.value}: {short.budget.holder}")
    queue.seat(guest, now)
    places = [one for one in queue.in_order(guest) if one is guest or queue.why_passed(one) is not Reason.FAN_OUT]
    starts = starts_at(capacity, places, now)
    before = sum(one.not_before <= now for one in places[: places.index(guest)])
    head = guest if before == 0 else queue.head()
    gate = turn.gate((head or guest).ticket, now)
    if short is not None:
        reason = Reason.FUNDS
    elif before == 0 and gate is None and queue.why_passed(guest) is None:
        return WaitView(pool, 0.0, 0, "")
    else:
        reason = turn.reason(guest, head, gate, now)
    if reason in _WITHOUT_FORECAST:
        return WaitView(pool, None, before, reason.value)
    at = starts.get(guest.ticket.id)
    if before == 0 and gate is not None and gate.opens_at < _NEVER:
        at = gate.opens_at  # the meters themselves, which the forecast plays in short
    if at is not None:
        at = max(at, queue.leader_until(guest.ticket, now))
        # Those that back off stand before it and let it pass; of the others some may start after it.
        before = sum(starts.get(one.ticket.id, _NEVER) <= at for one in places[: places.index(guest)])
    return WaitView(pool, None if at is None else max(0.0, at - now), before, reason.value)
