"""The turns of one WebSocket: which frames belong to one, when its request goes, what its client hears meanwhile.

Sans-io: fed with frames and time, it writes into a `Wire`. All decisions about a turn are its exchange's, as for a
plain request; here they become frames.

    client's frame ──► lane ──► held ──► sent ──► frames kept back ──► frames passed on ──► over
                        ▲        ▲                     │
                one at a time    └── sent once more: unchained, and nothing but bookkeeping has come

A lane answers one request after the other, so the frames of an answer are told apart by their order alone. A turn that
names an earlier answer (chained) is never sent twice: the provider forgets that answer when the turn fails. Its client
is told to come back instead, and does so by a new connection with its whole input. Only where that answer was a
warm-up's, as with Codex's first turn, both can be asked for again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from mitmproxy import http
from msgspec.structs import replace

from hivemind_addon.formats.base.json_values import readable
from hivemind_addon.formats.wire import frames
from hivemind_addon.formats.wire.frames import Asked, Asking, Told, read_asked, read_told
from hivemind_addon.formats.wire.outcome import TransportTrouble
from hivemind_addon.proxy.host.port import Alarm, Look, Next, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hivemind_addon.proxy.host.port import ExchangePort

MOST_WAITING_BYTES = 64 * 1024 * 1024
"""Of one socket's frames behind the turn that runs; more are refused."""
MOST_LANES = 64
"""Twice what OpenAI lets be named; what comes by more at a time is refused."""
LONGEST_ALARM_S = 5.0
_STREAM = {"content-type": "text/event-stream"}
_TOO_MUCH = "hivemind: too much waits in this connection already"
_STALLED = "hivemind: the provider has stopped answering"
_AGAIN = "hivemind: the provider refused this turn, which continues an earlier answer; please send all of it"


class Wire(Protocol):
    """One socket, as its turns need it. What is written goes out in order."""

    def to_client(self, text: bytes) -> None:
        """Send a frame to the client."""

    def to_server(self, text: bytes) -> None:
        """Send a frame to the provider."""

    def close(self) -> None:
        """End the connection on both sides, after what was written."""

    def begin(self, turn: Turn) -> ExchangePort | None:
        """Make a turn's exchange; None: it is not scheduled after all."""

    def wait(self, turn: Turn) -> None:
        """Call `Turn.decided` when its exchange has held long enough."""

    def ring(self, turn: Turn, delay_s: float) -> None:
        """Call `Turn.rings` after this time."""

    def ended(self, turn: Turn) -> None:
        """A turn is over."""


class _State(Enum):
    HELD = auto()
    WARMING = auto()
    """The warm-up that it goes on from is sent once more before it."""
    SENT = auto()
    PEEKED = auto()
    """Its answer has begun, and is kept back."""
    PASSED = auto()
    """Its client has seen some of the answer."""
    OVER = auto()


_STAGES = {
    _State.WARMING: Stage.AWAITED,
    _State.SENT: Stage.AWAITED,
    _State.PEEKED: Stage.PEEKED,
    _State.PASSED: Stage.STREAMED,
}


