"""The order of one pool's tickets: fair among agents, then among their sessions; other preferences are bounded leads.

**Unit.** Seconds of the pool's bottleneck (`meters.py`): the cost of a ticket is the time that others wait longer.

**Fairness.** Bounded-credit start-time fair queueing (`shares.py`) among agents, and within each agent among its trees
of sessions (`lanes.py`): the smallest `start - bonus` goes next.

**Bonus** of a ticket, in seconds, the sum of:

    class     `class_lead_s` for each class below the ticket's: critical, high, normal, low, background
    cache     the seconds that a warm prefix saves, at most `affinity_s`, and nothing below `credit_s`; just before the
              prefix lapses all of `affinity_s`, so that the ticket goes in time
    size      minus the reading time of a large input, at most `size_lag_s`: of equal tickets the smaller goes first

Each part is bounded, and the start of a served agent moves on, so every wait is bounded: before a ticket of an agent
that owes nothing, each other agent is served at most `credit_s + OrderSettings.most_bonus_s + one cost`.

**Positions.** A retried ticket keeps the agent's start of the first attempt, and so goes before later tickets. A ticket
that comes back after a shed keeps the earlier position.

**Passing.** These tickets let others pass, so that they delay no ticket and idle no slot: a ticket in backoff; a
follower of a cold prefix whose leader was just sent (`cache.py`); a sub-agent of a tree with all granted attempts in
flight. Any other first ticket that does not fit blocks the tickets behind: else small tickets would starve a large
ticket.

Every operation is O(log n), except for `in_order` and `head_where`. A follower is moved aside once for each leader, at
the follower's turn, and back once.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from operator import itemgetter

from hivemind_addon.kernel.heap import KeyedHeap
from hivemind_addon.kernel.limits.meters import reading_s
from hivemind_addon.kernel.order.cache import CacheSettings, PromptCache
from hivemind_addon.kernel.order.lanes import EntryState, Lanes, QueueEntry
from hivemind_addon.kernel.sliced_work import whole
from hivemind_addon.kernel.values.ticket import Demand, Priority, Reason, Ticket

_NEVER = float("inf")
_LONG_AGO = float("-inf")
_CLASSES = len(Priority)
"""Classes above the background."""
_SMALL_S = 0.5
"""A shorter reading time is small: such tickets go by age, because the older client leaves first."""
_PART = 500
"""Tickets sorted at once: one or two milliseconds."""
_SENT_FIRST = (EntryState.RETURNING, EntryState.FRONT)


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """How far other reasons than fairness may move a ticket forward, in seconds of the pool's bottleneck."""

    credit_s: float = 4.0
    """How far an agent or session that rested may be ahead of those that take all they can get."""
    class_lead_s: float = 30.0
    """From one priority class to the next."""
    affinity_s: float = 60.0
    """The most that a warm prefix may save; a prefix that is about to lapse always counts in full."""
    expiring_s: float = 20.0
    """This close to the end a prefix is about to lapse."""
    size_lag_s: float = 0.5
    """The largest lag of a large input. Orders equal tickets only: with larger lags, running conversations (little new
    input) keep new conversations (all input new) out until the end, and the whole takes longer."""
    cache: CacheSettings = field(default_factory=CacheSettings)

    @property
    def most_bonus_s(self) -> float:
        """The largest difference between two tickets' bonuses."""
        return _CLASSES * self.class_lead_s + self.affinity_s + self.size_lag_s


