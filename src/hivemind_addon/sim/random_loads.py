"""Workloads that nobody chose: any number of them, each drawn by its number. Pure and repeatable.

    random_load(17) ──► crowds, limits, caps, faults, outages, a neighbour ──► patience ──► Scenario "random-17"

Every one is feasible: a good scheduler loses nobody. What would ask for more than an hour of patience, or for more
time than a night's run has, is drawn again. A client's patience is `_MARGIN` times what its call waits at worst in a
fair order: until every agent, or every member of the largest family as often as there are families, has had one more
call of its largest size, at limits that begin empty, at the lowest of the caps, beside the neighbour, with the share of
attempts that fail (`sim/bound.py`), and with first answers of a length that nobody can know; and on top of it all
outages, and the attempts of a call that has bad luck.

What no patience cures is not drawn: faults in the middle of a stream, which its client sees; hangs of answers that are
not streamed, which nobody can tell from slow ones; a provider that tells nothing, neither by headers nor by a
retry-after, about a window of minutes, or while refusals count.
"""

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hivemind_addon.formats.profile.model import Charge, Watchdog
from hivemind_addon.kernel.retry import RetryPolicy
from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.bound import Spent, lower_bound
from hivemind_addon.sim.faults import ODD_ENDS
from hivemind_addon.sim.limits import Limit, LimitKind, RetryAfter
from hivemind_addon.sim.provider import ProviderOutage, ProviderSettings
from hivemind_addon.sim.workload import Crowd, Neighbour, Scenario

_NAME = re.compile(r"random-(\d{1,9})")
_MARGIN = (1.5, 4.0)
_MOST_PATIENCE_S = 3600
"""As `hivemind exec` gives it."""
_MOST_TIME_S = 5400
"""Of a whole run, at its lower bound."""
_CALLS = (20, 1500)
"""Of a run."""
_FEW_CALLS = 3
"""Of the largest size, which every limit of tokens lets through at once."""
_WINDOWS_S = (5, 10, 20, 60, 60, 60, 120, 300, 600)
_LONG_S = 60
"""Of a longer window a provider tells something."""
_BAD_LUCK = 1e-3
"""Share of the calls that may need more attempts than their patience has time for."""
_UNLUCKY_CALLS = 0.01
"""Of a run, that may fail for good by chance alone."""
_TAIL_SIGMAS = 3.5

_STATUSES = ("500", "502", "503", "504", "529", "429", "429-retry-after", "html")
_NO_STATUS = ("reset-before-head", "close-before-head", "head-then-reset", "refused-stream")
_UNSTREAMED = ("body-cut", "body-reset", "stream-close")
_STREAMED = ("error-first", "hang", "hang")


@dataclass(frozen=True, slots=True)
class RandomLoad:
    """A scenario, and what it is like."""

    scenario: Scenario
    about: str


