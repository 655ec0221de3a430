"""One pool at one instant, for people and programs: what is in flight, who waits, why, and about how long."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from hivemind_addon.api.snapshot import BreakerState, PoolView, TicketView
from hivemind_addon.api.ticket import Reason, Ticket
from hivemind_addon.proxy.core.capacity import Capacity
from hivemind_addon.proxy.core.fair_queue import FairQueue
from hivemind_addon.proxy.core.forecast import Outlook
from hivemind_addon.proxy.core.lanes import Place
from hivemind_addon.proxy.core.turn import Turn


def view_pool(
    capacity: Capacity, queue: FairQueue, turn: Turn, account_name: str | None, now: float, *, most_queued: int | None
) -> PoolView:
    """The pool, with at most so many of those that wait; None: all of them."""
    breaker = capacity.breaker
    return PoolView(
        key=capacity.key,
        account_name=account_name,
        in_flight=capacity.in_flight,
        bypassing=capacity.bypassing,
        limit=capacity.limit,
        queued=len(queue),
        breaker=breaker.state.value,
        blocked_for_s=max(0.0, capacity.hidden[0].closed_until - now),
        meters=capacity.meters.views(now),
        tickets=(*_in_flight(capacity), *_waiting(capacity, queue, turn, now, most_queued)),
        wall=capacity.wall.view(now),
        windows=capacity.windows.views(now),
        paused=capacity.paused,
        cap=capacity.cap,
        learned=capacity.learned.views,
        breaker_tries_in_s=max(0.0, breaker.passes_at - now) if breaker.state is BreakerState.OPEN else None,
    )


def _in_flight(capacity: Capacity) -> Iterator[TicketView]:
    """The oldest first."""
    return (
        TicketView(
            ticket=_as_served(flight.place),
            state="in flight",
            reason="",
            position=0,
            attempts=flight.reservation.attempt,
            waited_s=flight.place.waited_s,
        )
        for flight in capacity.flights
    )


def _waiting(capacity: Capacity, queue: FairQueue, turn: Turn, now: float, most: int | None) -> Iterator[TicketView]:
    """In their order."""
    head = queue.head()
    gate = turn.gate(head.ticket, now) if head else None
    places = queue.in_order()[:most]
    starts = starts_at(capacity, (place for place in places if queue.why_passed(place) is not Reason.FAN_OUT), now)
    return (
        TicketView(
            ticket=_as_served(place),
            state="backing off" if place.not_before > now else "queued",
            reason=turn.reason(place, head, gate, now).value,
            position=position,
            attempts=place.history.attempts,
            waited_s=place.waited_s + max(0.0, now - place.wait_began_at),
            starts_in_s=None if (at := starts.get(place.ticket.id)) is None else max(0.0, at - now),
        )
        for position, place in enumerate(places, start=1)
    )


def starts_at(capacity: Capacity, places: Iterable[Place], now: float) -> dict[str, float]:
    """When tickets, in their order, are likely to go; those that nothing tells of are left out."""
    if capacity.paused:
        return {}
    # Where the account's limit counts, the others' attempts are in the way as well.
    users = capacity.sharing.members if capacity.sharing.has_one_cap else [capacity]
    flights_s = [now - flight.reservation.admitted_at for user in users for flight in user.flights]
    outlook = Outlook(
        now=now,
        limit=capacity.limit,
        growth=capacity.growth,
        service_s=capacity.service.mean_s if capacity.service.is_known else None,
        running_s=[*flights_s, *(0.0 for user in users for _ in range(user.bypassing))],
        meters=capacity.meters,
        hidden=capacity.hidden,
        probes_at=max(capacity.breaker.passes_at, capacity.wall.passes_at),
    )
    return outlook.starts_at(places)


def _as_served(place: Place) -> Ticket:
    """The ticket, in the class that counts."""
    ticket = place.ticket
    return ticket if place.priority is ticket.priority else replace(ticket, priority=place.priority)
