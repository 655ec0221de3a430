"""How fast and how cheap any schedule could have been: the lower bound of a run's time, and the ideal cost. Pure.

The longest of four: what one agent does in a row; what the limits let through, for what was really spent; all
service time shared by the slots there are; and the conversations that are left when the request limit lets the last
calls through. Each is a true lower bound; together they may still be below what is possible.

The fourth: the n-th last call goes at `t` at the earliest, so the n last calls go at `t` or later. They are the last
turns of some agents, and an agent whose last m turns go after `t` needs the time of these turns after `t`. Of all
such times (every agent, every m) at least n are needed, so the n-th smallest is.

`Ideal` says what turns would cost at least: with a prompt cache that forgets nothing.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.limits import Limit, LimitKind, ModelScope, WindowKind
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.workload import Crowd


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run took from the provider."""

    units: Mapping[Dimension, int]
    """What the limits counted."""
    longest_path_s: float
    """Think and service time of the agent that has most of it."""
    service_s: float
    """Of all successful turns."""
    turns_s: Sequence[Sequence[tuple[float, float]]] = ()
    """Think and service time of each turn, by agent."""

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            units=Counter(self.units) + Counter(other.units),
            longest_path_s=max(self.longest_path_s, other.longest_path_s),
            service_s=self.service_s + other.service_s,
            turns_s=(*self.turns_s, *other.turns_s),
        )


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound, and what it comes from."""

    bound_s: float
    why: str


def lower_bound_of_models(
    spent: Mapping[str, Spent],
    settings: ProviderSettings,
    *,
    concurrency: int | None,
    late_units: int = 0,
    outages: Sequence[tuple[float, float]] = (),
    beside: Sequence[tuple[ProviderSettings, Sequence[tuple[float, float]]]] = (),
) -> Bound:
    """The bound of a run in which each model spent so much: that of the models whose common limits bind most.

    `beside`: equal providers that any of it may have gone to, each with its outages.
    """
    bounds = _bounds_of_users(spent, settings.limits)
    for scope in (ModelScope.KEY, ModelScope.FAMILY, ModelScope.MODEL):
        together: dict[str, Spent] = {}
        for model, its in spent.items():
            name = settings.counted_as(scope, model)
            together[name] = together[name] + its if name in together else its
        limits = [limit for limit in settings.limits if limit.scope is scope]
        slots = concurrency if scope is settings.concurrency_scope else None
        for other, _ in beside:
            most = other.most_at_once(other.concurrency)
            slots = None if slots is None or most is None else slots + most
        others = [([limit for limit in other.limits if limit.scope is scope], down) for other, down in beside]
        bounds.extend(
            lower_bound(
                one,
                limits,
                concurrency=slots,
                linger_s=0.0 if beside else settings.linger_s,
                late_units=late_units,
                outages=outages,
                beside=others,
            )
            for one in together.values()
        )
    if held := settings.models_loaded:
        services_s = [its.service_s for its in spent.values() if its.service_s]
        loads = len(services_s) if held == 1 else 1
        bounds.append(Bound(sum(services_s) / held + loads * settings.load_s, "a machine that loads each model"))
    return max(bounds, key=lambda bound: bound.bound_s)


def _bounds_of_users(spent: Mapping[str, Spent], limits: Iterable[Limit]) -> list[Bound]:
    """Of the limits of each end user, who are the agents: some user takes the mean of all units at least."""
    turns_s = [turns for its in spent.values() for turns in its.turns_s if turns]
    if not turns_s:
        return []
    total = sum((Counter(its.units) for its in spent.values()), Counter[Dimension]())
    mean = {dimension: math.ceil(units / len(turns_s)) for dimension, units in total.items()}
    bounds = []
    for limit in limits:
        if limit.scope is ModelScope.USER and limit.dimension is Dimension.REQUESTS:
            bounds += [
                Bound(_conversations_bound_s([(limit, ())], [turns]), "one user's requests") for turns in turns_s
            ]
        elif limit.scope is ModelScope.USER and limit.dimension is Dimension.INPUT_TOKENS:  # nothing of it comes late
            bounds.append(Bound(_limit_bound_s(limit, mean.get(limit.dimension, 0), ()), "one user's tokens"))
    return bounds


def lower_bound(
    spent: Spent,
    limits: Iterable[Limit],
    *,
    concurrency: int | None,
    linger_s: float = 0.0,
    late_units: int = 0,
    outages: Sequence[tuple[float, float]] = (),
    beside: Sequence[tuple[Sequence[Limit], Sequence[tuple[float, float]]]] = (),
) -> Bound:
    """The bound of a run. `late_units`: output that may be charged after the last admission, hence beyond a limit.

    `linger_s`: each slot stays taken for so long after a call that another call follows.

    `outages`: spans of time, in order and apart, in which the limits let nothing through; limits replenish in them.
    `beside`: the limits and outages of equal providers that any of it may have gone to.
    """
    bounds = [Bound(spent.longest_path_s, "the longest conversation")]
    if concurrency is not None:
        followed = max(0, sum(map(len, spent.turns_s)) - concurrency)
        bounds.append(Bound((spent.service_s + followed * linger_s) / concurrency, f"{concurrency} slots"))
    for limit in limits:
        late = late_units if limit.dimension in (Dimension.OUTPUT_TOKENS, Dimension.TOTAL_TOKENS) else 0
        units = spent.units.get(limit.dimension, 0) - late
        parts = [(limit, outages)]
        for others, down in beside:
            alike = next((one for one in others if one.dimension is limit.dimension), None)
            if alike is None:  # it lets any number through
                break
            parts.append((alike, down))
        if len(parts) <= len(beside):
            continue
        if limit.dimension is Dimension.REQUESTS:
            bounds.append(Bound(_conversations_bound_s(parts, spent.turns_s), "the last conversations"))
        bounds.append(Bound(_parts_bound_s(parts, units), f"the {limit.dimension.value.replace('_', ' ')} limit"))
    return max(bounds, key=lambda bound: bound.bound_s)


type _Part = tuple[Limit, Sequence[tuple[float, float]]]
"""One provider's limit, and its outages."""


