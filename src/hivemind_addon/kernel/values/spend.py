"""Spending and budgets: tokens, money and calls as whole numbers, so sums are exact.

Money is in micro-dollars (millionths of a dollar), a price per million tokens: $0.30 per million tokens is 300,000.
"""

from enum import Enum
from math import inf
from operator import add, sub

from msgspec import Struct
from msgspec.structs import astuple, replace

MOST_AMOUNT = 10**15
"""The largest budget; so every sum of spending fits into a database's integer."""


class _Rates(Struct, frozen=True, gc=False, omit_defaults=True):
    """Micro-dollars per million tokens."""

    input: int
    """Uncached input."""
    cache_write: int
    """Input written to the prompt cache, for five minutes where the provider offers several times."""
    cache_read: int
    output: int
    cache_write_1h: int | None = None
    """Input written to the prompt cache for an hour; None: as `cache_write`."""


class SpecialPrice(_Rates, frozen=True, gc=False):
    """The price of a part of the requests, in micro-dollars per million tokens."""

    tier: str = ""
    """The service tier; empty: every tier without special prices."""
    above: int = -1
    """More input than so many tokens."""


class Price(_Rates, frozen=True, gc=False):
    """The price of a model, in micro-dollars per million tokens."""

    guess: str = ""
    """The model whose price this is, because the own price is unknown; empty: it is the own price."""
    tier: str = ""
    """The service tier that the request asks for; an answer may report another tier."""
    special: tuple[SpecialPrice, ...] = ()
    """Of each tier the price of the longest requests first."""


class Spend(Struct, frozen=True, gc=False):
    """Amounts in all units."""

    tokens: int = 0
    """All input, cached or not, and output."""
    micro_usd: int = 0
    calls: int = 0
    """Attempts at models and tools that were run, or may have been run."""
    unpriced_tokens: int = 0
    """The part of `tokens` for models without any price, which is not counted in money."""

    def __add__(self, other: "Spend") -> "Spend":
        return Spend(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: "Spend") -> "Spend":
        return Spend(*map(sub, astuple(self), astuple(other)))

    @property
    def by_unit(self) -> tuple[tuple[str, int], ...]:
        """Each unit that a budget may limit, with the amount."""
        return (("tokens", self.tokens), ("micro_usd", self.micro_usd), ("calls", self.calls))


class Scope(Enum):
    """Whose budget it is."""

    AGENT = "agent"
    GROUP = "group"
    EVERYONE = "everyone"


class Period(Enum):
    """How long a budget has to last."""

    RUN = "run"
    """A run of the fleet; continues after a crash, and after a restart within the hour."""
    HOUR = "hour"
    """An hour from the first request; the next request after that begins another hour."""
    DAY = "day"
    """24 hours from the first request; the next request after that begins another 24 hours."""
    MONTH = "month"
    """30 days from the first request; the next request after that begins another 30 days."""

    @property
    def length_s(self) -> float:
        """Infinite for a run."""
        return _LENGTHS_S[self]


_LENGTHS_S = {Period.RUN: inf, Period.HOUR: 3600.0, Period.DAY: 86_400.0, Period.MONTH: 30 * 86_400.0}
BudgetKey = tuple[Scope, str, Period]


class Budget(Struct, frozen=True, gc=False):
    """The amounts that a holder may spend in a period. We set budgets; the provider does not know them."""

    scope: Scope
    name: str
    """The agent or the group; empty for everyone."""
    per: Period = Period.RUN
    tokens: int | None = None
    """None: tokens are not limited."""
    micro_usd: int | None = None
    """None: money is not limited. Models without any price are not counted, which is reported."""
    calls: int | None = None
    """None: calls are not limited."""

    @property
    def key(self) -> BudgetKey:
        """Identifies the budget: a holder has one per period."""
        return self.scope, self.name, self.per

    @property
    def holder(self) -> str:
        """The holder in words: `agent agent-7`, `group reviewers`, `everyone`."""
        return f"{self.scope.value} {self.name}".rstrip()

    @property
    def limits_anything(self) -> bool:
        """Whether the budget limits tokens, money or calls."""
        return any(limit is not None for _, limit in self.by_unit)

    @property
    def by_unit(self) -> tuple[tuple[str, int | None], ...]:
        """Each unit with the limit; None: no limit."""
        return (("tokens", self.tokens), ("micro_usd", self.micro_usd), ("calls", self.calls))

    def balances(self, spent: Spend, reserved: Spend) -> list["Balance"]:
        """The balances of the limited units."""
        units = zip(self.by_unit, spent.by_unit, reserved.by_unit, strict=True)
        return [Balance(unit, limit, gone, held) for (unit, limit), (_, gone), (_, held) in units if limit is not None]

    def plus(self, added: Spend) -> "Budget":
        """The budget with all existing limits raised."""
        if added == Spend():
            return self
        more = dict(added.by_unit)
        return replace(self, **{unit: limit + more[unit] for unit, limit in self.by_unit if limit is not None})


class Balance(Struct, frozen=True, gc=False):
    """The state of a unit of a budget."""

    unit: str
    """The unit of the numbers: `tokens`, `micro_usd` or `calls`."""
    limit: int
    spent: int
    reserved: int
    """By the holder's attempts that are in flight."""

    @property
    def left(self) -> int:
        """The amount that may still be reserved."""
        return max(0, self.limit - self.spent - self.reserved)

    @property
    def spent_share(self) -> float:
        """The spent fraction of the limit; may exceed 1."""
        return self.spent / self.limit if self.limit else 0.0


class AccountState(Struct, frozen=True, gc=False):
    """A holder's account, saved by an earlier process."""

    budget: Budget
    """The limits with added amounts, as in `BudgetBooked`."""
    age_s: float
    """Seconds since the period began."""
    spent: Spend
    """With the attempts in flight when that process died, because they may have been billed."""
    added: Spend
    """Amounts that a person added to the limits, for this period only."""


class Shortage(Struct, frozen=True, gc=False, tag="shortage"):
    """Why a budget holds back or refuses a ticket."""

    budget: Budget
    unit: str
    """The unit of the numbers: `tokens`, `micro_usd` or `calls`."""
    limit: int
    spent: int
    reserved: int
    """By the holder's attempts that are in flight."""
    needed: int
    """The amount that the ticket is expected to take."""
    renews_in_s: float | None
    """None: not before the next run."""
    unpriced: str = ""
    """The model that has no price of its own, which is why the ticket is refused, whatever is left; empty: it has."""

    @property
    def may_pass(self) -> bool:
        """Whether only reservations of running attempts stand in the way; the attempts may take less."""
        return not self.unpriced and self.spent < self.limit and self.spent + self.needed <= self.limit
