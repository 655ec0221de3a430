"""A simulated engine, and the way of processes to it: messages are late, lost, doubled or out of order. Pure.

The engine is the part of a Valkey or Redis server that a cluster uses, as values.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from hivemind_addon.plugins.cluster.messages import (
    EngineAnswer,
    EngineFailed,
    EngineRequest,
    Fetch,
    Fetched,
    Leased,
    Publish,
    Resign,
    Stored,
    StoreKept,
    TakeLease,
)
from hivemind_addon.sim.agenda import Agenda

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


_ANSWER_WITHIN_S = 1.0
"""A client waits no longer for an answer of the engine."""
_REFUSED_AFTER_S = 0.05
"""Where nothing listens, or no connection is there yet, a client notices so soon."""


@dataclass(slots=True)
class Weather:
    """How hops go, for everybody."""

    hop_s: tuple[float, float] = (0.0002, 0.002)
    slow_rate: float = 0.0
    slow_s: tuple[float, float] = (0.1, 3.0)
    """How long a slow hop takes."""
    loss_rate: float = 0.0
    """Of published messages."""
    break_rate: float = 0.0
    """Of requests and answers: where a connection breaks, nobody knows whether the request was carried out."""
    double_rate: float = 0.0


@dataclass(slots=True, eq=False)
class Line:
    """A process's connections to the engine."""

    me: str
    receive: Callable[[bytes], None]
    answered: Callable[[EngineAnswer], None]
    unheard: Callable[[str], None]
    """Gets the name of a node that a message did not reach."""
    up: bool = True
    """The process reaches the engine."""
    down: bool = True
    """The engine reaches the process."""
    subscribed: bool = False
    """Connected, both for requests and for messages."""
    is_broken: bool = False
    """An answer was lost: until both ways are open, no request passes (that is how TCP fails)."""
    newest_at: float = 0.0
    """When the newest request gets there: a connection keeps the order."""


class Network:
    """Carries requests to the engine, the answers, and published messages."""

    def __init__(self, agenda: Agenda, engine: SimEngine, rng: random.Random) -> None:
        self.weather = Weather()
        self.engine = engine
        self.engine_is_up = True
        self._agenda = agenda
        self._rng = rng
        self._lines: dict[str, Line] = {}

    def __repr__(self) -> str:
        return f"<Network of {len(self._lines)} lines, engine {'up' if self.engine_is_up else 'down'}>"

    def connect(self, line: Line) -> None:
        """A process begins to listen."""
        self._lines[line.me] = line
        self._resubscribe(line)

    def disconnect(self, line: Line) -> None:
        """A process is over."""
        self._lines.pop(line.me, None)

    def engine_goes(self) -> None:
        """Nobody gets to the engine; all connections are cut."""
        self.engine_is_up = False
        for line in self._lines.values():
            line.subscribed = False

    def engine_comes(self) -> None:
        """The engine is back; clients find out in turn."""
        self.engine_is_up = True
        for line in self._lines.values():
            self._resubscribe(line)

    def send(self, line: Line, request: EngineRequest) -> None:
        """Carry a request of a process."""
        if isinstance(request, Publish):
            if self.engine_is_up and line.up and line.subscribed:
                self._hop(self._publish, line, request)
            return
        state = _Asked(line, request)
        if not self.engine_is_up or not line.subscribed:
            self._agenda.after(_REFUSED_AFTER_S, self._fail, state, "connection refused")
            return
        self._agenda.after(_ANSWER_WITHIN_S, self._fail, state, "no answer in time")
        line.is_broken = line.is_broken and not (line.up and line.down)
        if line.up and not line.is_broken and not self._breaks():
            line.newest_at = max(line.newest_at, self._agenda.now + self._hop_s())
            self._agenda.at(line.newest_at, self._carry_out, state)

    def _publish(self, sender: Line, request: Publish) -> None:
        if not self.engine_is_up:
            return
        line = self._lines.get(request.to)
        if line is None or not line.subscribed:
            self._hop(self._unheard, sender, request.to)
        elif line.down:
            self._hop(self._deliver, line, request.data)

    def _unheard(self, sender: Line, name: str) -> None:
        if sender.down:
            sender.unheard(name)

    def _deliver(self, line: Line, data: bytes) -> None:
        if line.down and self._lines.get(line.me) is line:
            line.receive(data)

    def _carry_out(self, asked: "_Asked") -> None:
        if not self.engine_is_up:
            return
        answer = self.engine.carry_out(asked.request, asked.line.me, self._agenda.now)
        if not self._breaks():
            self._agenda.after(self._hop_s(), self._answer, asked, answer)

    def _answer(self, asked: "_Asked", answer: EngineAnswer | None) -> None:
        if not asked.line.down:
            asked.line.is_broken = True
        else:
            asked.end(answer)

    def _fail(self, asked: "_Asked", why: str) -> None:
        asked.end(EngineFailed(asked.request, why))

    def _hop(self, deed: Callable[..., None], *arguments: object) -> None:
        weather, rng = self.weather, self._rng
        if weather.loss_rate and rng.random() < weather.loss_rate:
            return
        for _ in range(2 if weather.double_rate and rng.random() < weather.double_rate else 1):
            self._agenda.after(self._hop_s(), deed, *arguments)

    def _breaks(self) -> bool:
        return self.weather.break_rate > 0 and self._rng.random() < self.weather.break_rate

    def _hop_s(self) -> float:
        weather, rng = self.weather, self._rng
        is_slow = weather.slow_rate and rng.random() < weather.slow_rate
        return rng.uniform(*(weather.slow_s if is_slow else weather.hop_s))

    def _resubscribe(self, line: Line) -> None:
        def subscribe() -> None:
            line.subscribed = line.subscribed or self.engine_is_up

        self._agenda.after(self._rng.uniform(0.001, 0.4), subscribe)


@dataclass(slots=True, eq=False)
class _Asked:
    line: Line
    request: AskedOfEngine
    is_over: bool = False

    def end(self, answer: EngineAnswer | None) -> None:
        if not self.is_over and answer is not None:
            self.line.answered(answer)
        self.is_over = True
