"""Workloads that nobody chose: any number of them, each drawn by its number. Pure and repeatable.

    random_load(17) ──► crowds, providers, faults, neighbours by PARTS and KINDS ──► patience ──► Scenario "random-17"

Each load is feasible: a good scheduler loses nobody. A load that asks for more than an hour of patience, or for more
time than a night's run has, is drawn again. A client's patience is `_MARGIN` times the longest wait of a call in a fair
order: until every agent, or every member of the largest family as often as there are families, has had one more turn of
the largest size, at limits that begin empty and are as low as they get, with the fewest slots, beside the neighbour,
with the share of attempts that fail (`sim/bound.py`), and with first answers of unknown length. Outages, bans, wrong
waits, and the attempts of a call that has bad luck come on top. An equal endpoint counts for nothing.

Parts that no patience cures are not drawn: faults in the middle of a stream, which the client sees; hangs of answers
that are not streamed, which look like slow answers, or in a silent queue; a provider that tells nothing, neither by
headers nor by a retry-after, about a window of minutes, or while refusals count. `budget_tokens`, `priority`,
`fault_course`, `announces_timeout` and the words of other providers' refusals are not drawn either.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from hivemind_addon.formats.base.document import read_yaml
from hivemind_addon.formats.profile.model import Charge, Watchdog
from hivemind_addon.kernel.limits.machine import MachineSettings
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.retry import RetryPolicy
from hivemind_addon.kernel.values.ticket import Dimension, PoolKey
from hivemind_addon.sim.bound import Spent, lower_bound
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.faults import ODD_ENDS
from hivemind_addon.sim.limits import (
    Ban,
    Limit,
    LimitChange,
    LimitKind,
    LimitReport,
    ModelScope,
    RetryAfter,
    WindowKind,
)
from hivemind_addon.sim.provider import ProviderOutage, ProviderSettings, Storm
from hivemind_addon.sim.workload import DAY_S, DEFAULT_MODEL, Crowd, Neighbour, RefusedForGood, Scenario, Site

_TABLES = Path(__file__).with_suffix(".yaml")
_SHARES = read_yaml(_TABLES.read_bytes(), _TABLES)
PARTS: Mapping[str, float] = _SHARES["parts"]
"""Of a load, crowd, limit …: which part → share of those that draw the part."""
KINDS: Mapping[str, Mapping[str, int]] = _SHARES["kinds"]
"""Choice → each kind, and its weight beside the others."""

_NAME = re.compile(r"random-(\d{1,9})")
_MARGIN = (1.5, 4.0)
_MOST_PATIENCE_S = 3600  # as `hivemind exec` gives it
_MOST_TIME_S = 5400  # of a whole run, at its lower bound
_CALLS = (20, 1500)  # of a run
_FEW_CALLS = 3  # of the largest size, which every limit of tokens lets through at once
_WINDOWS_S = (5, 10, 20, 60, 60, 60, 120, 300, 600)
_LONG_S = 60  # of a longer window a provider tells something
_QUEUE_S = 60  # the longest silent queue; a stream that is silent for `watchdog.silent_s` is closed
_BAD_LUCK = 1e-3  # share of the calls that may need more attempts than their patience has time for
_UNLUCKY_CALLS = 0.01  # of a run, that may fail for good by chance alone
_TAIL_SIGMAS = 3.5
_STATUSES = ("500", "502", "503", "504", "529", "429", "429-retry-after", "html")
_NO_STATUS = ("reset-before-head", "close-before-head", "head-then-reset", "refused-stream")
_UNSTREAMED = ("body-cut", "body-reset", "stream-close")
_STREAMED = ("error-first", "hang", "hang")
_HARSH = (RetryAfter.MISSING, RetryAfter.SHORT)  # too early again is dear where refusals count


def number_in(name: str) -> int | None:
    """The number of the random load with this name; None: the name is another."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def random_load(number: int) -> Scenario:
    """The load of this number, `random-<number>`; always the same."""
    rng = random.Random(f"random load {number}")
    server, is_day = _kind(rng, "server"), _has(rng, "load: a whole day")
    while True:
        drawn = _drawn(rng, f"random-{number}", server, is_day=is_day)
        if _is_wanted(drawn) and is_feasible(drawn):
            return _with_odd_ends(drawn, random.Random(f"odd ends of {drawn.name}"))


# The draw -----------------------------------------------------------------------------------------------------------


def _has(rng: random.Random, part: str) -> bool:
    return rng.random() < PARTS[part]


def _or[T](rng: random.Random, part: str, value: T, otherwise: T) -> T:
    return value if _has(rng, part) else otherwise


def _kind(rng: random.Random, name: str) -> str:
    return rng.choices([*KINDS[name]], [*KINDS[name].values()])[0]


