"""A failing scenario made smaller while it still fails. Pure; greedy: the first simpler one that fails is gone on with.

The large steps come first: what is left out as a whole, then halves, then ones, then what is plain instead of various.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from hivemind_addon.lab.sim.provider import ProviderSettings
from hivemind_addon.lab.sim.workload import Crowd, Scenario


def minimise(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The smallest that is found, of which each simpler one does not fail."""
    while (smaller := next(filter(fails, _simpler(scenario)), None)) is not None:
        scenario = smaller
    return scenario


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """One thing less, from the most that can be left out to the least."""
    for index in range(len(scenario.crowds) if len(scenario.crowds) > 1 else 0):
        yield replace(scenario, crowds=_without(scenario.crowds, index))
    if scenario.neighbour is not None:
        yield replace(scenario, neighbour=None)
    if scenario.caps:
        yield replace(scenario, caps=())
    for provider in _simpler_provider(scenario.provider):
        yield replace(scenario, provider=provider, caps=scenario.caps if provider.concurrency else ())
    for shrink in (_halved, _one_less):
        for index, crowd in enumerate(scenario.crowds):
            for fewer in shrink(crowd):
                yield replace(scenario, crowds=_with(scenario.crowds, index, fewer))
    for index, crowd in enumerate(scenario.crowds):
        for plainer in _plainer(crowd):
            yield replace(scenario, crowds=_with(scenario.crowds, index, plainer))
    if scenario.input_error:
        yield replace(scenario, input_error=0)


def _simpler_provider(provider: ProviderSettings) -> Iterator[ProviderSettings]:
    for index in range(len(provider.limits)):
        yield replace(provider, limits=_without(provider.limits, index))
    for index in range(len(provider.walls)):
        yield replace(provider, walls=_without(provider.walls, index))
    for index in range(len(provider.storms)):
        yield replace(provider, storms=_without(provider.storms, index))
    for name in provider.faults:
        yield replace(provider, faults={other: share for other, share in provider.faults.items() if other != name})
    if provider.concurrency is not None:
        yield replace(provider, concurrency=None, concurrency_status=ProviderSettings().concurrency_status)
    if provider.charge_failures:
        yield replace(provider, charge_failures=False)
    if not provider.rate_limit_headers:
        yield replace(provider, rate_limit_headers=True)


def _halved(crowd: Crowd) -> Iterator[Crowd]:
    if crowd.agents > 1:
        yield replace(crowd, agents=crowd.agents // 2)
    if crowd.turns is not None and crowd.turns > 1:
        yield replace(crowd, turns=crowd.turns // 2)


def _one_less(crowd: Crowd) -> Iterator[Crowd]:
    if crowd.agents > 1:
        yield replace(crowd, agents=crowd.agents - 1)
    if crowd.turns is not None and crowd.turns > 1:
        yield replace(crowd, turns=crowd.turns - 1)


def _plainer(crowd: Crowd) -> Iterator[Crowd]:
    """One habit less; ranges become their lower ends."""
    plain = (
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
    return (one for one in plain if one != crowd)


def _without[T](items: tuple[T, ...], index: int) -> tuple[T, ...]:
    return items[:index] + items[index + 1 :]


def _with[T](items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
