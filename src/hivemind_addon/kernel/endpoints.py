"""Pools that are equal: a ticket waits in one of them, and goes to whichever can take it soonest.

Each endpoint of a provider is a pool with a queue, limits, breaker and block of its own (`pool.py`). A ticket names
those that it may go to. Two things are decided here:

**Where it waits first.** Where its session was last, else the one that started it: there its prompt cache is warm, and
a tree of sessions stays together. A new tree goes where the fewest sessions were lately, by weight: what each will take
nobody knows. Who is down, blocked or paused is nobody's first place as long as another one is not.

**When it moves.** In the poll in which another pool is *idle*: nobody who waits there could go, and it would admit this
ticket now. What it would have to read anew is its price, in seconds of that pool's bottleneck. It goes

    for nothing            it loses nothing warm; its pool is shut, or for more than a minute full; it failed there
                           twice; its client is about to leave
    for what was idled     else: once the idle pool has idled, while others waited, for a part of the price (`_PRICE`);
                           and where the ticket would wait longer than the price, by the forecast

So what is read anew is bounded by what was idled away (who hires skis buys them when he has paid as much), and equal
pools that are both busy exchange nothing. Tickets that let others pass, for their leader or their tree's fan-out, stay.

An account's block refuses all who wait for it; those who may go elsewhere do so before. So do those that a person's
pause keeps: nobody knows when it ends.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from hivemind_addon.kernel.order.lanes import EntryState, QueueEntry
from hivemind_addon.kernel.pool import Pool
from hivemind_addon.kernel.values.ticket import AttemptResult, Outcome, OutcomeKind, PoolKey, Reason, Ticket

_NEVER = float("inf")
_LONG_S = 60.0
"""Who waits longer for a limit goes elsewhere, whatever that costs."""
_SOON_S = 2.0
"""Who is let in so soon goes to no endpoint that has more to do."""
_LEAVING_S = 20.0
"""So shortly before it would be shed, or its client may leave, a ticket goes elsewhere, whatever that costs."""
_SETBACKS = 2
"""After so many failures in one pool another one is tried."""
_PRICE = 0.3
"""Seconds that a pool has to idle for each second that a moved ticket reads anew. `two-endpoints` on windows, 8 runs:
with 1.0 up to 1.12 times the bound (what is left of a window lapses), with 0.3 up to 1.04; input for up to 1.04."""
_WORTH = 1.0
"""A wait has to be so many times as long as what is read anew."""
_SURELY = 3.0
"""Who waits for a running attempt goes after another has idled so many times as long, whatever the forecast says."""
_LOOK_EVERY_S = 0.5
"""So often it is asked who would gain: the queue is played through for it."""
_MOST_IDLED_S = 60.0
"""No pool saves more than this."""
_MOVABLE = frozenset({EntryState.LANE, EntryState.RETURNING, EntryState.FRONT, EntryState.BACKING_OFF})
_LEAST_S = 0.001
"""Timers are no finer."""
_REMEMBERED = 20_000
"""Sessions, at most."""


def is_endpoints_own(outcome: Outcome) -> bool:
    """Whether an attempt failed for good by its endpoint's fault: its key, its money, its certificate."""
    if outcome.kind is not OutcomeKind.IGNORED or outcome.garbage:
        return False
    return outcome.account_block_s is not None or outcome.of_account or outcome.status in (None, 401, 402, 429)


@dataclass(slots=True)
class _Place:
    """What is known of one pool beside the others."""

    sessions: int = 0
    """That were last here, as long as their prompt cache may be warm."""
    idled_s: float = 0.0
    """How long it could have served one who waited elsewhere, less what moved tickets had to read anew."""
    idles: bool = False
    """Whether it could when it was last looked at."""
    look_at: float = 0.0
    """Before that it need not be asked again who would gain."""


@dataclass(frozen=True, slots=True)
class Move:
    """A waiting ticket is to go from one pool to another."""

    entry: QueueEntry
    source: Pool
    target: Pool


