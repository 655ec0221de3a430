"""What agents may have: a person's own rules, as data. `agents.py` reads them from a file.

Every field's docstring is its documentation: `make docs` prints them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from msgspec import structs

from hivemind_addon.formats.base.memo import by_thing_and_text
from hivemind_addon.formats.base.patterns import glob_matches
from hivemind_addon.formats.base.typed import BadValue
from hivemind_addon.kernel.values.spend import Budget, Period, Scope
from hivemind_addon.kernel.values.ticket import Priority

_AMOUNT = re.compile(
    r"\$(?P<dollars>\d{1,9}(\.\d{1,6})?)|(?P<usd>\d{1,9}(\.\d{1,6})?)\s*usd|(?P<tokens>\d{1,12}(\.\d+)?)(?P<factor>[kmg]?)",
    re.IGNORECASE,
)
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class Allowance:
    """One budget: `tokens`, `usd`, `calls`, or several of them."""

    per: Period = Period.RUN
    """How long it has to last."""
    tokens: int | None = None
    """All input, cached or not, and output."""
    usd: float | None = None
    """Money, by known prices (docs/budgets.md); a model without any price is not limited by it, which is reported."""
    calls: int | None = None
    """Requests that were run, or may have been, whether of a model or of a tool (docs/tools.md)."""


class CompactionBy(Enum):
    """Who takes old tool results out of a context."""

    AUTO = "auto"
    """The provider, where its profile says that it edits contexts itself (`context_editing`); else stubs."""
    STUBS = "stubs"
    """The proxy: a stub stands for each, with an id by which it can be read (docs/compaction.md)."""
    NOBODY = "nobody"
    """Nothing is taken out: for one that its group or everyone else is not."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """When old tool results are taken out of an agent's requests, and how many."""

    at: float = 0.7
    """Share of the model's context window. A context above it is made shorter."""
    to: float = 0.4
    """Share of it. Results are taken out, the oldest first, until no more than this is left."""
    keep: int = 6
    """So many of the newest results always stay."""
    by: CompactionBy = CompactionBy.AUTO
    """Who takes them out."""
    window_tokens: int | None = None
    """The model's context window; without it what the profile says (`context_windows`). Where neither says it, nothing
    is taken out."""

    def __post_init__(self) -> None:
        """BadValue: these are no shares of a context window, or they are in the wrong order."""
        if not 0 < self.to < self.at <= 1:
            raise BadValue(
                f"at {self.at:g}, to {self.to:g}: a context must become shorter",
                "write shares of the context window, such as at: 0.7 and to: 0.4",
            )
        if self.window_tokens is not None and self.window_tokens <= 0:
            raise BadValue(f"window_tokens: {self.window_tokens} is not above zero", "write such as 200000")


@dataclass(frozen=True, slots=True)
class Grants:
    """What a holder may have."""

    budgets: tuple[Allowance, ...] = ()
    """What it may spend; one for each period."""
    max_priority: Priority | None = None
    """The highest class that a request may ask for; without it the group's, then everyone's, then `normal`."""
    weight: float | None = None
    """Share beside others of the same class; without it the group's, then everyone's, then 1."""
    max_fan_out: int | None = None
    """Requests that one tree of sessions (an agent and its sub-agents) may have in flight; without it the group's,
    then everyone's, else as many as fit."""
    compaction: Compaction | None = None
    """Whether old tool results are taken out of its requests when these get long; without it the group's, then
    everyone's, else nothing is."""


@dataclass(frozen=True, slots=True)
class AgentGrants(Grants):
    """What each agent of that name may have."""

    group: str = ""
    """The group whose budgets it shares; empty: none."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What one agent has in the end."""

    group: str = ""
    """Empty: none."""
    max_priority: Priority = Priority.NORMAL
    weight: float = 1.0
    max_fan_out: int | None = None
    budgets: tuple[Budget, ...] = ()
    compaction: Compaction | None = None
    """None: nothing is taken out of its requests."""


@dataclass(frozen=True, slots=True)
class AgentRules:
    """The whole file. Without one nobody has a budget, and nobody may ask for more than `normal`."""

    agents: Mapping[str, AgentGrants] = field(default_factory=dict)
    """Agent's name or glob → what each such agent may have; the exact name counts first, then the longest glob."""
    groups: Mapping[str, Grants] = field(default_factory=dict)
    """Group → what its agents may have, and the budgets that they share."""
    everyone: Grants = field(default_factory=Grants)
    """What everyone may have, and the budgets that all agents share."""

    def granted(self, agent: str, account: str = "") -> Granted:
        """What one agent may have. `account`: what its own budgets are kept under, where that is another name."""
        granted = self._granted(agent if self.agents else "")
        if not account or account == agent:
            return granted
        return replace(
            granted,
            budgets=tuple(
                structs.replace(one, name=account) if one.scope is Scope.AGENT else one for one in granted.budgets
            ),
        )

    @by_thing_and_text
    def _granted(self, agent: str) -> Granted:
        own = self._own(agent)
        group = self.groups.get(own.group, Grants())
        layers = (own, group, self.everyone)
        usual = Granted()
        weight = next((one.weight for one in layers if one.weight is not None), usual.weight)
        return Granted(
            group=own.group,
            max_priority=next((one.max_priority for one in layers if one.max_priority is not None), usual.max_priority),
            weight=weight,
            max_fan_out=next((one.max_fan_out for one in layers if one.max_fan_out is not None), None),
            budgets=(
                *_budgets(Scope.AGENT, agent, own),
                *_budgets(Scope.GROUP, own.group, group),
                *_budgets(Scope.EVERYONE, "", self.everyone),
            ),
            compaction=_compaction(one.compaction for one in layers),
        )

    def allot(self, total: Allowance | None, each: Allowance | None) -> "AgentRules":
        """With a budget of everyone's, and one of each agent's, in the place of those for the same period."""
        agents = {"*": AgentGrants(), **self.agents} if each else self.agents
        return replace(
            self,
            agents={name: _allot(grants, each) for name, grants in agents.items()},
            everyone=_allot(self.everyone, total),
        )

    def _own(self, agent: str) -> AgentGrants:
        if exact := self.agents.get(agent):
            return exact
        globs = [glob for glob in self.agents if glob_matches(glob, agent)]
        return self.agents[max(globs, key=len)] if globs else AgentGrants()


def parse_allowance(text: str) -> Allowance:
    """A budget for a run: `500000`, `500k`, `20M` tokens; `$5`, `12.50usd`. ValueError: it is neither."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    if match["dollars"] or match["usd"]:
        return Allowance(usd=float(match["dollars"] or match["usd"]))
    tokens = float(match["tokens"]) * _FACTORS[match["factor"].lower()]
    if not tokens.is_integer():
        raise ValueError(text)
    return Allowance(tokens=int(tokens))


def _allot[G: Grants](grants: G, allowance: Allowance | None) -> G:
    if allowance is None:
        return grants
    return replace(grants, budgets=(*(one for one in grants.budgets if one.per is not allowance.per), allowance))


def _compaction(layers: Iterable[Compaction | None]) -> Compaction | None:
    first = next((one for one in layers if one is not None), None)
    return None if first is None or first.by is CompactionBy.NOBODY else first


def _budgets(scope: Scope, name: str, grants: Grants) -> list[Budget]:
    return [
        Budget(
            scope=scope,
            name=name,
            per=one.per,
            tokens=one.tokens,
            micro_usd=None if one.usd is None else round(one.usd * 1_000_000),
            calls=one.calls,
        )
        for one in grants.budgets
    ]
