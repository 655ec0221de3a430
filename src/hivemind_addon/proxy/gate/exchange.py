"""One scheduled request, from the gate to its end: where the layer, the scheduler and the parsers meet.

The layer (`proxy/host/stream.py`) tells an exchange what happened and does what it answers. No method raises:
`@guarded` turns an exception of ours into a guard trip, after which every answer is the harmless one (send it, pass it
on).
"""

from __future__ import annotations

import functools
import logging
import math
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeGuard, assert_never

from mitmproxy.flow import Error
from msgspec.structs import replace

from hivemind_addon.formats.base.patterns import glob_matches, normal_host
from hivemind_addon.formats.wire.answer import LAST, Phase
from hivemind_addon.formats.wire.answer_in_progress import AnswerInProgress
from hivemind_addon.formats.wire.description import read_body
from hivemind_addon.formats.wire.error import error_in_body
from hivemind_addon.formats.wire.garbage import garbage_in, is_after_tool
from hivemind_addon.formats.wire.jobs import JobReader, job_begun
from hivemind_addon.formats.wire.outcome import TransportTrouble, judge_transport, never_run
from hivemind_addon.formats.wire.watchdog import may_be_silent_s
from hivemind_addon.kernel.values.command import Cancel, MoveToFront
from hivemind_addon.kernel.values.decision import Admitted, Backoff, GiveUp, Refused, Shed
from hivemind_addon.kernel.values.events import CommittedStreamFailed, OddityNoted
from hivemind_addon.kernel.values.spend import Shortage
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    CallKind,
    ContractError,
    Delivery,
    Job,
    Outcome,
    OutcomeKind,
    Reason,
    Ticket,
    Usage,
)
from hivemind_addon.proxy.gate.refusal import (
    MOST_SLEPT_S,
    come_back_s,
    make_misdirected,
    make_refusal,
    make_refused,
    refusal_text,
    refused_error,
    refused_text,
    soften,
)
from hivemind_addon.proxy.gate.upstream_request import address_of, outgoing
from hivemind_addon.proxy.host.flow_parts import destination, plain_headers, plain_request
from hivemind_addon.proxy.host.port import Alarm, Delivered, Handling, Look, Next, Stage
from hivemind_addon.proxy.run.driver import CANCELLED_BY_PERSON, Awaited, Cancelled, Pulse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mitmproxy import http

    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.formats.profile.upstreams import EqualUpstream
    from hivemind_addon.formats.wire.description import PlainRequest
    from hivemind_addon.formats.wire.dialect import Dialect
    from hivemind_addon.formats.wire.estimate import Estimate, Estimator
    from hivemind_addon.formats.wire.request import RequestFacts
    from hivemind_addon.kernel.values.ticket import PoolKey
    from hivemind_addon.plugins.captures.recording import Served, Tape
    from hivemind_addon.plugins.contexts.compactor import Compactor
    from hivemind_addon.plugins.contexts.keeper import ConversationKeeper
    from hivemind_addon.proxy.gate.settings import Settings
    from hivemind_addon.proxy.host.port import Outgoing
    from hivemind_addon.proxy.run.compose import Runtime
    from hivemind_addon.proxy.run.driver import Driver
    from hivemind_addon.proxy.run.guard import Guard

logger = logging.getLogger(__name__)

MOST_GARBAGE_RETRIES = 2
MOST_LABELS = 100
_KEEP_ALIVE_S = 20.0
"""Between the signs of life that a client gets while its stream, or its WebSocket, is silent, where its profile says
nothing: no answer's status is lost by them."""
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_INTERIM_S = 2.0
"""httpx waits 5 s."""
_NEVER_S: float | None = None
_instant = itemgetter(0)
"""Of an alarm."""


