"""A recorded session as a scenario of the simulated world: the same requests, at a provider that can refuse anew. Pure.

A turn takes as long as the successful attempt did. Other failures repeat, attempt by attempt; but the simulated limits
replace the refusals of recorded rate limits. The limits come from the recording, or from a person.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

import msgspec.structs

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.profile.model import InputCharge, OutputCharge, Profile
from hivemind_addon.kernel.budget import spend_of
from hivemind_addon.kernel.limits.meter import USUAL_WINDOWS_S
from hivemind_addon.kernel.values.events import HIDDEN
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import Dimension, OutcomeKind, PoolKey, Ticket, Usage
from hivemind_addon.plugins.captures.model import Capture, CapturedAttempt, CapturedCall, LimitSeen
from hivemind_addon.sim import faults
from hivemind_addon.sim.actor import WALL_S
from hivemind_addon.sim.dialect import PLAYED, SimDialect
from hivemind_addon.sim.limits import Limit, LimitKind, ModelScope, Prefix
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.replay.chains import RecordedTurn, chained
from hivemind_addon.sim.replay.limits import CONCURRENCY, BadLimit, GivenLimit, imposed
from hivemind_addon.sim.trace_fit import TraceFit, fits
from hivemind_addon.sim.workload import PlannedTurn, Scenario, ScriptedCall, ScriptedFault, Site

_RE_SENDS = 2
"""The least re-sends of a client: as many as the providers' SDKs make."""
_LEAST_JITTER_S = 1.0
_USUAL_SERVICE_S = 5.0
_USUAL_OUTPUT_TOKENS = 200
_USUAL_PROFILE = {
    SimDialect.MESSAGES: "anthropic",
    SimDialect.CHAT: "openai",
    SimDialect.RESPONSES: "openai",
    SimDialect.OLLAMA: "ollama",
}


class NothingToReplay(Exception):
    """A line with the reason and the cure."""


@dataclass(frozen=True, slots=True)
class Replayable:
    """A capture that can be run again."""

    turns: tuple[RecordedTurn, ...]
    """In the order of arrival."""
    scenario: Scenario
    assumed: int
    """Turns that never got an answer: the usual times and tokens of the pool stand for theirs."""
    left_out: int
    """Calls whose clients went before the first attempt."""

    @property
    def agents(self) -> int:
        """The number of agents."""
        return len({call.ticket.agent for call in self.scenario.script})


@dataclass(frozen=True, slots=True)
class _Usual:
    """The usual times and tokens of a pool's turns, for turns without a record of them."""

    latency_s: float
    generation_s: float
    output_tokens: int


def reconstruct(
    capture: Capture,
    *,
    given: Sequence[GivenLimit] = (),
    copies: int = 1,
    seed: int = 0,
    fitted: Sequence[TraceFit] = (),
) -> Replayable:
    """The scenario of a capture, with `copies` times the agents; `fitted` limits stand for those that no header states.

    Raises NothingToReplay, and BadLimit for a limit that concerns none of the pools.
    """
    if not capture.calls:
        raise NothingToReplay("it holds no call that has ended; record some with `hivemind run --capture FILE`")
    told = {call.id: call for call in capture.calls}.values()  # a file may hold a recording twice
    calls = [call for call in told if call.attempts or call.end != "cancelled"]
    if not calls:
        raise NothingToReplay("of none of its calls anything was sent to a provider; record a session that got answers")
    turns = chained(calls)
    begin_s = min(turn.at_s for turn in turns)
    usual = _usual(turns)
    went_on = {other.id for turn in turns for other in turn.after}
    previous_marks: dict[str, Prefix] = {}
    originals = [
        _scripted(
            turn, begin_s, usual[turn.last.pool], previous_marks, _known(fitted, turn), went_on=turn.id in went_on
        )
        for turn in turns
    ]
    sites = _sites(capture, turns, given, begin_s, fitted)
    script = tuple(_copied(originals, copies, random.Random(f"{seed} copies")))
    known = tuple(one for one in capture.learned if not any(limit.concerns(one.key) for limit in given))
    scenario = Scenario("replay", (), ProviderSettings(), sites=sites, script=script, way_s=0.0, learned=known)
    assumed = sum(not turn.is_delivered and _success(turn) is None for turn in turns)
    return Replayable(tuple(turns), scenario, assumed, left_out=len(told) - len(calls))