def number_in(name: str) -> int | None:
    """Which random load has this name; None: it is no name of one."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def random_load(number: int) -> RandomLoad:
    """The load of this number, `random-<number>`; always the same one."""
    rng = random.Random(f"random load {number}")
    while True:
        drawn = _drawn(rng, f"random-{number}")
        if _is_wanted(drawn) and is_feasible(drawn):
            odd = _with_odd_ends(drawn, random.Random(f"odd ends of {drawn.name}"))
            return RandomLoad(odd, _about(odd))


# The draw -----------------------------------------------------------------------------------------------------------


def _drawn(rng: random.Random, name: str) -> Scenario:
    crowds = _crowds(rng)
    provider = _provider(rng, crowds)
    neighbour = _neighbour(rng, provider.limits) if rng.random() < 0.2 else None
    neighbours = () if neighbour is None else (neighbour,)
    caps: tuple[tuple[float, int], ...] = ()
    if provider.concurrency is not None and rng.random() < 0.3:
        caps = _caps(rng, provider.concurrency, _conversation_s(crowds))
    scenario = Scenario(
        name, crowds, provider, caps=caps, neighbours=neighbours, input_error=rng.choice((0.0, 0.0, 0.1, 0.3))
    )
    needed_s = patience_s(scenario)
    patient = tuple(
        replace(
            crowd,
            timeout_s=10.0 * math.ceil(rng.uniform(*_MARGIN) * needed_s / 10),
            retries=min(2, max(rng.randint(0, 2), _resends(scenario))),
        )
        for crowd in crowds
    )
    return replace(scenario, crowds=patient)


def _crowds(rng: random.Random) -> tuple[Crowd, ...]:
    agents = round(_log_uniform(rng, 1, 120))
    count = min(agents, rng.choice((1, 1, 2, 2, 3, 4)))
    cuts = sorted(rng.sample(range(1, agents), count - 1))
    sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, agents], strict=True)]
    longest_s = _log_uniform(rng, 0.1, 30)
    least_turns = math.ceil(_CALLS[0] / agents)
    crowds = [
        replace(_crowd(rng, longest_s), name=f"crowd-{number}", agents=size, turns=rng.randint(least_turns, 20))
        for number, size in enumerate(sizes, start=1)
    ]
    if count > 1 and rng.random() < 0.3:
        # The last crowd are sub-agents of the first one's first session.
        crowds[-1] = replace(crowds[-1], parent_session=f"{crowds[0].name}-0", per_session=1)
    return tuple(crowds)


def _crowd(rng: random.Random, longest_s: float) -> Crowd:
    """What its agents want, not yet how many they are."""
    streamed, caches = rng.random() < 0.5, rng.random() < 0.3
    # A little below the longest: crowds that share a provider share its model, or use a faster one.
    latency_s = _rounded(longest_s * rng.uniform(0.3, 1))
    think_s = _log_uniform(rng, 0.1, 20)
    prompt = round(_log_uniform(rng, 20, 3000))
    opening = round(_log_uniform(rng, 100, 20_000))
    output = round(_log_uniform(rng, 10, 2000))
    return Crowd(
        "",
        1,
        per_session=rng.choice((1, 1, 1, 2, 4)),
        starts_s=(0, _rounded(rng.choice((0, 0, 1, 1)) * _log_uniform(rng, 1, 60))),
        think_s=(_rounded(think_s / 3), _rounded(think_s)),
        latency_s=latency_s,
        latency_sigma=rng.choice((0.0, 0.2, 0.5)),
        spike_rate=rng.choice((0.0, 0.0, 0.02, 0.1)) if latency_s < 4 else 0.0,
        output_tokens=(max(1, output // rng.randint(1, 4)), output),
        tokens_per_s=rng.choice((40.0, 60.0, 100.0)),
        shared_tokens=rng.choice((0, 2000, 8000)) if caches else 0,
        opening_tokens=(max(1, opening // rng.randint(1, 3)), opening),
        prompt_tokens=(max(1, prompt // rng.randint(1, 4)), prompt),
        remembers=rng.random() < 0.7,
        caches=caches,
        streamed=streamed,
    )


def _provider(rng: random.Random, crowds: Sequence[Crowd]) -> ProviderSettings:
    limits = _limits(rng, crowds)
    headers = rng.random() < 0.6
    charges = rng.random() < 0.2
    is_told = headers and all(limit.told for limit in limits)
    may_say_nothing = is_told or (not charges and all(limit.window_s <= _LONG_S for limit in limits))
    agents = sum(crowd.agents for crowd in crowds)
    concurrency = max(1, round(agents * _log_uniform(rng, 0.1, 1.2))) if rng.random() < 0.4 else None
    ends_s = max([_conversation_s(crowds), *(_limit_s(limit, crowds) for limit in limits)])
    return ProviderSettings(
        limits=limits,
        concurrency=concurrency,
        concurrency_status=rng.choice((529, 529, 503, 429)) if concurrency else ProviderSettings().concurrency_status,
        charge_failures=charges,
        rate_limit_headers=headers,
        retry_after=RetryAfter.MISSING if may_say_nothing and rng.random() >= 0.7 else RetryAfter.ROUNDED_UP,
        faults=_faults(rng, crowds) if rng.random() < 0.5 else {},
        outages=_outages(rng, ends_s) if rng.random() < 0.25 else (),
        cache_ttl_s=rng.choice((60, 300)) if any(crowd.caches for crowd in crowds) else 0,
    )


def _limits(rng: random.Random, crowds: Sequence[Crowd]) -> tuple[Limit, ...]:
    """Up to three. Each alone would let the run end in about so many times its longest conversation."""
    limits: list[Limit] = []
    for dimension in rng.sample(tuple(Dimension), rng.choice((0, 1, 1, 1, 2, 3))):
        window_s = rng.choice(_WINDOWS_S)
        ends_s = max(_conversation_s(crowds) * _log_uniform(rng, 0.4, 4), window_s * rng.uniform(0.5, 4))
        units = sum(_usual(crowd, dimension) * crowd.agents * (crowd.turns or 0) for crowd in crowds)
        largest = max(_guessed(dimension), *(_most(crowd, dimension) for crowd in crowds))
        least = 1 if dimension is Dimension.REQUESTS else largest * _FEW_CALLS
        amount = _rounded_up(max(units * window_s / ends_s, least))
        limits.append(Limit(dimension, amount, window_s, rng.choice(tuple(LimitKind)), told=rng.random() < 0.85))
    requests = next((limit for limit in limits if limit.dimension is Dimension.REQUESTS), None)
    if requests is not None and requests.window_s >= _LONG_S and rng.random() < 0.25:
        burst = max(2, math.ceil(requests.amount * 5 / requests.window_s * rng.uniform(1.5, 4)))
        limits.append(Limit(Dimension.REQUESTS, burst, 5, rng.choice(tuple(LimitKind)), told=False))
    return tuple(limits)


def _faults(rng: random.Random, crowds: Sequence[Crowd]) -> dict[str, float]:
    """Shares of the attempts, 45 % in all at most."""
    kinds = [*_STATUSES, *_NO_STATUS]
    if all(crowd.streamed for crowd in crowds):
        kinds += _STREAMED
    if not any(crowd.streamed for crowd in crowds):
        kinds += _UNSTREAMED
    chosen = sorted(set(rng.sample(kinds, rng.randint(1, 3))))
    whole = _log_uniform(rng, 0.01, 0.45)
    parts = [rng.uniform(0.2, 1) for _ in chosen]
    return {name: math.floor(1000 * whole * part / sum(parts)) / 1000 for name, part in zip(chosen, parts, strict=True)}


def _with_odd_ends(scenario: Scenario, rng: random.Random) -> Scenario:
    """The same load; of some, answers have odd ends. A good reader takes none of them for a failure."""
    # Without its end, no client knows that a plain answer is over.
    kinds = [name for name in ODD_ENDS if name != "left-open" or all(crowd.streamed for crowd in scenario.crowds)]
    chosen = rng.sample(kinds, rng.choice((0, 0, 1, 2, 3)))
    mix = {**scenario.provider.faults} | {name: round(_log_uniform(rng, 0.02, 0.15), 3) for name in chosen}
    return replace(scenario, provider=replace(scenario.provider, faults=mix))


def _outages(rng: random.Random, ends_s: float) -> tuple[ProviderOutage, ...]:
    outages: list[ProviderOutage] = []
    at_s = 0.0
    for _ in range(rng.choice((1, 1, 2))):
        from_s = round(at_s + rng.uniform(0, 0.8) * ends_s, 1)
        to_s = round(from_s + _log_uniform(rng, 10, 300), 1)
        outages.append(ProviderOutage(from_s, to_s, rng.choice((529, 529, 503, 502, 500))))
        at_s = to_s + 10
    return tuple(outages)


def _caps(rng: random.Random, concurrency: int, ends_s: float) -> tuple[tuple[float, int], ...]:
    instants = sorted(round(rng.uniform(0.1, 1.5) * ends_s, 1) for _ in range(rng.randint(1, 3)))
    return tuple((at_s, max(1, round(concurrency * _log_uniform(rng, 0.3, 2)))) for at_s in instants)


def _neighbour(rng: random.Random, limits: Sequence[Limit]) -> Neighbour | None:
    """Takes up to a third of the tightest limit that counts requests or input; None: none is large enough."""
    input_tokens = rng.choice((100, 1000))
    counted = [limit for limit in limits if limit.dimension is not Dimension.OUTPUT_TOKENS]
    calls = [limit.amount / (1 if limit.dimension is Dimension.REQUESTS else input_tokens) for limit in counted]
    if min(calls, default=0) < _FEW_CALLS:
        return None
    rates = [amount / limit.window_s for amount, limit in zip(calls, counted, strict=True)]
    calls_per_s = _rounded(min(2.0, min(rates) * rng.uniform(0.05, 0.33)))
    return Neighbour(calls_per_s, input_tokens, latency_s=_rounded(rng.uniform(0.1, 3)))


# Whether it can be served --------------------------------------------------------------------------------------------


def patience_s(scenario: Scenario) -> float:
    """How long a call of the scenario may have to wait in a fair order, with its service; see this file's head."""
    provider = scenario.provider
    faults = _worst_faults(provider)
    failing = sum(faults.values())
    round_s = min(_round_s(scenario, failing), whole_s(scenario) / (1 - failing))
    attempts = math.ceil(math.log(_BAD_LUCK) / math.log(failing)) if failing else 1
    attempt_s = max(_most_service_s(crowd, _TAIL_SIGMAS) for crowd in scenario.crowds)
    attempt_s += Watchdog().silent_s * min(1.0, 3 * faults.get("hang", 0))
    policy = RetryPolicy()
    backoffs_s = sum(min(policy.first_backoff_s * 2.0**number, policy.max_backoff_s) for number in range(attempts - 1))
    outages_s = sum(outage.to_s - outage.from_s for outage in provider.outages)
    return round_s + attempts * attempt_s + backoffs_s + outages_s