def _conversations_bound_s(parts: Sequence[_Part], turns_s: Sequence[Sequence[tuple[float, float]]]) -> float:
    """When the last turns can be over, those of all agents together."""
    rests_s: list[float] = []
    for turns in turns_s:
        rest_s = 0.0
        for think_s, service_s in reversed(turns):
            rests_s.append(rest_s + service_s)
            rest_s += think_s + service_s
    rests_s.sort()

    @cache
    def lets_s(n: int) -> float:
        """When the limits can have let all but the last n through, the later the less n is."""
        return _parts_bound_s(parts, len(rests_s) - n)

    longest_s, spans = 0.0, [(0, len(rests_s) - 1)] if rests_s else []
    while spans:  # a week has 100,000 turns: only spans that may hold a longer one are divided
        first, last = spans.pop()
        longest_s = max(longest_s, lets_s(first) + rests_s[first], lets_s(last) + rests_s[last])
        if last - first > 1 and lets_s(first) + rests_s[last] > longest_s:
            middle = (first + last) // 2
            spans += [(first, middle), (middle, last)]
    return longest_s


def _parts_bound_s(parts: Sequence[_Part], units: int) -> float:
    """The earliest instant at which equal limits can have let so many units through, all together."""
    if len(parts) == 1:
        return _limit_bound_s(parts[0][0], units, parts[0][1])
    low_s, high_s = 0.0, min(_limit_bound_s(limit, units, outages) for limit, outages in parts)
    if sum(_let_through(part, low_s, units) for part in parts) >= units:
        return low_s
    while high_s - low_s > _EXACT_S:
        middle_s = (low_s + high_s) / 2
        if sum(_let_through(part, middle_s, units) for part in parts) >= units:
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s


def _let_through(part: _Part, until_s: float, units: int) -> int:
    """How many of these units one limit can have let through by an instant."""
    limit, outages = part
    low, high = 0, units
    while low < high:
        middle = (low + high + 1) // 2
        if _limit_bound_s(limit, middle, outages) <= until_s:
            low = middle
        else:
            high = middle - 1
    return low


def _limit_bound_s(limit: Limit, units: int, outages: Sequence[tuple[float, float]]) -> float:
    """The earliest instant at which so many units can have been let through, beginning with a whole limit."""
    most = max((limit.amount, *(change.amount for change in limit.changes)))
    if limit.growth > 0:
        return _growth_bound_s(limit, units, most)
    if limit.kind is LimitKind.BUCKET:
        return _bucket_bound_s(limit, units, outages)
    if limit.windows is WindowKind.COUNTER:
        # Where a window is full, the next one gives as much as it overlaps less and less: no more than a rate.
        return units / most * limit.window_s if units > most else 0.0
    return _window_bound_s(limit, units, outages)


