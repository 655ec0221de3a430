"""Start-time fair queueing with bounded credit: chooses which of several shares is served next.

Every share has a start: the cost that was charged to the share so far, divided by its weight, in seconds of the shared
resource. The waiting share with the smallest key is served, and its start moves forward, so the others come next. A
share of weight 2 moves half as far per second of cost, so it is served twice as much. `now` is the virtual time:

    key = start - bonus                        the caller's bonus: bounded, for reasons other than fairness
    start = max(start, now - credit)           when a share begins to wait after a rest
    start += cost / weight                     when a share is served; corrected to the actual cost later
    now = max(now, smallest waiting start)     when a share is served
    now += cost / active weights / 2           then; half the pace of an ideal system that serves all shares at once

After a rest a share gets at most `credit` of the past back, so no share can save up service. Within the credit, it goes
before the shares that take all they can get: short jobs pass long jobs, the aim of multi-level feedback queues. Time in
which no share waits costs nobody anything, so the next share that waits first moves `now` forward by that time.
Newcomers also begin at `now - credit`. As `now` moves with all service, an endless row of newcomers cannot keep an
older share waiting for ever. As `now` moves more slowly than the starts of the served shares, the credit has a value.

Two shares that wait all the time differ in cost / weight by at most the bonus and one cost of each. So while a share
that owes nothing waits, each other share is served at most `credit + bonus + one cost` before it.
"""

from collections.abc import Hashable

from hivemind_addon.kernel.heap import NOTHING, KeyedHeap

_LONG_AGO = float("-inf")
_PACE = 0.5
"""The virtual time moves at least at this fraction of the ideal system's pace."""