def fitted_to(capture: Capture) -> tuple[TraceFit, ...]:
    """The limits that explain the refusals of a capture."""
    return fits(capture, _profile_of)


def paid_for(call: CapturedCall, usage: Usage) -> Spend:
    """The spending of an attempt of the recorded call; without a known price the money is 0."""
    return spend_of(usage, _profile_of(call).price_of(call.model, WALL_S, call.pool.host))


# Turns ---------------------------------------------------------------------------------------------------------------


def _scripted(
    turn: RecordedTurn,
    begin_s: float,
    usual: _Usual,
    previous_marks: dict[str, Prefix],
    fitted: Mapping[OutcomeKind, TraceFit],
    *,
    went_on: bool,
) -> ScriptedCall:
    call, success, profile = turn.last, _success(turn), _profile_of(turn.last)
    latency_s, generation_s = _service(turn, success, usual)
    output_tokens = success.usage.output_tokens if success and success.usage else usual.output_tokens
    output_tokens = max(1, output_tokens)
    if output_tokens == 1:
        # A single token has no generation: all of the time is latency.
        latency_s, generation_s = latency_s + generation_s, 0.0
    charges_maximum = profile.charge.output is OutputCharge.MAX_TOKENS
    input_tokens = _input_tokens(call, success, profile)
    most = call.demand.output_tokens if call.max_tokens is None else call.max_tokens
    return ScriptedCall(
        ticket=_ticket(turn, profile),
        turn=PlannedTurn(
            think_s=turn.think_s if turn.after else turn.think_s - begin_s,
            latency_s=latency_s,
            generation_s=generation_s,
            prompt_tokens=input_tokens,
            output_tokens=output_tokens,
        ),
        after=tuple(other.id for other in turn.after),
        prefixes=_marks(turn, success, previous_marks),
        max_tokens=max(output_tokens, most) if charges_maximum else None,
        faults=tuple(_faults(turn, fitted)),
        retries=max(_RE_SENDS, len(turn.calls) - 1),
        is_vital=turn.is_delivered or not (went_on or _is_its_own_fault(turn)),
    )


def _ticket(turn: RecordedTurn, profile: Profile) -> Ticket:
    call = turn.last
    patience_s = call.patience_s
    return Ticket(
        id=turn.id,
        pool=call.pool,
        agent=call.agent,
        session=call.session,
        model=call.model,
        demand=call.demand,
        arrived_at=0.0,
        deadline_at=patience_s,
        shed_at=max(patience_s - profile.patience.margin_s, 0.9 * patience_s),
        priority=call.priority,
        kind=call.kind,
        parent_session=call.parent_session,
        prefix=call.prefix,
        prefix_tokens=call.prefix_tokens,
        cached_tokens=call.cached_tokens,
        cold_tokens=call.cold_tokens,
        streamed=call.streamed,
        weight=call.weight,
        price=profile.price_of(call.model, WALL_S, call.pool.host),
    )


def _success(turn: RecordedTurn) -> CapturedAttempt | None:
    """The answered attempt, or the attempt that the client left unfinished."""
    for attempt in reversed(turn.attempts):
        if attempt.kind is OutcomeKind.SUCCESS:
            return attempt
    last = turn.attempts[-1] if turn.attempts else None
    return last if last is not None and last.kind is OutcomeKind.CANCELLED else None


