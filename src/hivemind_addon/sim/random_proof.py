"""The scheduler under random loads, beside first come first served and the field's habits.

Six ways to fall short on a feasible load: agents lost, attempts that a limit or the cap refuses, time
that nothing is sent for nothing, answers that are paid and neither delivered nor left by their client, more loss, time
or attempts than without a proxy, and a simpler policy that is done earlier and loses no more. Chance in a single run is
no lead: who is ahead after one seed has to be ahead in several.

`minimised` makes a load smaller that the scheduler still falls short on: greedily, the large steps first. Whole
parts are left out before halves and single ones, and various values become plain last.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median

from hivemind_addon.sim.expectation import NO_PROXY, Verdict, beside_no_proxy
from hivemind_addon.sim.library import RANDOM_GOALS, RANDOM_IDLE_S, RANDOM_LOST, Case
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.random_loads import is_feasible
from hivemind_addon.sim.result import Result
from hivemind_addon.sim.trial import Setup, Trial
from hivemind_addon.sim.workload import Crowd, Scenario

POLICIES = (Policy.HIVEMIND, Policy.FIFO, Policy.AIMD_PAUSE, Policy.SDK, Policy.DIRECT)
_SEEDS = 5
"""Of a comparison that a single seed does not decide."""
PAIRED = 4
"""Seeds of the comparison with no proxy."""
REFUSED = 0.1
"""Of the attempts."""
LEARNING = 5
"""Refusals of a run that may be the price of finding the limits."""
LEAD = 1.05
"""The scheduler's time ÷ the other's."""


class Shortfall(Enum):
    """In which way a run falls short."""

    LOSES = f"loses > {RANDOM_LOST:.0%}"
    REFUSED = f"refused > {REFUSED:.0%}"
    IDLES = f"idle > {RANDOM_IDLE_S:g} s"
    PAID_TWICE = "paid twice"
    WORSE = "worse than no proxy"
    BEHIND_FIFO = "behind fifo"
    BEHIND_AIMD = "behind aimd-pause"


ALONE = (Shortfall.LOSES, Shortfall.REFUSED, Shortfall.IDLES, Shortfall.PAID_TWICE)
"""Those that show without another policy's run."""
BEHIND = {Policy.FIFO: Shortfall.BEHIND_FIFO, Policy.AIMD_PAUSE: Shortfall.BEHIND_AIMD}


@dataclass(frozen=True, slots=True)
class LoadProof:
    """A load under every policy."""

    case: Case
    runs: Mapping[Policy, Result]
    shortfalls: tuple[Shortfall, ...]
    """The scheduler's."""
    worse: tuple[Verdict, ...] = ()
    """In what it is worse than no proxy."""


def shortfalls(run: Result) -> Iterator[Shortfall]:
    """Of a run, the ones that stand alone.

    No header reports a neighbour's calls in flight, so that each of them may refuse an attempt of anybody. Further
    refusals could have been foreseen.
    """
    if run.lost > RANDOM_LOST * run.agents:
        yield Shortfall.LOSES
    if run.refused - run.unforeseen > max(REFUSED * run.attempts, LEARNING):
        yield Shortfall.REFUSED
    if run.idle_s > RANDOM_IDLE_S:
        yield Shortfall.IDLES
    if run.paid_in_vain > 0:
        yield Shortfall.PAID_TWICE


def is_behind(run: Result, other: Result) -> bool:
    """Whether the other is done earlier, and loses no more."""
    return other.lost <= run.lost and run.makespan_s > LEAD * other.makespan_s


def falls_short(case: Case, how: Shortfall) -> bool:
    """Whether the scheduler falls so short on a case."""
    if how in ALONE:
        return how in shortfalls(_run(case, Policy.HIVEMIND, 0))
    return how in judged(case, {policy: _run(case, policy, 0) for policy in POLICIES}).shortfalls


def minimised(case: Case) -> Case | None:
    """The smallest case that falls short in the first way of this case, and is feasible if this is; None: no way."""
    how = next((one for one in Shortfall if falls_short(case, one)), None)
    if how is None:
        return None
    was_feasible = is_feasible(case.scenario)

    def fails(scenario: Scenario) -> bool:
        return (not was_feasible or is_feasible(scenario)) and falls_short(replace(case, scenario=scenario), how)

    smallest = minimise(case.scenario, fails)
    return Case(smallest, f"Minimised from {case.name}: {how.value}.", expect=(RANDOM_GOALS,), as_stated=True)


def judged(case: Case, runs: Mapping[Policy, Result]) -> LoadProof:
    """In what the scheduler falls short; `runs`: of the seed 0, under all policies."""
    mine = runs[Policy.HIVEMIND]
    worse = tuple(_worse(case, runs))
    found = [*shortfalls(mine), *([Shortfall.WORSE] if worse else ())]
    for policy, shortfall in BEHIND.items():
        if is_behind(mine, runs[policy]) and _stays_behind(case, policy):
            found.append(shortfall)
    return LoadProof(case, runs, tuple(found), worse)