class FairQueue:
    """The waiting tickets of one pool. Call `wake` before `head`."""

    def __init__(
        self,
        settings: OrderSettings,
        *,
        cost_s: Callable[[Demand], float],
        saved_s: Callable[[int], float],
    ) -> None:
        """`cost_s`: a demand's dominant cost; `saved_s`: the seconds that this many warm tokens save."""
        self._settings = settings
        self._saved_s = saved_s
        self._cache = PromptCache(settings.cache)
        self._lanes = Lanes(credit_s=settings.credit_s, cost_s=cost_s)
        self.entries: dict[str, QueueEntry] = {}
        """The waiting entries by ticket. Written by this class only."""
        self._returning: KeyedHeap[str] = KeyedHeap()
        self._front: KeyedHeap[str] = KeyedHeap()
        self._later: KeyedHeap[str] = KeyedHeap()
        self._shed: KeyedHeap[str] = KeyedHeap()
        self._leaving: KeyedHeap[str] = KeyedHeap()
        """By the instant of the shed time, or at which the client may leave, if sooner."""
        self._aside: dict[str, dict[str, None]] = {}
        """Followers by prefix."""
        self._gates: KeyedHeap[str] = KeyedHeap()
        """Prefixes with followers aside, by the instant at which the followers go without their leader."""
        self._cached: dict[str, dict[str, None]] = {}
        """Waiting tickets by the cache entry that would save input."""
        self._turns: KeyedHeap[str] = KeyedHeap()
        """Waiting tickets with a warm prefix, by the instant at which the bonus changes."""
        self._last_order = 0
        self._first_order = 0
        self._now = _LONG_AGO

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, ticket_id: str) -> bool:
        return ticket_id in self.entries

    def __iter__(self) -> Iterator[QueueEntry]:
        """The waiting entries, in no order, as a copy."""
        return iter(tuple(self.entries.values()))

    def configure(self, settings: OrderSettings) -> None:
        """Apply changed settings; a waiting ticket follows with the next move."""
        self._settings = settings
        self._cache.configure(settings.cache)

    def __repr__(self) -> str:
        aside = sum(map(len, self._aside.values()))
        return f"<FairQueue {len(self.entries)} waiting, {len(self._later)} backing off, {aside} following>"

    # Waiting tickets -------------------------------------------------------------------------------------------------

    def append(self, entry: QueueEntry, now: float) -> None:
        """Queue a new ticket at the end of its lane; a request that came back, at the earlier position."""
        self._first_order = min(self._first_order, entry.front)
        self._enrol(entry, now)
        self._insert(entry, now)

    def put_back(self, entry: QueueEntry, not_before: float, now: float) -> None:
        """Queue a ticket again at the old position, due at `not_before`."""
        entry.not_before = not_before
        self._insert(entry, now)

    def move(self, entry: QueueEntry, not_before: float, now: float) -> None:
        """Change when a waiting ticket is due, at the same position; infinite: when the budget has room."""
        self._lanes.note_position(entry, now)
        self._take_out(entry, now)
        self.put_back(entry, not_before, now)

    def get(self, ticket_id: str) -> QueueEntry | None:
        """A waiting ticket's entry."""
        return self.entries.get(ticket_id)

    def remove(self, ticket_id: str, now: float) -> QueueEntry | None:
        """Remove a ticket for good; None: the ticket is not waiting."""
        entry = self.entries.get(ticket_id)
        if entry is not None:
            self._lanes.note_position(entry, now)
            self._take_out(entry, now)
            entry.become(EntryState.ENDED)
        return entry

    def take_all(self, now: float) -> list[QueueEntry]:
        """Empty the queue of a pool that proved to be another. Returns the entries as new, the oldest first."""
        entries = sorted(self.entries.values(), key=lambda entry: entry.order)
        for entry in entries:
            self._take_out(entry, now)
            entry.renew()
        return entries

    def take(self, entry: QueueEntry, now: float) -> None:
        """Remove an entry that moves to another pool, as new."""
        self._take_out(entry, now)
        entry.renew()

    def wake_up(self, slept_s: float, now: float) -> None:
        """Note that the machine and all clients slept until now."""
        for entry in self:
            self._take_out(entry, now)
            entry.wake_up(slept_s)
            self._insert(entry, now)

    def move_to_front(self, ticket_id: str, now: float) -> bool:
        """Move a ticket to the front. A backoff still holds the ticket, but a leader does not."""
        entry = self.entries.get(ticket_id)
        if entry is None:
            return False
        self._take_out(entry, now)
        self._first_order -= 1
        entry.front = self._first_order
        self._insert(entry, now)
        return True

    def reclass(self, entry: QueueEntry, priority: Priority, now: float) -> None:
        """Move a waiting ticket to another class."""
        self._take_out(entry, now)
        entry.priority = priority
        entry.weigh()
        self._insert(entry, now)

    # Attempts --------------------------------------------------------------------------------------------------------

    def admit(self, entry: QueueEntry, now: float) -> None:
        """Remove a ticket for an attempt, and charge the expected cost. `settle` the attempt at the end."""
        self._lanes.charge(entry, now)
        self._take_out(entry, now)
        entry.become(EntryState.IN_FLIGHT)
        self._cache.sent(entry.ticket, now)

    def began(self, entry: QueueEntry, *, sent_at: float, now: float) -> None:
        """Note that the answer to an attempt began: followers of the same prefix are released."""
        ticket = entry.ticket
        warmed = self._cache.began(ticket, sent_at=sent_at, now=now)
        if self._aside:
            self._release(ticket.prefix, now)
        for cached in warmed:
            for ticket_id in self._cached.get(cached, ()):
                self._revalue(self.entries[ticket_id], now)

    def charge_again(self, entry: QueueEntry, now: float) -> None:
        """Charge an attempt in flight that another pool charged, which proved to be this pool."""
        self._lanes.charge_again(entry, now)

    def adopt(self, entry: QueueEntry, cost_s: float, now: float) -> None:
        """Charge an attempt that another process sent, of a new ticket. `settle` the attempt at the end."""
        self._enrol(entry, now)
        entry.become(EntryState.IN_FLIGHT)
        entry.was_sent, entry.charged_s = True, cost_s
        self._lanes.charge_again(entry, now)

    def settle(self, entry: QueueEntry, cost_s: float, now: float, *, answered: bool) -> None:
        """Settle an attempt with the actual cost. `answered`: the response, if any began, was not a refusal."""
        self._lanes.settle(entry, cost_s, now)
        if self._cache.ended(entry.ticket, answered=answered):
            self._release(entry.ticket.prefix, now)

    def forget(self, ticket: Ticket) -> None:
        """Forget the prefix of a conversation that moved to another pool."""
        self._cache.forget(ticket)

    def is_cold(self, ticket: Ticket, now: float) -> bool:
        """Whether the provider's cache probably holds nothing of a ticket's input."""
        return self._cache.warm_until(ticket, now) == _LONG_AGO

    # The next ticket -------------------------------------------------------------------------------------------------

    def only(self, now: float) -> QueueEntry | None:
        """The only waiting ticket, if nothing but the next poll holds the ticket. No `wake` is needed.

        None: no such ticket, or little time is left.
        """
        entry = self._lanes.alone
        if entry is None or len(self.entries) > 1 or entry.shed_at <= now or entry.leaves_at <= now:
            return None
        if self._turns.first_key <= now or self._cache.opens_at(entry.ticket, now) != _LONG_AGO:
            return None
        self._now = now
        return entry

    def wake(self, now: float) -> None:
        """Queue tickets again whose backoff ended or whose leader took too long; let warm prefixes lapse."""
        self._now = now
        while self._later.first_key <= now and (ticket_id := self._later.first) is not None:
            self._later.drop(ticket_id)
            self._insert_due(self.entries[ticket_id], now)
        while self._gates.first_key <= now and (prefix := self._gates.first) is not None:
            self._release(prefix, now)
        while self._turns.first_key <= now and (ticket_id := self._turns.first) is not None:
            self._revalue(self.entries[ticket_id], now)

    def head(self) -> QueueEntry | None:
        """The first ticket that is due and lets no others pass."""
        while (entry := self._first()) is not None:
            opens_at = self._cache.opens_at(entry.ticket, self._now)
            if opens_at == _LONG_AGO or entry.state is EntryState.FRONT:
                return entry
            self._set_aside(entry, opens_at)
        return None

    def head_where(self, is_meant: Callable[[Ticket], bool]) -> QueueEntry | None:
        """The first such ticket that satisfies the condition. O(n): asked once per probe."""
        others = (
            entry
            for entry in self.entries.values()
            if is_meant(entry.ticket)
            and (entry.state in _SENT_FIRST or self._lanes.is_first_of_lane(entry))
            and self.why_passed(entry) is None
        )
        return min(others, key=self._rank, default=None)

    def soonest(self) -> QueueEntry | None:
        """The ticket whose backoff ends first."""
        first = self._later.first
        return None if first is None else self.entries[first]

    def next_due_at(self) -> float:
        """When the next backoff ends or the next follower goes without a leader; infinite: never."""
        return min(self._later.first_key, self._gates.first_key)

    def next_shed_at(self) -> float:
        """The earliest `shed_at` of all waiting tickets; infinite: none waits."""
        return self._shed.first_key

    def first_to_shed(self, now: float) -> QueueEntry | None:
        """A ticket whose `shed_at` has come."""
        first = self._shed.first
        return None if first is None or self._shed.first_key > now else self.entries[first]

    def first_to_leave(self) -> QueueEntry | None:
        """The ticket whose client may leave first, or that is shed first."""
        first = self._leaving.first
        return None if first is None else self.entries[first]

    def expect(self, entry: QueueEntry, leaves_at: float) -> None:
        """Change when a waiting ticket's client may leave."""
        entry.leaves_at = leaves_at
        self._leaving.put(entry.ticket.id, min(entry.shed_at, leaves_at))

    def why_passed(self, entry: QueueEntry) -> Reason | None:
        """Why others may pass a waiting ticket that is not in backoff; None: they may not."""
        if entry.state is EntryState.FRONT:
            return None
        if entry.state is EntryState.FOLLOWING or self._cache.opens_at(entry.ticket, self._now) > self._now:
            return Reason.LEADER
        return Reason.FAN_OUT if entry.state is EntryState.LANE and self._lanes.is_capped(entry) else None

    def in_order(self, guest: QueueEntry | None = None) -> list[QueueEntry]:
        """All waiting tickets in the order in which they would go without arrivals. O(n log n): for views and stopping.

        `guest`: a ticket to order as if just arrived, for views only.
        """
        return whole(self.in_order_in_parts(guest))

    def in_order_in_parts(self, guest: QueueEntry | None = None) -> Generator[None, None, list[QueueEntry]]:
        """The same, some hundred tickets at a time; tickets that went meanwhile are left out."""
        ranked = []
        for item in self._forecast(guest):
            ranked.append(item)
            if not len(ranked) % _PART:
                yield
        ranked.sort(key=itemgetter(0, 1))
        yield
        return [entry for _, _, entry in ranked if entry is guest or self.entries.get(entry.ticket.id) is entry]

    def seat(self, guest: QueueEntry, now: float) -> None:
        """Give a future guest the number and the bonus that a new ticket would get; the queue stays the same."""
        guest.enrol(self._last_order + 1, now)
        if _warm_tokens(guest.ticket):
            guest.cache_entry = self._cache.entry(guest.ticket)
        guest.bonus_s = self._worth(guest, now)[0]
        guest.become(EntryState.LANE)
        guest.tree = self._lanes.tree_of(guest.ticket, is_background=guest.is_background)

    def leader_until(self, ticket: Ticket, now: float) -> float:
        """The latest end of a ticket's wait for the leader of its prefix; `now`: no wait."""
        return max(now, self._cache.opens_at(ticket, now))

    # Inside ----------------------------------------------------------------------------------------------------------

    def _enrol(self, entry: QueueEntry, now: float) -> None:
        """Number a new ticket."""
        self._last_order += 1
        entry.enrol(self._last_order, now)
        if _warm_tokens(entry.ticket):
            entry.cache_entry = self._cache.entry(entry.ticket)

    def _insert(self, entry: QueueEntry, now: float) -> None:
        ticket = entry.ticket
        self.entries[ticket.id] = entry
        self._shed.put(ticket.id, entry.shed_at)
        self._leaving.put(ticket.id, min(entry.shed_at, entry.leaves_at))
        if entry.cache_entry:
            self._cached.setdefault(entry.cache_entry, {})[ticket.id] = None
        if entry.not_before == _NEVER:
            entry.become(EntryState.UNFUNDED)
        elif entry.not_before > now:
            entry.become(EntryState.BACKING_OFF)
            self._later.put(ticket.id, entry.not_before)
        else:
            self._insert_due(entry, now)

    def _insert_due(self, entry: QueueEntry, now: float) -> None:
        entry.bonus_s = self._bonus_s(entry, now)
        if entry.front:
            entry.become(EntryState.FRONT)
            self._front.put(entry.ticket.id, entry.front)
        elif entry.was_sent:
            entry.become(EntryState.RETURNING)
            self._returning.put(entry.ticket.id, entry.agent_start_s - entry.bonus_s, entry.order)
        else:
            self._lanes.enter(entry, now)
            entry.become(EntryState.LANE)

    def _take_out(self, entry: QueueEntry, now: float) -> None:
        ticket = entry.ticket
        del self.entries[ticket.id]
        self._shed.drop(ticket.id)
        self._leaving.drop(ticket.id)
        if entry.cache_entry:
            self._turns.drop(ticket.id)
            alike = self._cached[entry.cache_entry]
            del alike[ticket.id]
            if not alike:
                del self._cached[entry.cache_entry]
        self._leave_state(entry, now)

    def _leave_state(self, entry: QueueEntry, now: float) -> None:
        ticket = entry.ticket
        match entry.state:
            case EntryState.LANE:
                self._lanes.leave(entry, now)
            case EntryState.RETURNING:
                self._returning.drop(ticket.id)
            case EntryState.FRONT:
                self._front.drop(ticket.id)
            case EntryState.BACKING_OFF:
                self._later.drop(ticket.id)
            case EntryState.FOLLOWING:
                followers = self._aside[ticket.prefix]
                del followers[ticket.id]
                if not followers:
                    del self._aside[ticket.prefix]
                    self._gates.drop(ticket.prefix)

    def _first(self) -> QueueEntry | None:
        """The first ticket that is due."""
        if (first := self._front.first) is not None:
            return self.entries[first]
        returning = self._returning.first
        if returning is None:
            return self._lanes.next()
        waiting = self._lanes.first()
        if waiting is None or self._returning.first_key <= waiting[0]:
            return self.entries[returning]
        return waiting[1]

    def _set_aside(self, entry: QueueEntry, opens_at: float) -> None:
        prefix = entry.ticket.prefix
        self._leave_state(entry, self._now)
        entry.become(EntryState.FOLLOWING)
        self._aside.setdefault(prefix, {})[entry.ticket.id] = None
        self._gates.put(prefix, opens_at)

    def _release(self, prefix: str, now: float) -> None:
        """Queue a prefix's followers again."""
        followers = self._aside.pop(prefix, None)
        if followers is None:
            return
        self._gates.drop(prefix)
        for ticket_id in followers:
            self._insert_due(self.entries[ticket_id], now)

    def _bonus_s(self, entry: QueueEntry, now: float) -> float:
        """The bonus; plans the next change."""
        bonus_s, changes_at = self._worth(entry, now)
        if changes_at < _NEVER:
            self._turns.put(entry.ticket.id, changes_at)
        elif entry.cache_entry:
            self._turns.drop(entry.ticket.id)
        return bonus_s

    def _worth(self, entry: QueueEntry, now: float) -> tuple[float, float]:
        """The bonus, and when it changes; infinite: not by time alone."""
        settings, ticket = self._settings, entry.ticket
        lag_s = reading_s(ticket.demand.input_tokens, ()) - _SMALL_S
        bonus_s = -min(settings.size_lag_s, lag_s) if lag_s > 0 else 0.0
        if entry.is_background:
            return bonus_s, _NEVER
        bonus_s += (_CLASSES - entry.priority) * settings.class_lead_s
        if not entry.cache_entry:
            return bonus_s, _NEVER
        lapses_at = self._cache.lapses_at(entry.cache_entry, now)
        expiring_at = lapses_at - settings.expiring_s
        if lapses_at == _LONG_AGO:
            return bonus_s, _NEVER
        if expiring_at <= now:
            return bonus_s + settings.affinity_s, lapses_at
        saved_s = self._saved_s(_warm_tokens(ticket))
        # Fairness lends smaller savings anyway; a lead would keep new conversations out until others end.
        return bonus_s + (min(settings.affinity_s, saved_s) if saved_s >= settings.credit_s else 0.0), expiring_at

    def _revalue(self, entry: QueueEntry, now: float) -> None:
        """Update a waiting ticket's bonus."""
        bonus_s = self._bonus_s(entry, now)
        if bonus_s == entry.bonus_s:
            return
        entry.bonus_s = bonus_s
        if entry.state is EntryState.LANE:
            self._lanes.revalue(entry, now)
        elif entry.state is EntryState.RETURNING:
            self._returning.put(entry.ticket.id, entry.agent_start_s - bonus_s, entry.order)

    def _rank(self, entry: QueueEntry) -> tuple[float, ...]:
        if entry.front:
            return _LONG_AGO, entry.front
        if entry.was_sent:
            return entry.agent_start_s - entry.bonus_s, _LONG_AGO, entry.order
        return self._lanes.rank(entry)

    def _forecast(self, guest: QueueEntry | None = None) -> Iterator[tuple[float, int, QueueEntry]]:
        """Every waiting ticket with the later sort key if no ticket arrives, and the order among equals."""
        fresh: list[QueueEntry] = [] if guest is None else [guest]
        for entry in list(self.entries.values()):  # it may be asked in parts
            if entry.front:
                yield _LONG_AGO, entry.front, entry
            elif entry.was_sent:
                yield entry.agent_start_s - entry.bonus_s, entry.order, entry
            else:
                fresh.append(entry)
        yield from self._lanes.forecast(fresh)


def _warm_tokens(ticket: Ticket) -> int:
    return max(ticket.cached_tokens, ticket.prefix_tokens)