def _service(turn: RecordedTurn, success: CapturedAttempt | None, usual: _Usual) -> tuple[float, float]:
    """Latency and generation, in seconds."""
    if success is None:
        return usual.latency_s, usual.generation_s
    if not turn.last.streamed or success.head_after_s is None:
        return success.ended_after_s, 0.0
    head_s = min(success.head_after_s, success.ended_after_s)
    return head_s, success.ended_after_s - head_s


def _input_tokens(call: CapturedCall, success: CapturedAttempt | None, profile: Profile) -> int:
    """All input tokens, cached or not."""
    if success and success.usage and success.usage.total_input_tokens:
        return success.usage.total_input_tokens
    cached = call.cached_tokens if profile.charge.input is InputCharge.UNCACHED else 0
    return max(1, call.demand.input_tokens + cached)


def _usual(turns: Iterable[RecordedTurn]) -> Mapping[PoolKey, _Usual]:
    """Pool → the usual figures; a pool that never answered gets those of all pools."""
    by_pool: dict[PoolKey, list[tuple[float, float, int]]] = defaultdict(list)
    everywhere: list[tuple[float, float, int]] = []
    pools = {turn.last.pool for turn in turns}
    for turn in turns:
        success = _success(turn)
        if success is not None and success.kind is OutcomeKind.SUCCESS:
            tokens = success.usage.output_tokens if success.usage else _USUAL_OUTPUT_TOKENS
            fallback = _Usual(_USUAL_SERVICE_S, 0.0, _USUAL_OUTPUT_TOKENS)
            sample = (*_service(turn, success, fallback), tokens)
            by_pool[turn.last.pool].append(sample)
            everywhere.append(sample)
    return {pool: _median(by_pool[pool] or everywhere) for pool in pools}


def _median(samples: Sequence[tuple[float, float, int]]) -> _Usual:
    if not samples:
        return _Usual(_USUAL_SERVICE_S, 0.0, _USUAL_OUTPUT_TOKENS)
    latencies_s, generations_s, tokens = zip(*samples, strict=True)
    return _Usual(median(latencies_s), median(generations_s), round(median(tokens)))


# What failed ---------------------------------------------------------------------------------------------------------


def _is_its_own_fault(turn: RecordedTurn) -> bool:
    """Whether the request itself was wrong, so that no schedule could have saved the turn."""
    return bool(turn.attempts) and turn.attempts[-1].kind is OutcomeKind.IGNORED


def _known(fitted: Sequence[TraceFit], turn: RecordedTurn) -> Mapping[OutcomeKind, TraceFit]:
    """What is known of the refusals of the turn's key."""
    return {one.kind: one for one in fitted if one.is_known and one.concerns(turn.last.pool)}


def _faults(turn: RecordedTurn, fitted: Mapping[OutcomeKind, TraceFit]) -> Iterable[ScriptedFault]:
    """The faults of failed attempts, except cancelled ones and refusals by a limit."""
    streamed = turn.last.streamed
    names = [(call.id, attempt.number) for call in turn.calls for attempt in call.attempts]
    for place, (name, attempt) in enumerate(zip(names, turn.attempts, strict=True), start=1):
        if attempt.kind in (OutcomeKind.SUCCESS, OutcomeKind.CANCELLED):
            continue
        fit = fitted.get(attempt.kind)
        if attempt.kind is OutcomeKind.THROTTLED if fit is None else name not in fit.chance:
            continue
        is_last = place == len(turn.attempts)
        fault = _fault(attempt, streamed=streamed, was_seen=is_last)
        head_s = attempt.ended_after_s if attempt.head_after_s is None else attempt.head_after_s
        yield ScriptedFault(fault, head_s)


