"""Which limits explain the refusals of a recorded session. Pure.

    attempts ──replayed against each kind of limit, of an endless amount──► loads: units counted as each attempt came
    loads + refusals ──► the amount that parts refused from admitted ones best, and its likelihood

A limit refuses what is above its amount and admits the rest, but for errors; refusals that no limit explains are
chance. Limits are added as long as the Bayesian information criterion falls: few limits that explain most. A limit that
headers state is taken as stated and checked: where more than a fifth of the attempts above it were admitted, it is
listed and explains nothing. The limits are those of `sim/limits.py`, so that a fit can be simulated as it is.
"""

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hivemind_addon.formats.profile.model import InputCharge, OutputCharge, Profile
from hivemind_addon.kernel.limits.meter import USUAL_WINDOWS_S
from hivemind_addon.kernel.values.ticket import Demand, Dimension, OutcomeKind, PoolKey
from hivemind_addon.plugins.captures.model import Capture, CapturedAttempt, CapturedCall
from hivemind_addon.sim.limits import Limit, LimitKind, ModelScope, SimAllowance, WindowKind

LEAST_REFUSALS = 10
"""With fewer nothing is fitted: too many limits explain them."""
_MOST_ATTEMPTS = 3000
"""Of a longer session the stretch with the most refusals is fitted."""
_SCREENED = 800
"""Attempts on which all limits are tried, before the best of each kind are tried on all attempts."""
_MOST_LIMITS = 4
_ENDLESS = 10**12
_SLACK_S = 0.02
"""A provider knows that a call is over before the client does."""
_ERRORS = 0.002, 0.2
"""Least and greatest share of admissions above a limit."""
_LEAST_CHANCE = 1e-4
_GROWTHS = (1.25, 1.5, 2.0, 3.0)
_LINGERS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_RATES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, *(0.85 * 1.01**step for step in range(40)), 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)
"""Of a bucket, in multiples of the admitted units a second."""
_REQUESTS, _TOTAL = Dimension.REQUESTS, Dimension.TOTAL_TOKENS


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit that may explain refusals."""

    limit: Limit
    """With `at_once`: dimension and amount count calls or tokens, and `window_s` is how long they linger."""
    at_once: bool = False
    """Whether the limit counts attempts in flight."""
    is_stated: bool = False
    """Whether headers state it."""

    @property
    def parameters(self) -> int:
        """How many numbers had to be found."""
        limit = self.limit
        if self.is_stated:
            return 0
        more = (limit.scope is not ModelScope.KEY, limit.full_in_s > 0, limit.burst is not None, limit.growth > 0)
        finely = limit.burst is not None  # a rate and a burst fit a little noise, too
        return 1 + (limit.window_s > 0) + sum(more) + finely + limit.counts_refusals


@dataclass(frozen=True, slots=True)
class FittedLimit:
    """A limit with the evidence for it."""

    rule: Rule
    low: float
    """The amount is not below this, as far as the attempts show."""
    high: float
    explains: int
    """Refused attempts above the limit."""
    contradicts: int
    """Admitted attempts above the limit."""


@dataclass(frozen=True, slots=True)
class TraceFit:
    """The explanation of the refusals of a key, of one kind."""

    host: str
    key: str
    kind: OutcomeKind
    """THROTTLED or OVERLOADED."""
    attempts: int
    """That were admitted, or refused in this way."""
    refusals: int
    limits: tuple[FittedLimit, ...] = ()
    chance: frozenset[tuple[str, int]] = frozenset()
    """Call and number of each refused attempt that no limit explains."""

    @property
    def found(self) -> tuple[Rule, ...]:
        """The limits that no header states."""
        return tuple(
            replace(one.rule, limit=replace(one.rule.limit, told=False))
            for one in self.limits
            if not one.rule.is_stated
        )

    def concerns(self, pool: PoolKey) -> bool:
        """Whether the pool is of this key."""
        return (pool.host, pool.account) == (self.host, self.key)

    @property
    def is_known(self) -> bool:
        """Whether there were enough refusals to say anything."""
        return self.refusals >= LEAST_REFUSALS


@dataclass(frozen=True, slots=True)
class _Try:
    """One attempt, as a limiter sees it."""

    at_s: float
    ended_s: float
    asks: Demand
    """What has to fit, and is taken at once."""
    late: Demand
    """What is taken at the end, in addition."""
    model: str
    agent: str
    refused: bool
    name: tuple[str, int]
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class _Scored:
    """A rule with the range of the amount, and the attempts above it."""

    score: float
    """Logarithm of the likelihood, less the price of the parameters."""
    rule: Rule
    low: float
    high: float
    over: tuple[bool, ...]


def fits(capture: Capture, profile_of: Callable[[CapturedCall], Profile]) -> tuple[TraceFit, ...]:
    """The fits of a capture, for each key and each kind of refusal that occurred."""
    by_key: dict[tuple[str, str], list[CapturedCall]] = defaultdict(list)
    for call in capture.calls:
        by_key[call.pool.host, call.pool.account].append(call)
    made = []
    for (host, key), calls in by_key.items():
        kinds = {one.kind for call in calls for one in call.attempts if one.status is not None}
        for kind in (OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED):
            if kind in kinds:
                tries = _tries(calls, kind, profile_of)
                stated = _stated(calls) if kind is OutcomeKind.THROTTLED else ()
                made.append(
                    _fit(TraceFit(host, key, kind, len(tries), sum(one.refused for one in tries)), tries, stated)
                )
    return tuple(made)


# Attempts ------------------------------------------------------------------------------------------------------------


def _tries(
    calls: Sequence[CapturedCall], kind: OutcomeKind, profile_of: Callable[[CapturedCall], Profile]
) -> list[_Try]:
    """In the order of their instants; those that were refused in another way are left out."""
    sizes = {call.request_hash or call.id: _sizes(call, profile_of(call), one) for call in calls for one in _used(call)}
    tries = []
    for call in calls:
        asks, late = sizes.get(call.request_hash or call.id) or _sizes(call, profile_of(call), None)
        for one in call.attempts:
            refused = one.kind in (OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED) and one.status not in (None, 200)
            if (refused and one.kind is not kind) or (one.kind is OutcomeKind.FAILED and one.status is None):
                continue
            name, ended_s = (call.id, one.number), one.at_s + one.ended_after_s
            tries.append(_Try(one.at_s, ended_s, asks, late, call.model, call.agent, refused, name, one.retry_after_s))
    tries.sort(key=lambda one: one.at_s)
    return tries


def _used(call: CapturedCall) -> Iterator[CapturedAttempt]:
    return (one for one in call.attempts if one.usage is not None)


def _sizes(call: CapturedCall, profile: Profile, attempt: CapturedAttempt | None) -> tuple[Demand, Demand]:
    """The units that limits take of a call, at the begin and at the end."""
    usage = attempt.usage if attempt is not None else None
    into, out, late = call.demand.input_tokens, call.demand.output_tokens, 0
    if usage is not None:
        cached = usage.cache_read_tokens if profile.charge.input is InputCharge.ALL else 0
        into, late = usage.input_tokens + usage.cache_write_tokens + cached, usage.output_tokens
    most = call.max_tokens or out
    if profile.charge.output is OutputCharge.MAX_TOKENS:
        return Demand(1, into, most, into + most), Demand(0)
    return Demand(1, into, 0, into + most), Demand(0, 0, late)


def _stated(calls: Iterable[CapturedCall]) -> tuple[Rule, ...]:
    """The last limits that headers stated, of the kinds that they may be."""
    readings = (read for call in calls for one in call.attempts for read in one.readings if read.limit)
    last = {(read.meter, read.dimension, read.window_s): read.limit or 0 for read in readings}
    limits = [Limit(dimension, round(amount), window_s) for (_, dimension, window_s), amount in last.items()]
    return tuple(Rule(one, is_stated=True) for one in limits)


# Loads ---------------------------------------------------------------------------------------------------------------


type _Row = tuple[float, float, int, int, str, bool]
"""Of an attempt: begin, end, units at the begin and at the end, group, and whether it was refused."""


def _rows(tries: Sequence[_Try], dimension: Dimension, scope: ModelScope) -> list[_Row]:
    """What a limit of this dimension and scope counts."""
    return [
        (one.at_s, one.ended_s, one.asks.of(dimension), one.late.of(dimension), _group(scope, one), one.refused)
        for one in tries
    ]


def _loads(rule: Rule, rows: Sequence[_Row]) -> list[float]:
    """The units that a limit counted as each attempt came, with the attempt's own."""
    limit = rule.limit
    lasts_s = limit.window_s - _SLACK_S if rule.at_once else 0.0
    ends: list[tuple[float, str, int]] = []
    held: Counter[str] = Counter()
    allowances: dict[str, tuple[SimAllowance, ...]] = {}
    """By group: the limit, and beside one of growth a log that counts."""
    loads: list[float] = []
    size = limit.burst or float(limit.amount)
    counting = replace(limit, windows=WindowKind.LOG, growth=0.0, amount=_ENDLESS)
    for now, ended_s, asks, late, group, refused in rows:
        while ends and ends[0][0] <= now:
            at_s, ended, units = heapq.heappop(ends)
            if rule.at_once:
                held[ended] -= units
            for each in allowances.get(ended, ()):
                each.take(units, at_s)
        needs = asks or 1
        if rule.at_once:
            loads.append(held[group] + needs)
            if not refused:
                held[group] += asks
                heapq.heappush(ends, (ended_s + lasts_s, group, asks))
            continue
        if (both := allowances.get(group)) is None:
            both = allowances[group] = (
                limit.allowance(now, begun_at=rows[0][0]),
                *([counting.allowance(now)] if limit.growth else ()),
            )
        if not limit.growth:
            loads.append(size - both[0].level(now) + needs)
        else:
            loads.append(0.0 if both[0].level(now) >= needs else _ENDLESS - both[1].level(now) + needs)
        for each in both:
            if refused:
                each.refuse(needs, now)
            else:
                each.take(asks, now)
        if late and not refused:
            heapq.heappush(ends, (ended_s, group, late))
    return loads


