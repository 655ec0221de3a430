"""What would have become of a recorded session: the same wishes under other policies and limits. Pure, repeatable."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.plugins.captures.model import Capture
from hivemind_addon.proxy.api.words import several
from hivemind_addon.sim.policy import COMPARED, Policy
from hivemind_addon.sim.replay.limits import CONCURRENCY, GivenLimit, in_words
from hivemind_addon.sim.replay.reconstruct import Replayable, paid_for, reconstruct
from hivemind_addon.sim.result import Result
from hivemind_addon.sim.trace_fit import TraceFit
from hivemind_addon.sim.workload import Scenario
from hivemind_addon.sim.world import run

_OVERLOADED = (503, 529)


@dataclass(frozen=True, slots=True)
class Delays:
    """How much later answers were complete than they could have been: queue, retries and the client's own waits."""

    p50_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Night:
    """One run of the session, or how it was recorded."""

    agents: int
    lost: int
    """Agents that did not come to their end."""
    turns: int
    turns_done: int
    makespan_s: float
    """When the last agent ended, well or not."""
    attempts: int
    refusals: int
    """Attempts that a rate limit refused."""
    overloads: int
    failures: int
    """Any others."""
    delays: Delays
    """Of the turns that were done."""
    spent: Spend
    wasted: Spend
    """Of that, by attempts that failed."""
    bound_s: float = 0.0
    """What no schedule can beat; 0: not known."""
    bound_why: str = ""
    deaths: Mapping[str, int] | None = None
    """Turns that failed, by what ended them; None: not known."""


@dataclass(frozen=True, slots=True)
class PolicyNights:
    """A policy's runs, one for each seed."""

    policy: str
    runs: tuple[Night, ...]
    """In the order of their seeds, from 0."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What one pool was simulated with."""

    pool: str
    limits: tuple[str, ...]
    """As they would be typed, and whether the provider hides it; empty: none."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """All that a replay in virtual time tells."""

    agents: int
    turns: int
    copies: int
    """So many times the agents that were recorded."""
    pools: tuple[PoolLimits, ...]
    recorded: Night
    policies: tuple[PolicyNights, ...]
    notes: tuple[str, ...]
    """What a reader has to know to trust it: damage, assumptions."""


def what_if(
    capture: Capture,
    *,
    policies: Sequence[Policy] = COMPARED,
    seeds: int = 1,
    given: Sequence[GivenLimit] = (),
    copies: int = 1,
    fitted: Sequence[TraceFit] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> WhatIf:
    """Run a capture again; `fitted` limits stand for those that no header states. Raises NothingToReplay."""
    by_seed = [reconstruct(capture, given=given, copies=copies, seed=seed, fitted=fitted) for seed in range(seeds)]
    nights = []
    for policy in policies:
        runs = []
        for seed, replayable in enumerate(by_seed):
            tell(f"{policy.name}, seed {seed}")
            result = run(replayable.scenario, seed=seed, policy=policy)
            runs.append(_night(replayable.scenario, result))
        nights.append(PolicyNights(policy.name, tuple(runs)))
    first = by_seed[0]
    return WhatIf(
        agents=first.agents,
        turns=len(first.scenario.script),
        copies=copies,
        pools=pool_limits(first.scenario),
        recorded=_recorded(first),
        policies=tuple(nights),
        notes=tuple(notes(capture, first)),
    )


def pool_limits(scenario: Scenario) -> tuple[PoolLimits, ...]:
    """What a scenario's sites let through, in words."""
    return tuple(
        PoolLimits(
            site.name,
            (
                *(in_words(one) + ("" if one.told else " (no header tells)") for one in site.provider.limits),
                *([f"{CONCURRENCY}={site.provider.concurrency}"] if site.provider.concurrency else ()),
            ),
        )
        for site in scenario.sites
    )


def notes(capture: Capture, replayable: Replayable) -> Iterable[str]:
    """What a replay of this capture rests on, where it is not what was recorded."""
    yield from (f"damaged: {line}; what precedes it is replayed" for line in capture.damage)
    if count := replayable.assumed:
        yield f"{several(count, 'turn')} never got an answer: taken to need what others of their pool did"
    if count := replayable.left_out:
        yield f"{several(count, 'call')} left out: the client went before anything was sent"
    unlimited = [one.pool for one in pool_limits(replayable.scenario) if not one.limits]
    if unlimited:
        yield f"no limit is known of {', '.join(unlimited)}: nothing is refused there; give one with --limit"


def _night(scenario: Scenario, result: Result) -> Night:
    service_s = [call.turn.service_s for call in scenario.script]
    done = [(call, own_s) for call, own_s in zip(result.script, service_s, strict=True) if call.death is None]
    delays_s = [
        call.ended_at - call.asked_at - own_s
        for call, own_s in done
        if call.ended_at is not None and call.asked_at is not None
    ]
    statuses = result.statuses
    overloads = sum(statuses[status] for status in _OVERLOADED)
    deaths = Counter(call.death.partition(":")[0] for call in result.script if call.death is not None)
    return Night(
        agents=result.agents,
        lost=result.lost,
        turns=len(scenario.script),
        turns_done=len(delays_s),
        makespan_s=result.makespan_s,
        attempts=result.attempts,
        refusals=statuses[429],
        overloads=overloads,
        failures=result.attempts - statuses[200] - statuses[429] - overloads,
        delays=_delays(delays_s),
        spent=sum((call.billed for call in result.script), Spend()),
        wasted=sum((call.in_vain for call in result.script), Spend()),
        bound_s=result.bound.bound_s,
        bound_why=result.bound.why,
        deaths=dict(sorted(deaths.items())),
    )


def _recorded(replayable: Replayable) -> Night:
    turns = replayable.turns
    originals = {call.ticket.id: call for call in replayable.scenario.script}
    done = [turn for turn in turns if turn.is_delivered]
    lost = {turn.last.agent for turn in turns if not turn.is_delivered and originals[turn.id].is_vital}
    attempts = [(turn.last, attempt) for turn in turns for attempt in turn.attempts]
    kinds = Counter(attempt.kind for _, attempt in attempts)
    spent, wasted = Spend(), Spend()
    for call, attempt in attempts:
        if attempt.usage is None:
            continue
        paid = paid_for(call, attempt.usage)
        spent += paid
        if attempt.kind is not OutcomeKind.SUCCESS:
            wasted += paid
    return Night(
        agents=len({turn.last.agent for turn in turns}),
        lost=len(lost),
        turns=len(turns),
        turns_done=len(done),
        makespan_s=max(turn.ended_s for turn in turns) - min(turn.at_s for turn in turns),
        attempts=len(attempts),
        refusals=kinds[OutcomeKind.THROTTLED],
        overloads=kinds[OutcomeKind.OVERLOADED],
        failures=kinds[OutcomeKind.FAILED] + kinds[OutcomeKind.IGNORED] + kinds[OutcomeKind.CANCELLED],
        delays=_delays([turn.ended_s - turn.at_s - originals[turn.id].turn.service_s for turn in done]),
        spent=spent,
        wasted=wasted,
    )


def _delays(delays_s: Iterable[float]) -> Delays:
    ordered = sorted(max(0.0, delay_s) for delay_s in delays_s)

    def at(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 6) if ordered else 0.0

    return Delays(at(0.5), at(0.95), at(0.99))
