"""What was ordered and stands until it is taken back, or its time is over: pauses, caps, priorities, budgets.

Each order is a glob and a value. The newest that matches counts, and holds for pools and agents that come later, too.
An order that takes back (resume, no cap, as asked) is a rule like others where an older one would still match. One
that ends by itself lies on the older ones, which count again after it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hivemind_addon.api.command import names_agent, names_pool
from hivemind_addon.api.snapshot import GivenBudget, PriorityView
from hivemind_addon.api.spend import MOST_AMOUNT, Budget, Period, Scope
from hivemind_addon.api.ticket import PoolKey, Priority

_VERSION = 1
_MOST_NAMED = 5
"""Of each kind of order, in a line for people."""
_NEVER = math.inf
_TEN_MINUTES_S = 600


@dataclass(frozen=True, slots=True)
class _Rule[Value]:
    glob: str
    value: Value | None
    """None takes back what older rules say."""
    ends_at: float = _NEVER
    by: str = ""
    """The agent that asked for it; empty: a person did."""


class _Rules[Subject, Value]:
    """Globs and what was ordered for what they match, the newest first."""

    def __init__(self, matches: Callable[[str, Subject], bool]) -> None:
        self._matches = matches
        self._rules: list[_Rule[Value]] = []
        self.ends_at = _NEVER
        """When the next one ends by itself; infinite: none does."""

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __iter__(self) -> Iterator[_Rule[Value]]:
        return iter(self._rules)

    def __repr__(self) -> str:
        return repr([(rule.glob, rule.value) for rule in self._rules])

    def put(self, glob: str, value: Value | None, *, ends_at: float = _NEVER, by: str = "") -> None:
        """Order it; None takes back."""
        stands = ends_at == _NEVER
        older = [] if glob == "*" and stands else self._rules
        # One that ends by itself replaces only its like: what is under it counts again.
        older = [rule for rule in older if rule.glob != glob or (not stands and rule.ends_at == _NEVER)]
        self._rules = [_Rule(glob, value, ends_at, by), *older]
        self._tidy()

    def restore(self, saved: "Sequence[_Rule[Value]]") -> None:
        """Put these, the newest first, under those that are there."""
        newer, self._rules = self._rules, []
        for rule in reversed((*newer, *saved)):
            self.put(rule.glob, rule.value, ends_at=rule.ends_at, by=rule.by)

    def standing(self, now: float) -> list[_Rule[Value]]:
        """Those whose time is not over, without what would take back nothing."""
        rules = [rule for rule in self._rules if rule.ends_at > now]
        while rules and rules[-1].value is None:
            rules.pop()
        return rules

    def expire(self, now: float) -> None:
        """Drop those whose time is over."""
        self._rules = self.standing(now)
        self._tidy()

    def of(self, subject: Subject) -> Value | None:
        """What counts for one; None: nothing was ordered."""
        return next((rule.value for rule in self._rules if self._matches(rule.glob, subject)), None)

    def _tidy(self) -> None:
        while self._rules and self._rules[-1].value is None:
            self._rules.pop()  # there is nothing older that it would take back
        self.ends_at = min((rule.ends_at for rule in self._rules), default=_NEVER)


class Orders:
    """All pools', agents' and holders'."""

    def __init__(self) -> None:
        self._pauses: _Rules[PoolKey, bool] = _Rules(names_pool)
        self._caps: _Rules[PoolKey, int] = _Rules(names_pool)
        self._priorities: _Rules[str, Priority] = _Rules(names_agent)
        self._budgets: dict[tuple[Scope, Period], _Rules[str, Budget]] = {}
        """Only those of which there is one."""

    def __repr__(self) -> str:
        return f"<Orders {self._pauses} {self._caps} {self._priorities} {list(self._budgets.values())}>"

    def pause(self, glob: str, *, paused: bool) -> None:
        """Admit nothing in these pools, or again."""
        self._pauses.put(glob, paused or None)

    def cap(self, glob: str, limit: int | None) -> None:
        """Let these pools have at most so many attempts in flight."""
        self._caps.put(glob, limit)

    def prefer(self, glob: str, priority: Priority | None, *, ends_at: float = _NEVER, by: str = "") -> None:
        """Serve these agents in a class, whatever they ask for."""
        self._priorities.put(glob, priority, ends_at=ends_at, by=by)

    def give(self, budget: Budget, *, by: str = "") -> None:
        """Give a holder (agents by a glob) a budget; one that limits nothing takes back what was given."""
        key = budget.scope, budget.per
        rules = self._budgets.pop(key, None) or _Rules(names_agent if budget.scope is Scope.AGENT else _is_same)
        rules.put(budget.name, budget if budget.limits_anything else None, by=by)
        if rules:
            self._budgets[key] = rules

    @property
    def has_budgets(self) -> bool:
        """Whether anybody was given one."""
        return bool(self._budgets)

    def budgets_of(self, scope: Scope, name: str) -> dict[Period, Budget]:
        """What one holder was given, by period."""
        given = {}
        for (whose, per), rules in self._budgets.items():
            if whose is scope and (budget := rules.of(name)):
                given[per] = Budget(scope, name, per, budget.tokens, budget.micro_usd)
        return given

    @property
    def budgets(self) -> tuple[GivenBudget, ...]:
        """All that were given, the newest of each period first."""
        return tuple(GivenBudget(rule.value, rule.by) for _, rules in self._given for rule in rules if rule.value)

    @property
    def _given(self) -> "list[tuple[tuple[Scope, Period], _Rules[str, Budget]]]":
        """In one order, however they came."""
        keys = ((scope, per) for scope in Scope for per in Period)
        return [(key, self._budgets[key]) for key in keys if key in self._budgets]

    def is_paused(self, key: PoolKey) -> bool:
        """Whether nothing of a pool goes."""
        return bool(self._pauses.of(key))

    def pauses_for(self, glob: str) -> bool:
        """Whether a pause with this glob stands, or any if it is `*`: pools that come would meet it."""
        return any(rule.value and glob in ("*", rule.glob) for rule in self._pauses)

    def cap_of(self, key: PoolKey) -> int | None:
        """What a pool's concurrency limit may be at most; None: what it learns."""
        return self._caps.of(key)

    def priority_of(self, agent: str, asked: Priority) -> Priority:
        """The class of an agent's ticket that asks for one."""
        ordered = self._priorities.of(agent) if self._priorities else None
        return asked if ordered is None else ordered

    def inherit(self, key: PoolKey, merged: PoolKey) -> None:
        """A pool was merged into another one: what held for it holds for both, where that is stricter."""
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
    def about_pools(self) -> tuple[str, ...]:
        """Every pause and cap that stands."""
        paused, capped = _subjects(self._pauses, lambda _: ""), _subjects(self._caps, lambda cap: f"{cap} in ")
        return (
            *(f"paused: {', '.join(paused)}" for _ in paused[:1]),
            *(f"at most at once: {', '.join(capped)}" for _ in capped[:1]),
        )

    def words(self, now: float) -> str:
        """What stands, in a line for people, with the commands that take back what holds agents up; empty: nothing."""
        priorities = [
            f"{view.agent} {view.priority.name.lower()}"
            + ("" if view.ends_in_s is None else f" for {time_words(_rounded(view.ends_in_s))}")
            for view in self.priorities(now)
        ]
        told = (
            ("paused", _subjects(self._pauses, lambda _: ""), " (`hivemind resume`)"),
            ("at most at once", _subjects(self._caps, lambda cap: f"{cap} in "), " (`hivemind limit auto`)"),
            ("priorities", priorities, ""),
            ("budgets", list(dict.fromkeys(one.budget.holder for one in self.budgets)), ""),
        )
        return "; ".join(f"{what}: {_named(names)}{cure}" for what, names, cure in told if names)

    # Time and restarts ------------------------------------------------------------------------------------------------

    @property
    def ends_at(self) -> float:
        """When the next order ends by itself; infinite: none does."""
        return self._priorities.ends_at

    def expire(self, now: float) -> None:
        """Drop those whose time is over."""
        self._priorities.expire(now)

    def export(self, now: float, wall: float) -> dict[str, object]:
        """What stands, as plain JSON values. `wall`: `now` in epoch seconds, by which a restart knows what is over."""
        return {
            "version": _VERSION,
            "pauses": [[rule.glob, rule.value] for rule in self._pauses],
            "caps": [[rule.glob, rule.value] for rule in self._caps],
            "priorities": [
                [rule.glob, None if rule.value is None else rule.value.name.lower(), *_more(rule, now, wall)]
                for rule in self._priorities.standing(now)
            ],
            "budgets": [
                {
                    "scope": scope.value,
                    "name": rule.glob,
                    "per": per.value,
                    "tokens": rule.value.tokens if rule.value else None,
                    "micro_usd": rule.value.micro_usd if rule.value else None,
                    "by": rule.by,
                }
                for (scope, per), rules in self._given
                for rule in rules
            ],
        }

    def restore(self, data: object, now: float, wall: float) -> list[str]:
        """Take over what `export` gave, under what was ordered since. What cannot be understood, in words."""
        if not isinstance(data, Mapping) or data.get("version") != _VERSION:
            return [f"saved orders: {str(data)[:60]!r} is not of version {_VERSION}"]
        oddities: list[str] = []
        self._pauses.restore(_readable(data, "pauses", _rule(_read_pause), oddities))
        self._caps.restore(_readable(data, "caps", _rule(_read_cap), oddities))
        priorities = _readable(data, "priorities", lambda saved: _priority_rule(saved, now, wall), oddities)
        self._priorities.restore(priorities)
        self.expire(now)
        newer, self._budgets = self._budgets, {}
        for budget, by in reversed(_readable(data, "budgets", _read_budget, oddities)):
            self.give(budget, by=by)
        for (scope, per), rules in newer.items():
            for rule in reversed(list(rules)):
                self.give(rule.value or Budget(scope, rule.glob, per), by=rule.by)
        return oddities


