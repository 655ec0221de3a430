"""A simulated engine: the part of a Valkey or Redis server that a cluster uses, as values. Pure."""

from hivemind_addon.plugins.cluster.messages import (
    EngineAnswer,
    Fetch,
    Fetched,
    Leased,
    Resign,
    Stored,
    StoreKept,
    TakeLease,
)

AskedOfEngine = TakeLease | Resign | StoreKept | Fetch


class SimEngine:
    """A lease, a counter of epochs and a kept value; each request is carried out in a single step."""

    def __init__(self) -> None:
        self.counter = 0
        self.kept: tuple[int, bytes, float] | None = None
        """Epoch, data, when it was stored."""
        self.times_emptied = 0
        self._holder = ""
        self._lease_ends_at = 0.0

    def __repr__(self) -> str:
        return f"<SimEngine: epoch {self.counter}, held by {self._holder or 'nobody'}>"

    def lose_keys(self) -> None:
        """Restart empty, or be flushed."""
        self.counter, self.kept, self._holder, self._lease_ends_at = 0, None, "", 0.0
        self.times_emptied += 1

    def holder(self, now: float) -> str:
        """Who has the lease; empty: nobody."""
        return self._holder if now < self._lease_ends_at else ""

    def carry_out(self, request: AskedOfEngine, who: str, now: float) -> EngineAnswer | None:
        """Carry out a request; None: there is no answer to it."""
        match request:
            case TakeLease():
                return self._lease(request, who, now)
            case Resign(epoch):
                if self.holder(now) == who and self.counter == epoch:
                    self._holder = ""
                return None
            case StoreKept(epoch, data=data):
                held = self.holder(now)
                is_fenced = bool(held) and (held, self.counter) != (who, epoch)
                done = not is_fenced and (self.kept is None or self.kept[0] <= epoch)
                if done:
                    self.kept = epoch, data, now
                return Stored(done)
            case Fetch():
                return Fetched(None) if self.kept is None else Fetched(self.kept[1], now - self.kept[2])

    def _lease(self, request: TakeLease, who: str, now: float) -> Leased:
        asked, newest, holder = request.epoch, self.counter, self.holder(now)
        forgot = newest < asked or not newest
        if holder and newest >= asked:
            if holder == who:
                self._lease_ends_at = now + request.ttl_s
            return Leased(holder, newest, request.asked_at, forgot)
        if not request.wants:
            return Leased("", max(newest, asked), request.asked_at, forgot)
        self.counter = asked if request.renews and newest <= asked else max(newest, asked) + 1
        self._holder, self._lease_ends_at = who, now + request.ttl_s
        return Leased(who, self.counter, request.asked_at, forgot)
