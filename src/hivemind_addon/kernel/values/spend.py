"""What is spent and what may be: tokens, money and calls as whole numbers, so that sums are exact.

Money is counted in micro-dollars (a millionth of a dollar). A price is in micro-dollars per million tokens: $0.30
for a million tokens is 300,000.
"""

from enum import Enum

from msgspec import Struct

_MILLION = 1_000_000

MOST_AMOUNT = 10**15
"""No budget is larger, so that every sum of what is spent fits into what a database counts with."""


class Price(Struct, frozen=True, gc=False):
    """What a model costs, in micro-dollars per million tokens."""

    input: int
    """Uncached input."""
    cache_write: int
    cache_read: int
    output: int

    def micro_usd(
        self, *, input_tokens: int, cache_write_tokens: int, cache_read_tokens: int, output_tokens: int
    ) -> int:
        """The cost of one attempt, rounded up once."""
        total = (
            input_tokens * self.input
            + cache_write_tokens * self.cache_write
            + cache_read_tokens * self.cache_read
            + output_tokens * self.output
        )
        return -(-total // _MILLION)


class Spend(Struct, frozen=True, gc=False):
    """An amount of each kind."""

    tokens: int = 0
    """All input, cached or not, and output."""
    micro_usd: int = 0
    calls: int = 0
    """Attempts that were run, or may have been: of models and of tools."""
    unpriced_tokens: int = 0
    """Of the tokens, those of models without a price: no money was counted for them."""

    def __add__(self, other: "Spend") -> "Spend":
        return Spend(
            self.tokens + other.tokens,
            self.micro_usd + other.micro_usd,
            self.calls + other.calls,
            self.unpriced_tokens + other.unpriced_tokens,
        )

    def __sub__(self, other: "Spend") -> "Spend":
        return Spend(
            self.tokens - other.tokens,
            self.micro_usd - other.micro_usd,
            self.calls - other.calls,
            self.unpriced_tokens - other.unpriced_tokens,
        )

    @property
    def by_unit(self) -> tuple[tuple[str, int], ...]:
        """Every unit that a budget may limit, and its amount."""
        return (("tokens", self.tokens), ("micro_usd", self.micro_usd), ("calls", self.calls))


PRICE_CURE = "write its price under `prices` of a profile (docs/profiles.md), or limit tokens, too"
"""Of a model that a budget in money does not count."""


def amount(unit: str, value: int) -> str:
    """Tokens, calls or micro-dollars for people: `1,200,000 tokens`, `40 calls`, `$4.25`, `$0.0031`."""
    if unit != "micro_usd":
        return f"{value:,} {unit[:-1]}{'s' * (value != 1)}"
    usd = value / _MILLION
    return f"${usd:,.2f}" if usd >= 1 or not value else f"${usd:.4f}"


class Scope(Enum):
    """Whose budget it is."""

    AGENT = "agent"
    GROUP = "group"
    EVERYONE = "everyone"


class Period(Enum):
    """How long a budget has to last."""

    RUN = "run"
    """A run of the fleet: it goes on after a crash, and after a restart within the hour."""
    HOUR = "hour"
    """An hour from the first request; then a new one begins with the next."""
    DAY = "day"
    """24 hours from the first request; then new ones begin with the next."""
    MONTH = "month"
    """30 days from the first request; then new ones begin with the next."""

    @property
    def length_s(self) -> float:
        """Infinite for a run."""
        match self:
            case Period.RUN:
                return float("inf")
            case Period.HOUR:
                return 3600.0
            case Period.DAY:
                return 86_400.0
            case Period.MONTH:
                return 30 * 86_400.0


BudgetKey = tuple[Scope, str, Period]


class Budget(Struct, frozen=True, gc=False):
    """An allotment that we set: what one holder may spend in one period."""

    scope: Scope
    name: str
    """The agent's or the group's; empty for everyone's."""
    per: Period = Period.RUN
    tokens: int | None = None
    """None: tokens are not limited."""
    micro_usd: int | None = None
    """None: money is not limited. Where it is, it binds only models with a price, and others are reported."""
    calls: int | None = None
    """None: calls are not limited."""

    @property
    def key(self) -> BudgetKey:
        """Of a holder's budgets for a period there is one."""
        return self.scope, self.name, self.per

    @property
    def holder(self) -> str:
        """Who, in words: `agent agent-7`, `group reviewers`, `everyone`."""
        return f"{self.scope.value} {self.name}".rstrip()

    @property
    def limits_anything(self) -> bool:
        """Whether it limits tokens, money or calls."""
        return any(limit is not None for _, limit in self.by_unit)

    @property
    def by_unit(self) -> tuple[tuple[str, int | None], ...]:
        """Every unit and its limit."""
        return (("tokens", self.tokens), ("micro_usd", self.micro_usd), ("calls", self.calls))

    def balances(self, spent: Spend, reserved: Spend) -> list["Balance"]:
        """How each unit that is limited stands."""
        units = zip(self.by_unit, spent.by_unit, reserved.by_unit, strict=True)
        return [Balance(unit, limit, gone, held) for (unit, limit), (_, gone), (_, held) in units if limit is not None]

    def plus(self, added: Spend) -> "Budget":
        """The same with higher limits, as far as it has any."""
        if added == Spend():
            return self
        return Budget(
            scope=self.scope,
            name=self.name,
            per=self.per,
            tokens=None if self.tokens is None else self.tokens + added.tokens,
            micro_usd=None if self.micro_usd is None else self.micro_usd + added.micro_usd,
            calls=None if self.calls is None else self.calls + added.calls,
        )


class Balance(Struct, frozen=True, gc=False):
    """How one unit of a budget stands; its numbers are tokens, micro-dollars or calls."""

    unit: str
    """`tokens`, `micro_usd` or `calls`."""
    limit: int
    spent: int
    reserved: int
    """By the holder's attempts that are in flight."""

    @property
    def left(self) -> int:
        """What may still be set aside."""
        return max(0, self.limit - self.spent - self.reserved)

    @property
    def spent_share(self) -> float:
        """The fraction of the limit that is spent; may be above 1."""
        return self.spent / self.limit if self.limit else 0.0


class AccountState(Struct, frozen=True, gc=False):
    """A holder's account, as an earlier process left it."""

    budget: Budget
    """With the limits that held, as `BudgetBooked` told them: what was added is counted in."""
    age_s: float
    """Seconds since its period began."""
    spent: Spend
    """What was in flight when that process died is counted in: it may have been billed."""
    added: Spend
    """What a person added to the limits, for this period only."""


class Shortage(Struct, frozen=True, gc=False, tag="shortage"):
    """Why a budget does not let a ticket go; `unit`'s numbers are tokens, micro-dollars or calls."""

    budget: Budget
    unit: str
    """`tokens`, `micro_usd` or `calls`."""
    limit: int
    spent: int
    reserved: int
    """By the holder's attempts that are in flight."""
    needed: int
    """What the ticket is expected to take."""
    renews_in_s: float | None
    """None: not before the next run."""

    @property
    def may_pass(self) -> bool:
        """Only the reservations of running attempts stand in the way, and these may turn out smaller."""
        return self.spent < self.limit and self.spent + self.needed <= self.limit