def time_words(seconds: float) -> str:
    """`90 s`, `45 min`, `2 h`."""
    if seconds < _TEN_MINUTES_S and round(seconds, 1) % 60:
        return f"{round(seconds, 1):g} s"
    minutes = round(seconds / 60)
    days, hours = minutes / (24 * 60), minutes / 60
    return f"{days:g} d" if days.is_integer() else f"{hours:g} h" if hours.is_integer() else f"{minutes} min"


def _rounded(left_s: float) -> float:
    """What is left of a time needs no more than minutes."""
    return left_s if left_s < _TEN_MINUTES_S / 5 else math.ceil(left_s / 60) * 60


def _subjects[Value](rules: _Rules[PoolKey, Value], said: Callable[[Value], str]) -> list[str]:
    """What rules hold for, and which they have been taken back for."""
    named = [f"{said(rule.value)}{rule.glob}" for rule in rules if rule.value is not None]
    return [*named, *(f"but not {rule.glob}" for rule in rules if rule.value is None)]


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _is_same(name: str, other: str) -> bool:
    return name == other


def _readable[Order](
    data: Mapping[str, object], name: str, read: Callable[[object], Order], oddities: list[str]
) -> list[Order]:
    """Those of a list that can be read; the others are named."""
    saved = data.get(name, [])
    orders = []
    for one in saved if isinstance(saved, list) else [saved]:
        try:
            orders.append(read(one))
        except (KeyError, TypeError, ValueError) as error:
            oddities.append(f"saved orders: {name}: {str(one)[:60]} is left out: {error!r}")
    return orders