def _round_s(scenario: Scenario, failing: float) -> float:
    """Until everybody has had one more call, at limits that begin empty; families take turns."""
    families = _families(scenario.crowds)
    agents = sum(families.values())
    rounds = max(families.values()) * len(families) / agents
    worst_s = 0.0
    for limit in _left_of(scenario):
        units = rounds * sum(_most(crowd, limit.dimension) * crowd.agents for crowd in scenario.crowds)
        # A whole limit more has to come back than one that begins full lets through.
        spent = Spent({limit.dimension: math.ceil(units / (1 - failing)) + limit.amount}, 0.0, 0.0)
        guessed = _guessed(limit.dimension) / limit.amount * agents
        guessed_s = guessed * max(_most_service_s(crowd, 1) for crowd in scenario.crowds)
        worst_s = max(worst_s, lower_bound(spent, [limit], concurrency=None).bound_s + guessed_s)
    hang_s = Watchdog().silent_s * _worst_faults(scenario.provider).get("hang", 0)
    service_s = rounds * sum((_most_service_s(crowd, 1) + hang_s) * crowd.agents for crowd in scenario.crowds)
    spent = Spent({}, 0.0, service_s / (1 - failing))
    return max(worst_s, lower_bound(spent, (), concurrency=_lowest_cap(scenario)).bound_s)