@dataclass(eq=False, slots=True)
class Turn:
    """One request for an answer, and the answer."""

    text: bytes
    """The client's frame."""
    asked: Asked
    wire: Wire
    lane: _Lane
    exchange: ExchangePort = field(init=False)
    seen: list[tuple[str, bytes]] = field(default_factory=list)
    """The frames of the answer that its client has seen, with their names."""
    may_repeat: bool = False
    """Whether the provider would answer it once more."""
    is_enrolled: bool = False
    """Whether its exchange is there."""
    _state: _State = _State.HELD
    _kept: list[tuple[Told, bytes]] = field(default_factory=list)
    """What is kept back of the answer."""
    _rings: bool = False
    _is_cold: bool = False
    """The warm-up that it goes on from is not known any more."""

    @property
    def runs(self) -> bool:
        """Whether the provider is answering it."""
        return self._state in _STAGES

    @property
    def unsent(self) -> list[bytes]:
        """Its client's frame, where the provider has not got it."""
        return [self.text] if self._state in (_State.HELD, _State.WARMING) else []

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._state is _State.OVER

    def begin(self) -> bool:
        """Ask for admission. False: it is not scheduled."""
        self.may_repeat = self.asked.previous in ("", self.lane.warm_up.answer if self.lane.warm_up else "")
        exchange = self.wire.begin(self)
        if exchange is None:
            return False
        self.exchange, self.is_enrolled = exchange, True
        exchange.may_repeat = self.may_repeat
        self._ask()
        return True

    def _ask(self) -> None:
        self._state = _State.HELD
        if self.exchange.enter():
            self.decided()
        else:
            self.wire.wait(self)

    def decided(self) -> None:
        """The exchange says what is next."""
        if self._state is not _State.HELD:
            return
        match self.exchange.next:
            case Next.SEND:
                if self._is_cold and self.lane.warm_up:
                    self._state = _State.WARMING
                    self.wire.to_server(self.lane.warm_up.text)
                else:
                    self._send()
                self.exchange.sent()
                self._arm()
            case Next.PULSE:
                self._keep_alive()
                self.wire.wait(self)
            case Next.REFUSE:
                self._refuse()
                self._end()
            case Next.LEAVE:
                self._end()

    def _send(self) -> None:
        self._state = _State.SENT
        self.wire.to_server(self.text)

    def heard(self, text: bytes, told: Told) -> bool:
        """A frame of its answer came. True: it goes on to the client as it came."""
        if self._state is _State.WARMING:
            if not told.is_error:
                if told.ends:
                    self._is_cold = False
                    self.lane.warmed_up(frames.id_of(text))
                    self.text = frames.going_on_from(self.text, frames.id_of(text))
                    self._send()
                return False
            self._state = _State.SENT
        if told.status is not None:
            self._refused(text, told)
            return False
        if self._state is _State.SENT:
            self._state = _State.PEEKED
            self.exchange.head(http.Response.make(200, b"", _STREAM))
        event = frames.as_event(told.name, text)
        if self._state is _State.PASSED:
            self.exchange.tee(event)
        else:
            match self.exchange.look(event):
                case Look.FAILED:
                    self._failed(text, told, again=self.exchange.failed_in_stream())
                    return False
                case Look.HOLD_BACK | Look.COMPLETE:
                    self._kept.append((told, text))
                    if not told.ends:
                        return False
                    if self.exchange.ended():
                        self._again()
                    else:
                        self._release()
                        self._complete()
                    return False
                case Look.RELEASE:
                    self._release()
        if told.is_error:
            self._give(text, told)
        else:
            self.seen.append((told.name, text))
        if told.ends:
            self._complete()
        return not told.is_error

    def _refused(self, text: bytes, told: Told) -> None:
        """The provider's answer is an error with a status: what a plain request would have got in place of a stream."""
        assert told.status is not None
        response = http.Response.make(told.status, text, {**told.headers, "content-type": "application/json"})
        self.exchange.head(response)
        if self._state is _State.PASSED:
            self.exchange.tee(frames.as_event(told.name, text))
            self._give(text, told)
            self._complete()
        else:
            self._failed(text, told, again=self.exchange.collected(response, text))

    def _failed(self, text: bytes, told: Told, *, again: bool) -> None:
        """Nothing of the answer has gone to the client."""
        if again:
            self._again()
        elif self.exchange.withheld:
            self._answer(frames.come_back(_AGAIN, frames.DELAY_S, self.asked.lane, self.exchange.ticket_id))
            self._end()
        else:
            self._release()
            self._give(text, told)
            self._end()

    def _again(self) -> None:
        """The same frame is to be sent once more; what it goes on from is forgotten."""
        self._kept.clear()
        self._is_cold = bool(self.asked.previous)
        self._ask()

    def _release(self) -> None:
        """What was kept back goes to the client; from now on each frame does."""
        if self._state is _State.PASSED:
            return
        self._state = _State.PASSED
        kept, self._kept = self._kept, []
        for told, text in kept:
            self._give(text, told)

    def _give(self, text: bytes, told: Told) -> None:
        self._answer(frames.harmless(text, told), told.name)

    def _answer(self, text: bytes, name: str = "error") -> None:
        self.seen.append((name, text))
        self.wire.to_client(text)

    def _complete(self) -> None:
        self.lane.warm_up = None  # whatever follows goes on from this one
        self.exchange.streamed()
        self._end()

    def _refuse(self) -> None:
        refusal = self.exchange.refusal
        if refusal is not None:
            headers = {name.lower(): value for name, value in refusal.headers.items()}
            body = refusal.raw_content or b""
            ticket_id = self.exchange.ticket_id
            self._answer(frames.refusal(refusal.status_code, headers, body, self.asked.lane, ticket_id))

    def _keep_alive(self) -> None:
        self.wire.to_client(frames.held(self.asked.lane))

    def _end(self) -> None:
        self._state = _State.OVER
        self._kept.clear()
        self.wire.ended(self)
        self.exchange.finished()
        self.lane.free(self)

    # Time ------------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """One alarm at a time, which asks again after a while, whatever comes first."""
        delay_s = self.exchange.next_alarm_s(_STAGES[self._state])
        if delay_s is not None and not self._rings:
            self._rings = True
            self.wire.ring(self, min(delay_s, LONGEST_ALARM_S))

    def rings(self) -> None:
        """Time has passed."""
        self._rings = False
        if not self.runs:
            return
        match self.exchange.alarm(_STAGES[self._state]):
            case Alarm.PULSE:
                self._keep_alive()
            case Alarm.RELEASE:
                self._release()
            case Alarm.STALLED:
                self._stalled()
                return
            case Alarm.NOTHING:
                pass
        self._arm()

    def _stalled(self) -> None:
        """It may be answered yet, and nothing tells its answer from the next one's: the connection is of no use."""
        is_seen = self._state is _State.PASSED
        self.exchange.may_repeat = False
        self.exchange.failed(TransportTrouble.STALLED, "no frame came", client_saw_bytes=is_seen)
        if not is_seen:
            self._answer(frames.come_back(_STALLED, frames.DELAY_S, self.asked.lane, self.exchange.ticket_id))
        self._hang_up()

    def _hang_up(self) -> None:
        """The connection ends, and this turn; none that waits behind it begins."""
        self.lane.is_closed = True
        self.wire.close()
        self._end()

    # From outside ----------------------------------------------------------------------------------------------------

    def end_attempt(self, *, called_off: bool) -> None:
        """Its client has come back elsewhere with the same request, or (`called_off`) a person cancelled it."""
        if not self.runs:
            return  # what it waits for comes, and then it looks; or it has just ended
        if called_off:
            self.exchange.call_off()
            self._refuse()
        else:
            self.exchange.client_gone()
        self._hang_up()

    def let_go(self) -> None:
        """Our own code has failed: what is kept back of the answer goes as it came."""
        kept, self._kept = self._kept, []
        for _, text in kept:
            self.wire.to_client(text)

    def closed(self, *, by_client: bool) -> None:
        """The connection has ended."""
        if self.is_over:
            return
        if by_client or not self.runs:
            self.exchange.client_gone()
        else:
            self.exchange.may_repeat = False
            is_begun = self._state in (_State.PEEKED, _State.PASSED)
            trouble = TransportTrouble.CUT if is_begun else TransportTrouble.CLOSED_BEFORE_HEAD
            is_seen = self._state is _State.PASSED
            self.exchange.failed(trouble, "the provider closed the WebSocket", client_saw_bytes=is_seen)
        self._end()