def _worse(case: Case, runs: Mapping[Policy, Result]) -> Iterator[Verdict]:
    """In what the scheduler is worse than no proxy, after one seed and in all seeds together."""
    for policy in NO_PROXY:
        if all(one.is_met for one in beside_no_proxy([runs[Policy.HIVEMIND]], [runs[policy]], policy)):
            continue
        mine, theirs = ([_run(case, who, seed) for seed in range(PAIRED)] for who in (Policy.HIVEMIND, policy))
        yield from (one for one in beside_no_proxy(mine, theirs, policy) if not one.is_met)


def _stays_behind(case: Case, policy: Policy) -> bool:
    """Whether the lead was no chance."""
    mine = [_run(case, Policy.HIVEMIND, seed) for seed in range(_SEEDS)]
    theirs = [_run(case, policy, seed) for seed in range(_SEEDS)]
    ratios = [one.makespan_s / other.makespan_s for one, other in zip(mine, theirs, strict=True)]
    return median(ratios) > LEAD and sum(other.lost for other in theirs) <= sum(one.lost for one in mine)


def _run(case: Case, policy: Policy, seed: int) -> Result:
    return Trial(setup_of(case, policy), seed).run()


def setup_of(case: Case, policy: Policy) -> Setup:
    """The case as it is, under a policy."""
    return Setup(case, None, headers=True, policy=policy)


def minimise(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The smallest scenario found, of which no simpler fails."""
    while (smaller := next(filter(fails, _simpler(scenario)), None)) is not None:
        scenario = smaller
    return scenario


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """A part less, from the largest parts to the smallest."""
    for index in range(len(scenario.crowds) if len(scenario.crowds) > 1 else 0):
        yield replace(scenario, crowds=_without(scenario.crowds, index))
    for index in range(len(scenario.neighbours)):
        yield replace(scenario, neighbours=scenario.neighbours[:index] + scenario.neighbours[index + 1 :])
    if scenario.caps:
        yield replace(scenario, caps=())
    for provider in _simpler_provider(scenario.provider):
        yield replace(scenario, provider=provider, caps=scenario.caps if provider.concurrency else ())
    halved: Callable[[int], int] = lambda count: count // 2  # noqa: E731 - one of two ways
    for less in (halved, lambda count: count - 1):
        for index, crowd in enumerate(scenario.crowds):
            for fewer in _fewer(crowd, less):
                yield replace(scenario, crowds=_with(scenario.crowds, index, fewer))
    for index, crowd in enumerate(scenario.crowds):
        for plainer in _plainer(crowd):
            yield replace(scenario, crowds=_with(scenario.crowds, index, plainer))
    if scenario.input_error:
        yield replace(scenario, input_error=0)


def _simpler_provider(provider: ProviderSettings) -> Iterator[ProviderSettings]:
    for index in range(len(provider.limits)):
        yield replace(provider, limits=_without(provider.limits, index))
    for index in range(len(provider.outages)):
        yield replace(provider, outages=_without(provider.outages, index))
    for index in range(len(provider.storms)):
        yield replace(provider, storms=_without(provider.storms, index))
    for name in provider.faults:
        yield replace(provider, faults={other: share for other, share in provider.faults.items() if other != name})
    plain = ProviderSettings()
    yield from _changed(
        provider,
        replace(provider, concurrency=None, concurrency_status=plain.concurrency_status),
        replace(provider, charge_failures=False),
        replace(provider, rate_limit_headers=True),
    )


def _changed[T](item: T, *others: T) -> Iterator[T]:
    return (other for other in others if other != item)


def _fewer(crowd: Crowd, less: Callable[[int], int]) -> Iterator[Crowd]:
    if crowd.agents > 1:
        yield replace(crowd, agents=less(crowd.agents))
    if crowd.turns is not None and crowd.turns > 1:
        yield replace(crowd, turns=less(crowd.turns))


def _plainer(crowd: Crowd) -> Iterator[Crowd]:
    """A habit less; ranges become their lower ends."""
    return _changed(
        crowd,
        replace(crowd, parent_session=""),
        replace(crowd, per_session=1),
        replace(crowd, caches=False, shared_tokens=0),
        replace(crowd, remembers=False),
        replace(crowd, spike_rate=0),
        replace(crowd, latency_sigma=0),
        replace(crowd, starts_s=(0, 0)),
        replace(crowd, think_s=(crowd.think_s[0], crowd.think_s[0])),
        replace(crowd, output_tokens=(crowd.output_tokens[0], crowd.output_tokens[0])),
        replace(crowd, opening_tokens=(crowd.opening_tokens[0], crowd.opening_tokens[0])),
        replace(crowd, prompt_tokens=(crowd.prompt_tokens[0], crowd.prompt_tokens[0])),
        replace(crowd, streamed=False),
    )


def _without[T](items: tuple[T, ...], index: int) -> tuple[T, ...]:
    return items[:index] + items[index + 1 :]


def _with[T](items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
