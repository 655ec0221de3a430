"""How fast any schedule could have been: the lower bound of a run's time. Pure.

The longest of three: what one agent does in a row; what the limits let through, for what was really spent; and all
service time shared by the slots there are. Each is a true lower bound; together they may still be below what is
possible.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hivemind_addon.core.ticket import Dimension
from hivemind_addon.sim.limits import Limit, LimitKind


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run took from the provider."""

    units: Mapping[Dimension, int]
    """What the limits counted."""
    longest_path_s: float
    """Think and service time of the agent that has most of it."""
    service_s: float
    """Of all successful turns."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound, and what it comes from."""

    bound_s: float
    why: str


def lower_bound(spent: Spent, limits: Iterable[Limit], *, concurrency: int | None, late_units: int = 0) -> Bound:
    """The bound of a run. `late_units`: output that may be charged after the last admission, hence beyond a limit."""
    bounds = [Bound(spent.longest_path_s, "the longest conversation")]
    if concurrency is not None:
        bounds.append(Bound(spent.service_s / concurrency, f"{concurrency} slots"))
    for limit in limits:
        late = late_units if limit.dimension in (Dimension.OUTPUT_TOKENS, Dimension.TOTAL_TOKENS) else 0
        units = spent.units.get(limit.dimension, 0) - late
        bounds.append(Bound(_limit_bound_s(limit, units), f"the {limit.dimension.value.replace('_', ' ')} limit"))
    return max(bounds, key=lambda bound: bound.bound_s)


def _limit_bound_s(limit: Limit, units: int) -> float:
    """The earliest instant at which so many units can have been let through, beginning with a whole limit."""
    match limit.kind:
        case LimitKind.BUCKET:
            return max(0, units - limit.amount) * limit.window_s / limit.amount
        case LimitKind.WINDOW:
            return max(0, math.ceil(units / limit.amount) - 1) * limit.window_s