@dataclass(frozen=True, slots=True)
class _WarmUp:
    """A request that only warms a cache, and that a turn may go on from."""

    text: bytes
    answer: str
    """Id."""


class _Lane:
    """What is asked one after the other."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.turn: Turn | None = None
        self.unscheduled: deque[bytes] = deque()
        """The frames whose answers pass; they were sent before the turn."""
        self.warm_up: _WarmUp | None = None
        """The last one, as long as no turn has followed it."""
        self.waiting: deque[tuple[bytes, Asked]] = deque()
        self.is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing in it is answered or waits."""
        return self.turn is None and not self.unscheduled and not self.waiting

    def free(self, turn: Turn) -> None:
        """A turn is over."""
        if self.turn is turn:
            self.turn = None
            self.go_on()

    def answered(self, text: bytes, told: Told) -> None:
        """A frame of an answer that passes came."""
        if told.ends:
            asked = self.unscheduled.popleft()
            self.warm_up = None
            if not told.is_error and read_asked(asked).what is Asking.WARM_UP and not read_asked(asked).previous:
                self.warm_up = _WarmUp(asked, frames.id_of(text))

    def warmed_up(self, answer: str) -> None:
        """The warm-up was answered once more, by another answer."""
        assert self.warm_up is not None
        self.warm_up = _WarmUp(self.warm_up.text, answer)

    def go_on(self) -> None:
        """Begin what waits, as far as the turn of one lets it."""
        while self.turn is None and self.waiting and not self.is_closed:
            text, asked = self.waiting.popleft()
            if asked.what is Asking.TURN:
                turn = self.turn = Turn(text, asked, self._wire, self)
                if turn.begin():
                    continue  # it may be over already
                self.turn = None
            self.unscheduled.append(text)
            self._wire.to_server(text)


