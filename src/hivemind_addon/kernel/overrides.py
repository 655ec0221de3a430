"""Overrides: the pauses, caps, priorities and budgets that persons set at run time.

Each override is a glob and a value. The newest override that matches counts, also for pools and agents that come later.
An override that takes back (resume, no cap, the priority asked for) is kept as a rule while an older rule would match.
A temporary override covers older ones, which count again after its end.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, convert, to_builtins

from hivemind_addon.kernel.values.command import names_agent, names_pool
from hivemind_addon.kernel.values.snapshot import GivenBudget, PriorityView
from hivemind_addon.kernel.values.spend import MOST_AMOUNT, Budget, Period, Scope
from hivemind_addon.kernel.values.ticket import PoolKey, Priority

_VERSION = 1
_NEVER = math.inf


@dataclass(frozen=True, slots=True)
class _Rule[Value]:
    glob: str
    value: Value | None
    """None takes back older rules."""
    ends_at: float = _NEVER
    by: str = ""
    """The agent that asked for the override; empty: a person did."""


class _Rules[Subject, Value]:
    """The overrides of one kind, the newest first."""

    def __init__(self, matches: Callable[[str, Subject], bool]) -> None:
        self._matches = matches
        self._rules: list[_Rule[Value]] = []
        self.ends_at = _NEVER
        """When the next rule ends by itself; infinite: no rule does."""

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __iter__(self) -> Iterator[_Rule[Value]]:
        return iter(self._rules)

    def __repr__(self) -> str:
        return repr([(rule.glob, rule.value) for rule in self._rules])

    def put(self, glob: str, value: Value | None, *, ends_at: float = _NEVER, by: str = "") -> None:
        """Add a rule; the value None takes back older rules."""
        stands = ends_at == _NEVER
        older = [] if glob == "*" and stands else self._rules
        # A temporary rule replaces only temporary rules: the older rule counts again after the end.
        older = [rule for rule in older if rule.glob != glob or (not stands and rule.ends_at == _NEVER)]
        self._rules = [_Rule(glob, value, ends_at, by), *older]
        self.expire()

    def restore(self, saved: "Sequence[_Rule[Value]]") -> None:
        """Add saved rules, the newest first, below the present ones."""
        newer, self._rules = self._rules, []
        for rule in reversed((*newer, *saved)):
            self.put(rule.glob, rule.value, ends_at=rule.ends_at, by=rule.by)

    def standing(self, now: float) -> list[_Rule[Value]]:
        """The rules that have not ended, without takebacks that have no older rule to take back."""
        rules = [rule for rule in self._rules if rule.ends_at > now]
        while rules and rules[-1].value is None:
            rules.pop()
        return rules

    def expire(self, now: float = -_NEVER) -> None:
        """Keep the standing rules only."""
        self._rules = self.standing(now)
        self.ends_at = min((rule.ends_at for rule in self._rules), default=_NEVER)

    def of(self, subject: Subject) -> Value | None:
        """The value for a pool, agent or holder; None: no rule matches."""
        return next((rule.value for rule in self._rules if self._matches(rule.glob, subject)), None)


class Overrides:
    """The overrides of all pools, agents and holders."""

    def __init__(self) -> None:
        self._pauses: _Rules[PoolKey, bool] = _Rules(names_pool)
        self._caps: _Rules[PoolKey, int] = _Rules(names_pool)
        self._priorities: _Rules[str, Priority] = _Rules(names_agent)
        self._budgets: dict[tuple[Scope, Period], _Rules[str, Budget]] = {
            (scope, per): _Rules(names_agent if scope is Scope.AGENT else str.__eq__)
            for scope in Scope
            for per in Period
        }
        self.has_budgets = False
        """Whether any budget was given."""
        self.ends_at = _NEVER
        """When the next override ends by itself; infinite: none does."""

    def __repr__(self) -> str:
        budgets = [rules for rules in self._budgets.values() if rules]
        return f"<Overrides {self._pauses} {self._caps} {self._priorities} {budgets}>"

    def pause(self, glob: str, *, paused: bool) -> None:
        """Pause the pools that match, or resume them."""
        self._pauses.put(glob, paused or None)

    def cap(self, glob: str, limit: int | None) -> None:
        """Cap the attempts in flight of the pools that match; None takes the cap back."""
        self._caps.put(glob, limit)

    def prefer(self, glob: str, priority: Priority | None, *, ends_at: float = _NEVER, by: str = "") -> None:
        """Serve the agents that match in this class, whichever class they ask for; None takes the order back."""
        self._priorities.put(glob, priority, ends_at=ends_at, by=by)
        self.ends_at = self._priorities.ends_at

    def give(self, budget: Budget, *, by: str = "") -> None:
        """Give a holder (agents by a glob) a budget; a budget that limits nothing takes the given budget back."""
        given = budget if budget.limits_anything else None
        self._budgets[budget.scope, budget.per].put(budget.name, given, by=by)
        self.has_budgets = any(self._budgets.values())

    def budgets_of(self, scope: Scope, name: str) -> dict[Period, Budget]:
        """The budgets given to one holder, by period."""
        if not self.has_budgets:
            return {}
        given: dict[Period, Budget] = {}
        for (whose, per), rules in self._budgets.items():
            if whose is scope and (budget := rules.of(name)):
                given[per] = Budget(scope, name, per, budget.tokens, budget.micro_usd, budget.calls)
        return given

    @property
    def budgets(self) -> tuple[GivenBudget, ...]:
        """All given budgets, the newest of each period first."""
        rules = (rule for rules in self._budgets.values() for rule in rules)
        return tuple(GivenBudget(rule.value, rule.by) for rule in rules if rule.value)

    def is_paused(self, key: PoolKey) -> bool:
        """Whether a person paused the pool."""
        return bool(self._pauses.of(key))

    def pauses_for(self, glob: str) -> bool:
        """Whether a pause with this glob (`*`: any pause) stands, which holds for pools to come, too."""
        return any(rule.value and glob in ("*", rule.glob) for rule in self._pauses)

    def cap_of(self, key: PoolKey) -> int | None:
        """The cap of a pool's concurrency limit; None: there is no cap."""
        return self._caps.of(key)

    def priority_of(self, agent: str, asked: Priority) -> Priority:
        """The class in which to serve an agent's ticket that asks for the class `asked`."""
        ordered = self._priorities.of(agent) if self._priorities else None
        return asked if ordered is None else ordered

    def inherit(self, key: PoolKey, merged: PoolKey) -> None:
        """Apply the stricter overrides of two pools to both: `merged` became a part of `key`."""
        if self.is_paused(merged) and not self.is_paused(key):
            self.pause(str(key), paused=True)
        cap, theirs = self.cap_of(key), self.cap_of(merged)
        if theirs is not None and (cap is None or theirs < cap):
            self.cap(str(key), theirs)

    def priorities(self, now: float) -> tuple[PriorityView, ...]:
        """The priorities that were set, the newest first."""
        return tuple(
            PriorityView(
                agent=rule.glob,
                priority=rule.value,
                ends_in_s=None if rule.ends_at == _NEVER else max(0.0, rule.ends_at - now),
                by=rule.by,
            )
            for rule in self._priorities
            if rule.value is not None
        )

    @property
    def pauses(self) -> dict[str, bool]:
        """The pauses by glob, the newest first; False takes back an older pause."""
        return {rule.glob: bool(rule.value) for rule in self._pauses}

    @property
    def caps(self) -> dict[str, int | None]:
        """The caps by glob, the newest first; None takes back an older cap."""
        return {rule.glob: rule.value for rule in self._caps}

    # Time and restarts ------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[PriorityView]:
        """Drop the priorities that have ended, and return them."""
        ended = [view for view in self.priorities(now) if view.ends_in_s == 0]
        self._priorities.expire(now)
        self.ends_at = self._priorities.ends_at
        return ended

    def export(self, now: float, wall: float) -> object:
        """The overrides that stand, the newest first, as plain JSON values. `wall`: `now` in epoch seconds."""
        return to_builtins(
            {
                "version": _VERSION,
                "pauses": [_SavedPause(rule.glob, rule.value) for rule in self._pauses],
                "caps": [_SavedCap(rule.glob, rule.value) for rule in self._caps],
                "priorities": [_SavedPriority.of(rule, now, wall) for rule in self._priorities.standing(now)],
                "budgets": [
                    _SavedBudget.of(scope, per, rule) for (scope, per), rules in self._budgets.items() for rule in rules
                ],
            }
        )

    def restore(self, data: object, now: float, wall: float) -> list[str]:
        """Add exported overrides below the ones set since. Returns a line about each unreadable override."""
        if not isinstance(data, Mapping) or data.get("version") != _VERSION:
            return [f"saved orders: {str(data)[:60]!r} is not of version {_VERSION}"]
        oddities: list[str] = []
        pauses = _read(data, "pauses", _SavedPause, oddities)
        caps = _read(data, "caps", _SavedCap, oddities)
        priorities = _read(data, "priorities", _SavedPriority, oddities)
        budgets = _read(data, "budgets", _SavedBudget, oddities)
        self._pauses.restore([_Rule(saved.glob, saved.paused or None) for saved in pauses])
        self._caps.restore([_Rule(saved.glob, saved.limit) for saved in caps])
        self._priorities.restore([saved.rule(now, wall) for saved in priorities])
        self.ends_at = self._priorities.ends_at
        self.expire(now)
        for (scope, per), rules in self._budgets.items():
            rules.restore([saved.rule() for saved in budgets if (saved.scope, saved.per) == (scope, per)])
        self.has_budgets = any(self._budgets.values())
        return oddities