class Endpoints:
    """Of all pools that are equal to others. Answers what is to be done; the scheduler does it."""

    def __init__(self, pools: Mapping[PoolKey, Pool], merged: Mapping[PoolKey, PoolKey]) -> None:
        """Both are the scheduler's: its pools, and where pools went that proved to be others."""
        self.wakeup_at = _NEVER
        """When time alone may make one move."""
        self._pools = pools
        self._merged = merged
        self.places: dict[PoolKey, _Place] = {}
        """Of each pool that is equal to another one. Only this class changes it."""
        self._homes: dict[tuple[str, str], tuple[PoolKey, float]] = {}
        """By agent and session: where it was last, and when; the oldest first."""
        self._looked_at = 0.0
        self._moved: set[str] = set()
        """Tickets that were moved at this instant: none moves twice."""

    def __repr__(self) -> str:
        return f"<Endpoints {len(self.places)} pools, {len(self._homes)} sessions>"

    def place(self, ticket: Ticket, now: float, *, was_at: PoolKey | None = None) -> Pool:
        """Where a new ticket waits first; its pools are all there. `was_at`: where another process had it."""
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
            # One that is down takes a new tree only when all are, or to see whether it is back.
            chosen = min(open_ones, key=lambda pool: self._fullness(pool, ticket))
        self._settle_in(ticket, chosen, now)
        return chosen

    def found(self, ticket: Ticket, pool: Pool, now: float) -> None:
        """An attempt of a new ticket is in flight at another process; the pools that it may go to are all there."""
        for one in self._equal_to(ticket):
            self._place(one)
        self._settle_in(ticket, pool, now)

    def excuse(self, ticket: Ticket, result: AttemptResult, now: float) -> AttemptResult:
        """An attempt ended. Where its endpoint refuses for good, and another one may not, it is tried again there.

        What refuses for good is blocked, as long as it says, and looked at every some minutes.
        """
        outcome = result.outcome
        if outcome.retryable or not is_endpoints_own(outcome):
            return result
        own = self._merged.get(ticket.pool, ticket.pool)
        if not any(pool.key != own and not pool.is_blocked(now) for pool in self._equal_to(ticket)):
            return result
        block_s = outcome.account_block_s or 0.0
        return replace(result, outcome=replace(outcome, retryable=True, account_block_s=block_s))

    def moved(self, move: Move, now: float) -> None:
        """It was done."""
        ticket = move.entry.ticket
        self._moved.add(ticket.id)
        self._settle_in(ticket, move.target, now)

    def merged(self, key: PoolKey, into: PoolKey) -> None:
        """One pool proved to be another one."""
        left = self.places.pop(key, None)
        if left is not None:
            self.places.setdefault(into, _Place()).sessions += left.sessions

    def refugees(self, now: float) -> Iterator[Move]:
        """Who is to leave a pool before any is polled: an account's block would refuse them, or a person has paused it.

        Neither ends soon: they go also where others wait.
        """
        for pool in [pool for key in self.places if (pool := self._pools.get(key)) is not None]:
            is_blocked = pool.is_blocked(now)
            if is_blocked or pool.paused:
                for entry in pool.waiting:
                    equal = self._equal_to(entry.ticket)
                    # To wait for a person is better than to be refused.
                    others = [one for one in equal if not one.is_blocked(now) and (is_blocked or not one.paused)]
                    if others:
                        target = min(
                            others, key=lambda other: (other.opens_at(now), self._fullness(other, entry.ticket))
                        )
                        yield Move(entry, pool, target)

    def next_move(self, now: float) -> Move | None:
        """One that can go at once elsewhere, after all pools were polled; ask again until there is none."""
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
        """Who is to go to an idle pool now, if anybody is."""
        best: tuple[float, float, Move] | None = None
        dear: list[tuple[float, float, Move]] = []
        for source in waiting:
            if source is target:
                continue
            for entry in source.waiting:
                if source.lets_pass(entry):
                    continue
                if entry.state not in _MOVABLE or entry.ticket.id in self._moved or not self._may_go(entry, target):
                    continue
                read_s = self._read_s(entry, source, target, now)
                if read_s is None:
                    continue
                option = read_s, entry.since, Move(entry, source, target)
                if read_s:
                    dear.append(option)
                elif best is None or option[:2] < best[:2]:
                    best = option
        if best is None and not dear:
            return None
        room_at = target.room_at((best or dear[0])[2].entry.ticket, now)
        if room_at > now:
            self._wake(room_at, now)
            return None
        if best is not None:
            return best[2]
        return self._hired(place, dear, now)

    def _hired(self, place: _Place, dear: list[tuple[float, float, Move]], now: float) -> Move | None:
        """The cheapest whose price the idle pool has paid by idling, of those that gain by it."""
        place.idles = any(move.source.gate is not None for _, _, move in dear)
        dear.sort(key=lambda option: option[:2])
        price_s = _PRICE * dear[0][0]
        if price_s > place.idled_s:
            if place.idles:
                self._wake(now + price_s - place.idled_s, now)
            return None
        if now < place.look_at:
            self._wake(place.look_at, now)
            return None
        starts: dict[str, float] = {}
        for source in dict.fromkeys(move.source for _, _, move in dear):
            starts |= source.starts(now)
        for read_s, _, move in dear:
            if _PRICE * read_s > place.idled_s:
                break
            gate = move.source.gate
            is_stuck = gate is not None and gate.opens_at == _NEVER and place.idled_s > _SURELY * read_s
            if is_stuck or starts.get(move.entry.ticket.id, _NEVER) > now + _WORTH * read_s:
                place.idled_s -= _PRICE * read_s
                return move
        place.look_at = now + _LOOK_EVERY_S
        self._wake(place.look_at, now)
        return None

    def _wake(self, at: float, now: float) -> None:
        self.wakeup_at = min(self.wakeup_at, max(at, now + _LEAST_S))

    def _read_s(self, entry: QueueEntry, source: Pool, target: Pool, now: float) -> float | None:
        """What a waiting ticket has to read anew elsewhere; 0: it may go for nothing, None: it stays."""
        gate = source.gate
        if source.is_shut:
            return 0.0
        failed_often = entry.history.setbacks >= _SETBACKS
        if entry.state is EntryState.BACKING_OFF and failed_often:
            return None  # not at once: its failures may be its own
        if gate is not None and gate.reason is Reason.METER and gate.opens_at > now + _LONG_S:
            return 0.0
        if failed_often or min(entry.shed_at, entry.leaves_at) < now + _LEAVING_S:
            return 0.0
        ticket = entry.ticket
        lost = source.warm_tokens(ticket, now) - target.warm_tokens(ticket, now)
        if lost > 0:
            return target.reading_s(lost)
        # With it goes all that its tree will ask for: not to the fuller one, for what is open here in a moment.
        opens_soon = gate is not None and gate.opens_at < now + _SOON_S
        is_fuller = self._fullness(target, ticket) > self._fullness(source, ticket)
        return None if opens_soon and is_fuller else 0.0

    def _count_idling(self, now: float) -> None:
        passed_s, self._looked_at = now - self._looked_at, now
        if passed_s > 0:
            self._moved.clear()
        for place in self.places.values():
            if place.idles:
                place.idled_s = min(place.idled_s + passed_s, _MOST_IDLED_S)

    def _may_go(self, entry: QueueEntry, target: Pool) -> bool:
        return any(self._merged.get(one.pool, one.pool) == target.key for one in entry.ticket.endpoints)

    def _equal_to(self, ticket: Ticket) -> list[Pool]:
        """The pools that a ticket may go to."""
        keys = dict.fromkeys(self._merged.get(one.pool, one.pool) for one in ticket.endpoints)
        return [self._pools[key] for key in keys]

    def _fullness(self, pool: Pool, ticket: Ticket) -> float:
        """Sessions, by weight."""
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
                old.forget(ticket)
        self._homes[name] = (pool.key, now)
        self._place(pool).sessions += 1

    def _forget_old(self, ttl_s: float, now: float) -> None:
        """Sessions that have nothing warm any more are nowhere."""
        while self._homes:
            first, (home, at) = next(iter(self._homes.items()))
            if len(self._homes) <= _REMEMBERED and at + ttl_s > now:
                break
            del self._homes[first]
            self._leave(home)

    def _leave(self, home: PoolKey) -> None:
        self.places[self._merged.get(home, home)].sessions -= 1