def _fault(attempt: CapturedAttempt, *, streamed: bool, was_seen: bool) -> faults.Fault:
    """`was_seen`: the client had part of the answer, so that a retry was impossible."""
    status = attempt.status
    if status is None:
        return faults.NoHead(faults.Hangup.RESET)
    if status < 400:
        if not was_seen:
            return faults.HeadThenReset()
        return faults.StreamCut() if streamed else faults.BodyCut()
    if attempt.kind is OutcomeKind.IGNORED and status == 429:
        return faults.SpentCredit()
    message = attempt.reason
    if attempt.kind is OutcomeKind.OVERLOADED and status == 429:
        message = "Number of concurrent connections has exceeded your rate limit."
    should_retry = False if attempt.kind is OutcomeKind.IGNORED and status >= 500 else None
    return faults.ErrorStatus(status, retry_after_s=attempt.retry_after_s, message=message, should_retry=should_retry)


# The prompt cache ----------------------------------------------------------------------------------------------------


def _marks(
    turn: RecordedTurn, success: CapturedAttempt | None, previous_marks: dict[str, Prefix]
) -> tuple[Prefix, ...]:
    """The marks of a turn: the prefix shared with others, the conversation's last mark, and the whole cached prompt."""
    usage, call = success.usage if success else None, turn.last
    if usage is None or not usage.cache_read_tokens + usage.cache_write_tokens:
        return ()
    read, marked = usage.cache_read_tokens, usage.cache_read_tokens + usage.cache_write_tokens
    marks = []
    if call.prefix and call.prefix_tokens:
        marks.append(Prefix(call.prefix, min(call.prefix_tokens, marked)))
    if previous := next((previous_marks[other.id] for other in turn.after if other.id in previous_marks), None):
        marks.append(Prefix(previous.key, min(previous.tokens, read or marked)))
    previous_marks[turn.id] = Prefix(f"up to {turn.id}", marked)
    return tuple(sorted((*marks, previous_marks[turn.id]), key=lambda mark: mark.tokens))


# Providers -----------------------------------------------------------------------------------------------------------


@cache
def _profiles() -> Mapping[str, Profile]:
    return load_profiles(None).by_name


def _profile_name(call: CapturedCall) -> str:
    """A packaged profile: the call's own, else the usual profile of the dialect."""
    dialect = PLAYED.get(call.dialect, SimDialect.CHAT)
    return call.profile if call.profile in _profiles() else _USUAL_PROFILE[dialect]


def _profile_of(call: CapturedCall) -> Profile:
    return _profiles()[_profile_name(call)]


def _sites(
    capture: Capture,
    turns: Iterable[RecordedTurn],
    given: Sequence[GivenLimit],
    begin_s: float,
    fitted: Sequence[TraceFit],
) -> tuple[Site, ...]:
    """A site for each pool in the recording."""
    first_of = {turn.last.pool: turn.last for turn in reversed(list(turns))}
    pools = sorted(first_of, key=str)
    for one in given:
        if not any(map(one.concerns, pools)):
            raise BadLimit(f"limit {one.text!r} is for no pool of it; there are {', '.join(map(str, pools))}")
    sites = []
    for pool in pools:
        call = first_of[pool]
        profile = _profile_of(call)
        limits, concurrency = recorded_limits(capture, pool, begin_s)
        rules = [rule for one in fitted if one.concerns(pool) for rule in one.found]
        if any(one.is_known and one.concerns(pool) for one in fitted):
            limits = (*(one for one in limits if one.told), *(rule.limit for rule in rules if not rule.at_once))
        at_once = {rule.limit.dimension: rule.limit for rule in rules if rule.at_once}
        if slots := at_once.get(Dimension.REQUESTS):
            concurrency = slots.amount
        limits, concurrency = imposed(limits, concurrency, given, pool)
        provider = ProviderSettings(
            limits=limits,
            concurrency=concurrency,
            concurrency_scope=slots.scope if slots else ModelScope.KEY,
            tokens_at_once=tokens.amount if (tokens := at_once.get(Dimension.TOTAL_TOKENS)) else None,
            linger_s=max((one.window_s for one in at_once.values()), default=0.0),
            cache_ttl_s=profile.cache.ttl_s,
        )
        dialect = PLAYED.get(call.dialect, SimDialect.CHAT)
        sites.append(Site(provider, str(pool), pool, profile=_profile_name(call), dialect=dialect))
    return tuple(sites)