# What outlives a run, as it is saved ----------------------------------------------------------------------------------

_Amount = Annotated[int, Meta(ge=0, le=MOST_AMOUNT)]


class _SavedPause(Struct, array_like=True, forbid_unknown_fields=True):
    glob: str
    paused: bool | None


class _SavedCap(Struct, array_like=True, forbid_unknown_fields=True):
    glob: str
    limit: Annotated[int, Meta(ge=1)] | None


class _SavedTerms(Struct, frozen=True, omit_defaults=True):
    """The optional terms of a saved priority."""

    by: str = ""
    left_s: float | None = None
    until: float | None = None
    """Epoch seconds."""

    def __post_init__(self) -> None:
        if (self.left_s is None) != (self.until is None) or not math.isfinite((self.left_s or 0) + (self.until or 0)):
            raise ValueError("no end")


class _SavedPriority(Struct, array_like=True, forbid_unknown_fields=True):
    glob: str
    priority: str | None
    """The name of the class."""
    terms: _SavedTerms = _SavedTerms()

    def __post_init__(self) -> None:
        if self.priority is not None and self.priority.upper() not in Priority.__members__:
            raise ValueError("no priority")

    @classmethod
    def of(cls, rule: _Rule[Priority], now: float, wall: float) -> "_SavedPriority":
        left_s = None if rule.ends_at == _NEVER else max(0.001, round(rule.ends_at - now, 3))
        until = None if left_s is None else wall + left_s
        name = None if rule.value is None else rule.value.name.lower()
        return cls(rule.glob, name, _SavedTerms(rule.by, left_s, until))

    def rule(self, now: float, wall: float) -> _Rule[Priority]:
        """The rule. The wall clock may have been set back, so the end is not later than at the export."""
        left_s, until = self.terms.left_s, self.terms.until
        ends_at = _NEVER if left_s is None or until is None else now + round(min(until - wall, left_s), 3)
        value = None if self.priority is None else Priority[self.priority.upper()]
        return _Rule(self.glob, value, ends_at, self.terms.by)


class _SavedBudget(Struct):
    scope: Scope
    name: str
    per: Period
    tokens: _Amount | None
    micro_usd: _Amount | None
    by: str = ""
    calls: _Amount | None = None

    @classmethod
    def of(cls, scope: Scope, per: Period, rule: _Rule[Budget]) -> "_SavedBudget":
        limits = (rule.value.tokens, rule.value.micro_usd) if rule.value else (None, None)
        return cls(scope, rule.glob, per, *limits, rule.by, rule.value.calls if rule.value else None)

    def rule(self) -> _Rule[Budget]:
        budget = Budget(self.scope, self.name, self.per, self.tokens, self.micro_usd, self.calls)
        return _Rule(self.name, budget if budget.limits_anything else None, by=self.by)


def _read[Entry](data: Mapping[str, object], name: str, kind: type[Entry], oddities: list[str]) -> list[Entry]:
    """The readable entries of a saved list; a line about each unreadable entry goes to `oddities`."""
    saved = data.get(name, [])
    entries = []
    for entry in saved if isinstance(saved, list) else [saved]:
        try:
            entries.append(convert(entry, kind))
        except ValidationError as error:
            oddities.append(f"saved orders: {name}: {str(entry)[:60]} is left out: {error}")
    return entries
