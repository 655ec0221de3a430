"""The order of one pool's tickets: fair among agents; other preferences are bounded leads.

**Fairness.** Start-time fair queueing among agents (`shares.py`), in seconds of the pool's bottleneck: the ticket with
the smallest `start - bonus` goes. So an agent with a thousand sessions gets no more than one agent's share. Of an
agent's tickets the oldest goes first. There a class counts as so many seconds of waiting, and a ticket counts as
younger by its cost for each present ticket of the same session or of its sub-agents, so that a burst of one session
holds no other session up.

**Bonus** of a ticket, in seconds, the sum of:

    class     `class_lead_s` for each class below the ticket's: critical, high, normal, low, background
    cache     the seconds that a warm prefix saves, when the prefix is about as old as the oldest that an answer has
              read, so that no prefix gets much older than the others; twice as many just before the prefix lapses; at
              most `affinity_s`

Each part is bounded, and the start of a served agent moves on, so every wait is bounded.

**Positions.** A retried ticket, and a ticket that comes back after a shed, keep the first start.

**Passing.** These tickets let others pass, so that they delay no ticket and idle no slot: a ticket in backoff; a
follower of a cold prefix whose leader was just sent (`cache.py`); a sub-agent of a tree with all granted attempts in
flight. Any other first ticket that does not fit has a reservation, which the tickets behind may not delay
(`selector.py`).

Every operation is O(log n), except for `in_order` and `head_where`.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import itemgetter

from hivemind_addon.kernel.heap import KeyedHeap
from hivemind_addon.kernel.order.cache import CacheSettings, PromptCache
from hivemind_addon.kernel.order.entry import EntryState, QueueEntry
from hivemind_addon.kernel.order.shares import StartTimes
from hivemind_addon.kernel.sliced_work import whole
from hivemind_addon.kernel.values.ticket import CallKind, Demand, Priority, Reason, Ticket, Usage

_NEVER = float("inf")
_LONG_AGO = float("-inf")
_CLASSES = len(Priority)
"""Classes above the background."""
_MOST_ROWS = 32
"""The most agents of which `due` gives tickets."""
_PART = 500
"""Tickets sorted at once: one or two milliseconds."""
_MANY = 8
"""A saving below `least_saving_s` counts too if it is this many times the cost of the rest."""
_OLD, _LATE = 0.7, 0.85
"""A warm prefix counts half, then in full, from these parts of the greatest age at which answers have read entries."""
_SESSIONS = 10_000
"""The most sub-agents whose tree of sessions is remembered."""


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """How far other reasons than fairness may move a ticket forward, in seconds of the pool's bottleneck."""

    class_lead_s: float = 30.0
    """From one priority class to the next."""
    affinity_s: float = 60.0
    """The most that a warm prefix counts."""
    least_saving_s: float = 4.0
    """A prefix that saves less moves no ticket, unless the rest of the attempt costs far less still."""
    expiring_s: float = 10.0
    """This close to the end a prefix is about to lapse."""
    cache: CacheSettings = field(default_factory=CacheSettings)
    has_shares: bool = True
    """Whether agents get equal shares; else tickets go as they came."""