class Turns:
    """All of one socket's."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._lanes: dict[str, _Lane] = {}
        self._is_warm = False
        """The client has warmed up, and asked for no turn since."""

    @property
    def live(self) -> Iterator[Turn]:
        """Those that have not ended, and whose tickets are with the scheduler."""
        turns = (lane.turn for lane in self._lanes.values())
        return (turn for turn in turns if turn is not None and turn.is_enrolled)

    def from_client(self, text: bytes) -> bool:
        """The client sent a frame. True: it passes as it came; else the turns have it.

        What passes is surely no turn: budgets and pauses are for those who would write what only the provider reads.
        """
        if not text.strip():
            return True
        plain = readable(text)
        asked = read_asked(plain or b"")
        if plain is None or (asked.what is not Asking.TURN and frames.is_ambiguous(text)):
            self._wire.to_client(frames.unreadable())
            return False
        if asked.what is Asking.OTHER:
            return True
        if asked.what is Asking.WARM_UP and self._is_warm:  # one is free, for it costs input
            asked = replace(asked, what=Asking.TURN)
        else:
            self._is_warm = asked.what is Asking.WARM_UP
        lane = self._lanes.get(asked.lane)
        if lane is None:
            if len(self._lanes) >= MOST_LANES:
                self._lanes = {name: one for name, one in self._lanes.items() if not one.is_idle}
            if len(self._lanes) >= MOST_LANES:
                self._wire.to_client(frames.come_back(_TOO_MUCH, frames.DELAY_S, asked.lane))
                return False
            lane = self._lanes[asked.lane] = _Lane(self._wire)
        if asked.what is Asking.WARM_UP and lane.turn is None:
            lane.unscheduled.append(text)
            return True
        if self._waiting_bytes() + len(text) > MOST_WAITING_BYTES and lane.turn is not None:
            self._wire.to_client(frames.come_back(_TOO_MUCH, frames.DELAY_S, asked.lane))
            return False
        lane.waiting.append((text, asked))
        lane.go_on()
        return False

    def from_server(self, text: bytes) -> bool:
        """The provider sent a frame. True: it passes as it came; else the turns have it."""
        told = read_told(text)
        lane = self._lane_of(told)
        if lane is not None and lane.unscheduled:
            lane.answered(text, told)
        elif lane is not None and lane.turn is not None and lane.turn.runs:
            return lane.turn.heard(text, told)
        if not told.is_error:
            return True
        self._wire.to_client(frames.harmless(text, told))
        return False

    def closed(self, *, by_client: bool) -> None:
        """The connection has ended: every turn does."""
        for lane in self._lanes.values():
            lane.is_closed = True
            lane.waiting.clear()
        for turn in list(self.live):
            turn.closed(by_client=by_client)

    def let_go(self, *, but: bytes) -> None:
        """Our own code has failed: what is held goes as it came, and all that follows passes.

        `but`: the frame that goes by itself.
        """
        for lane in self._lanes.values():
            held = [] if lane.turn is None else lane.turn.unsent
            lane.is_closed = True
            if lane.turn is not None:
                lane.turn.let_go()
            for text in (*held, *(text for text, _ in lane.waiting)):
                if text is not but:
                    self._wire.to_server(text)
            lane.waiting.clear()

    def _lane_of(self, told: Told) -> _Lane | None:
        """Whose answer a frame belongs to; of one that names no lane, the only one that is answered."""
        lane = self._lanes.get(told.lane or "")
        if told.lane is not None or (lane is not None and _is_answered(lane)):
            return lane
        answered = [one for one in self._lanes.values() if _is_answered(one)]
        return answered[0] if len(answered) == 1 else None

    def _waiting_bytes(self) -> int:
        return sum(len(text) for lane in self._lanes.values() for text, _ in lane.waiting)


def _is_answered(lane: _Lane) -> bool:
    return bool(lane.unscheduled) or (lane.turn is not None and lane.turn.runs)