def _drawn(rng: random.Random, name: str, server: str, *, is_day: bool) -> Scenario:
    crowds, sites = _crowds(rng, server, is_day=is_day), tuple[Site, ...]()
    own, last = _provider(rng, crowds, server), crowds[-1]
    is_alone = server == "models_loaded" or len(crowds) == 1 or bool(last.parent_session)
    if not is_alone and _has(rng, "load of crowds: another provider serves one"):
        dialect, profile = _or(
            rng, "other provider: OpenAI's dialect", (SimDialect.CHAT, "openai"), (SimDialect.MESSAGES, "anthropic")
        )
        if dialect is SimDialect.CHAT:
            last = replace(last, caches=False, shared_tokens=0)
        own, last = _provider(rng, crowds[:-1], server), replace(last, site="other")
        other, crowds = _provider(rng, [last], "others"), (*crowds[:-1], last)
        sites = (Site(other, "other", PoolKey("other.sim", "key-other", DEFAULT_MODEL), profile, dialect),)
    elif server != "models_loaded" and _has(rng, "load: a second, equal endpoint"):
        twin = replace(own, outages=())
        sites = (Site(twin, "second", PoolKey("second.sim", "key-second", DEFAULT_MODEL), equal=True),)
    are_there = server in ("any number", "slows_beyond") and not is_day and _has(rng, "load: neighbours")
    cap, ends_s = own.concurrency, _conversation_s(crowds)
    scheduler = None
    if held := own.models_loaded:
        scheduler = PoolSettings(concurrency=ConcurrencySettings(held, held), machine=MachineSettings())
    scenario = Scenario(
        name,
        crowds,
        own,
        duration_s=DAY_S if is_day else math.inf,
        caps=_caps(rng, cap, ends_s) if cap and _has(rng, "load with a cap: the cap moves") else (),
        neighbours=_neighbours(rng, own) if are_there else (),
        way_jitter_s=_or(rng, "load: the way's time varies", _rounded(rng.uniform(0.01, 0.1)), 0),
        input_error=rng.choice((0.0, 0.0, 0.1, 0.3)),
        sites=sites,
        scheduler=scheduler,
    )
    needed_s, resends = patience_s(scenario), _resends(scenario)

    def patient(crowd: Crowd) -> Crowd:
        timeout_s = 10.0 * math.ceil(rng.uniform(*_MARGIN) * needed_s / 10)
        return replace(crowd, timeout_s=timeout_s, retries=min(2, max(rng.randint(0, 2), resends)))

    return replace(scenario, crowds=tuple(map(patient, crowds)))


def _crowds(rng: random.Random, server: str, *, is_day: bool) -> tuple[Crowd, ...]:
    is_small = server == "models_loaded"
    agents = round(_log_uniform(rng, 2, 8)) if is_small or is_day else round(_log_uniform(rng, 1, 120))
    count = min(agents, rng.choice((2, 3) if is_small else (1, 1, 2, 2, 3, 4)))
    cuts = sorted(rng.sample(range(1, agents), count - 1))
    sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, agents], strict=True)]
    longest_s = _log_uniform(rng, 0.1, 3 if is_small else 30)
    least_turns = math.ceil(_CALLS[0] / agents)
    crowds = [_crowd(rng, longest_s, f"crowd-{number}", size) for number, size in enumerate(sizes, start=1)]
    crowds = [replace(crowd, turns=rng.randint(least_turns, max(20, least_turns))) for crowd in crowds]
    if count > 1 and (is_small or _has(rng, "load of crowds: several models")):
        crowds = [replace(crowd, model=f"model-{number}") for number, crowd in enumerate(crowds, start=1)]
    if is_day:
        for index, crowd in enumerate(crowds):
            opens_at, think_s = rng.randint(0, 20), (crowd.think_s[0] * 20, crowd.think_s[1] * 20)
            crowds[index] = replace(crowd, hours=(opens_at, opens_at + rng.randint(2, 8)), think_s=think_s)
    elif count > 1 and _has(rng, "load of crowds: the last is sub-agents"):
        # Of the first crowd's first session.
        crowds[-1] = replace(crowds[-1], parent_session=f"{crowds[0].name}-0", per_session=1)
    return tuple(crowds)


