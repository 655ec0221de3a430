"""Start-time fair queueing with bounded credit: who of several shares is served next.

Each share has a start, in seconds of the resource that is shared: what it has taken so far, divided by its weight.
The share with the smallest key goes next, and then its start moves on by what it takes:

    key = start - bonus                    the bonus is the caller's, bounded, for reasons other than fairness
    start = max(now - credit, start)       when it has something to serve again after a rest
    start += cost / weight                 when it is served; later corrected to what it really took
    now = max(now, the smallest start of all that wait)
    now += cost / weights of all active / 2    half as fast as in an ideal system that serves all of them at once

A share that rested gets no more than `credit` of the past back, so nobody saves up; within that it goes before those
that take all they can get, so short jobs pass long ones (what multi-level feedback queues are for). Seconds that
nobody waited in are at nobody's expense: `now` makes up for them when the next one waits. And as `now` moves with
everything that is served, an endless row of newcomers with their credit cannot keep a share that has had its part
waiting for ever; that it moves more slowly than the starts of those that are served keeps the credit worth something.

Between two shares that wait all the time the difference of what they took, by weight, is never more than the bonus
and one cost of each. Hence, for a share that begins to wait and owes nothing, each other share is served at most
`credit + bonus + one cost` before it.
"""

from collections.abc import Hashable

from hivemind_addon.kernel.heap import NOTHING, KeyedHeap

_LONG_AGO = float("-inf")
_PACE = 0.5
"""Of the ideal system's, at which the virtual time moves at least."""


class Share:
    """One contender. Forgotten when it rests and its start is no longer worth remembering."""

    __slots__ = ("name", "running", "start_s", "waits", "weight")

    def __init__(self, name: Hashable, start_s: float) -> None:
        self.name = name
        self.start_s = start_s
        self.running = 0
        """Served, and not settled yet."""
        self.waits = False
        """It has something to serve."""
        self.weight = 0.0
        """While it waits or runs, of what it waits with; else zero."""

    def forgotten(self) -> None:
        """Nobody remembers it any more."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} at {self.start_s:.3f} s, {self.running} running>"


class Shares[S: Share]:
    """Serves shares of one kind; O(log n) per call, n of them waiting or remembered."""

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
        """No start was ever later."""
        self._weights = 0.0
        """Of all that wait or run."""
        self._idle_since: float | None = None
        self.by_name: dict[Hashable, S] = {}
        """Those that are remembered. Only this class changes it."""
        self.waiting: KeyedHeap[S] = NOTHING
        """Those that have something to serve, the next one first. Only this class changes it."""
        self._by_start: KeyedHeap[S] = NOTHING
        """Those that wait; one whose start has moved on since may still be by an earlier one."""
        self._resting: KeyedHeap[S] = KeyedHeap()

    def __repr__(self) -> str:
        return f"<Shares {self.now_s:.3f} s, {len(self.waiting)} waiting, {len(self._resting)} resting>"

    def add(self, share: S) -> None:
        """Remember a new one. Say then whether it waits or rests."""
        self.by_name[share.name] = share

    def floor_s(self) -> float:
        """The least start of a share that begins to wait."""
        return self.now_s - self._credit_s

    def start_of(self, name: Hashable) -> float:
        """The start that a share has, or would have if it began to wait."""
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
        """It has something to serve, worth this bonus; among equals the smaller rank goes first.

        `floor_s`: a start that it had been granted before.
        """
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
        """It has nothing to serve."""
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
        """It takes this much. Say then whether it waits or rests."""
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
        """The same as to wait (`since`), to be served and to rest (`now`), where none waits; the start it had then."""
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
        """What it was served with is over, and took so much more. Say then whether it waits or rests."""
        share.running -= 1
        self._charge(share, correction_s, weight)

    def charge_too(self, share: S, cost_s: float, weight: float = 1.0) -> None:
        """It pays for what another share took as well. Say then whether it waits or rests."""
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
        """The smallest start of all that wait; of none, long ago."""
        by_start = self._by_start
        while (share := by_start.first) is not None and share.start_s > by_start.first_key:
            by_start.put(share, share.start_s)
        return _LONG_AGO if share is None else by_start.first_key

    def _weigh(self, share: S, weight: float) -> None:
        self._weights += weight - share.weight
        share.weight = weight

    def _make_up(self, now: float) -> bool:
        """For the seconds that nobody waited in. False: there were none."""
        idle_since = self._idle_since
        if idle_since is None or self.waiting.first is not None:
            return False
        made_up_s = min(self._latest_s + self._credit_s, self.now_s + now - idle_since)
        if made_up_s > self.now_s:
            self.now_s = made_up_s
        self._idle_since = None
        return True

    def _forget(self) -> None:
        """Drop those to whom `wait` would give the same start if they were new."""
        resting, floor_s = self._resting, self.now_s - self._credit_s
        while resting.first_key <= floor_s and (share := resting.first) is not None:
            resting.drop(share)
            del self.by_name[share.name]
            share.forgotten()