def whole_s(scenario: Scenario) -> float:
    """The scenario's lower bound, with what its agents usually want and no fault."""
    crowds = scenario.crowds
    units = {
        dimension: math.ceil(sum(_usual(crowd, dimension) * crowd.agents * (crowd.turns or 0) for crowd in crowds))
        for dimension in Dimension
    }
    service_s = sum(_usual_service_s(crowd) * crowd.agents * (crowd.turns or 0) for crowd in crowds)
    spent = Spent(units, _conversation_s(crowds), service_s)
    outages = tuple((outage.from_s, outage.to_s) for outage in scenario.provider.outages)
    return lower_bound(spent, _left_of(scenario), concurrency=_lowest_cap(scenario), outages=outages).bound_s


def _lowest_cap(scenario: Scenario) -> int | None:
    first = scenario.provider.concurrency
    return None if first is None else min([first, *(cap for _, cap in scenario.caps)])


def _worst_faults(provider: ProviderSettings) -> Mapping[str, float]:
    """The usual ones, or those of the worst storm; odd ends are no failures."""
    mixes = (provider.faults, *(storm.faults for storm in provider.storms))
    failing = ({name: share for name, share in mix.items() if name not in ODD_ENDS} for mix in mixes)
    return max(failing, key=lambda one: sum(one.values()))


