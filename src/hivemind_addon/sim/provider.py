"""The simulated provider: limits, faults, and what becomes of each call. Pure: takes `now` and a seeded rng.

    begin(now, request) ──► Answer ──(the caller plays it: plan.py)──► end(now, answer)

Every `begin` is followed by exactly one `end`. A refused call (limits, concurrency) takes no slot and no
tokens; a call that a fault answers with an error status takes a slot, and tokens only where failures are
charged. What really happened is counted in sim/call.py.

Driven by the socket server (sim/server.py) and by virtual time alike.
"""

import itertools
import math
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from enum import Enum
from typing import Any

from hivemind_addon.formats.base.typed import Signed
from hivemind_addon.kernel.values.ticket import ContractError, Demand, Dimension
from hivemind_addon.sim import dialect as wire
from hivemind_addon.sim import faults
from hivemind_addon.sim.call import AnswerEnding, SimAnswer, SimRequestFacts, Truth, Witness
from hivemind_addon.sim.dialect import Headers, LimitView, Reply
from hivemind_addon.sim.faults import OK, Fault, FaultCourse, FaultMix
from hivemind_addon.sim.limits import (
    Ban,
    Limit,
    ModelScope,
    RetryAfter,
    SimBan,
    SimMachine,
    SimMeter,
    SimPromptCache,
    SimSlots,
    WindowKind,
)
from hivemind_addon.sim.shapes import REFUSALS, WordedAnswer, written


