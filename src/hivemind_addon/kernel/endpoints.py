"""Equal pools: a ticket waits in one pool and moves to an equal pool that can admit the ticket sooner.

Each endpoint of a provider is a pool. A ticket names its possible endpoints. Two things are decided here:

**Where a ticket waits first.** In the pool of the session, else of the parent session: the prompt cache is warm there.
A new tree of sessions goes to the pool with the fewest recent sessions, by weight. A pool that is down, blocked or
paused is chosen only when all are.

**When a ticket moves.** In the poll in which another pool is *idle*: none of the idle pool's own tickets can go, and
that pool would admit the ticket now. The price is the input to read again, in seconds of the idle pool's bottleneck.

    free of charge         no warm prompt is lost; the ticket's pool is shut, or full for more than a minute; the ticket
                           failed there twice; the client leaves soon
    for the price          once the idle pool has idled, while tickets waited elsewhere, for a part of the price
                           (`_PRICE`)

So the idle time bounds the input that is read again (the ski-rental problem: buy after paying as much rent), and two
busy pools exchange no tickets. A ticket that lets others pass, for a leader or a fan-out limit, stays. Tickets that may
go elsewhere leave a pool with an account block, which refuses all, and a pool that a person paused.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hivemind_addon.kernel.limits.owner import as_block
from hivemind_addon.kernel.order.entry import EntryState, QueueEntry
from hivemind_addon.kernel.pool import Pool
from hivemind_addon.kernel.values.ticket import AttemptResult, PoolKey, Reason, Ticket

_NEVER = float("inf")
_LONG_S = 60.0
"""A ticket that waits longer than this for a limit moves at any price."""
_LEAVING_S = 20.0
"""A ticket moves at any price this shortly before the shed time, or before its client may leave."""
_SETBACKS = 2
"""After this many failures in a pool, a ticket may move free of charge."""
_PRICE = 0.3
"""Seconds that a pool has to idle for each second that a moved ticket reads again. `two-endpoints` on windows, 8 runs:
up to 1.12 times the bound with 1.0 (the rest of a window lapses), up to 1.04 with 0.3; up to 1.04 for input."""
_MOST_IDLED_S = 60.0
"""A pool saves at most this much idle time."""
_MOVABLE = frozenset({EntryState.DUE, EntryState.BACKING_OFF})
_LEAST_S = 0.001
"""The resolution of timers."""
_REMEMBERED = 20_000
"""The most sessions to remember."""


@dataclass(slots=True)
class _Place:
    """The record of one pool that is equal to others."""

    sessions: int = 0
    """The sessions that used this pool last and whose prompt cache may still be warm."""
    idled_s: float = 0.0
    """Seconds in which the pool could have served tickets that waited elsewhere, less the reading of moved tickets."""
    idles: bool = False
    """Whether the pool was idle at the last look."""


@dataclass(frozen=True, slots=True)
class Move:
    """A waiting ticket's move from one pool to another, for the scheduler to carry out."""

    entry: QueueEntry
    source: Pool
    target: Pool