def _left_of(scenario: Scenario) -> list[Limit]:
    """The limits without what the neighbour takes."""
    neighbour = next(iter(scenario.neighbours), None)
    if neighbour is None:
        return list(scenario.provider.limits)
    each = {
        Dimension.REQUESTS: 1,
        Dimension.INPUT_TOKENS: neighbour.input_tokens,
        Dimension.TOTAL_TOKENS: neighbour.input_tokens,
        Dimension.OUTPUT_TOKENS: 0,
    }
    return [
        replace(
            limit,
            amount=max(1, math.floor(limit.amount - neighbour.calls_per_s * limit.window_s * each[limit.dimension])),
        )
        for limit in scenario.provider.limits
    ]


def is_feasible(scenario: Scenario) -> bool:
    """Whether a good scheduler loses nobody of it."""
    streamed = {crowd.streamed for crowd in scenario.crowds}
    incurable = {*(_UNSTREAMED if True in streamed else ()), *(_STREAMED if False in streamed else ())}
    needed_s, resends = patience_s(scenario), _resends(scenario)
    return not incurable & _worst_faults(scenario.provider).keys() and all(
        crowd.timeout_s >= _MARGIN[0] * needed_s and crowd.retries >= resends for crowd in scenario.crowds
    )


def _is_wanted(scenario: Scenario) -> bool:
    """Whether it is neither too small to tell something, nor too large."""
    crowds, provider = scenario.crowds, scenario.provider
    least, most = _CALLS
    if not least <= sum(crowd.agents * (crowd.turns or 0) for crowd in crowds) <= most:
        return False
    failing = sum(provider.faults.values())
    outages_s = sum(outage.to_s - outage.from_s for outage in provider.outages)
    return (
        max(crowd.timeout_s for crowd in crowds) <= _MOST_PATIENCE_S
        and whole_s(scenario) / (1 - failing) + outages_s <= _MOST_TIME_S
    )


def _resends(scenario: Scenario) -> int:
    """How many re-sends clients need, because the scheduler tries a call only so often; above 2: too many."""
    faults = _worst_faults(scenario.provider)
    failing = sum(faults.values())
    without_status = sum(share for name, share in faults.items() if name not in _STATUSES)
    policy = RetryPolicy()
    spent = failing**policy.max_failures
    spent += (without_status / (without_status + 1 - failing)) ** (policy.max_ambiguous + 1)
    calls = sum(crowd.agents * (crowd.turns or 0) for crowd in scenario.crowds)
    return next((resends for resends in range(3) if calls * spent ** (1 + resends) <= _UNLUCKY_CALLS), 3)


# What a crowd wants --------------------------------------------------------------------------------------------------


def _conversation_s(crowds: Sequence[Crowd]) -> float:
    """How long the longest conversation takes as a rule."""
    return max(
        crowd.starts_s[1] + (crowd.turns or 0) * (_mean(crowd.think_s) + _usual_service_s(crowd)) for crowd in crowds
    )


def _limit_s(limit: Limit, crowds: Sequence[Crowd]) -> float:
    units = sum(_usual(crowd, limit.dimension) * crowd.agents * (crowd.turns or 0) for crowd in crowds)
    return units / limit.amount * limit.window_s