class LimitScope(Enum):
    """Who shares limits and concurrency, and is named as one organisation."""

    EVERYBODY = "everybody"
    CREDENTIAL = "credential"


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds before the head: lognormal, with spikes."""

    median_s: float = 0
    sigma: float = 0
    """Of the logarithm; 0: always the median."""
    spike_rate: float = 0
    """Share of the calls that take longer by `spike_s`."""
    spike_s: float = 0


@dataclass(frozen=True, slots=True)
class ProviderOutage:
    """A time in which every call gets one status, whatever its limits allow."""

    from_s: float
    """Since the first call."""
    to_s: float
    """The end, since the first call."""
    status: int = 529
    """Of every answer."""


@dataclass(frozen=True, slots=True)
class Storm:
    """A time in which calls meet these faults in place of the usual ones."""

    from_s: float
    """Since the first call."""
    to_s: float
    """The end, since the first call."""
    faults: Mapping[str, float]
    """As in `provider`."""


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """How strict, slow and faulty a simulated provider is."""

    limits: tuple[Limit, ...] = ()
    """All of them hold at the same time."""
    scope: LimitScope = LimitScope.EVERYBODY
    """Who shares the limits and the concurrency."""
    concurrency: int | None = None
    """Calls that may run at once; None: any number."""
    tokens_at_once: int | None = None
    """Tokens that calls in flight may have together: input, and the most output that they ask for. A call alone always
    fits. None: any number."""
    linger_s: float = 0.0
    """Seconds that a call's slot and tokens stay taken after the end."""
    ban: Ban | None = None
    """Refuses all calls for a while, after too many refusals."""
    concurrency_scope: ModelScope = ModelScope.KEY
    """Which calls share `concurrency`."""
    families: tuple[tuple[str, ...], ...] = ()
    """Models that limits of this scope count together."""
    serves_at_once: int | None = None
    """Calls that are worked on at once; the others wait in the provider's own queue, silently and in order of arrival.
    None: any number."""
    slows_beyond: int | None = None
    """Calls at once beyond which each takes longer: twice as many take four times as long. None: any number."""
    works_on: bool = False
    """Whether a call whose client left goes on, and keeps its slot until the answer would be over."""
    concurrency_status: int = 529
    """The status of a call beyond these: 529, 503, or 429 with a text that says concurrency."""
    concurrency_retry_after_s: float | None = None
    """The wait that such a refusal states; none: no wait."""
    refused_as: str = ""
    """In the words of which provider a rate limit refuses: a name of shapes.yaml; empty: in the dialect's own."""
    overloaded_as: str = ""
    """The same of a call beyond the concurrency."""
    charge_failures: bool = False
    """Whether a refused call counts as a request, and a failed one counts in full."""
    rate_limit_headers: bool = True
    """Whether headers report the limits."""
    cut_resets: bool = False
    """Whether instants in those headers are cut to whole seconds (Messages); else they are rounded up."""
    retry_after: RetryAfter = RetryAfter.ROUNDED_UP
    """How a rate-limit refusal states the wait."""
    clock_s: Signed = 0.0
    """Seconds by which the provider's clock, and so each instant in a header, is ahead of ours; below zero: behind."""
    dates: bool = False
    """Whether each response has a `date`, by the provider's clock."""
    faults: Mapping[str, float] = field(default_factory=dict)
    """Name (see sim/faults.py) → share of the calls that the limits let through."""
    fault_course: FaultCourse | None = None
    """In place of `faults`: rates that change with time."""
    hang_s: float = 86_400
    """How long the fault `hang` lasts; then the answer comes."""
    latency: Latency = field(default_factory=Latency)
    chunks: int = 8
    """Pieces of an answer, unless the request says or its maximum ends it."""
    tokens_per_chunk: int = 1
    interval_s: float = 0
    """Between the pieces of a stream."""
    default_max_tokens: int = 4096
    """Where a request names no maximum."""
    outages: tuple[ProviderOutage, ...] = ()
    """Times in which every call is refused."""
    storms: tuple[Storm, ...] = ()
    """Times with other faults."""
    cache_ttl_s: float = 0
    """How long a prompt cache keeps what requests mark, counted from their start; 0: there is none."""
    websocket_s: float = 0
    """How long a WebSocket of Responses may live (OpenAI: 3600); 0: it speaks none."""
    models_loaded: int = 0
    """It is one machine that holds so many models at once, with a silent queue and one call of each; 0: it is not."""
    load_s: float = 0
    """How long such a machine loads a model."""

    def slots(self, models: Iterable[str]) -> int | None:
        """Calls of these models that may run at once, all together; None: any number."""
        if self.concurrency is None or self.concurrency_scope is ModelScope.USER:
            return None
        return self.concurrency * max(1, len({self.counted_as(self.concurrency_scope, model) for model in models}))

    def most_at_once(self, concurrency: int | None) -> int | None:
        """Calls at once beyond which no more are answered in the same time, with this cap; None: any number."""
        known = (concurrency, self.serves_at_once, self.slows_beyond)
        return min((one for one in known if one is not None), default=None)

    def counted_as(self, scope: ModelScope, model: str, user: str = "") -> str:
        """The key of the calls that a limit of this scope counts together with such a call; empty: all calls."""
        match scope:
            case ModelScope.KEY:
                return ""
            case ModelScope.FAMILY:
                return next((family[0] for family in self.families if model in family), model)
            case ModelScope.MODEL:
                return model
            case ModelScope.USER:
                return user