def _group(scope: ModelScope, one: _Try) -> str:
    """The attempts that a limit of this scope counts together with this attempt."""
    return {ModelScope.MODEL: one.model, ModelScope.USER: one.agent}.get(scope, "")


def _candidates(tries: Sequence[_Try]) -> Iterator[Rule]:
    """Every kind of limit, with every usual window, phase and rate."""
    span_s = tries[-1].at_s - tries[0].at_s
    windows_s = [one for one in USUAL_WINDOWS_S if one <= 1.5 * span_s]
    scopes = [
        ModelScope.KEY,
        *([ModelScope.MODEL] if len({one.model for one in tries}) > 1 else ()),
        *([ModelScope.USER] if len({one.agent for one in tries}) > 1 else ()),
    ]
    totals = {
        dimension: sum(one.asks.of(dimension) + one.late.of(dimension) for one in tries if not one.refused)
        for dimension in Dimension
    }
    reserves = any(one.asks.output_tokens for one in tries)
    for scope, (dimension, total) in itertools.product(scopes, totals.items()):
        if total <= 0:
            continue
        if dimension in (_REQUESTS, _TOTAL):
            for linger_s in _LINGERS_S:
                yield Rule(Limit(dimension, _ENDLESS, linger_s, scope=scope), at_once=True)
        if dimension is _TOTAL and not reserves:
            continue  # no provider whose output counts as it comes limits the sum
        rate = total / max(1.0, span_s) / len({_group(scope, one) for one in tries})
        for share in _RATES:
            yield Rule(Limit(dimension, 10**6, 10**6 / (share * rate), scope=scope, burst=float(_ENDLESS)))
        for window_s in windows_s:
            limit = Limit(dimension, _ENDLESS, window_s, LimitKind.WINDOW, scope=scope)
            for windows in (WindowKind.OPENED, WindowKind.LOG):
                yield Rule(replace(limit, windows=windows))
                if dimension is _REQUESTS and scope is ModelScope.KEY:
                    yield Rule(replace(limit, windows=windows, counts_refusals=True))
            for phase_s in _phases(tries, window_s):
                yield Rule(replace(limit, windows=WindowKind.CLOCK, full_in_s=phase_s))
                yield Rule(
                    replace(limit, windows=WindowKind.COUNTER, full_in_s=phase_s, left=float(_ENDLESS))
                    if phase_s
                    else replace(limit, windows=WindowKind.COUNTER)
                )
            if scope is ModelScope.KEY and 10 <= window_s <= 600:
                for growth in _GROWTHS:
                    yield Rule(replace(limit, windows=WindowKind.LOG, growth=growth, amount=1))