def _usual_service_s(crowd: Crowd) -> float:
    """Of one call, without spikes."""
    return crowd.latency_s + _mean(crowd.output_tokens) / crowd.tokens_per_s


def _most_service_s(crowd: Crowd, sigmas: float) -> float:
    """Of a call with the longest answer that begins so late; with a spike where there are some."""
    latency_s = crowd.latency_s * math.exp(sigmas * crowd.latency_sigma)
    if crowd.spike_rate:
        latency_s *= crowd.spike_factor
    return latency_s + crowd.output_tokens[1] / crowd.tokens_per_s


def _most(crowd: Crowd, dimension: Dimension) -> int:
    """What the largest call of an agent takes of a limit, when nothing of it is in a prompt cache."""
    turns = crowd.turns or 0
    into = crowd.shared_tokens + crowd.opening_tokens[1] + crowd.prompt_tokens[1]
    if crowd.remembers:
        into += (turns - 1) * (crowd.prompt_tokens[1] + crowd.output_tokens[1])
    return _of(dimension, into, crowd.output_tokens[1])


def _usual(crowd: Crowd, dimension: Dimension) -> float:
    """What its calls take on average."""
    turns = crowd.turns or 0
    new, out = _mean(crowd.prompt_tokens), _mean(crowd.output_tokens)
    into = crowd.shared_tokens + _mean(crowd.opening_tokens) + new
    if crowd.remembers:
        more = new + out
        into = into / turns + more if crowd.caches else into + (turns - 1) / 2 * more
    return _of(dimension, into, out)


def _guessed(dimension: Dimension) -> int:
    """What a first call is held to take, of whose answer nobody knows the length; it is settled when it ends."""
    return _of(dimension, 0, Charge().default_output_tokens) if dimension is not Dimension.REQUESTS else 0


def _of[T: (int, float)](dimension: Dimension, into: T, out: T) -> T:
    match dimension:
        case Dimension.REQUESTS:
            return type(into)(1)
        case Dimension.INPUT_TOKENS:
            return into
        case Dimension.OUTPUT_TOKENS:
            return out
        case Dimension.TOTAL_TOKENS:
            return into + out


def _families(crowds: Sequence[Crowd]) -> dict[str, int]:
    """Agents by the one that they are, or work for: a fair order is one of families."""
    families: dict[str, int] = {}
    for crowd in crowds:
        for number in range(crowd.agents):
            family = crowd.parent_session or f"{crowd.name}-{number // crowd.per_session}"
            families[family] = families.get(family, 0) + 1
    return families


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


def _rounded(value: float) -> float:
    """To two digits: who reads the file has to take it in."""
    return float(f"{value:.2g}")


def _rounded_up(amount: float) -> int:
    """The same, of a whole number, and never below it."""
    step = int(10.0 ** max(0, math.floor(math.log10(amount)) - 1))
    return math.ceil(amount / step) * step


def _about(scenario: Scenario) -> str:
    provider = scenario.provider
    agents = sum(crowd.agents for crowd in scenario.crowds)
    limits = ", ".join(
        f"{limit.amount} {limit.dimension.value.replace('_', ' ')} per {limit.window_s:g} s ({limit.kind.value})"
        for limit in provider.limits
    )
    words = [f"{agents} agent{'s' if agents > 1 else ''}", limits or "no limit"]
    if provider.limits and not provider.rate_limit_headers:
        words.append("no headers")
    if provider.concurrency is not None:
        words.append(f"cap {provider.concurrency}")
    if failing := sum(_worst_faults(provider).values()):
        words.append(f"{failing:.0%} faults")
    if provider.faults.keys() & ODD_ENDS:
        words.append("odd ends")
    if provider.outages:
        words.append("outages")
    if scenario.neighbours:
        words.append("a neighbour")
    return "Random: " + ", ".join(words) + "."