def _bucket_bound_s(limit: Limit, units: float, outages: Sequence[tuple[float, float]]) -> float:
    size = limit.amount if limit.burst is None else limit.burst
    if limit.changes:  # outages are left out
        left, at, amount = units - size, 0.0, limit.amount
        for change in sorted(limit.changes, key=lambda change: change.at_s):
            gained = (change.at_s - at) * amount / limit.window_s
            if gained >= left:
                break
            left, at, amount = left - gained, change.at_s, change.amount
        return at + max(0.0, left) * limit.window_s / amount
    rate = limit.amount / limit.window_s
    level, at = float(size), 0.0
    for from_s, to_s in outages:
        # What is there is taken before the outage begins; no more than the whole limit gathers in it.
        before = level + rate * (from_s - at) if from_s > at else 0.0
        if units <= before:
            break
        units -= int(before)
        rest = 0.0 if before else level
        level, at = min(float(size), rest + rate * (to_s - from_s)), to_s
    return at + max(0.0, units - level) / rate


def _growth_bound_s(limit: Limit, units: float, most: float) -> float:
    """Each `window_s` lets through so many times the units of the `window_s` before."""
    at, lets = 0.0, most
    while units > lets:
        units, at, lets = units - lets, at + limit.window_s, max(most, lets * limit.growth)
    return at


def _window_bound_s(limit: Limit, units: float, outages: Sequence[tuple[float, float]]) -> float:
    """The first window by the clock may end before a whole length has passed."""
    first_s = limit.full_in_s if limit.windows is WindowKind.CLOCK and limit.full_in_s else limit.window_s
    at = 0.0
    ends_s = first_s
    least = min((limit.amount, *(change.amount for change in limit.changes)))
    for _ in range(max(1, math.ceil(units / least)) + _windows_of(limit, outages)):
        opens_at = ends_s - limit.window_s if ends_s > first_s else 0.0
        for from_s, to_s in outages:
            if from_s <= opens_at < to_s:
                opens_at = to_s
        if opens_at < ends_s:
            # A window that an amount changes in may let the larger one through.
            lasting = [change for change in limit.changes if change.at_s < ends_s]
            before = max((one for one in lasting if one.at_s <= opens_at), key=lambda one: one.at_s, default=None)
            amounts = [limit.amount if before is None else before.amount]
            amounts += [one.amount for one in lasting if one.at_s > opens_at]
            at, units = opens_at, units - max(amounts)
            if units <= 0:
                break
        ends_s += limit.window_s
    return at


def _windows_of(limit: Limit, outages: Sequence[tuple[float, float]]) -> int:
    return sum(math.ceil((to_s - from_s) / limit.window_s) + 1 for from_s, to_s in outages)


_EXACT_S = 0.01
_WRITE, _READ = 1.25, 0.1
"""What an input token costs that is written to or read from a prompt cache, of one that is neither."""


def input_cost(*, uncached_tokens: int, written_tokens: int, cached_tokens: int) -> float:
    """Of one prompt, in uncached tokens."""
    return uncached_tokens + written_tokens * _WRITE + cached_tokens * _READ


class Ideal:
    """What the turns of all crowds take at least."""

    def __init__(self) -> None:
        self.cost = 0.0
        """Of their input, in uncached tokens."""
        self._written: set[str] = set()
        """Crowds whose shared instructions the cache holds."""

    def book(self, crowd: Crowd, *, prompt_tokens: int, marked: int, output_tokens: int) -> Counter[Dimension]:
        """What one turn takes of each limit. `marked`: tokens of the agent's last answered prompt."""
        read = 0
        if crowd.caches:
            read = marked or (crowd.shared_tokens if crowd.name in self._written else 0)
            self._written.add(crowd.name)
        new = prompt_tokens - read
        self.cost += read * _READ + new * (_WRITE if crowd.caches else 1.0)
        return Counter(
            {
                Dimension.REQUESTS: 1,
                Dimension.INPUT_TOKENS: new,
                Dimension.OUTPUT_TOKENS: output_tokens,
                Dimension.TOTAL_TOKENS: new + output_tokens,
            }
        )
