"""A case on which the scheduler misses an expectation, made smaller while the scheduler still misses it.

Greedily, the large steps first: whole parts are left out before halves and single ones, and various values become plain
last. Of a part that this module does not know by name, each key that is not at its default goes back to the default.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from itertools import chain
from typing import Any

from hivemind_addon.sim.expectation import Verdict
from hivemind_addon.sim.library import Case
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.random_loads import is_feasible
from hivemind_addon.sim.trial import Setup, run_series
from hivemind_addon.sim.workload import Crowd, Scenario

_TRIES = 1000
_STAY = frozenset({"turns", "duration_s", "way_s", "remembers"})
"""Keys whose defaults are no simpler: a crowd without a number of turns never ends, and who remembers sends more."""
_PLAIN: tuple[object, ...] = (None, "", 0, 1, math.inf, (), (0, 0))
"""Defaults of numbers, texts and lists that mean that something is left out."""


def minimised(setup: Setup, seed: int, verdict: Verdict, *, tries: int = _TRIES) -> Case | None:
    """The smallest case that so many tries find, of those that miss `verdict.bound` in a run with this seed.

    The case is feasible if the setup's case is. None: the run misses nothing of the kind.
    """
    case = setup.case
    stated = case.at(setup.kind, headers=setup.headers)
    # The case is as stated now: its expectations are for any limits, with the headers that it has.
    expect = tuple(
        replace(one, limits=None, headers=True) for one in case.expect if one.covers(setup.kind, headers=setup.headers)
    )
    was_feasible = is_feasible(stated)
    left = iter(range(tries))
    about = f"Minimised from {case.name}, seed {seed}: {verdict.what}, expected {verdict.wanted}."

    def smaller_case(scenario: Scenario) -> Case:
        return Case(scenario, about, expect=expect, as_stated=True)

    def fails(scenario: Scenario) -> bool:
        if next(left, None) is None or (was_feasible and not is_feasible(scenario)):
            return False
        names = {crowd.name for crowd in scenario.crowds}
        if any(
            name not in names for one in expect for name in (*one.turn_mean_s, *one.wait_p95_s, *one.wait_p95_to_fifo)
        ):
            return False
        (series,) = run_series([Setup(smaller_case(scenario))], [Policy.HIVEMIND], [seed])
        return any(one.what == verdict.what and not one.is_met for one in series.verdicts())

    return smaller_case(minimise(stated, fails)) if fails(stated) else None


def minimise(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The smallest scenario found, of which no simpler fails."""
    while (smaller := next(filter(fails, _simpler(scenario)), None)) is not None:
        scenario = smaller
    return scenario


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """A part less, from the largest parts to the smallest."""
    crowds = scenario.crowds
    for index in range(len(crowds) if len(crowds) > 1 else 0):
        yield replace(scenario, crowds=(*crowds[:index], *crowds[index + 1 :]))
    if scenario.sites:
        yield replace(scenario, sites=(), crowds=tuple(replace(crowd, site="") for crowd in crowds))
    yield from _plainer(scenario)
    for provider in _plainer(scenario.provider):
        yield replace(scenario, provider=provider, caps=scenario.caps if provider.concurrency else ())
    halved: Callable[[int], int] = lambda count: count // 2  # noqa: E731 - one of two ways
    for less in (halved, lambda count: count - 1):
        for index, crowd in enumerate(crowds):
            for fewer in _fewer_of(crowd, less):
                yield _with(scenario, index, fewer)
    for index, crowd in enumerate(crowds):
        for plainer in chain(_habits(crowd), _plainer(crowd)):
            yield _with(scenario, index, plainer)


def _with(scenario: Scenario, index: int, crowd: Crowd) -> Scenario:
    crowds = scenario.crowds
    return replace(scenario, crowds=(*crowds[:index], crowd, *crowds[index + 1 :]))


def _fewer_of(crowd: Crowd, less: Callable[[int], int]) -> Iterator[Crowd]:
    if crowd.agents > 1:
        yield replace(crowd, agents=less(crowd.agents))
    if crowd.turns is not None and crowd.turns > 1:
        yield replace(crowd, turns=less(crowd.turns))


def _habits(crowd: Crowd) -> Iterator[Crowd]:
    """Habits that a crowd has by default, left out."""
    if crowd.remembers:
        yield replace(crowd, remembers=False)
    if crowd.latency_sigma:
        yield replace(crowd, latency_sigma=0)


def _plainer[T](part: T) -> Iterator[T]:
    """A key less of any dataclass; lists and tables first as a whole, then item by item; of a range the lower end."""
    for one in fields(part):  # type: ignore[arg-type]
        value, default = getattr(part, one.name), _default(one)
        if one.name in _STAY or value == default:
            continue
        if isinstance(default, bool | Mapping) or default in _PLAIN:
            yield replace(part, **{one.name: default})  # type: ignore[type-var]
        for fewer in _fewer(value):
            yield replace(part, **{one.name: fewer})  # type: ignore[type-var]


def _default(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else one.default


def _fewer(value: object) -> Iterator[object]:
    match value:
        case (int() | float() as low, int() | float() as high):
            if low != high:
                yield low, low
        case tuple() if len(value) > 1:
            for index in range(len(value)):
                yield value[:index] + value[index + 1 :]
        case Mapping() if len(value) > 1:
            for name in value:
                yield {other: item for other, item in value.items() if other != name}