def guarded[**P, R](fallback: R) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Turn an exception into a guard trip and `fallback`; after a trip, answer `fallback` at once."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            exchange: Any = args[0]
            if exchange.tripped:
                return fallback
            try:
                return method(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the guard at the edge
                exchange.trip(method.__name__, error)
                return fallback

        return call

    return decorate


@dataclass(eq=False, slots=True, repr=False)
class Exchange:
    """One request's way through the scheduler. Implements `mitm.port.ExchangePort`."""

    flow: http.HTTPFlow
    ticket: Ticket
    profile: Profile
    dialect: Dialect
    facts: RequestFacts
    """Without the text, which is in the flow."""
    estimate: Estimate
    """What was expected of each attempt."""
    delivery: Delivery
    """Never AUTO: that has been decided."""
    runtime: Runtime
    settings: Settings
    """As the request came."""
    on_end: Callable[[Exchange], None]
    """Called once, when the ticket is over."""
    whole_until_at: float = math.inf
    """With whole delivery: when what has come is passed on, before its client gives up."""
    tape: Tape | None = None
    """What is recorded of its attempts; None: nothing."""
    upstreams: Mapping[PoolKey, EqualUpstream] = MappingProxyType({})
    """The endpoints that it may go to, by their pools; empty: it goes where it was sent."""
    keeper: ConversationKeeper | None = None
    """Who keeps its conversation; None: nobody."""
    opening: int = 0
    """Hash of the first words that were asked in its conversation."""
    frames: Sequence[tuple[str, bytes]] = ()
    """The named frames of its answer that its client has seen, where it is a turn of a WebSocket."""
    warm_up: bytes = b""
    """The frame of the warm-up that it goes on from, where it is such a turn."""
    unedited: PlainRequest | None = None
    """As its client sent it, where old tool results were taken out of it since; None: the flow's is that."""
    compactor: Compactor | None = None
    """Who has asked its provider to take something out; None: nobody has."""
    shown_on: http.HTTPFlow | None = None
    """The WebSocket's flow on which people see it; None: its own."""
    turn: int = 0
    """Which one of that WebSocket it is, counted from 1."""
    may_repeat: bool = True
    """False: the provider would not take the same request again, so its client has to send another."""
    is_safe: bool = True
    """False: what its service may have run already is not sent again."""
    interim: bytes = b""
    """The interim response that the held client gets from time to time; empty: none."""
    misdirected: str = ""
    """Why no endpoint's key may go with it, for its client; empty: nothing is in the way."""

    driver: Driver = field(init=False)
    guard: Guard = field(init=False)
    estimator: Estimator = field(init=False)
    next: Next = Next.SEND
    refusal: http.Response | None = None
    over: bool = False
    withheld: bool = False
    outgoing: Outgoing | None = None
    """What the admitted attempt sends in place of the flow's request; None: that, as it came."""
    tripped: bool = False
    attempts: int = 0
    delivered: Delivered | None = None
    """What has come of an answer that goes to the client as it comes."""
    used: Usage | None = None
    """By its attempts so far; None: nothing is known."""
    job: JobReader | None = None
    """Reads in the answer whether its work goes on afterwards; None: such requests begin no job."""
    is_answered: bool = False
    """The last attempt's answer came through whole."""
    _answer: AnswerInProgress = field(init=False)
    _submitted: bool = False
    _attempt: Attempt | None = None
    _bypassing: bool = False
    _held: bool = False
    _pulse_at: float = 0.0
    _garbage_retries: int = 0
    _stalls: int = 0
    """Attempts that hung."""
    _refused_by: Shed | Refused | None = None
    _broke: Refused | None = None
    """A spent budget refuses it, and its conversation is to be kept before its client hears of that."""
    kept_as: str = ""
    """The context that its conversation is kept as; empty: none."""

    def __post_init__(self) -> None:
        self.driver = self.runtime.driver
        self.guard = self.runtime.guard
        self.estimator = self.runtime.estimator
        self._answer = self._new_answer()
        self._pulse_at = self.ticket.arrived_at + self._pulse_s

    @property
    def ticket_id(self) -> str:
        """What the request is known by."""
        return self.ticket.id

    @property
    def served(self) -> Served:
        """How it is served, for a capture."""
        from hivemind_addon.plugins.captures.recording import Served  # noqa: PLC0415 - only who records asks

        return Served(self.profile.name, self.dialect.name, self.delivery.value, self.facts.max_output_tokens)

    # Admission -------------------------------------------------------------------------------------------------------

    @guarded(fallback=False)
    def enter(self) -> bool:
        """Step 4: submit. True when `next` is decided at once, so that no wait is needed."""
        if self.misdirected:
            self.refusal = make_misdirected(self.dialect, self.misdirected)
            self.next = Next.REFUSE
            self._end()
            return True
        if not self._submitted:
            self._submitted = True
            if not self.guard.repay():  # else one slot after the other would be lost, until nothing goes
                raise ContractError("slots of ended requests could not be given back")
            self.driver.submit(self.ticket, self.profile.pool_settings)
        answer = self.driver.decision(self.ticket.id)
        self._keep(answer)
        if self._is_to_be_kept(answer):
            self._broke = answer
            return False  # `hold` waits for the disk
        return self._take(answer)

    async def hold(self) -> None:
        """The one wait: for admission, a keep-alive instant, a person's Abort or Resume, or the client's going."""
        try:
            if not self.tripped:
                await self._wait()
        except Exception as error:  # noqa: BLE001 - the guard at the edge
            self.trip("hold", error)
        finally:
            self._show_held(held=False)
        if self.tripped and not self.over:
            if not self._bypassing and self._attempt is None:
                await self.guard.enter(self.ticket.pool)
                self._bypassing = True
                if self.over:  # the client went while we waited for the semaphore
                    self._leave_bypass()
            self.next = Next.SEND

    async def _wait(self) -> None:
        if not self._submitted:
            self.enter()
        self._show_held(held=True)
        pulse_at = self._pulse_at if self._keeps_alive else None
        if self.interim:
            pulse_at = self.driver.clock.monotonic() + _INTERIM_S
        answer: Awaited = self._broke or await self.driver.wait(self.ticket.id, until_at=pulse_at)
        self._keep(answer)
        if self._is_to_be_kept(answer):
            answer = await self._keep_conversation(answer)
        self._take(answer)

    def _is_to_be_kept(self, answer: Awaited | None) -> TypeGuard[Refused]:
        return isinstance(answer, Refused) and isinstance(answer.cause, Shortage) and self.keeper is not None

    async def _keep_conversation(self, refused: Refused) -> Refused | Cancelled:
        """Its last full context is on disk before its client is refused; where the disk does not let it, it is not."""
        assert self.keeper is not None
        assert isinstance(refused.cause, Shortage)
        self.kept_as = await self.keeper.keep(self, refused.cause)
        return Cancelled() if self.over else refused  # the client may have gone meanwhile

    def _keep(self, answer: Awaited | None) -> None:
        """An attempt is ours from the moment it was fetched: whatever goes wrong afterwards, it is given back."""
        if isinstance(answer, Admitted):
            self._attempt = answer.attempt

    def _take(self, answer: Awaited | None) -> bool:
        """Step 5: what the scheduler's answer means for the layer. False: there is none yet."""
        match answer:
            case None:
                return False
            case Admitted(attempt):
                self.attempts = attempt.number
                self._aim(attempt)
                self.next = Next.SEND
            case Shed():
                self.refusal = make_refusal(self.profile, self.dialect, answer)
                if answer.reason is Reason.STOPPING and not self.flow.request.is_http2:
                    # On this connection its client would come back to us, not to a proxy that goes on.
                    self.refusal.headers["connection"] = "close"
                self._refuse(answer)
                self._end()
            case Refused():
                self._refuse_for_good(answer)
                self._end()
            case Pulse():
                self._pulse_at = self.driver.clock.monotonic() + self._pulse_s
                self.next = Next.PULSE
            case Cancelled():
                self.next = Next.LEAVE
                self._end()
            case _:
                assert_never(answer)
        return True

    def _aim(self, attempt: Attempt) -> None:
        """Send to the endpoint whose pool has admitted it, which may be another one than before."""
        if not self.upstreams:
            return
        self.ticket = attempt.ticket
        upstream = self.upstreams.get(self.ticket.pool)
        if upstream is None:  # two keys proved to be of one account: either will do
            alike = (one for pool, one in self.upstreams.items() if pool.host == self.ticket.pool.host)
            upstream = next(alike, next(iter(self.upstreams.values())))
        keys = self.settings.profiles.keys
        address = address_of(self.flow)
        self.outgoing = outgoing(self.flow.request, self.profile, upstream, keys, self.facts.model, address)

    def _refuse_for_good(self, refused: Refused) -> None:
        self.refusal = make_refused(
            self.profile,
            self.dialect,
            refused,
            self.settings.agents.file,
            self.driver.clock,
            kept_as=self.kept_as,
            port=self.settings.port,
        )
        self._refuse(refused)

    def _refuse(self, answer: Shed | Refused) -> None:
        self._refused_by = answer
        self.next = Next.REFUSE

    def _show_held(self, *, held: bool) -> None:
        """Mitmproxy's native look of a held flow: Resume and Abort are enabled."""
        if held and not self._held:
            self._held = True
            self.flow.intercept()
        elif not held and self._held:
            self._held = False
            self.flow.resume()

    def nudge(self) -> None:
        """Some interface touched the flow: a person may have pressed Abort or Resume."""
        if self.over or self.tripped:
            return
        if self.flow.error and self.flow.error.msg == Error.KILLED_MESSAGE:
            # The client is to hear of it, and mitmproxy answers nothing for a flow that is killed.
            self.flow.error, self.flow.live = None, True
            self.driver.command(Cancel(self.ticket.id))
        elif self._held and not self.flow.intercepted:
            self._held = False
            self.driver.command(MoveToFront(self.ticket.id))

    def client_gone(self) -> None:
        """The client went; whatever it held is given back now."""
        if self.tripped:
            self.finished()
        else:
            self._client_gone()

    @guarded(fallback=None)
    def _client_gone(self) -> None:
        if self.over:
            return
        if self._attempt is None:
            if self._submitted:
                self.driver.cancel(self.ticket.id)  # wakes whoever waits for it
            self._end()
        elif self._answer.phase is Phase.COMPLETE or (self.delivered is not None and self.complete(b"")):
            self.streamed()  # some clients hang up right after the last event
        else:
            self._settle_stream(Outcome(OutcomeKind.CANCELLED, "client gone"))

    @guarded(fallback=None)
    def call_off(self) -> None:
        """A person cancelled the running attempt: its slot is free now, its client is refused."""
        if self.over or self._attempt is None:
            return
        self._refuse_for_good(Refused(ticket=self.ticket, cause=Cancel(self.ticket.id)))
        self._settle_stream(Outcome(OutcomeKind.CANCELLED, CANCELLED_BY_PERSON))

    # An attempt's answer ---------------------------------------------------------------------------------------------

    def _new_answer(self) -> AnswerInProgress:
        clock, group = self.driver.clock, self.ticket.pool.model_group
        return AnswerInProgress(self.profile, self.dialect, clock, self.facts.stream, group)

    @guarded(fallback=None)
    def sent(self) -> None:
        """The attempt begins."""
        self._answer.sent()

    @property
    def _model(self) -> PoolKey:
        """The key of its model's times: the models of a pool are not alike."""
        return replace(self.ticket.pool, model_group=self.ticket.model)

    @property
    def _may_be_silent_s(self) -> float:
        """How long the running attempt may be silent from its last byte on."""
        answer, runtime, streamed = self._answer, self.runtime, self.facts.stream
        if self.profile.is_plain:
            return math.inf  # how long a tool may work, only its client knows
        begun = answer.has_begun or bool(self.turn)  # a WebSocket was answered when it was opened
        known = runtime.silences if begun else runtime.first_bytes if streamed else runtime.plain_answers
        return may_be_silent_s(
            self.profile.watchdog,
            streamed=streamed,
            begun=begun,
            usual_s=known.p99_s(self._model),
            patience_s=self.ticket.deadline_at - self.ticket.arrived_at,
            stalls=self._stalls,
        )

    @guarded(fallback=Handling.PEEK)
    def head(self, response: http.Response) -> Handling:
        """Step 6: meters learn from the head."""
        answer, status, headers = self._answer, response.status_code, plain_headers(response.headers.fields)
        is_stream = answer.head(status, headers)
        rule = job_begun(self.profile, self.flow.request.path) if self.profile.jobs and status == 200 else None
        self.job = JobReader(rule, headers.get("content-encoding", "")) if rule else None
        if self.tape:
            self.tape.head(status, answer.head_at, answer.hints.readings)
        if self._attempt:
            self.driver.observe(self._attempt, answer.hints, answered=status < 400)
        if self.profile.is_plain:
            if answer.is_channel(self.flow.request.method):
                self._settle(answer.judge_stream(), usage=None)
            return Handling.PASS if status < 400 else Handling.PEEK
        if not is_stream:
            return Handling.COLLECT
        self.runtime.first_bytes.note(self._model, answer.head_at - answer.sent_at)
        return Handling.PEEK

    @guarded(fallback=False)
    def heard(self, chunk: bytes) -> bool:
        """An answer that is collected goes on. True: it is a stream."""
        is_stream = self._answer.heard(chunk)
        self._note_label()
        return is_stream

    @property
    def is_ending(self) -> bool:
        """Whether the answer has said that it is complete, and its transport has not."""
        return self._answer.ends_at != math.inf

    @guarded(fallback=False)
    def complete(self, body: bytes) -> bool:
        """Whether the answer has said that it is complete, whatever its transport does. `body`: what was collected."""
        return self._answer.is_complete(body)

    def look(self, chunk: bytes) -> Look:
        """Judge what was kept back so far."""
        kept = self._answer.kept
        known = len(kept)
        look = self._look(chunk)
        if self.tripped and len(kept) == known:
            kept.append(chunk)
        return look

    @guarded(fallback=Look.RELEASE)
    def _look(self, chunk: bytes) -> Look:
        answer, peek = self._answer, self.profile.peek
        phase = answer.look(chunk)
        if phase is None:
            self._note_label()
            return Look.COLLECT
        if self.job is not None and not self.job.id:
            self.job.feed(chunk)
        if self.tape:
            self.tape.chunk(len(chunk), self.driver.clock.monotonic())
        if answer.unreadable:
            self._note_oddity(f"answer: {answer.unreadable}")
            return Look.RELEASE
        if phase is Phase.FAILED:
            return Look.FAILED
        if self.delivery is Delivery.WHOLE:
            if phase is Phase.COMPLETE:
                return Look.COMPLETE
            too_big = answer.looked_bytes > peek.whole_max_bytes
        else:
            too_big = phase is not Phase.BEFORE_CONTENT or answer.looked_bytes > peek.max_bytes
        return Look.RELEASE if too_big else Look.HOLD_BACK

    def tee(self, chunk: bytes) -> bytes:
        """Step 8: read usage on the way; answers the decoded bytes."""
        if self.tripped:
            return chunk
        try:
            if self.job is not None and not self.job.id:
                self.job.feed(chunk)
            decoded = self._answer.tee(chunk)
            if self.tape:
                self.tape.chunk(len(chunk), self.driver.clock.monotonic())
        except Exception as error:  # noqa: BLE001 - the guard at the edge
            self.trip("tee", error)
            return chunk
        if self._answer.ends_at != math.inf:
            self._settle_if_ended()
        return decoded

    def decoded_so_far(self) -> bytes:
        """The decoded bytes of everything that `look` saw."""
        return self._answer.take_kept()

    @guarded(fallback=False)
    def collected(self, response: http.Response, body: bytes) -> bool:
        """Step 7, for an answer that came to its end: judge it. True: try again."""
        answer = self._answer
        outcome, usage = answer.judge_body(response.status_code, body, self.estimator.count, self.estimate.expected)
        if self.job is not None and outcome.kind is OutcomeKind.SUCCESS:
            self.job.feed(body)
            self.job.finish()
            if self.job.is_going:
                return self._settle(outcome, usage=None)
        if self.tape:
            self.tape.chunk(len(body), self.driver.clock.monotonic())
        if outcome.kind is OutcomeKind.SUCCESS and (garbage := self._garbage()):
            outcome = self._judge_garbage(garbage, may_retry=self.delivery is Delivery.WHOLE)
        if answer.unreadable:
            self._note_oddity(f"answer: {answer.unreadable}")
        if outcome.kind is OutcomeKind.SUCCESS and not self.facts.stream and not self.profile.is_plain:
            self.runtime.plain_answers.note(self._model, self.driver.clock.monotonic() - answer.sent_at)
        return self._settle(outcome, usage=usage)

    @guarded(fallback=False)
    def failed(self, trouble: TransportTrouble, detail: str, *, client_saw_bytes: bool) -> bool:
        """Step 7, for an attempt that ended without a complete answer. True: try again."""
        if trouble is TransportTrouble.STALLED:
            self._note_oddity(f"watchdog: nothing came for {self._may_be_silent_s:.0f} s")
            self._stalls += 1
        return self._settle_stream(judge_transport(trouble, detail), client_saw_bytes=client_saw_bytes)

    @guarded(fallback=False)
    def failed_in_stream(self) -> bool:
        """Step 7, for an error event while everything was kept back. True: try again."""
        return self._settle_stream(self._answer.judge_stream())

    @guarded(fallback=False)
    def ended(self) -> bool:
        """Step 7, for a stream that ended while everything was kept back. True: try again."""
        phase = self._answer.finish()
        if phase is Phase.FAILED and self.profile.is_plain:
            return self.failed_in_stream()
        if phase is not Phase.COMPLETE:
            return self._settle_stream(replace(judge_transport(TransportTrouble.CUT), lacks_end=True))
        garbage = self._garbage()
        if not garbage or self._garbage_retries >= MOST_GARBAGE_RETRIES:
            return False
        return self._settle_stream(self._judge_garbage(garbage, may_retry=True))

    def released(self, delivered: Delivered) -> None:
        """The client gets the answer as it comes; interfaces show it growing."""
        self.delivered = delivered
        self._settle_if_ended()

    def _settle_if_ended(self) -> None:
        """An answer that goes to its client takes no slot from its last event on, whatever its transport does."""
        if self.delivered is not None and self._answer.phase in LAST:
            if self.flow.response is not None:  # who looks at it from now on finds all of it
                self.flow.response.data.content = bytes(self.delivered)
            self.streamed()

    @guarded(fallback=None)
    def streamed(self) -> None:
        """Step 9, for a streamed answer: settle it."""
        if self.over:
            return
        if self._answer.finish() is None:
            if self.delivered is not None:  # JSON in the place of events, of which the first byte came late
                body, expected = bytes(self.delivered), self.estimate.expected
                outcome, usage = self._answer.judge_body(200, body, self.estimator.count, expected)
                self._settle(outcome, usage=usage, client_saw_bytes=True)
            return
        outcome = self._answer.judge_stream()
        if outcome.kind is OutcomeKind.SUCCESS and (garbage := self._garbage()):
            outcome = self._judge_garbage(garbage, may_retry=False)
        self._settle_stream(outcome, client_saw_bytes=True)

    def _garbage(self) -> str:
        """What is wrong with the complete answer; empty: nothing that is sure."""
        answer = self._answer.answer
        if answer is None or self.ticket.kind is CallKind.PREWARM:
            return ""
        messages = () if answer.parts else read_body(plain_request(self.flow), self.dialect).messages
        return garbage_in(answer, after_tool=is_after_tool(messages))

    def _judge_garbage(self, garbage: str, *, may_retry: bool) -> Outcome:
        """Tried again where nothing of it was seen, and not for ever: the model may insist."""
        if may_retry and self._garbage_retries < MOST_GARBAGE_RETRIES:
            self._garbage_retries += 1
            # The provider serves, so this is no failure that a breaker or a limit should learn from.
            return Outcome(OutcomeKind.IGNORED, f"garbage: {garbage}", status=200, retryable=True, garbage=garbage)
        return Outcome(OutcomeKind.SUCCESS, f"200, garbage: {garbage}", status=200, garbage=garbage)

    # Alarms ----------------------------------------------------------------------------------------------------------

    @guarded(fallback=_NEVER_S)
    def next_alarm_s(self, stage: Stage) -> float | None:
        """Seconds until something is due, as far as it is known now; None: never."""
        due_at = min(map(_instant, self._alarms(stage)))
        return None if due_at == math.inf else max(0.0, due_at - self.driver.clock.monotonic())

    @guarded(fallback=Alarm.NOTHING)
    def alarm(self, stage: Stage) -> Alarm:
        """What is due."""
        now = self.driver.clock.monotonic()
        for at, what in self._alarms(stage):
            if at <= now:
                if what is Alarm.PULSE:
                    self._pulse_at = now + self._pulse_s
                return what
        return Alarm.NOTHING

    def _alarms(self, stage: Stage) -> list[tuple[float, Alarm]]:
        """The instants that matter now, the most urgent kind first."""
        alarms = [(self._answer.ends_at, Alarm.COMPLETE)]
        if self.over:  # only its transport goes on
            return alarms
        alarms.append((self._answer.last_byte_at + self._may_be_silent_s, Alarm.STALLED))
        if stage is Stage.COLLECTED:
            return alarms
        if stage is Stage.STREAMED:
            if self._may_keep_alive:
                alarms.append((max(self._pulse_at, self._answer.last_byte_at + self._pulse_s), Alarm.PULSE))
            return alarms
        if stage is Stage.PEEKED:
            peeked_until_at = self._answer.head_at + self.profile.peek.max_s
            if self.delivery is Delivery.WHOLE:
                peeked_until_at = max(peeked_until_at, self.whole_until_at)
            alarms.append((peeked_until_at, Alarm.RELEASE))
        if self._keeps_alive:
            alarms.append((self._pulse_at, Alarm.PULSE))
        return alarms

    @property
    def keep_alive(self) -> bytes:
        """What the client of a silent stream gets from time to time, and overlooks."""
        form, agent = self.dialect.form, self.flow.request.headers.get("user-agent", "")
        own = (text for glob, text in form.keep_alive_clients.items() if glob_matches(glob, agent))
        return next(own, form.keep_alive).encode()

    @property
    def _pulse_s(self) -> float:
        return self.profile.keep_alive_s or _KEEP_ALIVE_S

    @property
    def _may_keep_alive(self) -> bool:
        request = self.flow.request
        return self.facts.stream and request.http_version != "HTTP/1.0" and self.dialect.may_keep_alive(request.path)

    @property
    def _keeps_alive(self) -> bool:
        """Whether the client gets such signs before the answer, too: of a plain request, they commit the head."""
        return bool(self.profile.keep_alive_s or self.turn) and self._may_keep_alive

    # Ends ------------------------------------------------------------------------------------------------------------

    def cut_error(self, detail: str) -> bytes:
        """The error event that ends an answer which the provider cut; empty: the client is to see the cut."""
        if not (self._may_keep_alive and self.dialect.form.error_form.tells_cuts):
            return b""
        self._note_failed_stream(detail)
        return self.dialect.error_event("", detail, None)

    def committed_error(self, response: http.Response | None, detail: str) -> bytes:
        """The one error event that ends a stream whose head has gone out, with what went wrong in it."""
        error, message, retry_after_s = self.profile.refusal.error, detail, None
        if isinstance(self._refused_by, Shed):
            message = refusal_text(self._refused_by)
            retry_after_s = float(come_back_s(self.profile, self._refused_by))
        elif isinstance(self._refused_by, Refused):
            error = refused_error(self.profile, self.dialect, self._refused_by)
            agents_file, port = self.settings.agents.file, self.settings.port
            message = refused_text(self._refused_by, agents_file, self.driver.clock, self.kept_as, port=port)
        elif response is not None:
            places, body = self.dialect.form.error, response.content or b""
            facts = error_in_body(body, places) if response.status_code >= 400 else None
            error = (facts.type or facts.code if facts else "") or "api_error"
            if self.dialect.form.error.names:  # its own words: what is usual with the status says it best
                error = self.dialect.usual_error(response.status_code) or error
            message = (facts.message if facts else "") or f"the provider answered {response.status_code}"
            told_s = self._answer.hints.retry_after_s
            retry_after_s = None if told_s is None or told_s > MOST_SLEPT_S else told_s
        if not (isinstance(self._refused_by, Refused) and isinstance(self._refused_by.cause, Cancel)):
            self._note_failed_stream(message)
        return self.dialect.error_event(error, message, retry_after_s)

    def _note_failed_stream(self, reason: str) -> None:
        with self.guard.second_line("noting a committed stream's failure"):
            at = self.driver.clock.monotonic()
            self.driver.note(
                CommittedStreamFailed(at=at, ticket_id=self.ticket.id, pool=self.ticket.pool, reason=reason)
            )

    def trip(self, where: str, error: Exception) -> None:
        """An exception of ours: from here on this request passes by the scheduler; its slot is kept until it ends."""
        self.tripped = True
        self.guard.trip(where, error, self.ticket.id)
        if self._attempt is None and not self.over:
            with self.guard.second_line("cancelling a ticket"):
                self.driver.cancel(self.ticket.id)

    def finished(self) -> None:
        """The flow has ended, in whatever way: the last net, nothing may keep a slot."""
        if self.over:
            return
        if self._attempt is not None:
            attempt, self._attempt = self._attempt, None
            self.guard.give_back(attempt)
        if not self._bypassing:
            with self.guard.second_line("cancelling"):
                self.driver.cancel(self.ticket.id)
        self._end()

    def _settle_stream(self, outcome: Outcome, *, client_saw_bytes: bool = False) -> bool:
        """With what was used so far."""
        usage = self._answer.usage(outcome, self.estimator.count, self.estimate.expected)
        return self._settle(outcome, usage=usage, client_saw_bytes=client_saw_bytes)

    def _settle(self, outcome: Outcome, *, usage: Usage | None, client_saw_bytes: bool = False) -> bool:
        """Step 9: end the attempt, exactly once. True: the ticket is queued again."""
        attempt = self._attempt
        if attempt is None:
            return False
        if windows := self._answer.stream_windows():
            self.driver.observe(attempt, windows, answered=False)
        if not self.profile.is_plain and self._answer.phase is not None:
            self.runtime.silences.note(self._model, self._answer.longest_silence_s)
        job = self._job_after(outcome)
        if job is not None:  # the end of the job reports all of the usage
            usage, outcome = Usage(reported=True), replace(outcome, retryable=False)
        charged = None  # unless the provider said, what was reserved
        self.is_answered = outcome.kind is OutcomeKind.SUCCESS or bool(outcome.garbage)
        if usage is None and outcome.may_be_billed and not self.profile.is_plain:
            usage = self.estimate.expected
        elif usage is not None and self.is_answered and not (outcome.garbage or self._answer.unreadable or job):
            self._learn(usage)
        if usage is not None:
            self.used = usage if self.used is None else self.used + usage
        if usage is not None and usage.reported and job is None:
            charged = self.estimator.charged(self.profile, self.facts, usage)
        if outcome.retryable and not self.is_safe and not never_run(outcome):
            outcome = replace(outcome, retryable=False)
        result = AttemptResult(outcome, usage, charged, client_saw_bytes, self.may_repeat, job=job)
        verdict = self.driver.settle(attempt, result)
        self._attempt = None  # not before: what fails on the way here must not lose it
        if self.tape:
            self.tape.settled(attempt, result, self.driver.clock.monotonic())
        if isinstance(verdict, Backoff):
            # The next attempt may end before it is sent: nothing of this one is to be counted or delivered again.
            self._answer = self._new_answer()
            return True
        self.withheld = isinstance(verdict, GiveUp) and verdict.reason is Reason.ANEW
        if isinstance(verdict, GiveUp) and self.flow.response is not None and not client_saw_bytes:
            soften(self.flow.response.headers, self.profile, outcome)
        self._end()
        return False

    def _job_after(self, outcome: Outcome) -> Job | None:
        """The work that goes on after the attempt: the answer said so, and a stream did not report the end."""
        reader = self.job
        if reader is None or not (reader.id and reader.is_going and reader.may_outlive):
            return None
        if reader.is_streamed and outcome.status is not None:
            return None
        return reader.job(normal_host(destination(self.flow)[0]), self.driver.clock.wall())

    def _learn(self, usage: Usage) -> None:
        """A complete answer teaches how large such requests are."""
        answer, is_edited = self._answer, False
        if self.compactor is not None:
            is_edited = self.compactor.heard(self.ticket, self.profile, answer, usage.total_input_tokens)
        self.estimator.learn(self.profile, self.facts, self.ticket.session, usage, self.estimate, is_edited=is_edited)

    def _end(self) -> None:
        self.over = True
        if self.keeper is not None:
            self.keeper.ended(self)
        self.delivered = None
        self._leave_bypass()
        self.on_end(self)

    def _leave_bypass(self) -> None:
        if self._bypassing:
            self._bypassing = False
            self.guard.leave(self.ticket.pool)

    def _note_label(self) -> None:
        """A wrong label is noted once for a host."""
        if not (content := self._answer.mislabelled) or self.flow.response is None:
            return
        label = self.flow.response.headers.get("content-type", "")[:80] or "nothing"
        what = f"answer: it is {content} and is labelled {label}; it is read as what it is"
        labels, one = self.runtime.labels, (self.ticket.pool.host, what)
        if one not in labels and len(labels) < MOST_LABELS:
            labels.add(one)
            self._note_oddity(what)

    def _note_oddity(self, what: str) -> None:
        self.driver.note(
            OddityNoted(at=self.driver.clock.monotonic(), pool=self.ticket.pool, ticket_id=self.ticket.id, what=what)
        )