def _crowd(rng: random.Random, longest_s: float, name: str, agents: int) -> Crowd:
    """A crowd, but for the turns."""
    caches = _has(rng, "crowd: a prompt cache")
    # A little below the longest: crowds that share a provider share its model, or use a faster one.
    latency_s = _rounded(longest_s * rng.uniform(0.3, 1))
    think_s = _log_uniform(rng, 0.1, 20)
    prompt = round(_log_uniform(rng, 20, 3000))
    opening = round(_log_uniform(rng, 100, 20_000))
    output = round(_log_uniform(rng, 10, 2000))
    openings: tuple[int, ...] = (max(1, opening // rng.randint(1, 3)), opening)
    listed = (max(1, opening // 10), max(1, opening // 5), opening)
    most = _rounded_up(output * _log_uniform(rng, 1.5, 10))
    refused = RefusedForGood(_rounded(rng.uniform(0.02, 0.2)), rng.choice((400, 400, 404, 413)))
    beside: tuple[int, ...] = rng.choice(((1, 3), (2,), (1, 1, 4)))
    return Crowd(
        name,
        agents,
        per_session=rng.choice((1, 1, 1, 2, 4)),
        starts_s=(0, _rounded(rng.choice((0, 0, 1, 1)) * _log_uniform(rng, 1, 60))),
        think_s=(_rounded(think_s / 3), _rounded(think_s)),
        calls_per_turn=_or(rng, "crowd: several calls in a turn", beside, (1,)),
        latency_s=latency_s,
        latency_sigma=rng.choice((0.0, 0.2, 0.5)),
        spike_rate=rng.choice((0.0, 0.0, 0.02, 0.1)) if latency_s < 4 else 0.0,
        output_tokens=(max(1, output // rng.randint(1, 4)), output),
        max_tokens=_or(rng, "crowd: max_tokens above the answer", most, None),
        tokens_per_s=rng.choice((40.0, 60.0, 100.0)),
        shared_tokens=rng.choice((0, 2000, 8000)) if caches else 0,
        opening_tokens=_or(rng, "crowd: sizes of a list", listed, openings),
        prompt_tokens=(max(1, prompt // rng.randint(1, 4)), prompt),
        remembers=_has(rng, "crowd: remembers the conversation"),
        caches=caches,
        streamed=_has(rng, "crowd: streams"),
        refused=_or(rng, "crowd: some requests are refused for good", refused, None),
    )


def _provider(rng: random.Random, crowds: Sequence[Crowd], server: str) -> ProviderSettings:
    models = tuple(dict.fromkeys(crowd.model for crowd in crowds))
    families = (models[:2],) if len(models) > 1 and rng.random() < 0.5 else ()
    headers = _has(rng, "load: headers report the limits")
    is_plan = server != "others" and headers and _has(rng, "load with headers: windows of a plan")
    limits = _plan(rng, crowds) if is_plan else _limits(rng, crowds, families)
    charges = _has(rng, "load: refused and failed calls are charged")
    ban = Ban(rng.randint(10, 30), rng.choice((5.0, 10.0)), rng.choice((10.0, 30.0, 60.0)))
    bans = _or(rng, "load: a ban after refusals", ban, None)
    ahead_s = rng.choice((-1, 1)) * _rounded(_log_uniform(rng, 2, 60))
    clock_s = _or(rng, "load: the provider's clock differs", ahead_s, 0.0)
    is_harsh = charges or bans is not None or any(limit.counts_refusals for limit in limits)
    is_told = headers and not clock_s and all(limit.told and limit.reports == LimitReport() for limit in limits)
    may_say_nothing = is_told or (not is_harsh and all(limit.window_s <= _LONG_S for limit in limits))
    retry_after = RetryAfter(_kind(rng, "retry-after"))
    if (is_harsh and retry_after in _HARSH) or not (may_say_nothing or retry_after is not RetryAfter.MISSING):
        retry_after = RetryAfter.ROUNDED_UP
    calls = _at_once(crowds)
    cap = _or(rng, "load: a cap of calls at once", max(1, round(calls * _log_uniform(rng, 0.1, 1.2))), None)
    is_scoped = cap and len(models) > 1 and _has(rng, "load with a cap and models: the cap is of each model")
    ends_s = max([_conversation_s(crowds), *(_limit_s(limit, crowds, families) for limit in limits)])
    # Behind a call that hangs, a silent queue takes a day.
    hangs = server not in ("serves_at_once", "models_loaded")
    mix = _or(rng, "load: faults of 1 % to 45 % of the attempts", _faults(rng, crowds, hangs=hangs), {})
    worse = _faults(rng, crowds, hangs=False)
    from_s = round(rng.uniform(0, 0.8) * ends_s, 1)
    storm = Storm(from_s, round(from_s + _log_uniform(rng, 10, 300), 1), worse)
    provider = ProviderSettings(
        limits=limits,
        concurrency=None if server == "models_loaded" else cap,
        concurrency_scope=ModelScope.MODEL if is_scoped else ModelScope.KEY,
        concurrency_status=rng.choice((529, 529, 503, 429)) if cap else ProviderSettings().concurrency_status,
        ban=bans,
        families=families,
        # A slot with a hang would be taken for a day.
        works_on=_has(rng, "load: abandoned calls go on") and "hang" not in mix,
        linger_s=_or(rng, "load: slots linger", _rounded(_log_uniform(rng, 0.1, 5)), 0.0),
        charge_failures=charges,
        rate_limit_headers=headers,
        retry_after=retry_after,
        clock_s=clock_s,
        dates=bool(clock_s) and _has(rng, "load with another clock: responses have dates"),
        faults=mix,
        storms=(storm,) if mix and _has(rng, "load with faults: a storm of more") else (),
        outages=_or(rng, "load: outages", _outages(rng, ends_s), ()),
        cache_ttl_s=rng.choice((60, 300)) if any(crowd.caches for crowd in crowds) else 0,
    )
    largest = max(_most(crowd, Dimension.TOTAL_TOKENS) for crowd in crowds)
    busy_s = sum(crowd.usual_service_s * _at_once([crowd]) for crowd in crowds)
    own: Mapping[str, float] = {
        "serves_at_once": max(math.ceil(busy_s / _QUEUE_S), round(calls * _log_uniform(rng, 0.1, 1))),
        "slows_beyond": math.ceil(calls / rng.uniform(1, 3)),
        "tokens_at_once": _rounded_up(largest * _log_uniform(rng, 2, max(3, calls))),
        "models_loaded": rng.randint(1, 2),
    }
    load_s = _rounded(rng.uniform(0.5, 4)) if server == "models_loaded" else 0.0
    return replace(provider, load_s=load_s, **({server: own[server]} if server in own else {}))  # type: ignore[arg-type]


def _limits(rng: random.Random, crowds: Sequence[Crowd], families: Sequence[tuple[str, ...]]) -> tuple[Limit, ...]:
    """Up to three. Each alone would let the run end in a few times the longest conversation."""
    limits: list[Limit] = []
    models = {crowd.model for crowd in crowds}
    for dimension in rng.sample(tuple(Dimension), int(_kind(rng, "limits"))):
        window_s = rng.choice(_WINDOWS_S)
        ends_s = max(_conversation_s(crowds) * _log_uniform(rng, 0.4, 4), window_s * rng.uniform(0.5, 4))
        scope = ModelScope.KEY
        if _has(rng, "limit: is of each user"):
            scope = ModelScope.USER
        elif len(models) > 1 and _has(rng, "limit with models: is of each model or family"):
            scope = ModelScope.FAMILY if families else ModelScope.MODEL
        units = max(_units(group, dimension) for group in _groups(crowds, scope, families))
        largest = max(_guessed(dimension), *(_most(crowd, dimension) for crowd in crowds))
        least = 1 if dimension is Dimension.REQUESTS else largest * _FEW_CALLS
        amount = _rounded_up(max(units * window_s / ends_s, least))
        limit = Limit(dimension, amount, window_s, LimitKind(_kind(rng, "kind of limit")), scope=scope)
        limits.append(_varied(rng, limit, least, ends_s))
    requests = next((limit for limit in limits if limit.dimension is Dimension.REQUESTS), None)
    if requests and requests.window_s >= _LONG_S and _has(rng, "limit: a hidden one of 5 s beside requests"):
        burst = max(2, math.ceil(requests.amount * 5 / requests.window_s * rng.uniform(1.5, 4)))
        kind = LimitKind(_kind(rng, "kind of limit"))
        limits.append(Limit(Dimension.REQUESTS, burst, 5, kind, told=False, scope=requests.scope))
    return tuple(limits)


def _varied(rng: random.Random, limit: Limit, least: int, ends_s: float) -> Limit:
    """The limit with more keys. `least`: units that must fit at once."""
    amount = limit.amount
    if limit.kind is LimitKind.WINDOW:
        limit = replace(limit, windows=WindowKind(_kind(rng, "windows")))
    elif _has(rng, "bucket: grows with use"):
        limit = replace(limit, growth=_rounded(rng.uniform(1.2, 2)))
    elif _has(rng, "bucket: a burst of its own"):
        limit = replace(limit, burst=_rounded_up(max(least, amount * rng.uniform(0.05, 0.6))))
    if not limit.growth and limit.burst is None and _has(rng, "limit: the amount changes"):
        instants = sorted(round(rng.uniform(0.1, 1) * ends_s, 1) for _ in range(rng.randint(1, 2)))
        amounts = [_rounded_up(max(least, amount * _log_uniform(rng, 0.4, 2.5))) for _ in instants]
        limit = replace(limit, changes=tuple(map(LimitChange, instants, amounts)))
    wrong, old = _rounded_up(amount * _log_uniform(rng, 0.5, 2)), _rounded(_log_uniform(rng, 1, 20))
    report = rng.choice((LimitReport(amount=wrong), LimitReport(age_s=old), LimitReport(on_refusals=False)))
    return replace(
        limit,
        told=not _has(rng, "limit: is not reported"),
        counts_refusals=_has(rng, "limit: refused calls are counted"),
        reports=_or(rng, "limit: reports are wrong, old or on answers only", report, LimitReport()),
    )


def _plan(rng: random.Random, crowds: Sequence[Crowd]) -> tuple[Limit, ...]:
    """The windows of a plan, both shorter than their names; the second is wide."""
    units, window_s = math.ceil(_units(crowds, Dimension.REQUESTS)), rng.choice((300, 600, 1200))
    amount = _rounded_up(units * rng.uniform(0.3, 1))
    left, full_in_s = math.ceil(amount * rng.uniform(0.1, 1)), round(window_s * rng.uniform(0.1, 1))
    first = Limit(Dimension.REQUESTS, amount, window_s, LimitKind.WINDOW, plan="5h", left=left, full_in_s=full_in_s)
    return first, Limit(Dimension.REQUESTS, 4 * units, 7200, LimitKind.WINDOW, plan="7d")


def _faults(rng: random.Random, crowds: Sequence[Crowd], *, hangs: bool) -> dict[str, float]:
    """Shares of the attempts, 45 % in all at most."""
    kinds = [*_STATUSES, *_NO_STATUS]
    if all(crowd.streamed for crowd in crowds):
        kinds += _STREAMED if hangs else _STREAMED[:1]
    if not any(crowd.streamed for crowd in crowds):
        kinds += _UNSTREAMED
    chosen = sorted(set(rng.sample(kinds, rng.randint(1, 3))))
    whole = _log_uniform(rng, 0.01, 0.45)
    parts = [rng.uniform(0.2, 1) for _ in chosen]
    return {name: math.floor(1000 * whole * part / sum(parts)) / 1000 for name, part in zip(chosen, parts, strict=True)}


def _with_odd_ends(scenario: Scenario, rng: random.Random) -> Scenario:
    """The same load, with odd ends of some answers. A good reader takes none for a failure."""
    # Without the end, no client knows that a plain answer is over.
    kinds = [name for name in ODD_ENDS if name != "left-open" or all(crowd.streamed for crowd in scenario.crowds)]
    if not _has(rng, "load: odd ends of answers"):
        return scenario
    chosen = rng.sample(kinds, rng.choice((1, 2, 3)))
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


def _neighbours(rng: random.Random, provider: ProviderSettings) -> tuple[Neighbour, ...]:
    """Takes up to a third of the tightest limit that counts requests or input, and of the slots; or there is none."""
    input_tokens = rng.choice((100, 1000))
    latency_s = _rounded(rng.uniform(0.1, 3))
    counted = [limit for limit in map(_worst, provider.limits) if limit.dimension is not Dimension.OUTPUT_TOKENS]
    calls = [limit.amount / (1 if limit.dimension is Dimension.REQUESTS else input_tokens) for limit in counted]
    if min(calls, default=0) < _FEW_CALLS:
        return ()
    rates = [amount / limit.window_s for amount, limit in zip(calls, counted, strict=True)]
    rates += [provider.concurrency / latency_s] if provider.concurrency else []
    rate = _rounded(min(2.0, min(rates) * rng.uniform(0.05, 0.33)))
    from_s, lasts_s = round(rng.uniform(0, 200)), round(_log_uniform(rng, 30, 300))
    every_s = rng.choice((math.inf, round(lasts_s * rng.uniform(1.5, 4))))
    spans = _or(rng, "neighbour: comes and goes", (from_s, from_s + lasts_s, every_s), (0, math.inf, math.inf))
    return (Neighbour(rate, input_tokens, 8, latency_s, *spans, waits=_has(rng, "neighbour: waits")),)


# Whether it can be served --------------------------------------------------------------------------------------------


def patience_s(scenario: Scenario) -> float:
    """How long a call of the scenario may have to wait in a fair order, with its service; see this file's head."""
    return max(map(_patience_s, _parts(scenario)))


def _parts(scenario: Scenario) -> list[Scenario]:
    """The load of each provider, by itself."""
    sites = {"": scenario.provider} | {site.name: site.provider for site in scenario.sites}
    parts = [
        replace(
            scenario,
            crowds=tuple(crowd for crowd in scenario.crowds if crowd.site == name),
            provider=provider,
            caps=() if name else scenario.caps,
            neighbours=tuple(one for one in scenario.neighbours if one.site == name),
            sites=(),
        )
        for name, provider in sites.items()
    ]
    return [part for part in parts if part.crowds] or [scenario]


def _patience_s(scenario: Scenario) -> float:
    provider, crowds = scenario.provider, scenario.crowds
    faults = _worst_faults(provider)
    failing = sum(faults.values())
    round_s = min(_round_s(scenario, failing), whole_s(scenario) / (1 - failing))
    attempts = math.ceil(math.log(_BAD_LUCK) / math.log(failing)) if failing else 1
    attempt_s = max(_most_service_s(crowd, _TAIL_SIGMAS) for crowd in crowds) + scenario.way_jitter_s
    attempt_s += Watchdog().silent_s * min(1.0, 3 * faults.get("hang", 0))
    if provider.slows_beyond:
        attempt_s *= max(1.0, _at_once(crowds) / provider.slows_beyond) ** 2
    if provider.serves_at_once or provider.models_loaded:  # the silent queue comes before each attempt
        busy_s = sum((_most_service_s(crowd, 1) + provider.load_s) * _at_once([crowd]) for crowd in crowds)
        attempt_s += busy_s / (provider.serves_at_once or 1)
    policy = RetryPolicy()
    backoffs_s = sum(min(policy.first_backoff_s * 2.0**number, policy.max_backoff_s) for number in range(attempts - 1))
    outages_s = sum(outage.to_s - outage.from_s for outage in provider.outages)
    bans_s = 2 * provider.ban.lasts_s if provider.ban else 0.0
    longest_s = max((limit.window_s for limit in provider.limits), default=0.0)
    wrong_s = 2 * abs(provider.clock_s) + 2 * max((limit.reports.age_s for limit in provider.limits), default=0.0)
    if provider.retry_after in (RetryAfter.LONG, RetryAfter.ALWAYS_60):
        wrong_s += max(60.0, longest_s * 10 if provider.retry_after is RetryAfter.LONG else 0.0)
    return round_s + attempts * attempt_s + backoffs_s + outages_s + bans_s + wrong_s


def _round_s(scenario: Scenario, failing: float) -> float:
    """Until everybody has had another turn, at limits that begin empty; families take turns."""
    provider, crowds = scenario.provider, scenario.crowds
    families = _families(crowds)
    rounds = max(families.values()) * len(families) / sum(families.values()) / (1 - failing)
    slowest_s = max(_most_service_s(crowd, 1) for crowd in crowds)
    held_s = Watchdog().silent_s * _worst_faults(provider).get("hang", 0) + provider.linger_s + provider.load_s
    service_s = sum((_most_service_s(crowd, 1) + held_s) * _at_once([crowd]) for crowd in crowds)
    worst_s = lower_bound(Spent({}, 0.0, rounds * service_s), (), concurrency=_fewest_slots(scenario)).bound_s
    for limit in _left_of(scenario):
        for group in _groups(crowds, limit.scope, provider.families):
            units = rounds * sum(_most(crowd, limit.dimension) * _at_once([crowd]) for crowd in group)
            # A whole limit more has to come back than one that begins full lets through.
            guessed_s = _guessed(limit.dimension) / limit.amount * _at_once(group) * slowest_s
            worst_s = max(worst_s, _let_s(limit, units + limit.amount) + guessed_s)
    return worst_s


def _let_s(limit: Limit, units: float, outages: Sequence[tuple[float, float]] = ()) -> float:
    """When a limit can have let so many units through."""
    return lower_bound(
        Spent({limit.dimension: math.ceil(units)}, 0.0, 0.0), [limit], concurrency=None, outages=outages
    ).bound_s


def whole_s(scenario: Scenario) -> float:
    """The scenario's lower bound, with usual sizes and no fault."""
    return max(map(_whole_s, _parts(scenario)))


def _whole_s(scenario: Scenario) -> float:
    crowds, provider = scenario.crowds, scenario.provider
    held_s = provider.linger_s + provider.load_s
    spent = Spent(
        {}, _conversation_s(crowds), sum((crowd.usual_service_s + held_s) * _calls([crowd]) for crowd in crowds)
    )
    outages = tuple((outage.from_s, outage.to_s) for outage in provider.outages)
    worst_s = lower_bound(spent, (), concurrency=_fewest_slots(scenario)).bound_s
    for limit in _left_of(scenario):
        empty = limit.amount if limit.left is not None else 0
        for group in _groups(crowds, limit.scope, provider.families):
            worst_s = max(worst_s, _let_s(limit, _units(group, limit.dimension) + empty, outages))
    return worst_s


def _fewest_slots(scenario: Scenario) -> int | None:
    """Calls that are surely served at once, beside the neighbours; None: any number."""
    provider, calls = scenario.provider, _at_once(scenario.crowds)
    slots = [cap for _, cap in scenario.caps] if provider.concurrency else []
    if provider.concurrency:
        slots.append(provider.concurrency)
        taken = sum(one.calls_per_s * one.latency_s for one in scenario.neighbours)
        slots = [slot - math.ceil(taken) for slot in slots]
    if provider.serves_at_once:
        slots.append(provider.serves_at_once)
    if beyond := provider.slows_beyond:  # all of them at once: n calls take (n ÷ beyond)² times as long
        slots.append(min(beyond, beyond**2 // calls))
    if most := provider.tokens_at_once:
        slots.append(most // max(_most(crowd, Dimension.TOTAL_TOKENS) for crowd in scenario.crowds))
    if provider.models_loaded:
        slots.append(1)
    return max(1, min(slots)) if slots else None


def _worst_faults(provider: ProviderSettings) -> Mapping[str, float]:
    """The usual ones, or those of the worst storm; odd ends are no failures."""
    mixes = (provider.faults, *(storm.faults for storm in provider.storms))
    failing = ({name: share for name, share in mix.items() if name not in ODD_ENDS} for mix in mixes)
    return max(failing, key=lambda one: sum(one.values()))


def _worst(limit: Limit) -> Limit:
    """The limit at the lowest. A limit that grows is held for a window."""
    amount = min((limit.amount, *(change.amount for change in limit.changes)))
    limit = replace(limit, amount=amount, changes=())
    return replace(limit, growth=0.0, kind=LimitKind.WINDOW) if limit.growth else limit


def _left_of(scenario: Scenario) -> list[Limit]:
    """The lowest limits, without the neighbours' share."""
    taken = dict.fromkeys(Dimension, 0.0)
    for one in scenario.neighbours:
        for dimension in Dimension:
            taken[dimension] += one.calls_per_s * _of(dimension, one.input_tokens, one.output_tokens)
    return [
        replace(limit, amount=max(1, math.floor(limit.amount - limit.window_s * taken[limit.dimension])))
        for limit in map(_worst, scenario.provider.limits)
    ]


def is_feasible(scenario: Scenario) -> bool:
    """Whether a good scheduler loses nobody."""
    needed_s, resends = patience_s(scenario), _resends(scenario)
    for part in _parts(scenario):
        streamed = {crowd.streamed for crowd in part.crowds}
        incurable = {*(_UNSTREAMED if True in streamed else ()), *(_STREAMED if False in streamed else ())}
        if incurable & _worst_faults(part.provider).keys():
            return False
    return all(crowd.timeout_s >= _MARGIN[0] * needed_s and crowd.retries >= resends for crowd in scenario.crowds)


def _is_wanted(scenario: Scenario) -> bool:
    """Whether the load is neither too small to tell something, nor too large."""
    crowds, whole_day = scenario.crowds, math.isfinite(scenario.duration_s)
    if not _CALLS[0] <= _calls(crowds) <= _CALLS[1] or max(crowd.timeout_s for crowd in crowds) > _MOST_PATIENCE_S:
        return False
    for part in _parts(scenario):
        outages_s = sum(outage.to_s - outage.from_s for outage in part.provider.outages)
        needed_s = _whole_s(part) / (1 - sum(_worst_faults(part.provider).values())) + outages_s
        if needed_s > (DAY_S if whole_day else _MOST_TIME_S):
            return False
    return True


def _resends(scenario: Scenario) -> int:
    """How many re-sends clients need, because the scheduler tries a call only so often; above 2: too many."""
    policy, spent = RetryPolicy(), 0.0
    for part in _parts(scenario):
        faults = _worst_faults(part.provider)
        failing = sum(faults.values())
        without_status = sum(share for name, share in faults.items() if name not in _STATUSES)
        ambiguous = (without_status / (without_status + 1 - failing)) ** (policy.max_ambiguous + 1)
        spent = max(spent, failing**policy.max_failures + ambiguous)
    calls = _calls(scenario.crowds)
    return next((resends for resends in range(3) if calls * spent ** (1 + resends) <= _UNLUCKY_CALLS), 3)


# A crowd's needs ---------------------------------------------------------------------------------------------------


def _conversation_s(crowds: Sequence[Crowd]) -> float:
    """How long the longest conversation takes as a rule."""
    return max(
        crowd.starts_s[-1] + (crowd.turns or 0) * (_mean(crowd.think_s) + crowd.usual_service_s) for crowd in crowds
    )


def _limit_s(limit: Limit, crowds: Sequence[Crowd], families: Sequence[tuple[str, ...]]) -> float:
    units = max(_units(group, limit.dimension) for group in _groups(crowds, limit.scope, families))
    return units / limit.amount * limit.window_s


def _groups(crowds: Sequence[Crowd], scope: ModelScope, families: Sequence[tuple[str, ...]]) -> list[list[Crowd]]:
    """The crowds that a limit of this scope counts together; of each user's, one agent of each."""
    if scope is ModelScope.USER:
        return [[replace(crowd, agents=1)] for crowd in crowds]
    provider, groups = ProviderSettings(families=tuple(families)), dict[str, list[Crowd]]()
    for crowd in crowds:
        groups.setdefault(provider.counted_as(scope, crowd.model), []).append(crowd)
    return list(groups.values())


def _at_once(crowds: Sequence[Crowd]) -> int:
    """Calls that they send at the same time at most."""
    return sum(crowd.agents * max(crowd.calls_per_turn) for crowd in crowds)


def _calls(crowds: Sequence[Crowd]) -> float:
    """Of the whole run; of a day, where there are hours."""
    return sum(crowd.agents * (crowd.turns or 0) * _mean(crowd.calls_per_turn) for crowd in crowds)


def _units(crowds: Sequence[Crowd], dimension: Dimension) -> float:
    """The units of a limit that all their calls take."""
    return sum(_usual(crowd, dimension) * _calls([crowd]) for crowd in crowds)


def _most_service_s(crowd: Crowd, sigmas: float) -> float:
    """Of a call with the longest answer that begins so late; with a spike where there are some."""
    latency_s = crowd.latency_s * math.exp(sigmas * crowd.latency_sigma)
    if crowd.spike_rate:
        latency_s *= crowd.spike_factor
    return latency_s + max(crowd.output_tokens) / crowd.tokens_per_s


def _most(crowd: Crowd, dimension: Dimension) -> int:
    """The units of a limit that an agent's largest call takes, when no prompt cache helps."""
    out = max(crowd.output_tokens)
    into = crowd.shared_tokens + max(crowd.opening_tokens) + max(crowd.prompt_tokens)
    if crowd.remembers:
        into += ((crowd.turns or 1) - 1) * max(crowd.calls_per_turn) * (max(crowd.prompt_tokens) + out)
    return _of(dimension, into, crowd.max_tokens or out)


def _usual(crowd: Crowd, dimension: Dimension) -> float:
    """The units that a call takes on average."""
    turns = crowd.turns or 1
    new, out = _mean(crowd.prompt_tokens), _mean(crowd.output_tokens)
    into = crowd.shared_tokens + _mean(crowd.opening_tokens) + new
    if crowd.remembers:
        more = (new + out) * _mean(crowd.calls_per_turn)
        into = into / turns + more if crowd.caches else into + (turns - 1) / 2 * more
    return _of(dimension, into, float(crowd.max_tokens or out))


def _guessed(dimension: Dimension) -> int:
    """The units that a first call is held to take, whose answer has an unknown length until the end."""
    return _of(dimension, 0, Charge().default_output_tokens) if dimension is not Dimension.REQUESTS else 0


def _of[T: (int, float)](dimension: Dimension, into: T, out: T) -> T:
    tokens = {Dimension.INPUT_TOKENS: into, Dimension.OUTPUT_TOKENS: out, Dimension.TOTAL_TOKENS: into + out}
    return tokens.get(dimension, type(into)(1))


def _families(crowds: Sequence[Crowd]) -> Mapping[str, int]:
    """Agents by the session that they are of, or work for: a fair order takes turns between families."""
    numbered = ((crowd, number) for crowd in crowds for number in range(crowd.agents))
    return Counter(crowd.parent_session or f"{crowd.name}-{number // crowd.per_session}" for crowd, number in numbered)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


def _rounded(value: float) -> float:
    """To two digits: the file is read by people."""
    return float(f"{value:.2g}")


def _rounded_up(amount: float) -> int:
    """The same of a whole number, and never below that."""
    step = int(10.0 ** max(0, math.floor(math.log10(amount)) - 1))
    return math.ceil(amount / step) * step


def about(scenario: Scenario) -> str:
    """Agents, limits, and the keys that say something else than usual."""
    agents, provider = sum(crowd.agents for crowd in scenario.crowds), scenario.provider
    limits = ", ".join(
        f"{limit.amount} {limit.dimension.value.replace('_', ' ')} per {limit.window_s:g} s ({limit.kind.value})"
        for limit in provider.limits
    )
    usual, plain = ProviderSettings(), Scenario("", (), ProviderSettings())
    keys = [one.name for one in fields(provider) if getattr(provider, one.name) != getattr(usual, one.name)]
    keys += [one.name for one in fields(scenario) if getattr(scenario, one.name) != getattr(plain, one.name)]
    words = [key.replace("_", " ") for key in keys if key not in ("limits", "name", "crowds", "provider")]
    return f"Random: {agents} agent{'s' * (agents > 1)}, {', '.join([limits or 'no limit', *words])}."