class FairQueue:
    """The waiting tickets of one pool. Call `wake` before `head`."""

    def __init__(
        self,
        settings: OrderSettings,
        *,
        cost_s: Callable[[Demand], float],
        saved_s: Callable[[int], float],
        common: StartTimes,
    ) -> None:
        """`cost_s`: a demand's dominant cost; `saved_s`: the seconds that this many warm tokens save.

        `common`: the starts among all pools of the account.
        """
        self.common = common
        self._starts = StartTimes(has_shares=settings.has_shares)
        self._settings = settings
        self._cost_s = cost_s
        self._saved_s = saved_s
        self.cache = PromptCache(settings.cache)
        """What the provider caches. Changed by this class only, except for conversations that moved away."""
        self.entries: dict[str, QueueEntry] = {}
        """The waiting entries by ticket. Written by this class only."""
        self._agents: dict[str, KeyedHeap[QueueEntry]] = {}
        """By agent: the due tickets that were never sent."""
        self._turns_of_agents: KeyedHeap[str] = KeyedHeap()
        """Agents by the key of the first ticket."""
        self._by_start: KeyedHeap[str] = KeyedHeap()
        """Agents by the start of the first ticket."""
        self._ahead: KeyedHeap[str] = KeyedHeap()
        """The due tickets that were sent before, or that a person moved to the front."""
        self._later: KeyedHeap[str] = KeyedHeap()
        """Tickets in backoff, and followers aside, by the instant at which they are due without another event."""
        self._shed: KeyedHeap[str] = KeyedHeap()
        self._by_size: KeyedHeap[str] = KeyedHeap()
        """The waiting tickets by tokens."""
        self._aside: dict[str, dict[str, None]] = {}
        """Tickets aside, by the prefix or the family that they wait for."""
        self._roots: dict[tuple[str, str], str] = {}
        """Agent and sub-agent's session → the root of the tree, where sub-agents are limited; the oldest first."""
        self._present: Counter[tuple[str, str]] = Counter()
        """By agent and parent session: the tickets that wait or are in flight."""
        self._running: dict[str, int] = {}
        """By family: the sub-agents' attempts in flight."""
        self._cached: dict[str, dict[str, None]] = {}
        """Waiting tickets by the cache entry that would save input."""
        self._turns: KeyedHeap[str] = KeyedHeap()
        """Waiting tickets with a warm prefix, by the instant at which the bonus changes."""
        self._last_order = 0
        self._first_order = 0
        self._now = _LONG_AGO

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[QueueEntry]:
        """The waiting entries, in no order, as a copy."""
        return iter(tuple(self.entries.values()))

    def configure(self, settings: OrderSettings) -> None:
        """Apply changed settings; a waiting ticket follows with the next move."""
        self._settings = settings
        self.cache.configure(settings.cache)

    # Waiting tickets -------------------------------------------------------------------------------------------------

    def append(self, entry: QueueEntry, now: float) -> None:
        """Queue a new ticket behind the agent's others; a request that came back, at the earlier position."""
        self._first_order = min(self._first_order, entry.front)
        self._enrol(entry, now)
        self._insert(entry, now)

    def put_back(self, entry: QueueEntry, not_before: float, now: float) -> None:
        """Queue a ticket again at the old position, due at `not_before`."""
        entry.not_before = not_before
        self._insert(entry, now)

    def move(self, entry: QueueEntry, not_before: float, now: float) -> None:
        """Change when a waiting ticket is due, at the same position; infinite: when the budget has room."""
        self._take_out(entry)
        self.put_back(entry, not_before, now)

    def remove(self, ticket_id: str) -> QueueEntry | None:
        """Remove a ticket for good; None: the ticket is not waiting."""
        entry = self.entries.get(ticket_id)
        if entry is not None:
            self._take_out(entry)
            self.end(entry)
        return entry

    def end(self, entry: QueueEntry) -> None:
        """End a ticket that does not wait, and note the start for a later ticket with the same request."""
        entry.start_s = self._gone(entry)
        entry.become(EntryState.ENDED)

    def _gone(self, entry: QueueEntry) -> float | None:
        """Forget a ticket. Returns the start."""
        name = _parent(entry)
        self._present[name] -= 1
        if not self._present[name]:
            del self._present[name]
        self.common.gone(entry)
        return self._starts.gone(entry)

    def take_all(self) -> list[QueueEntry]:
        """Empty the queue of a pool that proved to be another. Returns the entries as new, the oldest first."""
        entries = sorted(self.entries.values(), key=lambda entry: entry.order)
        for entry in entries:
            self.take(entry)
        return entries

    def take(self, entry: QueueEntry) -> None:
        """Remove an entry that moves to another pool, as new."""
        self._take_out(entry)
        self._gone(entry)
        entry.renew()

    def wake_up(self, slept_s: float, now: float) -> None:
        """Note that the machine and all clients slept until now."""
        for entry in self:
            self._take_out(entry)
            entry.wake_up(slept_s)
            self._insert(entry, now)

    def move_to_front(self, ticket_id: str, now: float) -> bool:
        """Move a ticket to the front. A backoff still holds the ticket, but a leader does not."""
        entry = self.entries.get(ticket_id)
        if entry is None:
            return False
        self._take_out(entry)
        self._first_order -= 1
        entry.front = self._first_order
        self._insert(entry, now)
        return True

    def reclass(self, entry: QueueEntry, priority: Priority, now: float) -> None:
        """Move a waiting ticket to another class."""
        self._take_out(entry)
        entry.priority = priority
        entry.weigh()
        self._insert(entry, now)

    # Attempts --------------------------------------------------------------------------------------------------------

    def admit(self, entry: QueueEntry, now: float) -> None:
        """Remove a ticket for an attempt, and charge the expected cost. `settle` the attempt at the end."""
        entry.charged_s = self._cost_s(entry.ticket.demand)
        self._charge(entry)
        self._take_out(entry)
        entry.was_sent = True
        entry.become(EntryState.IN_FLIGHT)
        self._refresh(entry.ticket.agent)
        self.cache.sent(entry.ticket, now)

    def began(self, entry: QueueEntry, *, sent_at: float, now: float) -> None:
        """Note that the answer to an attempt began: followers of the same prefix are released."""
        ticket = entry.ticket
        warmed = self.cache.began(ticket, sent_at=sent_at, now=now)
        self._release(ticket.prefix, now)
        for cached in warmed:
            for ticket_id in self._cached.get(cached, ()):
                self._revalue(self.entries[ticket_id], now)

    def adopt(self, entry: QueueEntry, cost_s: float, now: float) -> None:
        """Charge an attempt of a new ticket that another process or a merged pool sent. `settle` it at the end."""
        if entry.state is EntryState.NEW:
            entry.become(EntryState.IN_FLIGHT)
        self._enrol(entry, now)
        entry.was_sent, entry.charged_s = True, cost_s
        self._charge(entry)
        self._refresh(entry.ticket.agent)

    def settle(
        self, entry: QueueEntry, cost_s: float, now: float, *, answered: bool, usage: Usage | None = None
    ) -> None:
        """Settle an attempt with the actual cost. `answered`: the response, if any began, was not a refusal.

        `usage`: of a complete answer.
        """
        self._starts.settle(entry, cost_s)
        self.common.settle(entry, cost_s)
        self._refresh(entry.ticket.agent)
        if family := entry.family:
            self._running[family] -= 1
            if not self._running[family]:
                del self._running[family]
            self._release(family, now)
        if usage is not None and self.cache.learn(entry.ticket, usage):
            for ticket_id in chain.from_iterable(self._cached.values()):
                self._revalue(self.entries[ticket_id], now)
        if self.cache.ended(entry.ticket, answered=answered):
            self._release(entry.ticket.prefix, now)

    # The next ticket -------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """Queue tickets again whose backoff ended or whose leader took too long; let warm prefixes lapse."""
        self._now = now
        while self._later.first_key <= now and (ticket_id := self._later.first) is not None:
            self._leave_state(self.entries[ticket_id])
            self._insert_due(self.entries[ticket_id], now)
        while self._turns.first_key <= now and (ticket_id := self._turns.first) is not None:
            self._revalue(self.entries[ticket_id], now)

    def head(self) -> QueueEntry | None:
        """The first ticket that is due and lets no others pass."""
        while (entry := self._first()) is not None:
            reason = self._why_aside(entry, self._now)
            if reason is None:
                return entry
            self._set_aside(entry, reason)
        return None

    def smallest(self) -> QueueEntry:
        """The waiting ticket with the fewest tokens, in whatever state. Raises KeyError if none waits."""
        return self.entries[self._by_size.first or ""]

    def due(self, agents: int | None = _MOST_ROWS) -> Iterator[QueueEntry]:
        """The due tickets of the first agents in order, the agents' rows merged: the first k cost O(k log n)."""
        ahead = ((self._ahead.key_of(ticket_id), 0, self.entries[ticket_id]) for ticket_id in self._ahead)
        rows = (self._row(self._agents[agent]) for agent in islice(self._turns_of_agents, agents))
        for _, _, entry in heapq.merge(ahead, *rows, key=itemgetter(0, 1)):
            yield entry

    def head_where(self, is_meant: Callable[[Ticket], bool]) -> QueueEntry | None:
        """The first such ticket that satisfies the condition. O(n): asked once per probe."""
        due = (entry for entry in self.due(None) if self._why_aside(entry, self._now) is None)
        return next((entry for entry in due if is_meant(entry.ticket)), None)

    def soonest(self) -> QueueEntry | None:
        """The ticket that is due first of those that are not due yet."""
        first = self._later.first
        return None if first is None else self.entries[first]

    def changes_at(self) -> float:
        """When a ticket is due or shed next, or the next follower goes without a leader; infinite: never."""
        return min(self._later.first_key, self._shed.first_key)

    def first_to_shed(self, now: float = _NEVER) -> QueueEntry | None:
        """The ticket that is shed first, if its `shed_at` has come by `now`."""
        first = self._shed.first
        return None if first is None or self._shed.first_key > now else self.entries[first]

    def why_passed(self, entry: QueueEntry) -> Reason | None:
        """Why others may pass a waiting ticket that is not in backoff; None: they may not."""
        reason = self._why_aside(entry, self._now)
        return Reason.LEADER if reason is None and entry.state is EntryState.ASIDE else reason

    def in_order(self, guest: QueueEntry | None = None) -> list[QueueEntry]:
        """All waiting tickets in the order in which they would go without arrivals. O(n log n): for views and stopping.

        `guest`: a ticket to order as if just arrived, for views only.
        """
        return whole(self.in_order_in_parts(guest))

    def in_order_in_parts(self, guest: QueueEntry | None = None) -> Generator[None, None, list[QueueEntry]]:
        """The same, some hundred tickets at a time; tickets that went meanwhile are left out."""
        ranked: list[tuple[float, float, QueueEntry]] = []
        rows: dict[str, list[QueueEntry]] = {}
        for entry in (*self.entries.values(), *(() if guest is None else (guest,))):
            if entry.front or entry.was_sent:
                ranked.append((*self._ahead_key(entry), entry))
            else:
                rows.setdefault(entry.ticket.agent, []).append(entry)
        for row in rows.values():
            row.sort(key=lambda entry: (entry.turn_s - entry.bonus_s, entry.order))
            for item in self._row(row):
                ranked.append(item)
                if not len(ranked) % _PART:
                    yield
        ranked.sort(key=itemgetter(0, 1))
        yield
        return [entry for _, _, entry in ranked if entry is guest or self.entries.get(entry.ticket.id) is entry]

    def seat(self, guest: QueueEntry, now: float) -> None:
        """Give a future guest the number and the bonus that a new ticket would get; the queue stays the same."""
        self._number(guest, now)
        guest.bonus_s = self._worth(guest, now)[0]
        guest.become(EntryState.DUE)

    # Inside ----------------------------------------------------------------------------------------------------------

    def _number(self, entry: QueueEntry, now: float) -> None:
        """Note what orders a new ticket."""
        ticket = entry.ticket
        entry.enrol(self._last_order + 1, now)
        entry.turn_s = min(entry.turn_s, entry.since + self._present[_parent(entry)] * self._cost_s(ticket.demand))
        if ticket.cached_tokens or ticket.prefix_tokens:
            entry.cache_entry = self.cache.entry(ticket)
        entry.family = self._family(ticket)

    def _enrol(self, entry: QueueEntry, now: float) -> None:
        """Number a new ticket, and note the start."""
        self._number(entry, now)
        self._last_order += 1
        self._present[_parent(entry)] += 1
        self._starts.came(entry, entry.start_s)
        self.common.came(entry)
        if entry.family:
            self._roots[entry.ticket.agent, entry.ticket.session] = entry.family
            if len(self._roots) > _SESSIONS:
                del self._roots[next(iter(self._roots))]

    def _family(self, ticket: Ticket) -> str:
        """The root of a sub-agent's tree, of which the number is limited; empty: no limit."""
        parent = ticket.parent_session
        if ticket.max_fan_out is None or not parent or ticket.kind is CallKind.AUXILIARY:
            return ""
        return self._roots.get((ticket.agent, parent)) or f"{ticket.agent} {parent}"

    def _charge(self, entry: QueueEntry) -> None:
        start_s = self._starts.start_s(entry)
        self._starts.serve(entry, min(start_s, self._by_start.first_key))
        self.common.serve(entry, _NEVER)
        if entry.family:
            self._running[entry.family] = self._running.get(entry.family, 0) + 1

    def _insert(self, entry: QueueEntry, now: float) -> None:
        ticket = entry.ticket
        self.entries[ticket.id] = entry
        self._by_size.put(ticket.id, max(ticket.demand.total_tokens, ticket.demand.input_tokens))
        self._shed.put(ticket.id, entry.ticket.shed_at)
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
        entry.become(EntryState.DUE)
        self._revalue(entry, now)

    def _line_up(self, entry: QueueEntry) -> None:
        """Put a due ticket in its place."""
        if entry.front or entry.was_sent:
            self._ahead.put(entry.ticket.id, *self._ahead_key(entry))
        else:
            agent = entry.ticket.agent
            tickets = self._agents.get(agent)
            if tickets is None:
                tickets = self._agents[agent] = KeyedHeap()
            tickets.put(entry, entry.turn_s - entry.bonus_s, entry.order)
            self._refresh(agent)

    def _ahead_key(self, entry: QueueEntry) -> tuple[float, int]:
        """The sort key of a ticket that was sent before, or that a person moved to the front."""
        return (_LONG_AGO, entry.front) if entry.front else (self._starts.start_s(entry) - entry.bonus_s, entry.order)

    def _refresh(self, agent: str) -> None:
        """Reorder an agent whose first ticket or start may have changed."""
        tickets = self._agents.get(agent)
        if tickets is None:
            return
        first = tickets.first
        if first is None:
            del self._agents[agent]
            self._turns_of_agents.drop(agent)
            self._by_start.drop(agent)
        else:
            start_s = self._starts.start_s(first)
            self._turns_of_agents.put(agent, start_s - first.bonus_s, first.order)
            self._by_start.put(agent, start_s)

    def _take_out(self, entry: QueueEntry) -> None:
        ticket = entry.ticket
        del self.entries[ticket.id]
        self._by_size.drop(ticket.id)
        self._shed.drop(ticket.id)
        if entry.cache_entry:
            self._turns.drop(ticket.id)
            alike = self._cached[entry.cache_entry]
            del alike[ticket.id]
            if not alike:
                del self._cached[entry.cache_entry]
        self._leave_state(entry)

    def _leave_state(self, entry: QueueEntry) -> None:
        ticket = entry.ticket
        match entry.state:
            case EntryState.DUE if entry.front or entry.was_sent:
                self._ahead.drop(ticket.id)
            case EntryState.DUE:
                self._agents[ticket.agent].drop(entry)
                self._refresh(ticket.agent)
            case EntryState.BACKING_OFF:
                self._later.drop(ticket.id)
            case EntryState.ASIDE:
                self._later.drop(ticket.id)
                for name in {ticket.prefix, entry.family} & self._aside.keys():
                    self._aside[name].pop(ticket.id, None)
                    if not self._aside[name]:
                        del self._aside[name]

    def _first(self) -> QueueEntry | None:
        """The first ticket that is due."""
        agent, ahead = self._turns_of_agents.first, self._ahead.first
        if ahead is not None and self._ahead.first_key <= self._turns_of_agents.first_key:
            return self.entries[ahead]
        return None if agent is None else self._agents[agent].first

    def _why_aside(self, entry: QueueEntry, now: float) -> Reason | None:
        """The kind of ticket for which a ticket lets others pass."""
        ticket = entry.ticket
        if entry.front:
            return None
        if self.cache.opens_at(ticket, now) > now:
            return Reason.LEADER
        cap = ticket.max_fan_out
        is_capped = cap is not None and entry.family and self._running.get(entry.family, 0) >= max(1, cap)
        return Reason.FAN_OUT if is_capped else None

    def _set_aside(self, entry: QueueEntry, reason: Reason) -> None:
        ticket = entry.ticket
        self._leave_state(entry)
        entry.become(EntryState.ASIDE)
        name = ticket.prefix if reason is Reason.LEADER else entry.family
        self._aside.setdefault(name, {})[ticket.id] = None
        if reason is Reason.LEADER:
            self._later.put(ticket.id, self.cache.opens_at(ticket, self._now))

    def _release(self, name: str, now: float) -> None:
        """Queue the tickets again that wait for a prefix or a family."""
        for ticket_id in self._aside.pop(name, ()):
            self._later.drop(ticket_id)
            self._insert_due(self.entries[ticket_id], now)

    def _worth(self, entry: QueueEntry, now: float) -> tuple[float, float]:
        """The bonus, and when it changes; infinite: not by time alone."""
        settings, ticket = self._settings, entry.ticket
        if ticket.kind is CallKind.AUXILIARY:
            return 0.0, _NEVER
        bonus_s = (_CLASSES - entry.priority) * settings.class_lead_s
        if not entry.cache_entry:
            return bonus_s, _NEVER
        saved_s = self._saved_s(self.cache.warm_tokens(ticket, now))
        if saved_s < min(settings.least_saving_s, _MANY * self._cost_s(ticket.demand)):
            return bonus_s, _NEVER
        used_at, proven_s, lasts_s = self.cache.used_at(entry.cache_entry), *self.cache.lasts_s(ticket)
        # A fresh prefix comes in time by fairness alone; a lead would keep new conversations out until others end.
        stages = (
            (used_at + lasts_s, 0.0),
            (used_at + lasts_s - settings.expiring_s, 2 * saved_s),
            (used_at + _LATE * proven_s, saved_s),
            (used_at + _OLD * proven_s, saved_s / 2),
            (_LONG_AGO, 0.0),
        )
        lead_s = next(lead_s for begins_at, lead_s in stages if begins_at <= now)
        changes_at = min((begins_at for begins_at, _ in stages if begins_at > now), default=_NEVER)
        return bonus_s + min(settings.affinity_s, lead_s), changes_at

    def _revalue(self, entry: QueueEntry, now: float) -> None:
        """Update a waiting ticket's bonus, and plan the next change."""
        entry.bonus_s, changes_at = self._worth(entry, now)
        if entry.cache_entry:
            self._turns.put(entry.ticket.id, changes_at)
        if entry.state is EntryState.DUE:
            self._line_up(entry)

    def _row(self, entries: Iterable[QueueEntry]) -> Iterator[tuple[float, float, QueueEntry]]:
        """An agent's tickets, given in their order, each with the sort key if no ticket arrives."""
        start_s = _LONG_AGO
        for entry in entries:
            start_s = max(start_s, self._starts.start_s(entry))
            yield start_s - entry.bonus_s, entry.order, entry
            start_s += self._cost_s(entry.ticket.demand) / entry.weight


def _parent(entry: QueueEntry) -> tuple[str, str]:
    return entry.ticket.agent, entry.ticket.parent_session or entry.ticket.session