class Endpoints:
    """Places tickets among equal pools. Returns decisions; the scheduler carries them out."""

    def __init__(self, pools: Mapping[PoolKey, Pool], merged: Mapping[PoolKey, PoolKey]) -> None:
        """`pools` and `merged` belong to the scheduler. `merged`: pool → the pool that it became a part of."""
        self.wakeup_at = _NEVER
        """The instant at which time alone may allow a move."""
        self._pools = pools
        self._merged = merged
        self.places: dict[PoolKey, _Place] = {}
        """The pools that have equals. Written by this class only."""
        self._homes: dict[tuple[str, str], tuple[PoolKey, float]] = {}
        """Agent and session → the last pool and the instant of that use; the oldest first."""
        self._looked_at = 0.0
        self._moved: set[str] = set()
        """Tickets moved at this instant: a ticket moves once."""

    def place(self, ticket: Ticket, now: float, *, was_at: PoolKey | None = None) -> Pool:
        """The pool in which a new ticket waits first. `was_at`: the pool that had the ticket at another process."""
        pools = self._equal_to(ticket)
        for pool in pools:
            self._place(pool)
        self._forget_old(pools[0].settings.order.cache.ttl_s, now)
        opens_at = {pool.key: pool.opens_at(now) for pool in pools}
        soonest = min(opens_at.values())
        open_ones = [pool for pool in pools if opens_at[pool.key] <= max(now, soonest)]
        home = self._home(ticket) if was_at is None else self._merged.get(was_at, was_at)
        chosen = next((pool for pool in open_ones if pool.key == home), None)
        if chosen is None:
            # A pool that is down takes a new tree only when all are down, or as a probe.
            chosen = min(open_ones, key=lambda pool: self._fullness(pool, ticket))
        self._settle_in(ticket, chosen, now)
        return chosen

    def found(self, ticket: Ticket, pool: Pool, now: float) -> None:
        """Note that an attempt of a new ticket is in flight at another process. All pools of the ticket exist."""
        for equal in self._equal_to(ticket):
            self._place(equal)
        self._settle_in(ticket, pool, now)

    def excuse(self, ticket: Ticket, result: AttemptResult, now: float) -> AttemptResult:
        """Make a final refusal by an endpoint retryable if another endpoint may accept the ticket.

        The refusing pool is blocked for the time that the refusal names, with a probe every few minutes.
        """
        own = self._merged.get(ticket.pool, ticket.pool)
        if not any(pool.key != own and not pool.is_blocked(now) for pool in self._equal_to(ticket)):
            return result
        return as_block(result, ticket.deadline_at - now)

    def moved(self, move: Move, now: float) -> None:
        """Note that the scheduler carried out a move."""
        ticket = move.entry.ticket
        self._moved.add(ticket.id)
        self._settle_in(ticket, move.target, now)

    def merged(self, key: PoolKey, into: PoolKey) -> None:
        """Note that a pool became a part of another pool."""
        left = self.places.pop(key, None)
        if left is not None:
            self.places.setdefault(into, _Place()).sessions += left.sessions

    def refugees(self, now: float) -> Iterator[Move]:
        """Yield moves out of pools that are blocked or paused, to make before any pool is polled.

        An account block would refuse the tickets. Neither state ends soon, so a target may have waiting tickets of its
        own.
        """
        for pool in [pool for key in self.places if (pool := self._pools.get(key)) is not None]:
            is_blocked = pool.is_blocked(now)
            if is_blocked or pool.capacity.paused:
                for entry in pool.queue:
                    equal = self._equal_to(entry.ticket)
                    # Waiting for a person is better than a refusal.
                    others = [
                        one for one in equal if not one.is_blocked(now) and (is_blocked or not one.capacity.paused)
                    ]
                    if others:
                        places = [(one.opens_at(now), self._fullness(one, entry.ticket)) for one in others]
                        target = others[places.index(min(places))]
                        yield Move(entry, pool, target)

    def next_move(self, now: float) -> Move | None:
        """The next ticket that another pool would admit at once, after all pools were polled. Call until None."""
        self._count_idling(now)
        self.wakeup_at = _NEVER
        waiting = [pool for key in self.places if (pool := self._pools.get(key)) is not None and not pool.is_idle]
        found: Move | None = None
        for key, place in self.places.items():
            target = self._pools.get(key)
            place.idles = False
            if target is None:
                continue
            if not target.is_hungry:
                place.idled_s = 0.0  # it has enough to do
            elif found is None and waiting:
                found = self._move_to(target, place, waiting, now)
        return found

    def _move_to(self, target: Pool, place: _Place, waiting: Iterable[Pool], now: float) -> Move | None:
        """The cheapest move to an idle pool, once the pool has paid for it by idling; None: no ticket moves now."""
        options: list[tuple[float, float, Move]] = []
        for source in waiting:
            for entry in source.queue if source is not target else ():
                if source.queue.why_passed(entry) is not None:
                    continue
                if entry.state not in _MOVABLE or entry.ticket.id in self._moved or not self._may_go(entry, target):
                    continue
                read_s = self._read_s(entry, source, target, now)
                if read_s is not None:
                    options.append((read_s, entry.since, Move(entry, source, target)))
        if not options:
            return None
        read_s, _, move = min(options, key=lambda option: option[:2])
        if (room_at := target.room_at(move.entry.ticket, now)) > now:
            self._wake(room_at, now)
            return None
        place.idles = read_s > 0 and any(other.source.gate is not None for _, _, other in options)
        missing_s = _PRICE * read_s - place.idled_s
        if missing_s > 0:
            if place.idles:
                self._wake(now + missing_s, now)
            return None
        place.idled_s = -missing_s
        return move

    def _wake(self, at: float, now: float) -> None:
        self.wakeup_at = min(self.wakeup_at, max(at, now + _LEAST_S))

    def _read_s(self, entry: QueueEntry, source: Pool, target: Pool, now: float) -> float | None:
        """Seconds of input for a waiting ticket to read again elsewhere; 0: free of charge; None: the ticket stays."""
        gate = source.gate
        if source.is_shut:
            return 0.0
        failed_often = entry.history.setbacks >= _SETBACKS
        if entry.state is EntryState.BACKING_OFF and failed_often:
            return None  # not at once: the request itself may be the cause of the failures
        if gate is not None and gate.reason is Reason.METER and gate.opens_at > now + _LONG_S:
            return 0.0
        if failed_often or entry.ticket.shed_at < now + _LEAVING_S:
            return 0.0
        ticket = entry.ticket
        lost = source.queue.cache.warm_tokens(ticket, now) - target.queue.cache.warm_tokens(ticket, now)
        return target.capacity.saved_s(lost) if lost > 0 else 0.0  # the whole tree follows the ticket

    def _count_idling(self, now: float) -> None:
        passed_s, self._looked_at = now - self._looked_at, now
        if passed_s > 0:
            self._moved.clear()
        for place in self.places.values():
            if place.idles:
                place.idled_s = min(place.idled_s + passed_s, _MOST_IDLED_S)

    def _may_go(self, entry: QueueEntry, target: Pool) -> bool:
        return any(self._merged.get(endpoint.pool, endpoint.pool) == target.key for endpoint in entry.ticket.endpoints)

    def _equal_to(self, ticket: Ticket) -> list[Pool]:
        keys = dict.fromkeys(self._merged.get(endpoint.pool, endpoint.pool) for endpoint in ticket.endpoints)
        return [self._pools[key] for key in keys]

    def _fullness(self, pool: Pool, ticket: Ticket) -> float:
        """The pool's sessions divided by the weight of the ticket's endpoint."""
        weight = next((one.weight for one in ticket.endpoints if self._merged.get(one.pool, one.pool) == pool.key), 1.0)
        return self._place(pool).sessions / weight

    def _place(self, pool: Pool) -> _Place:
        return self.places.setdefault(pool.key, _Place())

    def _home(self, ticket: Ticket) -> PoolKey | None:
        for session in (ticket.session, ticket.parent_session):
            home = self._homes.get((ticket.agent, session)) if session else None
            if home is not None:
                return self._merged.get(home[0], home[0])
        return None

    def _settle_in(self, ticket: Ticket, pool: Pool, now: float) -> None:
        name = (ticket.agent, ticket.session)
        before = self._homes.pop(name, None)
        if before is not None:
            self._leave(before[0])
            home = self._merged.get(before[0], before[0])
            if home != pool.key and (old := self._pools.get(home)) is not None:
                old.queue.cache.forget(ticket)
        self._homes[name] = (pool.key, now)
        self._place(pool).sessions += 1

    def _forget_old(self, ttl_s: float, now: float) -> None:
        """Forget sessions whose prompt cache has expired."""
        while self._homes:
            first, (home, at) = next(iter(self._homes.items()))
            if len(self._homes) <= _REMEMBERED and at + ttl_s > now:
                break
            del self._homes[first]
            self._leave(home)

    def _leave(self, home: PoolKey) -> None:
        self.places[self._merged.get(home, home)].sessions -= 1
