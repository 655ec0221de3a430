"""The order of one pool's tickets: fair among agents, then among their sessions; all else is a bounded lead.

**Unit.** Seconds of the pool's bottleneck (`meters.py`): what a ticket takes is what all others wait longer for it.

**Fairness.** Bounded-credit start-time fair queueing (`shares.py`) among agents, and within each among its trees
of sessions (`lanes.py`): the smallest `start - bonus` goes next.

**Bonus** of a ticket, in seconds, the sum of:

    class     `class_lead_s` for each class below its own: critical, high, normal, low, background
    cache     the seconds that it saves while its prefix is warm, at most `affinity_s` and nothing below `credit_s`;
              just before the prefix lapses all of `affinity_s`, so that it goes in time
    size      less what it takes to read its input where that is much, at most `size_lag_s`: of equals the smaller one
              goes first

Each part is bounded, and the start of whoever is served moves on, so every wait is bounded: for a ticket of an agent
that owes nothing, each other agent is served at most `credit_s + OrderSettings.most_bonus_s + one cost` before it.

**Places.** A ticket that is tried again keeps the start that its agent had when it first went, and so goes before
whatever came after it. So does one that comes back with its old standing after it was shed.

**Passing.** These let others pass, so that they delay nobody and idle no slot: a ticket that backs off; a follower of
a cold prefix whose leader was just sent (`cache.py`); a sub-agent of a tree that has in flight what its agent was
granted. Anybody else who is first and does not fit blocks the ones behind, or small tickets would starve a large one.

Every operation is O(log n), except for `in_order` and `head_of_others`. A follower is moved aside once for each
leader, when its turn comes, and back once.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hivemind_addon.api.ticket import Demand, Priority, Reason, Ticket
from hivemind_addon.proxy.core.cache import CacheSettings, PromptCache
from hivemind_addon.proxy.core.lanes import Lanes, Place, Spot
from hivemind_addon.proxy.core.meters import reading_s
from hivemind_addon.system.heap import KeyedHeap

_NEVER = float("inf")
_LONG_AGO = float("-inf")
_CLASSES = len(Priority)
"""Classes above the background."""
_SMALL_S = 0.5
"""Input that is read in less is little: among such requests the older one goes first, whose client leaves first."""
_SENT_FIRST = (Spot.RETURNING, Spot.FRONT)


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """How far anything but fairness may move a ticket forward, in seconds of the pool's bottleneck."""

    credit_s: float = 4.0
    """What an agent or session that rested may be ahead of those that take all they can get."""
    class_lead_s: float = 30.0
    """From one priority class to the next."""
    affinity_s: float = 60.0
    """The most that a warm prefix may save; one that is about to lapse always does."""
    expiring_s: float = 20.0
    """So close to its end a prefix is about to lapse."""
    size_lag_s: float = 0.5
    """Of a request with much input, at most. It orders equals, and no more: with larger lags conversations that go on
    (little new input) keep new ones (all of it) out until they end, and the whole takes longer.
    """
    cache: CacheSettings = field(default_factory=CacheSettings)

    @property
    def most_bonus_s(self) -> float:
        """Between a ticket that has every reason and one that has none."""
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
        """`cost_s`: a demand's dominant cost; `saved_s`: the seconds that so many warm tokens save."""
        self._settings = settings
        self._saved_s = saved_s
        self._cache = PromptCache(settings.cache)
        self._lanes = Lanes(credit_s=settings.credit_s, cost_s=cost_s)
        self._places: dict[str, Place] = {}
        self._returning: KeyedHeap[str] = KeyedHeap()
        self._front: KeyedHeap[str] = KeyedHeap()
        self._later: KeyedHeap[str] = KeyedHeap()
        self._shed: KeyedHeap[str] = KeyedHeap()
        self._leaving: KeyedHeap[str] = KeyedHeap()
        """By the instant at which each may leave, if that is sooner, or is to be shed."""
        self._aside: dict[str, dict[str, None]] = {}
        """Followers by their prefix."""
        self._gates: KeyedHeap[str] = KeyedHeap()
        """Prefixes with followers aside, by the instant at which they go without their leader."""
        self._cached: dict[str, dict[str, None]] = {}
        """Waiting tickets by the cache entry that would save them something."""
        self._turns: KeyedHeap[str] = KeyedHeap()
        """Waiting tickets with a warm prefix, by the instant at which their bonus changes."""
        self._last_order = 0
        self._first_order = 0
        self._now = _LONG_AGO

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, ticket_id: str) -> bool:
        return ticket_id in self._places

    def __iter__(self) -> Iterator[Place]:
        """Who waits, in no order; they may be moved meanwhile."""
        return iter(tuple(self._places.values()))

    def configure(self, settings: OrderSettings) -> None:
        """Go on with other settings: a ticket feels them with its next move."""
        self._settings = settings
        self._cache.configure(settings.cache)

    def __repr__(self) -> str:
        aside = sum(map(len, self._aside.values()))
        return f"<FairQueue {len(self._places)} waiting, {len(self._later)} backing off, {aside} following>"

    # Who waits -------------------------------------------------------------------------------------------------------

    def append(self, place: Place, now: float) -> None:
        """Put a new ticket behind those of its lane; one that comes back, with its old standing, at its old place."""
        self._last_order += 1
        place.enrol(self._last_order, now)
        if _warm_tokens(place.ticket):
            place.cache_entry = self._cache.entry(place.ticket)
        self._insert(place, now)

    def put_back(self, place: Place, not_before: float, now: float) -> None:
        """Put a ticket back at its old place; it is due at `not_before`."""
        place.not_before = not_before
        self._insert(place, now)

    def move(self, place: Place, not_before: float, now: float) -> None:
        """Let a waiting ticket be due at another instant; it keeps its place."""
        self.remove(place.ticket.id, now)
        self.put_back(place, not_before, now)

    def get(self, ticket_id: str) -> Place | None:
        """A waiting ticket's place."""
        return self._places.get(ticket_id)

    def remove(self, ticket_id: str, now: float) -> Place | None:
        """Take a ticket out; None when it is not waiting. Its `standing` is what its place was worth."""
        place = self._places.get(ticket_id)
        if place is not None:
            self._lanes.leave_standing(place)
            self._take_out(place, now)
        return place

    def expedite(self, ticket_id: str, now: float) -> bool:
        """Move a ticket before all others. It still backs off as long as it has to, but follows no leader."""
        place = self._places.get(ticket_id)
        if place is None:
            return False
        self._take_out(place, now)
        self._first_order -= 1
        place.front = self._first_order
        self._insert(place, now)
        return True

    def reclass(self, place: Place, priority: Priority, now: float) -> None:
        """Let a waiting ticket go on waiting in another class."""
        self._take_out(place, now)
        place.priority = priority
        place.weigh()
        self._insert(place, now)

    # Attempts --------------------------------------------------------------------------------------------------------

    def admit(self, place: Place, now: float) -> None:
        """Take a ticket out for an attempt, and charge what it is expected to take. `settle` it when it ends."""
        self._lanes.charge(place, now)
        self._take_out(place, now)
        self._cache.sent(place.ticket, now)

    def began(self, place: Place, *, sent_at: float, now: float) -> None:
        """The answer to a ticket's attempt began: those that wait for the same prefix need wait no longer."""
        ticket = place.ticket
        warmed = self._cache.began(ticket, sent_at=sent_at, now=now)
        self._release(ticket.prefix, now)
        for entry in warmed:
            for ticket_id in self._cached.get(entry, ()):
                self._revalue(self._places[ticket_id], now)

    def settle(self, place: Place, cost_s: float, now: float, *, answered: bool) -> None:
        """An attempt ended, and took so much. `answered`: what began, if anything did, was no refusal."""
        self._lanes.settle(place, cost_s, now)
        if self._cache.ended(place.ticket, answered=answered):
            self._release(place.ticket.prefix, now)

    def is_cold(self, ticket: Ticket, now: float) -> bool:
        """Whether the provider's cache holds nothing of a ticket's input, as far as is known."""
        return self._cache.warm_until(ticket, now) == _LONG_AGO

    # Who is next -----------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """Let those take part again whose backoff is over or whose leader took too long; warm prefixes lapse."""
        self._now = now
        while (first := self._later.first()) and first[0] <= now:
            self._later.drop(first[1])
            self._insert_due(self._places[first[1]], now)
        while (first := self._gates.first()) and first[0] <= now:
            self._release(first[1], now)
        while (first := self._turns.first()) and first[0] <= now:
            self._revalue(self._places[first[1]], now)

    def head(self) -> Place | None:
        """The first ticket that is due and need not let others pass."""
        while (place := self._first()) is not None:
            opens_at = self._cache.opens_at(place.ticket, self._now)
            if opens_at == _LONG_AGO or place.spot is Spot.FRONT:
                return place
            self._set_aside(place, opens_at)
        return None

    def head_of_others(self, session: str | None) -> Place | None:
        """The first such ticket that is not of this session. O(n): asked once per probe."""
        others = (
            place
            for place in self._places.values()
            if place.ticket.session != session
            and (place.spot in _SENT_FIRST or self._lanes.is_first_of_lane(place))
            and self.why_passed(place) is None
        )
        return min(others, key=self._rank, default=None)

    def soonest(self) -> Place | None:
        """Of the tickets that back off, the one that is due first."""
        first = self._later.first()
        return None if first is None else self._places[first[1]]

    def next_due_at(self) -> float:
        """When the next backoff ends or the next follower goes without its leader; infinite when there is none."""
        later, gate = self._later.first(), self._gates.first()
        return min(_NEVER if later is None else later[0], _NEVER if gate is None else gate[0])

    def next_shed_at(self) -> float:
        """The earliest `shed_at` of all waiting tickets; infinite when none waits."""
        first = self._shed.first()
        return _NEVER if first is None else first[0]

    def first_to_shed(self, now: float) -> Place | None:
        """A ticket whose `shed_at` has come."""
        first = self._shed.first()
        return None if first is None or first[0] > now else self._places[first[1]]

    def first_to_leave(self) -> Place | None:
        """The ticket whose client may leave first, or that is to be shed first."""
        first = self._leaving.first()
        return None if first is None else self._places[first[1]]

    def expect(self, place: Place, leaves_at: float) -> None:
        """A waiting ticket's client may leave at another instant."""
        place.leaves_at = leaves_at
        self._leaving.put(place.ticket.id, min(place.shed_at, leaves_at))

    def why_passed(self, place: Place) -> Reason | None:
        """Why others may pass a waiting ticket that does not back off; None: they may not."""
        if place.spot is Spot.FRONT:
            return None
        if place.spot is Spot.ASIDE or self._cache.opens_at(place.ticket, self._now) > self._now:
            return Reason.LEADER
        return Reason.FAN_OUT if place.spot is Spot.LANE and self._lanes.is_capped(place) else None

    def in_order(self, guest: Place | None = None) -> list[Place]:
        """All waiting tickets as they would go if nothing else came. O(n log n): for snapshots and for stopping.

        `guest`: and one that is not among them, as if it had come just now; only a view asks for it.
        """
        return [place for _, _, place in sorted(self._forecast(guest), key=lambda entry: entry[:2])]

    def seat(self, guest: Place, now: float) -> None:
        """Give one that shall be a guest the number and the bonus that it would get; nothing here changes."""
        guest.enrol(self._last_order + 1, now)
        if _warm_tokens(guest.ticket):
            guest.cache_entry = self._cache.entry(guest.ticket)
        guest.bonus_s = self._worth(guest, now)[0]
        guest.spot = Spot.LANE
        guest.tree = self._lanes.tree_of(guest.ticket, is_background=guest.is_background)

    def leader_until(self, ticket: Ticket, now: float) -> float:
        """Until when at the latest a ticket has to wait for the one that writes its prefix; `now`: it has not to."""
        return max(now, self._cache.opens_at(ticket, now))

    def absorb(self, other: "FairQueue", flights: Iterable[Place], now: float) -> None:
        """Take over the tickets of another pool that proved to be this one, and its attempts in flight. O(n log n)."""
        shift_s = self._lanes.now_s - other._lanes.now_s  # noqa: SLF001
        self._cache.absorb(other._cache)  # noqa: SLF001
        waiting = [place for ticket_id in list(self._places) if (place := self.remove(ticket_id, now))]
        theirs = [place for ticket_id in list(other._places) if (place := other.remove(ticket_id, now))]  # noqa: SLF001
        for place in flights:
            place.agent_start_s += shift_s
            place.tree_start_s += shift_s
            self._lanes.adopt(place, now)
        for place in theirs:
            place.agent_start_s += shift_s
            place.tree_start_s += shift_s
        self._first_order = min(self._first_order, other._first_order)  # noqa: SLF001
        # Both counted on their own: who came first is told by the time.
        for place in sorted(waiting + theirs, key=lambda place: (place.since, place.order)):
            self._last_order += 1
            place.order = self._last_order
            self._insert(place, now)

    # Inside ----------------------------------------------------------------------------------------------------------

    def _insert(self, place: Place, now: float) -> None:
        ticket = place.ticket
        self._places[ticket.id] = place
        self._shed.put(ticket.id, place.shed_at)
        self._leaving.put(ticket.id, min(place.shed_at, place.leaves_at))
        if place.cache_entry:
            self._cached.setdefault(place.cache_entry, {})[ticket.id] = None
        if place.not_before > now:
            place.spot = Spot.LATER
            self._later.put(ticket.id, place.not_before)
        else:
            self._insert_due(place, now)

    def _insert_due(self, place: Place, now: float) -> None:
        place.bonus_s = self._bonus_s(place, now)
        if place.front:
            place.spot = Spot.FRONT
            self._front.put(place.ticket.id, place.front)
        elif place.was_sent:
            place.spot = Spot.RETURNING
            self._returning.put(place.ticket.id, place.agent_start_s - place.bonus_s, place.order)
        else:
            self._lanes.enter(place, now)
            place.spot = Spot.LANE

    def _take_out(self, place: Place, now: float) -> None:
        ticket = place.ticket
        del self._places[ticket.id]
        self._shed.drop(ticket.id)
        self._leaving.drop(ticket.id)
        if place.cache_entry:
            self._turns.drop(ticket.id)
            alike = self._cached[place.cache_entry]
            del alike[ticket.id]
            if not alike:
                del self._cached[place.cache_entry]
        self._leave_spot(place, now)
        place.spot = Spot.LATER

    def _leave_spot(self, place: Place, now: float) -> None:
        ticket = place.ticket
        match place.spot:
            case Spot.LANE:
                self._lanes.leave(place, now)
            case Spot.RETURNING:
                self._returning.drop(ticket.id)
            case Spot.FRONT:
                self._front.drop(ticket.id)
            case Spot.LATER:
                self._later.drop(ticket.id)
            case Spot.ASIDE:
                followers = self._aside[ticket.prefix]
                del followers[ticket.id]
                if not followers:
                    del self._aside[ticket.prefix]
                    self._gates.drop(ticket.prefix)

    def _first(self) -> Place | None:
        """The first ticket that is due."""
        if first := self._front.first():
            return self._places[first[1]]
        returning, waiting = self._returning.first(), self._lanes.first()
        if returning is not None and (waiting is None or returning[0] <= waiting[0]):
            return self._places[returning[1]]
        return None if waiting is None else waiting[1]

    def _set_aside(self, place: Place, opens_at: float) -> None:
        prefix = place.ticket.prefix
        self._leave_spot(place, self._now)
        place.spot = Spot.ASIDE
        self._aside.setdefault(prefix, {})[place.ticket.id] = None
        self._gates.put(prefix, opens_at)

    def _release(self, prefix: str, now: float) -> None:
        """Let a prefix's followers take part again."""
        self._gates.drop(prefix)
        for ticket_id in self._aside.pop(prefix, ()):
            self._insert_due(self._places[ticket_id], now)

    def _bonus_s(self, place: Place, now: float) -> float:
        """What moves a ticket forward beside fairness; remembers when that changes."""
        bonus_s, changes_at = self._worth(place, now)
        if changes_at < _NEVER:
            self._turns.put(place.ticket.id, changes_at)
        elif place.cache_entry:
            self._turns.drop(place.ticket.id)
        return bonus_s

    def _worth(self, place: Place, now: float) -> tuple[float, float]:
        """What moves a ticket forward beside fairness, and when that changes; infinite: not by time alone."""
        settings, ticket = self._settings, place.ticket
        bonus_s = -min(settings.size_lag_s, max(0.0, reading_s(ticket.demand.input_tokens, ()) - _SMALL_S))
        if place.is_background:
            return bonus_s, _NEVER
        bonus_s += (_CLASSES - place.priority) * settings.class_lead_s
        if not place.cache_entry:
            return bonus_s, _NEVER
        lapses_at = self._cache.warm_until(ticket, now)
        expiring_at = lapses_at - settings.expiring_s
        if lapses_at == _LONG_AGO:
            return bonus_s, _NEVER
        if expiring_at <= now:
            return bonus_s + settings.affinity_s, lapses_at
        saved_s = self._saved_s(_warm_tokens(ticket))
        # Less is within what fairness lends anyway; leading by it keeps new conversations out until others end.
        return bonus_s + (min(settings.affinity_s, saved_s) if saved_s >= settings.credit_s else 0.0), expiring_at

    def _revalue(self, place: Place, now: float) -> None:
        """A waiting ticket's bonus may have changed."""
        bonus_s = self._bonus_s(place, now)
        if bonus_s == place.bonus_s:
            return
        place.bonus_s = bonus_s
        if place.spot is Spot.LANE:
            self._lanes.revalue(place, now)
        elif place.spot is Spot.RETURNING:
            self._returning.put(place.ticket.id, place.agent_start_s - bonus_s, place.order)

    def _rank(self, place: Place) -> tuple[float, ...]:
        if place.front:
            return _LONG_AGO, place.front
        if place.was_sent:
            return place.agent_start_s - place.bonus_s, _LONG_AGO, place.order
        return self._lanes.rank(place)

    def _forecast(self, guest: Place | None = None) -> Iterator[tuple[float, int, Place]]:
        """Every waiting ticket with the key that it will have if nothing else comes, and its order among equals."""
        fresh: list[Place] = [] if guest is None else [guest]
        for place in self._places.values():
            if place.front:
                yield _LONG_AGO, place.front, place
            elif place.was_sent:
                yield place.agent_start_s - place.bonus_s, place.order, place
            else:
                fresh.append(place)
        yield from self._lanes.forecast(fresh)


def _warm_tokens(ticket: Ticket) -> int:
    return max(ticket.cached_tokens, ticket.prefix_tokens)