def _phases(tries: Sequence[_Try], window_s: float, most: int = 3) -> list[float]:
    """Likely ends of the first window, in seconds after the first attempt: instants when refusals ended."""
    began_s, points = tries[0].at_s, []
    for one, other in itertools.pairwise(tries):
        if one.refused and not other.refused:
            points.append((one.at_s + other.at_s) / 2)
        if one.refused and one.retry_after_s:
            points.append(one.at_s + one.retry_after_s)
    bins: dict[int, list[float]] = defaultdict(list)
    for point in points:
        phase_s = (point - began_s) % window_s
        bins[int(60 * phase_s / window_s)].append(phase_s)
    best = sorted(bins.values(), key=len, reverse=True)[:most]
    return [0.0, *(sorted(one)[len(one) // 2] for one in best)]


# Likelihood ----------------------------------------------------------------------------------------------------------


def _likelihood(over_refused: int, over: int, refused: int, count: int) -> float:
    """Of so many refusals in all, when so many attempts are above a limit."""
    error = min(_ERRORS[1], max(_ERRORS[0], 1 - over_refused / over)) if over else _ERRORS[0]
    under, under_refused = count - over, refused - over_refused
    chance = min(0.999, max(_LEAST_CHANCE, under_refused / under)) if under else 0.5
    return (
        over_refused * math.log(1 - error)
        + (over - over_refused) * math.log(error)
        + under_refused * math.log(chance)
        + (under - under_refused) * math.log(1 - chance)
    )


class _Scores:
    """Scores rules on the same attempts."""

    def __init__(self, tries: Sequence[_Try]) -> None:
        self._tries = tries
        self._refused = sum(one.refused for one in tries)
        self._price = math.log(len(tries)) / 2
        self._known: dict[Rule, list[float]] = {}
        self._rows: dict[tuple[Dimension, ModelScope], list[_Row]] = {}

    def loads(self, rule: Rule) -> list[float]:
        """See `_loads`."""
        if rule not in self._known:
            counted = rule.limit.dimension, rule.limit.scope
            if counted not in self._rows:
                self._rows[counted] = _rows(self._tries, *counted)
            self._known[rule] = _loads(rule, self._rows[counted])
        return self._known[rule]

    def of(self, rules: Sequence[_Scored]) -> float:
        """Of several rules together."""
        over = [any(flags) for flags in zip(*(one.over for one in rules), strict=True)] if rules else []
        above = [one.refused for one, is_over in zip(self._tries, over, strict=bool(rules)) if is_over]
        price = sum(one.rule.parameters for one in rules) * self._price
        return _likelihood(sum(above), len(above), self._refused, len(self._tries)) - price

    def fixed(self, rule: Rule, beside: Sequence[_Scored] = ()) -> _Scored:
        """Of a rule with a known amount, beside other ones."""
        size = float(rule.limit.burst or rule.limit.amount)
        over = tuple(load > size * (1 + 1e-6) for load in self.loads(rule))
        made = _Scored(0.0, rule, size, size, over)
        return replace(made, score=self.of([*beside, made]))

    def swept(self, rule: Rule, beside: Sequence[_Scored]) -> _Scored:
        """Of a rule with the best amount, beside other ones."""
        rule = _endless(rule)
        loads = self.loads(rule)
        taken = [any(flags) for flags in zip(*(one.over for one in beside), strict=True)] or [False] * len(loads)
        above = [one.refused for one, is_over in zip(self._tries, taken, strict=True) if is_over]
        over, over_refused = len(above), sum(above)
        order = sorted((-load, index) for index, load in enumerate(loads) if not taken[index])
        best, low, high = -math.inf, math.inf, math.inf
        for place, (load, index) in enumerate(order):
            over, over_refused = over + 1, over_refused + self._tries[index].refused
            below = -order[place + 1][0] if place + 1 < len(order) else 0.0
            if -load <= below * (1 + 1e-6):
                continue
            score = _likelihood(over_refused, over, self._refused, len(loads))
            if score > best:
                best, low, high = score, below, -load
        if not low < math.inf:  # others explain all of the attempts
            return _Scored(-math.inf, rule, low, high, (False,) * len(loads))
        sized = _sized(rule, roundest(low, high))
        price = (rule.parameters + sum(one.rule.parameters for one in beside)) * self._price
        return _Scored(best - price, sized, low, high, tuple(load > low * (1 + 1e-6) for load in loads))


def _endless(rule: Rule) -> Rule:
    """The rule with an amount that nothing exceeds."""
    limit = rule.limit
    if limit.growth:
        return replace(rule, limit=replace(limit, amount=1))
    if limit.kind is LimitKind.BUCKET and not rule.at_once:
        return replace(rule, limit=replace(limit, burst=float(_ENDLESS)))
    left = None if limit.left is None else float(_ENDLESS)
    return replace(rule, limit=replace(limit, amount=_ENDLESS, left=left))


def _sized(rule: Rule, size: float) -> Rule:
    limit, amount = rule.limit, max(1, math.ceil(size))
    if limit.burst:
        return replace(rule, limit=replace(limit, burst=max(1.0, size)))
    return replace(rule, limit=replace(limit, amount=amount, left=None if limit.left is None else float(amount)))


def roundest(low: float, high: float) -> float:
    """The number with the fewest digits that is at least `low` and less than `high`."""
    if not low < high < math.inf:
        return low
    step = 10.0 ** math.ceil(math.log10(high))
    while step > 1e-9:
        for part in (step, step / 2, step / 4, step / 5):
            found = math.ceil(low / part - 1e-9) * part
            if 0 < found < high:
                return found
        step /= 10
    return low


# Fits ----------------------------------------------------------------------------------------------------------------


def _fit(told: TraceFit, every: Sequence[_Try], stated: Sequence[Rule]) -> TraceFit:
    if not told.is_known:
        return told
    tries = _busiest(every, _MOST_ATTEMPTS)
    scores, screen = _Scores(tries), _Scores(_busiest(tries, _SCREENED))
    said = list(_as_stated(scores, stated))
    doubtful = [one for one in said if sum(map(_is_refused, tries, one.over)) < (1 - _ERRORS[1]) * sum(one.over)]
    found = [one for one in said if one not in doubtful]
    rules = list(_candidates(tries))
    best = scores.of(found)
    while len(found) + len(doubtful) - len(stated) < _MOST_LIMITS:
        beside = [screen.fixed(one.rule) for one in found]
        best_of: dict[tuple[object, ...], _Scored] = {}
        for one in (screen.swept(rule, beside) for rule in rules):
            kind = one.rule.at_once, one.rule.limit.dimension, *_kind(one.rule.limit)
            best_of[kind] = max(best_of.get(kind, one), one, key=lambda each: each.score)
        likely = [scores.swept(one.rule, found) for one in best_of.values()]
        refined = max((_refined(scores, one, found) for one in likely), key=lambda one: one.score)
        if refined.score - math.log(len(rules)) <= best:
            break
        best = refined.score
        found.append(refined)
    above = [any(flags) for flags in zip(*(one.over for one in found), strict=True)] or [False] * len(tries)
    return replace(
        told,
        limits=tuple(
            FittedLimit(
                one.rule,
                one.low,
                one.high,
                sum(is_over and each.refused for is_over, each in zip(one.over, tries, strict=True)),
                sum(is_over and not each.refused for is_over, each in zip(one.over, tries, strict=True)),
            )
            for one in (*found, *doubtful)
        ),
        attempts=len(tries),
        refusals=sum(one.refused for one in tries),
        chance=frozenset(one.name for one, over in zip(tries, above, strict=True) if one.refused and not over),
    )


def _is_refused(one: _Try, over: bool) -> bool:
    return one.refused and over


def _kind(limit: Limit) -> tuple[object, ...]:
    return limit.kind, limit.windows, limit.growth > 0


def _busiest(tries: Sequence[_Try], most: int) -> Sequence[_Try]:
    """The stretch of at most so many attempts with the most changes between refused and admitted."""
    if len(tries) <= most:
        return tries
    changes = [0, *itertools.accumulate(one.refused != other.refused for one, other in itertools.pairwise(tries))]
    start = max(
        range(0, len(tries) - most + 1, most // 10), key=lambda first: changes[first + most - 1] - changes[first]
    )
    return tries[start : start + most]


def _as_stated(scores: _Scores, stated: Sequence[Rule]) -> Iterator[_Scored]:
    for rule in stated:
        window = replace(rule.limit, kind=LimitKind.WINDOW, windows=WindowKind.OPENED)
        yield max((scores.fixed(rule), scores.fixed(replace(rule, limit=window))), key=lambda one: one.score)


def _refined(scores: _Scores, first: _Scored, beside: Sequence[_Scored]) -> _Scored:
    """The best rule near the first rule: of phases and rates in between."""
    best = first
    for step in (0.05, 0.015, 0.005, 0.002, 0.0007):
        middle = best.rule
        for way in (-4, -3, -2, -1, 1, 2, 3, 4):
            limit = middle.limit
            if limit.burst:
                limit = replace(limit, window_s=limit.window_s * (1 + step * way))
            elif limit.windows in (WindowKind.CLOCK, WindowKind.COUNTER) and limit.full_in_s:
                limit = replace(limit, full_in_s=(limit.full_in_s + step * way * limit.window_s) % limit.window_s)
            else:
                return best
            best = max(best, scores.swept(replace(middle, limit=limit), beside), key=lambda one: one.score)
    return max(_plain_buckets(scores, best, beside), key=lambda one: one.score)


def _plain_buckets(scores: _Scores, best: _Scored, beside: Sequence[_Scored]) -> Iterator[_Scored]:
    """Of a bucket with a burst: the same in numbers for people, and those that hold all that a usual window brings."""
    limit = best.rule.limit
    yield best
    if not limit.burst:
        return
    holds, rate = limit.burst, limit.amount / limit.window_s
    window_s = 60.0 if 60 * rate > 20 else 3600.0
    for spread in (0.0, 0.002, 0.01):
        amount = round(roundest(window_s * rate * (1 - spread), window_s * rate * (1 + spread) + 1e-9))
        yield scores.swept(replace(best.rule, limit=replace(limit, amount=max(1, amount), window_s=window_s)), beside)
    for window_s in (one for one in USUAL_WINDOWS_S if 0.8 < one * rate / holds < 1.25):
        sizes = {round(holds * (1 + step / 500)) for step in range(-60, 61)}
        sizes |= {round(roundest(holds * (1 - spread), holds * (1 + spread))) for spread in (0.002, 0.01, 0.03, 0.1)}
        rules = (replace(limit, amount=max(1, size), window_s=window_s, burst=None) for size in sorted(sizes))
        made = [scores.fixed(replace(best.rule, limit=one), beside) for one in rules]
        top = max(one.score for one in made)
        equal = [one for one in made if one.score == top]
        round_one = roundest(equal[0].low, equal[-1].high + 1e-6)
        chosen = min(equal, key=lambda one: abs(one.low - round_one))
        yield replace(chosen, low=equal[0].low, high=equal[-1].high)