class Share:
    """A contender for the resource. `Shares` forgets a resting share whose start a new share would get, too."""

    __slots__ = ("name", "running", "start_s", "waits", "weight")

    def __init__(self, name: Hashable, start_s: float) -> None:
        self.name = name
        self.start_s = start_s
        self.running = 0
        """Services that are not settled yet."""
        self.waits = False
        """Whether the share has something to serve."""
        self.weight = 0.0
        """The weight that counts in `Shares`; 0 unless the share waits or runs."""

    def forgotten(self) -> None:
        """`Shares` has forgotten the share."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} at {self.start_s:.3f} s, {self.running} running>"


class Shares[S: Share]:
    """Orders shares; O(log n) per call, n shares waiting or remembered."""

    __slots__ = (
        "_by_start",
        "_credit_s",
        "_idle_since",
        "_latest_s",
        "_resting",
        "_weights",
        "by_name",
        "now_s",
        "waiting",
    )

    def __init__(self, *, credit_s: float) -> None:
        self.now_s = 0.0
        self._credit_s = credit_s
        self._latest_s = _LONG_AGO
        """The latest start of any share so far."""
        self._weights = 0.0
        """Sum over the shares that wait or run."""
        self._idle_since: float | None = None
        self.by_name: dict[Hashable, S] = {}
        """The remembered shares. Only this class changes the dict."""
        self.waiting: KeyedHeap[S] = NOTHING
        """The waiting shares by key. Only this class changes the heap."""
        self._by_start: KeyedHeap[S] = NOTHING
        """The waiting shares by start. A start that moved forward may still stand here with an earlier value."""
        self._resting: KeyedHeap[S] = KeyedHeap()

    def __repr__(self) -> str:
        return f"<Shares {self.now_s:.3f} s, {len(self.waiting)} waiting, {len(self._resting)} resting>"

    def add(self, share: S) -> None:
        """Remember a new share. Call `wait` or `rest` next."""
        self.by_name[share.name] = share

    def floor_s(self) -> float:
        """The least start of a share that begins to wait."""
        return self.now_s - self._credit_s

    def start_of(self, name: Hashable) -> float:
        """The start of a waiting share, or the start that another share would get if it began to wait now."""
        share = self.by_name.get(name)
        if share is None:
            return self.floor_s()
        return share.start_s if share.waits else max(share.start_s, self.floor_s())

    def wait(
        self,
        share: S,
        now: float,
        *,
        bonus_s: float = 0.0,
        weight: float = 1.0,
        rank: int = 0,
        floor_s: float = float("inf"),
    ) -> None:
        """Let a share wait; among equal keys the smaller rank goes first. `floor_s`: a start granted earlier."""
        if not share.waits:
            if self.waiting is NOTHING:
                self.waiting, self._by_start = KeyedHeap(), KeyedHeap()
            self._resting.drop(share)
            if self._make_up(now):
                self._forget()
            share.waits = True
            share.start_s = max(share.start_s, min(floor_s, self.floor_s()))
            self._by_start.put(share, share.start_s)
        if weight != share.weight:
            self._weigh(share, weight)
        self.waiting.put(share, share.start_s - bonus_s, rank)

    def rest(self, share: S, now: float) -> None:
        """Record that a share has nothing to serve."""
        if share.waits:
            share.waits = False
            self.waiting.drop(share)
            self._by_start.drop(share)
            if self.waiting.first is None:
                self._idle_since = now
        if not share.running:
            self._weights -= share.weight
            share.weight = 0.0
            if self.by_name.get(share.name) is share:
                self._resting.put(share, share.start_s)

    def serve(self, share: S, cost_s: float, *, weight: float = 1.0) -> None:
        """Charge a share for a service that begins. Call `wait` or `rest` next."""
        first_s = self._first_start_s()
        if first_s > self.now_s:
            self.now_s = first_s
        share.running += 1
        if not share.waits:
            self._resting.drop(share)
        if weight != share.weight:
            self._weigh(share, weight)
        self._charge(share, cost_s, weight)
        self._forget()

    def serve_at_once(
        self, share: S, cost_s: float, *, since: float, now: float, weight: float, floor_s: float
    ) -> float:
        """In one step, while no share waits: `wait` at `since`, `serve`, `rest` at `now`. Returns the first start."""
        self._resting.drop(share)
        self._make_up(since)
        start_s = share.start_s = max(share.start_s, min(floor_s, self.now_s - self._credit_s))
        if start_s > self.now_s:
            self.now_s = start_s
        self._weights += weight - share.weight
        share.weight = weight
        share.running += 1
        self._charge(share, cost_s, weight)
        self._forget()
        self._idle_since = now
        return start_s

    def settle(self, share: S, correction_s: float, *, weight: float = 1.0) -> None:
        """End a service and charge the actual cost minus the estimate. Call `wait` or `rest` next."""
        share.running -= 1
        self._charge(share, correction_s, weight)

    def charge_too(self, share: S, cost_s: float, weight: float = 1.0) -> None:
        """Charge a share for the service of another share, too. Call `wait` or `rest` next."""
        start_s = share.start_s = share.start_s + cost_s / weight
        if start_s > self._latest_s:
            self._latest_s = start_s
        if cost_s < 0 and share.waits:
            self._by_start.put(share, start_s)

    def _charge(self, share: S, cost_s: float, weight: float) -> None:
        self.charge_too(share, cost_s, weight)
        ideal_s = self.now_s + _PACE * cost_s / self._weights
        bound_s = self._latest_s + 2 * self._credit_s
        if bound_s < self.now_s:
            bound_s = self.now_s
        self.now_s = ideal_s if ideal_s < bound_s else bound_s

    def _first_start_s(self) -> float:
        """The smallest start of the waiting shares; minus infinity without any."""
        by_start = self._by_start
        while (share := by_start.first) is not None and share.start_s > by_start.first_key:
            by_start.put(share, share.start_s)
        return _LONG_AGO if share is None else by_start.first_key

    def _weigh(self, share: S, weight: float) -> None:
        self._weights += weight - share.weight
        share.weight = weight

    def _make_up(self, now: float) -> bool:
        """Move the virtual time forward by the time in which no share waited. False: there was no such time."""
        idle_since = self._idle_since
        if idle_since is None or self.waiting.first is not None:
            return False
        made_up_s = min(self._latest_s + self._credit_s, self.now_s + now - idle_since)
        if made_up_s > self.now_s:
            self.now_s = made_up_s
        self._idle_since = None
        return True

    def _forget(self) -> None:
        """Drop the resting shares that would get the same start from `wait` if they were new."""
        resting, floor_s = self._resting, self.now_s - self._credit_s
        while resting.first_key <= floor_s and (share := resting.first) is not None:
            resting.drop(share)
            del self.by_name[share.name]
            share.forgotten()