def recorded_limits(capture: Capture, pool: PoolKey, begin_s: float = 0.0) -> tuple[tuple[Limit, ...], int | None]:
    """A pool's limits, and the known limit of calls at a time; None: none is known.

    Each limit is in its last state, and at `begin_s` as free as it was; a limit of unknown kind counts as a bucket.
    """
    seen = [one for one in capture.limits if one.pool == pool]
    concurrency = next((round(one.limit) for one in seen if one.meter == CONCURRENCY), None)
    first = {one.meter: one for one in reversed(seen)}
    last = {one.meter: one for one in seen}
    return tuple(_limits(capture, first, last.values(), begin_s)), concurrency


def _limits(
    capture: Capture, first: Mapping[str, LimitSeen], last: Iterable[LimitSeen], begin_s: float
) -> Iterable[Limit]:
    for one in last:
        dimension = one.dimension
        is_told = one.meter not in HIDDEN
        if dimension is None and not is_told:
            dimension = Dimension.REQUESTS
        if dimension is None or one.window_s is None or one.limit < 1:
            continue
        kind = LimitKind.WINDOW if one.kind == LimitKind.WINDOW.value or one.meter == "quota" else LimitKind.BUCKET
        left = first[one.meter].left
        may_be_shorter = left is not None and kind is LimitKind.WINDOW and dimension is Dimension.REQUESTS
        window_s = _window_s(capture, one) if may_be_shorter else one.window_s
        full_in_s = min(window_s, first[one.meter].full_in_s or 0.0) - begin_s
        if left is not None and kind is LimitKind.BUCKET:
            left = min(one.limit, left + begin_s * one.limit / window_s)
        elif full_in_s <= 0:
            left = None
        yield Limit(dimension, round(one.limit), window_s, kind, told=is_told, left=left, full_in_s=max(0.0, full_in_s))


def _window_s(capture: Capture, seen: LimitSeen) -> float:
    """The window of a limit of requests; a shorter usual one where the recording passed more than fits into it."""
    assert seen.window_s is not None, "it is known"
    calls = [call for call in capture.calls if call.pool == seen.pool]
    sent_s = [one.at_s for call in calls for one in call.attempts if one.kind is OutcomeKind.SUCCESS]
    windows = len(sent_s) / seen.limit - 1
    most_s = (max(sent_s) - min(sent_s)) / windows if windows > 0 else seen.window_s
    return (
        max((one for one in USUAL_WINDOWS_S if one <= most_s), default=seen.window_s)
        if most_s < seen.window_s
        else seen.window_s
    )


# More of the same agents ---------------------------------------------------------------------------------------------


def _copied(originals: Sequence[ScriptedCall], copies: int, rng: random.Random) -> Iterable[ScriptedCall]:
    """The originals, and copies under other names, whose first calls come a little later."""
    yield from originals
    starts_s = [call.turn.think_s for call in originals if not call.after]
    jitter_s = max(_LEAST_JITTER_S, max(starts_s) - min(starts_s))
    for copy in range(2, copies + 1):
        for call in originals:
            yield _copy(call, f"~{copy}", 0.0 if call.after else rng.uniform(0, jitter_s))


def _copy(call: ScriptedCall, suffix: str, later_s: float) -> ScriptedCall:
    ticket = call.ticket
    return replace(
        call,
        ticket=msgspec.structs.replace(
            ticket,
            id=ticket.id + suffix,
            agent=ticket.agent + suffix,
            session=ticket.session + suffix,
            parent_session=ticket.parent_session and ticket.parent_session + suffix,
            prefix=ticket.prefix and ticket.prefix + suffix,
        ),
        turn=replace(call.turn, think_s=call.turn.think_s + later_s),
        after=tuple(name + suffix for name in call.after),
        prefixes=tuple(Prefix(mark.key + suffix, mark.tokens) for mark in call.prefixes),
    )