def _more(rule: _Rule[Priority], now: float, wall: float) -> list[dict[str, object]]:
    """What a saved priority has beside its glob and value, where it has any of it."""
    more: dict[str, object] = {"by": rule.by} if rule.by else {}
    if rule.ends_at < _NEVER:
        left_s = max(0.001, round(rule.ends_at - now, 3))
        more |= {"left_s": left_s, "until": wall + left_s}
    return [more] if more else []


def _rule[Value](read: Callable[[object], Value]) -> Callable[[object], _Rule[Value]]:
    def read_rule(saved: object) -> _Rule[Value]:
        if not isinstance(saved, list) or len(saved) != 2 or not isinstance(saved[0], str):
            raise TypeError("no glob and value")
        return _Rule(saved[0], None if saved[1] is None else read(saved[1]))

    return read_rule


def _priority_rule(saved: object, now: float, wall: float) -> _Rule[Priority]:
    match saved:
        case [*pair, {**more}]:
            ends_at = now + _left_s(more, wall) if "until" in more else _NEVER
            return replace(_rule(_read_priority)(pair), ends_at=ends_at, by=str(more.get("by", "")))
        case _:
            return _rule(_read_priority)(saved)


def _left_s(saved: Mapping[object, object], wall: float) -> float:
    """By the wall clock; but never more than there was: that clock may have been set back."""
    match saved:
        case {"until": int() | float() as until, "left_s": int() | float() as left_s} if math.isfinite(until + left_s):
            return round(min(until - wall, left_s), 3)
        case _:
            raise ValueError("no end")


def _read_pause(saved: object) -> bool:
    if saved is not True:
        raise ValueError("neither true nor null")
    return True


def _read_cap(saved: object) -> int:
    if isinstance(saved, bool) or not isinstance(saved, int) or saved < 1:
        raise ValueError("no limit")
    return saved


def _read_priority(saved: object) -> Priority:
    return Priority[str(saved).upper()]


def _read_budget(saved: object) -> tuple[Budget, str]:
    """And who asked for it."""
    if not isinstance(saved, Mapping) or not isinstance(saved["name"], str):
        raise TypeError("no budget")
    tokens, micro_usd = (_amount(saved[unit]) for unit in ("tokens", "micro_usd"))
    by = saved.get("by", "")
    return Budget(Scope(saved["scope"]), saved["name"], Period(saved["per"]), tokens, micro_usd), str(by)


def _amount(saved: object) -> int | None:
    if saved is None:
        return None
    if isinstance(saved, bool) or not isinstance(saved, int) or not 0 <= saved <= MOST_AMOUNT:
        raise ValueError("no amount")
    return saved
