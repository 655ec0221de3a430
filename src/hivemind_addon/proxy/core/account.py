"""One holder's book for one period: what it may spend, has spent, and has set aside for what is in flight.

    the limits:   what a person gave at run time, else what the newest ticket brought from the agents file,
                  else what an earlier process left; and what was added for this period
    the period:   begins with the first reservation, and anew with the first one after its end

A period that is over is over for whoever looks, too; but only what changes an account begins a new one.
"""

import math
from dataclasses import dataclass, field

from hivemind_addon.api.events import BudgetBooked
from hivemind_addon.api.snapshot import BudgetView
from hivemind_addon.api.spend import Budget, Period, Scope, Shortage, Spend, Standing
from hivemind_addon.api.ticket import Ticket

WARN_PERCENT = 85
_NOTHING = Spend()

AccountKey = tuple[Scope, str, Period]


@dataclass(slots=True, eq=False)
class Account:
    """Only `Budgets` and `Treasurer` change it; after each change they tell what `booked` says."""

    key: AccountKey
    began_at: float
    given: Budget | None = None
    """A person's word at run time: it counts before all others."""
    filed: Budget | None = None
    """The agents file's, as the newest ticket brought it."""
    left: Budget | None = None
    """An earlier process's, until somebody else says what counts."""
    spent: Spend = field(default_factory=Spend)
    reserved: Spend = field(default_factory=Spend)
    added: Spend = field(default_factory=Spend)
    """By a person, to the limits of this period."""
    told: dict[str, int] = field(default_factory=dict)
    """Unit → the highest percentage that was told of."""
    waiting: dict[str, None] = field(default_factory=dict)
    """Tickets to look at again when the account changes, in order."""

    def __repr__(self) -> str:
        return f"<Account of {self.budget.holder}: {self.spent} and {self.reserved} of {self.budget}>"

    @property
    def budget(self) -> Budget:
        """What its holder may spend in the present period."""
        base = self.given or self.filed or self.left
        return Budget(*self.key) if base is None else base.plus(self.added)

    @property
    def is_untouched(self) -> bool:
        """Nothing has happened in its period: it begins with what happens next."""
        return self.spent == self.reserved == self.added == _NOTHING

    @property
    def ends_at(self) -> float:
        """When its period is over; infinite: never."""
        return self.began_at + self.key[2].length_s

    def file(self, budget: Budget) -> None:
        """A ticket brought what the agents file says."""
        self.filed, self.left = budget, None

    def give(self, budget: Budget | None) -> None:
        """A person gave it limits; None: took them back."""
        self.given = budget
        if budget is not None:
            self.left = None

    def take_over(self, standing: Standing, now: float) -> None:
        """Count in what an earlier process left."""
        if self.given is None and self.filed is None:
            self.left = standing.budget.plus(_NOTHING - standing.added)
        began_at = now - standing.age_s
        self.began_at = began_at if self.is_untouched else min(self.began_at, began_at)
        self.spent += standing.spent
        self.added += standing.added
        # The person was told by the process that spent it.
        self.told = self.percents()

    def count_in(self, standing: Standing, now: float) -> None:
        """Count in what its holder had spent before it had this budget."""
        self.began_at = min(self.began_at, now - standing.age_s)
        self.spent += standing.spent

    def renew(self, now: float) -> bool:
        """Begin a new period where the old one is over; what is in flight is booked in the new one."""
        if now < self.ends_at:
            return False
        was_untouched = self.is_untouched
        self.forgive(now)
        return not was_untouched

    def forgive(self, now: float) -> None:
        """Begin a new period."""
        self.began_at = now
        self.spent = self.added = _NOTHING
        self.told.clear()

    def set_aside(self, expected: Spend, now: float) -> None:
        """An attempt begins."""
        if self.is_untouched:
            self.began_at = now
        self.reserved += expected

    def settle(self, expected: Spend, actual: Spend) -> None:
        """An attempt has ended."""
        self.reserved -= expected
        self.spent += actual

    def units(self) -> list[tuple[str, int, int, int]]:
        """Unit, limit, spent and reserved of each unit that is limited."""
        budget = self.budget
        units = []
        if budget.tokens is not None:
            units.append(("tokens", budget.tokens, self.spent.tokens, self.reserved.tokens))
        if budget.micro_usd is not None:
            units.append(("micro_usd", budget.micro_usd, self.spent.micro_usd, self.reserved.micro_usd))
        return units

    def percents(self) -> dict[str, int]:
        """Unit → 100 where it is spent, 85 where most of it is, else 0."""
        return {
            unit: 100 if spent >= limit else WARN_PERCENT if spent * 100 >= limit * WARN_PERCENT else 0
            for unit, limit, spent, _ in self.units()
        }

    def shortages(self, ticket: Ticket, now: float) -> list[Shortage]:
        """What keeps a ticket from going, by unit."""
        found = []
        for unit, limit, spent, reserved in self.units():
            needed = ticket.expected.tokens if unit == "tokens" else ticket.expected.micro_usd
            if unit == "micro_usd" and ticket.price is None:
                continue
            if spent >= limit or spent + reserved + needed > limit:
                found.append(
                    Shortage(
                        budget=self.budget,
                        unit=unit,
                        limit=limit,
                        spent=spent,
                        reserved=reserved,
                        needed=needed,
                        renews_in_s=self._renews_in_s(now),
                    )
                )
        return found

    def view(self, now: float) -> BudgetView:
        """The account at one instant; nothing changes by it."""
        if now >= self.ends_at:
            budget, spent, added = self.budget.plus(_NOTHING - self.added), _NOTHING, _NOTHING
        else:
            budget, spent, added = self.budget, self.spent, self.added
        return BudgetView(
            budget=budget, spent=spent, reserved=self.reserved, renews_in_s=self._renews_in_s(now), added=added
        )

    def booked(self, now: float) -> BudgetBooked:
        """The event that tells how it stands."""
        return BudgetBooked(
            at=now,
            budget=self.budget,
            began_at=self.began_at,
            spent=self.spent,
            reserved=self.reserved,
            added=self.added,
        )

    def _renews_in_s(self, now: float) -> float | None:
        """None: never. What has not begun, or is over, would last from now on."""
        if math.isinf(length_s := self.key[2].length_s):
            return None
        return length_s if self.is_untouched or now >= self.ends_at else max(0.0, self.ends_at - now)