class SimProvider:
    """One provider. `wall_offset_s`: seconds since the epoch at `now` = 0, for headers that hold instants."""

    def __init__(self, settings: ProviderSettings, rng: random.Random, *, wall_offset_s: float = 1_800_000_000) -> None:
        self.settings = settings = replace(settings, limits=tuple(_in_phase(limit, rng) for limit in settings.limits))
        self._rng = rng
        self._wall_offset_s = wall_offset_s + settings.clock_s
        self._mix = FaultMix(settings.faults)
        for name in (settings.refused_as, settings.overloaded_as):
            if name and name not in REFUSALS:
                raise ValueError(f"unknown refusal {name!r}; known: {', '.join(REFUSALS)}")
        self._storms = [(storm, FaultMix(storm.faults)) for storm in settings.storms]
        self._concurrency = settings.concurrency
        self._cache = SimPromptCache(settings.cache_ttl_s) if settings.cache_ttl_s else None
        self._machine = SimMachine(settings.models_loaded, settings.load_s) if settings.models_loaded else None
        self._first_call_at: float | None = None
        self._meters: dict[tuple[str, int, str], SimMeter] = {}
        """By account, index of the limit, and the key of the calls that are counted together."""
        self._counting: dict[tuple[str, str, str], list[SimMeter]] = {}
        """By account, model and user (empty where no limit is of each user)."""
        self._knows_users = any(limit.scope is ModelScope.USER for limit in settings.limits)
        self._bans: dict[str, SimBan] = {}
        """By account."""
        self._scripts: dict[str, Iterator[Fault]] = {}
        self._attempts: Counter[str] = Counter()
        """By credential."""
        self._first_attempt_at: dict[str, float] = {}
        """By credential; of the ones that a hold met."""
        self._open: dict[str, tuple[tuple[str, str], int] | None] = {}
        """By request: the key of the slots, and the tokens of the call; None: the call was refused."""
        self._slots = SimSlots(settings.linger_s)
        """By account, and the key of the calls that share the slots."""
        self._ends_at: dict[tuple[str, str], dict[str, float]] = {}
        """When the open calls of a provider with a queue of its own are over, by request, as known at their arrival."""
        self._witness = Witness()

    def __repr__(self) -> str:
        return f"<SimProvider {self._slots.total} in flight, {self._witness.attempts} attempts>"

    def script(self, credential: str, script: Iterable[Fault], *, then: Fault = OK) -> None:
        """Let the credential's next admitted attempts meet exactly these faults, in order, then `then`."""
        self._scripts[credential] = itertools.chain(script, itertools.repeat(then))

    def set_concurrency(self, concurrency: int | None) -> None:
        """Move the concurrency cap; calls that run beyond a lower one go on."""
        self._concurrency = concurrency

    def begin(self, now: float, request: SimRequestFacts) -> SimAnswer:
        """A request arrived, whole. The answer is decided at once; how it arrives is played by the caller."""
        self._attempts[request.credential] += 1
        if self._first_call_at is None:
            self._first_call_at = now
        if self._cache and request.prefixes:
            request = replace(request, cached_tokens=self._cache.cached_tokens(request.prefixes, now))
        account = self._account(request.credential)
        answer = (
            self._rejection(request, account)
            or self._down(now - self._first_call_at, request, account)
            or self._refusal(now, request, account)
            or self._overload(now, request, account)
            or self._admission(now, request, account)
        )
        if self._machine and answer.reply is not None:
            stream_s = (answer.reply.output_tokens - 1) * answer.interval_s if answer.streamed else 0.0
            waits_s = self._machine.waits_s(answer.model, answer.latency_s + stream_s, now)
            answer = replace(answer, latency_s=waits_s + answer.latency_s)
        if self.settings.dates:
            date = formatdate(now + self._wall_offset_s, usegmt=True)
            answer = replace(answer, headers=(*answer.headers, ("date", date)))
        held = None
        if answer.ending not in (AnswerEnding.REFUSED, AnswerEnding.OVERLOADED):
            held = self._place(account, request.model, answer.agent), self._most_tokens(request)
            self._slots.begin(*held)
        self._open[answer.request_id] = held
        self._witness.began(answer, in_flight=self._slots.total)
        return answer

    def end(self, now: float, answer: SimAnswer, *, output_tokens: int = 0, ending: AnswerEnding | None = None) -> None:
        """The answer is over after this much output. `ending`: where it is not the answer's own, because the
        client went, or the connection with another call's fault. Raises ContractError on a second call.
        """
        if answer.request_id not in self._open:
            raise ContractError(f"{answer.request_id} is not open")
        held = self._open.pop(answer.request_id)
        if held is None:
            return
        self._slots.end(*held, now)
        self._ends_at.get(held[0], {}).pop(answer.request_id, None)
        if answer.charged_output:
            for meter in self._counts(now, answer.account, answer.model, answer.agent):
                if meter.limit.dimension in (Dimension.OUTPUT_TOKENS, Dimension.TOTAL_TOKENS):
                    for allowance in meter.both:
                        allowance.take(output_tokens - answer.reserved_output, now)
        self._witness.ended(answer, output_tokens=output_tokens, ending=ending or answer.ending)

    def serves_in_s(self, now: float, request: SimRequestFacts, demand: Demand, *, owed_tokens: int = 0) -> float:
        """How long a request has to wait if nobody else comes; infinite: until a call ends.

        What it is expected to take has to fit too (`demand`, as far as the whole limit goes), beside the output that
        open calls will still be charged (`owed_tokens`): that is no reason to refuse it, but whoever goes all the same
        drives the limit below zero.
        """
        account = self._account(request.credential)
        if self._machine and self._slots.total >= self.settings.models_loaded:
            return math.inf
        user = _agent(request)
        slots_s = self._slots.waits_s(
            self._place(account, request.model, user),
            self._most_tokens(request),
            now,
            calls=self.settings.most_at_once(self._concurrency),
            most_tokens=self.settings.tokens_at_once,
        )
        if math.isinf(slots_s):
            return math.inf
        if self._cache and request.prefixes:
            request = replace(request, cached_tokens=self._cache.cached_tokens(request.prefixes, now))
        served_at = now + max(slots_s, self._banned_s(account, now))
        for index, limit in enumerate(self.settings.limits):
            # A window that no call has begun has room for it.
            counted = self.settings.counted_as(limit.scope, request.model, user)
            meter = self._meters.get((account, index, counted))
            if meter is None:
                continue
            needed = max(self._needed(request, limit.dimension), min(limit.amount, demand.of(limit.dimension)))
            if limit.dimension in (Dimension.OUTPUT_TOKENS, Dimension.TOTAL_TOKENS):
                needed += owed_tokens
            served_at = max(served_at, now + meter.true.fits_in_s(needed, now))
        for from_s, to_s in self.outages():
            if from_s <= served_at < to_s:
                served_at = to_s
        return served_at - now

    def outages(self) -> list[tuple[float, float]]:
        """When it is down, in order, as far as that is known: outages begin with the first call."""
        first_at = self._first_call_at
        if first_at is None or not self.settings.outages:
            return []
        return sorted((first_at + outage.from_s, first_at + outage.to_s) for outage in self.settings.outages)

    def truth(self) -> Truth:
        """Everything so far."""
        return self._witness.truth(self._slots.total)

    def _rejection(self, request: SimRequestFacts, account: str) -> SimAnswer | None:
        """The answer to a request that is wrong in itself."""
        if (unfit := request.unfit) is None:
            return None
        error = wire.error_object(request.dialect, unfit.status, message=unfit.message, error=unfit.error)
        latency_s = request.latency_s or 0.0
        return self._error(request, account, AnswerEnding.FAILED, unfit.status, error, latency_s=latency_s)

    def _down(self, since_s: float, request: SimRequestFacts, account: str) -> SimAnswer | None:
        """The answer of a provider that is down, or None when it is up."""
        outage = next((outage for outage in self.settings.outages if outage.from_s <= since_s < outage.to_s), None)
        if outage is None:
            return None
        error = wire.error_object(request.dialect, outage.status, message="Overloaded")
        return self._error(request, account, AnswerEnding.OVERLOADED, outage.status, error)

    def _refusal(self, now: float, request: SimRequestFacts, account: str) -> SimAnswer | None:
        """A rate limit's 429, or None when all limits let the request through."""
        meters = self._counts(now, account, request.model, _agent(request))
        waits = [
            (meter.true.fits_in_s(needed, now), needed, meter)
            for meter in meters
            if not meter.true.fits(needed := self._needed(request, meter.limit.dimension), now)
        ]
        banned_s = self._banned_s(account, now)
        if not waits and not banned_s:
            return None
        message, view = "Too many refused requests.", None
        wait_s = banned_s
        if waits:
            wait_s, needed, binding = max(waits, key=lambda wait: wait[0])
            limit, view = binding.limit, _view(binding, now)
            wait_s = max(banned_s, limit.window_s if math.isinf(wait_s) else wait_s)
            what = limit.dimension.value.replace("_", " ")
            message = (
                f"This request would exceed your organization's rate limit of {limit.amount:,} {what} "
                f"per {limit.window_s:g} seconds (requested {needed})."
            )
            if limit.plan:
                message = "This request would exceed your account's rate limit. Please try again later."
        self._refused_one(now, request, account)
        if self.settings.charge_failures:
            for allowance in (one for meter in meters for one in meter.both):
                if allowance.limit.dimension is Dimension.REQUESTS:
                    allowance.exhaust(1, now)
        if name := self.settings.refused_as:
            return self._worded(name, now, request, account, AnswerEnding.REFUSED, wait_s)
        retry_after: Headers = ()
        if (stated_s := self.settings.retry_after.of(wait_s)) is not None:
            is_exact = self.settings.retry_after is RetryAfter.EXACT
            retry_after = wire.SHAPES[request.dialect].retry_after_headers(stated_s, exact=is_exact)
            message += f" Please try again in {wire.duration(stated_s)}."
        return self._error(
            request,
            account,
            AnswerEnding.REFUSED,
            429,
            wire.error_object(
                request.dialect,
                429,
                message=message,
                retry_after_s=stated_s,
                limit=view,
                wall_now=now + self._wall_offset_s,
            ),
            headers=(*retry_after, *self._limit_headers(now, request, account, refused=True)),
        )

    def _refused_one(self, now: float, request: SimRequestFacts, account: str) -> None:
        """A limit, the cap or the ban refuses a call: bans count that, and so do some limits."""
        if self.settings.ban:
            self._bans.setdefault(account, SimBan(self.settings.ban)).refused(now)
        for meter in self._counts(now, account, request.model, _agent(request)):
            for allowance in meter.both:
                allowance.refuse(self._needed(request, meter.limit.dimension), now)

    def _banned_s(self, account: str, now: float) -> float:
        ban = self._bans.get(account)
        return ban.wait_s(now) if ban else 0.0

    def _overload(self, now: float, request: SimRequestFacts, account: str) -> SimAnswer | None:
        """The concurrency cap's refusal, or None when there is a slot."""
        tokens_at_once = self.settings.tokens_at_once
        if self._concurrency is None and tokens_at_once is None:
            return None
        place = self._place(account, request.model, _agent(request))
        tokens = self._most_tokens(request)
        if self._slots.waits_s(place, tokens, now, calls=self._concurrency, most_tokens=tokens_at_once) <= 0:
            return None
        self._refused_one(now, request, account)
        if name := self.settings.overloaded_as:
            return self._worded(name, now, request, account, AnswerEnding.OVERLOADED, 1)
        status = self.settings.concurrency_status
        message = "Overloaded"
        if status == 429:
            message = "Number of concurrent connections has exceeded your rate limit."
        error = wire.error_object(request.dialect, status, message=message)
        headers: Headers = ()
        if (stated_s := self.settings.concurrency_retry_after_s) is not None:
            headers = wire.SHAPES[request.dialect].retry_after_headers(stated_s)
        return self._error(request, account, AnswerEnding.OVERLOADED, status, error, headers=headers)

    def _admission(self, now: float, request: SimRequestFacts, account: str) -> SimAnswer:
        """The answer of a call that goes through: a reply, or what a fault makes of it."""
        script = self._scripts.get(request.credential)
        fault = next(script) if script else self._mix_at(now).draw(self._rng)
        if isinstance(fault, faults.Hold):
            fault = self._left_of_hold(fault, request.credential, now)
        latency_s = self._latency_s(request) + self._extra_s(fault)
        wording = (
            self._wording(fault.name, now, fault.retry_after_s) if isinstance(fault, faults.WordedRefusal) else None
        )
        refused = wording is not None and not (request.stream and wording.event)
        failure = _failure(request, fault)
        if (failure is None and not refused) or self.settings.charge_failures:
            for meter in self._counts(now, account, request.model, _agent(request)):
                for allowance in meter.both:
                    allowance.take(self._charge(request, meter.limit.dimension), now)
        if wording and refused:
            return self._refused(wording, request, account, AnswerEnding.FAILED, fault, latency_s)
        if failure is not None:
            status, error, headers = failure
            if status == 429:
                headers = (*headers, *self._limit_headers(now, request, account, refused=True))
            return self._error(
                request,
                account,
                AnswerEnding.FAILED,
                status,
                error,
                headers=headers,
                fault=fault,
                latency_s=latency_s,
            )
        streamed = request.stream and not isinstance(fault, faults.JsonForStream)
        reply = self._reply(request)
        interval_s = self.settings.interval_s if request.interval_s is None else request.interval_s
        queued_s = 0.0
        if self.settings.slows_beyond or self.settings.serves_at_once:
            place = self._place(account, request.model, _agent(request))
        if beyond := self.settings.slows_beyond:
            slower = max(1.0, (self._slots.taken(place) + 1) / beyond) ** 2
            latency_s, interval_s = latency_s * slower, interval_s * slower
        if served := self.settings.serves_at_once:
            ends_at, service_s = self._ends_at.setdefault(place, {}), latency_s
            if streamed:
                service_s += (reply.output_tokens - 1) * interval_s
            over = sorted(ends_at.values())[: max(0, len(ends_at) + 1 - served)]
            queued_s = max(0.0, over[-1] - now) if over else 0.0
            latency_s, ends_at[reply.request_id] = latency_s + queued_s, now + queued_s + service_s
        if self._cache:
            self._cache.write(request.prefixes, now, usable_at=now + latency_s)
        content_type = wire.SHAPES[request.dialect].stream_type if streamed else "application/json"
        limits = self._limit_headers(now, request, account, refused=False)
        return self._answer(
            request,
            reply.request_id,
            account,
            status=0 if isinstance(fault, faults.NoHead | faults.RefusedStream) else 200,
            headers=(("content-type", content_type), *self._identity(request, reply.request_id, account), *limits),
            ending=_ending(fault),
            latency_s=latency_s,
            queued_s=queued_s,
            interval_s=interval_s,
            fault=fault,
            streamed=streamed,
            charged_output=request.dialect.charges_output_late or request.dialect.settles_output,
            reserved_output=self._charge(request, Dimension.OUTPUT_TOKENS) if request.dialect.settles_output else 0,
            reply=reply,
            error_body=wording.event or b"" if wording else b"",
        )

    def _answer(self, request: SimRequestFacts, request_id: str, account: str, **facts: Any) -> SimAnswer:
        return SimAnswer(
            request_id=request_id,
            attempt=self._attempts[request.credential],
            account=account,
            agent=_agent(request),
            dialect=request.dialect,
            model=request.model,
            **facts,
        )

    def _worded(
        self, name: str, now: float, request: SimRequestFacts, account: str, ending: AnswerEnding, retry_after_s: float
    ) -> SimAnswer:
        """A refusal in the words of one provider."""
        return self._refused(self._wording(name, now, retry_after_s), request, account, ending)

    def _wording(self, name: str, now: float, retry_after_s: float) -> WordedAnswer:
        return written(name, retry_after_s=retry_after_s, wall_now=now + self._wall_offset_s)

    def _refused(
        self,
        wording: WordedAnswer,
        request: SimRequestFacts,
        account: str,
        ending: AnswerEnding,
        fault: Fault = OK,
        latency_s: float = 0,
    ) -> SimAnswer:
        request_id = self._request_id()
        return self._answer(
            request,
            request_id,
            account,
            status=wording.status,
            headers=(*wording.headers, *self._identity(request, request_id, account)),
            ending=ending,
            latency_s=latency_s,
            fault=fault,
            error_body=wording.body,
        )

    def _extra_s(self, fault: Fault) -> float:
        """How much longer its answer takes to begin."""
        match fault:
            case faults.Slow(extra_s):
                return extra_s
            case faults.Hang():
                return self.settings.hang_s
            case _:
                return 0.0

    def _mix_at(self, now: float) -> FaultMix:
        since_s = now - (now if self._first_call_at is None else self._first_call_at)
        for storm, mix in self._storms:
            if storm.from_s <= since_s < storm.to_s:
                return mix
        course = self.settings.fault_course
        return self._mix if course is None else FaultMix(course.at(since_s))

    def _left_of_hold(self, hold: faults.Hold, credential: str, now: float) -> Fault:
        """What a hold still is for an attempt that begins now."""
        ends_at = self._first_attempt_at.setdefault(credential, now) + hold.hold_s
        return replace(hold, hold_s=ends_at - now) if ends_at > now else OK

    def _error(
        self,
        request: SimRequestFacts,
        account: str,
        ending: AnswerEnding,
        status: int,
        error: dict[str, object] | None,
        *,
        headers: Headers = (),
        fault: Fault = OK,
        latency_s: float = 0,
    ) -> SimAnswer:
        shape = wire.SHAPES[request.dialect]
        content_type, body = "text/html", f"<html><body><h1>{status}</h1></body></html>\n".encode()
        if error is not None:
            headers = (*shape.error_headers(error), *headers)
            content_type, body = "application/json", shape.error_body(error, self._request_id())
        headers = (("content-type", content_type), *headers)
        wording = WordedAnswer(shape.statuses.get(status, status), headers, body)
        return self._refused(wording, request, account, ending, fault, latency_s)

    def _reply(self, request: SimRequestFacts) -> Reply:
        per_chunk = self.settings.tokens_per_chunk
        wanted = (self.settings.chunks if request.chunks is None else request.chunks) * per_chunk
        most = self._most_output(request)
        if request.turn is not None:
            wanted = most = request.turn.output_tokens  # half a tool call is of no use to anybody
        written = max(0, request.prefixes[-1].tokens - request.cached_tokens) if self._cache and request.prefixes else 0
        return Reply(
            dialect=request.dialect,
            request_id=self._request_id(),
            attempt=self._attempts[request.credential],
            digest=request.digest,
            model=request.model,
            input_tokens=_uncached(request) - written,
            written_tokens=written,
            cached_tokens=request.input_tokens - _uncached(request),
            output_tokens=max(1, min(wanted, most)),
            tokens_per_delta=per_chunk,
            truncated=most < wanted,
            include_usage=request.include_usage,
            turn=request.turn,
        )

    def _needed(self, request: SimRequestFacts, dimension: Dimension) -> int:
        """What must fit for the request to be let through: its charge, and room for any output at all."""
        return max(1, self._charge(request, dimension))

    def _charge(self, request: SimRequestFacts, dimension: Dimension) -> int:
        """What is taken when it is let through. Some take their output later, as it is generated."""
        dialect = request.dialect
        into = _uncached(request) if dialect.counts_uncached else request.input_tokens
        out = 0 if dialect.charges_output_late else self._most_output(request)
        match dimension:
            case Dimension.REQUESTS:
                return 1
            case Dimension.INPUT_TOKENS:
                return into
            case Dimension.OUTPUT_TOKENS:
                return out
            case Dimension.TOTAL_TOKENS:
                return into + out

    def _latency_s(self, request: SimRequestFacts) -> float:
        """Drawn even where the request sets its own, so that others' draws do not depend on it."""
        latency = self.settings.latency
        drawn_s = 0.0
        if latency.median_s > 0:
            drawn_s = self._rng.lognormvariate(math.log(latency.median_s), latency.sigma)
        if latency.spike_rate > 0 and self._rng.random() < latency.spike_rate:
            drawn_s += latency.spike_s
        return drawn_s if request.latency_s is None else request.latency_s

    def _limit_headers(self, now: float, request: SimRequestFacts, account: str, *, refused: bool) -> Headers:
        if not self.settings.rate_limit_headers:
            return ()
        views: dict[Dimension | str, LimitView] = {}
        for meter in self._counts(now, account, request.model, _agent(request)):
            limit = meter.limit
            if not limit.told or (refused and not limit.reports.on_refusals):
                continue
            view, place = _view(meter, now, is_cut=self.settings.cut_resets), limit.plan or limit.dimension
            # Where several limits count the same, a header has room for the one that binds first.
            if place not in views or view.remaining < views[place].remaining:
                views[place] = view
        return wire.SHAPES[request.dialect].limit_headers(list(views.values()), now + self._wall_offset_s)

    def _counts(self, now: float, account: str, model: str, user: str) -> list[SimMeter]:
        """The meters of the limits that count a user's calls of a model; the first such call makes each."""
        counted = account, model, user if self._knows_users else ""
        if (known := self._counting.get(counted)) is not None:
            return known
        counts = self._counting[counted] = []
        for index, limit in enumerate(self.settings.limits):
            key = (account, index, self.settings.counted_as(limit.scope, model, user))
            if key not in self._meters:
                begun_at = now if self._first_call_at is None else self._first_call_at
                self._meters[key] = SimMeter(limit, now, begun_at)
            counts.append(self._meters[key])
        return counts

    def _place(self, account: str, model: str, user: str) -> tuple[str, str]:
        return account, self.settings.counted_as(self.settings.concurrency_scope, model, user)

    def _most_tokens(self, request: SimRequestFacts) -> int:
        """The input of a call, and the most output that the call asks for."""
        return request.input_tokens + self._most_output(request)

    def _most_output(self, request: SimRequestFacts) -> int:
        return self.settings.default_max_tokens if request.max_tokens is None else request.max_tokens

    def _identity(self, request: SimRequestFacts, request_id: str, account: str) -> Headers:
        return (
            ("x-sim-attempt", str(self._attempts[request.credential])),
            *wire.SHAPES[request.dialect].identity_headers(request_id, account),
        )

    def _account(self, credential: str) -> str:
        match self.settings.scope:
            case LimitScope.EVERYBODY:
                return "org-sim"
            case LimitScope.CREDENTIAL:
                return f"org-{zlib.crc32(credential.encode()):08x}"

    def _request_id(self) -> str:
        """Unique, since each attempt asks once."""
        return f"req_{self._witness.attempts + 1:06d}"


