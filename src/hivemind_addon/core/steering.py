"""What persons ask, carried out: the scheduler's second hand, on the same pools.

Orders that stand are kept in `orders.py`, and every pool looks at them; what concerns one ticket is done here and now.
A queued ticket that is cancelled is refused with the next poll; an attempt in flight has to be ended from outside.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from hivemind_addon.core.command import (
    Cancel,
    MoveToFront,
    Pause,
    Resume,
    Said,
    SchedulerCommand,
    SetLimit,
    SetPriority,
    names_pool,
)
from hivemind_addon.core.decision import Refused
from hivemind_addon.core.events import Event, PersonActed
from hivemind_addon.core.orders import Orders
from hivemind_addon.core.pool import Pool
from hivemind_addon.core.ticket import PoolKey, Priority, Reservation


class Steering:
    """Shares the scheduler's books; only the scheduler calls it."""

    def __init__(
        self,
        *,
        orders: Orders,
        pools: Mapping[PoolKey, Pool],
        pool_of_ticket: Mapping[str, Pool],
        changed: dict[Pool, None],
        emit: Callable[[Event], None],
    ) -> None:
        """`changed`: where pools are put that are to be polled."""
        self._orders = orders
        self._pools = pools
        self._pool_of_ticket = pool_of_ticket
        self._changed = changed
        self._emit = emit
        self._refused: list[Refused] = []
        self._called_off: list[Reservation] = []

    def __repr__(self) -> str:
        return f"<Steering by {self._orders!r}>"

    def obey(self, command: SchedulerCommand, now: float) -> Said:
        """Do it, and say what was done."""
        match command:
            case Pause(pool=glob) | Resume(pool=glob):
                return self._pause(glob, now, paused=isinstance(command, Pause))
            case SetLimit(limit=limit, pool=glob):
                return self._set_limit(glob, limit, now)
            case SetPriority(agent=glob, priority=priority):
                return self._set_priority(glob, priority, now)
            case MoveToFront(ticket_id=ticket_id):
                return self._move_to_front(ticket_id, now)
            case Cancel(ticket_id=ticket_id):
                return self._call_off(ticket_id, now)
            case _:
                assert_never(command)

    def drain_refused(self) -> list[Refused]:
        """Tickets that were queued and are cancelled, since the last call."""
        refused, self._refused = self._refused, []
        return refused

    def drain_called_off(self) -> list[Reservation]:
        """Attempts that are cancelled and run, since the last call."""
        called_off, self._called_off = self._called_off, []
        return called_off

    def _pause(self, glob: str, now: float, *, paused: bool) -> Said:
        if not glob:
            return Said(done=False, text="name a pool, a host or a glob")
        affected = [key for key in self._pools if names_pool(glob, key)]
        is_paused = any(self._pools[key].paused for key in affected) or self._orders.pauses_for(glob)
        if not paused and not is_paused:
            return Said(done=False, text=f"nothing of {glob} is paused")
        self._orders.pause(glob, paused=paused)
        what = "paused: nothing is sent until somebody resumes it" if paused else "resumed"
        return self._obeyed(what, glob, affected, now)

    def _set_limit(self, glob: str, limit: int | None, now: float) -> Said:
        if not glob:
            return Said(done=False, text="name a pool, a host or a glob")
        if limit is not None and limit < 1:
            return Said(done=False, text=f"a limit of {limit} sends nothing: pause it instead")
        self._orders.cap(glob, limit)
        what = "as many attempts at once as it takes" if limit is None else f"at most {limit} attempts at once"
        return self._obeyed(what, glob, [key for key in self._pools if names_pool(glob, key)], now)

    def _obeyed(self, what: str, glob: str, affected: Sequence[PoolKey], now: float) -> Said:
        """Let all pools look at the orders; tell those concerned, and the person."""
        for pool in self._pools.values():
            pool.obey(now)
            self._changed[pool] = None
        one = affected[0] if len(affected) == 1 else None
        which = {0: f"{glob} (no pool yet)", 1: str(one)}.get(len(affected), f"{glob} ({len(affected)} pools)")
        self._emit(
            PersonActed(at=now, text=f"{what} (by a person)" if one else f"{which}: {what} (by a person)", pool=one)
        )
        return Said(done=True, text=f"{which}: {what}")

    def _set_priority(self, glob: str, priority: Priority | None, now: float) -> Said:
        if not glob:
            return Said(done=False, text="name an agent or a glob")
        self._orders.prefer(glob, priority)
        for pool in self._pools.values():
            pool.obey(now)
            self._changed[pool] = None
        what = "the priority that it asks for" if priority is None else f"priority {priority.name.lower()}"
        self._emit(PersonActed(at=now, text=f"agent {glob}: {what} (by a person)"))
        return Said(done=True, text=f"agent {glob}: {what}")

    def _move_to_front(self, ticket_id: str, now: float) -> Said:
        pool = self._pool_of_ticket.get(ticket_id)
        if pool is None or not pool.expedite(ticket_id, now):
            return _unknown(ticket_id, "waits")
        self._changed[pool] = None
        self._tell_of_ticket(ticket_id, "moved to the front by a person", now)
        return Said(done=True, text=f"{ticket_id} goes next")

    def _call_off(self, ticket_id: str, now: float) -> Said:
        pool = self._pool_of_ticket.get(ticket_id)
        answer = None if pool is None else pool.call_off(ticket_id, now)
        if pool is None or answer is None:
            return _unknown(ticket_id, "waits or runs")
        self._tell_of_ticket(ticket_id, "cancelled by a person", now)
        if isinstance(answer, Refused):
            self._refused.append(answer)
            self._changed[pool] = None
            return Said(done=True, text=f"{ticket_id} is cancelled")
        self._called_off.append(answer)
        return Said(done=True, text=f"{ticket_id} is cancelled, its running attempt ended")

    def _tell_of_ticket(self, ticket_id: str, text: str, now: float) -> None:
        self._emit(PersonActed(at=now, text=text, pool=self._pool_of_ticket[ticket_id].key, ticket_id=ticket_id))


def _unknown(ticket_id: str, what: str) -> Said:
    return Said(done=False, text=f"no request {ticket_id!r} {what}: it may be over")
