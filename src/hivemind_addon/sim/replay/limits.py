"""Limits as people type them: `requests=60/min`, `input_tokens=450k/min:window`, `concurrency=5@*openai*`. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hivemind_addon.formats.base.patterns import glob_matches
from hivemind_addon.kernel.values.ticket import Dimension, PoolKey
from hivemind_addon.sim.limits import Limit, LimitKind, ModelScope, WindowKind

CONCURRENCY = "concurrency"
_SPEC = re.compile(
    r"(?P<what>[a-z_-]+)=(?P<amount>none|\d+(?:\.\d+)?[km]?)"
    r"(?:/(?P<count>\d+)?(?P<unit>s|min|h|day))?(?::(?P<kind>[a-z]+))?(?:@(?P<pool>.+))?",
    re.IGNORECASE,
)
_KINDS = {"bucket": (LimitKind.BUCKET, WindowKind.BEAT), "window": (LimitKind.WINDOW, WindowKind.BEAT)} | {
    one.value: (LimitKind.WINDOW, one) for one in WindowKind if one is not WindowKind.BEAT
}
_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86_400.0}
_FACTORS = {"k": 1_000, "m": 1_000_000}
_CURE = (
    "write requests=60/min, input_tokens=450k/min:bucket, output_tokens=90k/min:window, total_tokens=none "
    "or concurrency=5, and @GLOB behind it for some pools only"
)


class BadLimit(Exception):
    """A limit that cannot be understood: one line with the cure."""


@dataclass(frozen=True, slots=True)
class GivenLimit:
    """One limit that a person asks for, instead of what was recorded of its kind."""

    text: str
    """As it was typed."""
    dimension: Dimension | None
    """None: calls at a time."""
    amount: int | None
    """None: there is no such limit."""
    window_s: float = 60.0
    kind: LimitKind = LimitKind.BUCKET
    pool: str = "*"
    """Glob over pools' names."""
    windows: WindowKind = WindowKind.BEAT

    def concerns(self, pool: PoolKey) -> bool:
        """Whether it holds for this pool."""
        return glob_matches(self.pool, str(pool))


def given_limit(text: str) -> GivenLimit:
    """One limit from its text. Raises BadLimit."""
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise BadLimit(f"limit {text!r} cannot be read: {_CURE}")
    what, unit, kind = match["what"].lower().replace("-", "_"), match["unit"], match["kind"]
    amount = _amount(match["amount"].lower())
    if amount == 0:
        raise BadLimit(f"limit {text!r} lets nothing through; {what}=none takes the limit away")
    if what == CONCURRENCY:
        if unit or kind:
            raise BadLimit(
                f"limit {text!r}: calls at a time know no minute and no kind; write {what}={match['amount']}"
            )
        return GivenLimit(text, None, amount, pool=match["pool"] or "*")
    if what not in {dimension.value for dimension in Dimension}:
        known = ", ".join((*(dimension.value for dimension in Dimension), CONCURRENCY))
        raise BadLimit(f"limit {text!r}: there is no {what!r}; there are {known}")
    if amount is not None and unit is None:
        raise BadLimit(f"limit {text!r} does not say per what; write {what}={match['amount']}/min")
    if kind and kind.lower() not in _KINDS:
        raise BadLimit(f"limit {text!r}: there is no kind {kind!r}; there are {', '.join(_KINDS)}")
    window_s = int(match["count"] or 1) * _UNITS_S[unit.lower()] if unit else 60.0
    if window_s == 0:
        raise BadLimit(f"limit {text!r} has a window of no length; write {what}={match['amount']}/min")
    return GivenLimit(
        text,
        Dimension(what),
        amount,
        window_s,
        _KINDS[kind.lower()][0] if kind else LimitKind.BUCKET,
        match["pool"] or "*",
        _KINDS[kind.lower()][1] if kind else WindowKind.BEAT,
    )


def imposed(
    recorded: Iterable[Limit], concurrency: int | None, given: Iterable[GivenLimit], pool: PoolKey
) -> tuple[tuple[Limit, ...], int | None]:
    """A pool's limits and its calls at a time: what was recorded, but where something else is given."""
    ours = [one for one in given if one.concerns(pool)]
    replaced = {one.dimension for one in ours}
    limits = [limit for limit in recorded if limit.dimension not in replaced]
    for one in ours:
        if one.dimension is None:
            concurrency = one.amount
        elif one.amount is not None:
            limits.append(Limit(one.dimension, one.amount, one.window_s, one.kind, windows=one.windows))
    return tuple(limits), concurrency


def in_words(limit: Limit) -> str:
    """As it would be typed, and what cannot be typed behind it: `requests=60/min:bucket, burst 5`."""
    unit = next((unit for unit, unit_s in _UNITS_S.items() if unit_s == limit.window_s), f"{limit.window_s:g}s")
    kind = next(name for name, kinds in _KINDS.items() if kinds == (limit.kind, limit.windows))
    more = (
        f"burst {_short(round(limit.burst))}" if limit.burst else "",
        f"growing {limit.growth:g} times" if limit.growth else "",
        f"for each {limit.scope.value}" if limit.scope is not ModelScope.KEY else "",
        "refused calls count" if limit.counts_refusals else "",
    )
    return ", ".join((f"{limit.dimension.value}={_short(limit.amount)}/{unit}:{kind}", *filter(None, more)))


def _amount(text: str) -> int | None:
    if text == "none":
        return None
    factor = _FACTORS.get(text[-1], 1)
    return round(float(text.rstrip("km")) * factor)


def _short(amount: int) -> str:
    for suffix, factor in reversed(_FACTORS.items()):
        if amount >= factor and amount % (factor // 10) == 0:
            return f"{amount / factor:g}{suffix.upper() if suffix == 'm' else suffix}"
    return str(amount)