def _in_phase(limit: Limit, rng: random.Random) -> Limit:
    """The limit; windows by the clock with the instant at which the first ends, drawn where the file does not say."""
    if limit.windows is not WindowKind.CLOCK or limit.full_in_s:
        return limit
    return replace(limit, full_in_s=limit.window_s * (1 - rng.random()))


def _view(meter: SimMeter, now: float, *, is_cut: bool = False) -> LimitView:
    limit, (amount, left, full_in_s) = meter.limit, meter.told(now)
    return LimitView(limit.dimension, amount, left, full_in_s, limit.window_s, is_cut=is_cut, plan=limit.plan)


def _uncached(request: SimRequestFacts) -> int:
    return max(0, request.input_tokens - request.cached_tokens)


def _agent(request: SimRequestFacts) -> str:
    """A simulated key is its own name; any other is not to be shown."""
    if request.agent is not None:
        return request.agent
    if request.credential.startswith("sk-sim-"):
        return request.credential
    return f"key-{zlib.crc32(request.credential.encode()):08x}"


def _failure(request: SimRequestFacts, fault: Fault) -> tuple[int, dict[str, object] | None, Headers] | None:
    """Status, error object (None: an HTML page) and extra headers, where the fault is an error answer."""
    dialect = request.dialect
    if isinstance(fault, faults.StreamError) and not request.stream:
        fault = faults.ErrorStatus(fault.status)
    match fault:
        case faults.ErrorStatus(status, retry_after_s, error, message, should_retry):
            headers: Headers = ()
            if retry_after_s is not None:
                headers += wire.SHAPES[dialect].retry_after_headers(retry_after_s)
            if should_retry is not None:
                headers += (("x-should-retry", str(should_retry).lower()),)
            return (
                status,
                (wire.error_object(dialect, status, message=message, error=error, retry_after_s=retry_after_s)),
                headers,
            )
        case faults.SpentCredit():
            return 429, wire.SHAPES[dialect].words.spent_credit, ()
        case faults.HtmlError(status):
            return status, None, ()
        case _:
            return None


def _ending(fault: Fault) -> AnswerEnding:
    match fault:
        case (
            faults.NoHead()
            | faults.HeadThenReset()
            | faults.BodyCut()
            | faults.StreamCut()
            | faults.StreamError()
            | faults.WordedRefusal()
            | faults.RefusedStream()
            | faults.ResetStream()
            | faults.GoAway(error=True)
        ):
            return AnswerEnding.CUT
        case _:
            return AnswerEnding.COMPLETED
