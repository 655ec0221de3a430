"""Budgets: what agents, groups and everyone have spent of what they were given.

    admitted:  spent + reserved + expected <= limit  ──► reserved += expected
    settled:   reserved -= expected; spent += actual
    short:     spent + expected <= limit   the ticket waits for an attempt of the holder to end
               otherwise                   the ticket is refused

Running attempts finish. So a fleet overshoots a budget by no more than the sum of (actual - expected) over what is in
flight when the last ticket is admitted. A ticket carries its budgets (several holders, several periods); the book
keeps only what was spent, so a budget that is raised counts from the next ticket on.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hivemind_addon.core.events import BudgetSpent, BudgetWarned, Event
from hivemind_addon.core.snapshot import BudgetView
from hivemind_addon.core.spend import Budget, Period, Price, Scope, Shortage, Spend
from hivemind_addon.core.ticket import ContractError, Demand, Outcome, OutcomeKind, Ticket, Usage

WARN_PERCENT = 85

_MAY_BE_BILLED = {OutcomeKind.SUCCESS, OutcomeKind.CANCELLED}
_Key = tuple[Scope, str, Period]


def spend_of(usage: Usage, price: Price | None) -> Spend:
    """What a usage comes to; no money without a price."""
    return Spend(
        tokens=usage.total_input_tokens + usage.output_tokens,
        micro_usd=0
        if price is None
        else price.micro_usd(
            input_tokens=usage.input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            output_tokens=usage.output_tokens,
        ),
    )


def actual_spend(ticket: Ticket, outcome: Outcome, usage: Usage | None, charged: Demand | None) -> Spend:
    """What an attempt took from its budgets.

    What the provider reported; where it did not, what was expected (or more, if more was counted) of an attempt that
    may have been billed, and nothing of one that was refused or never sent.
    """
    if usage is not None and usage.reported:
        return spend_of(usage, ticket.price)
    counted = Spend() if usage is None else spend_of(usage, ticket.price)
    never_sent = charged == Demand(requests=0)
    if never_sent or not (outcome.ambiguous or outcome.kind in _MAY_BE_BILLED):
        return counted
    return Spend(
        tokens=max(counted.tokens, ticket.expected.tokens),
        micro_usd=max(counted.micro_usd, ticket.expected.micro_usd),
    )


@dataclass(slots=True)
class _Account:
    """One holder's book for one period."""

    budget: Budget
    """As the newest ticket brought it."""
    began_at: float
    spent: Spend = field(default_factory=Spend)
    reserved: Spend = field(default_factory=Spend)
    told: dict[str, int] = field(default_factory=dict)
    """Unit → the highest percentage that was told of."""
    waiting: dict[str, None] = field(default_factory=dict)
    """Tickets to look at again when an attempt of the holder ends, in order."""

    def renew(self, now: float) -> None:
        """Begin a new period where the old one is over; what is in flight is booked in the new one."""
        if now >= self.began_at + self.budget.per.length_s:
            self.began_at = now
            self.spent = Spend()
            self.told.clear()

    def renews_in_s(self, now: float) -> float | None:
        """None: never."""
        length_s = self.budget.per.length_s
        return None if math.isinf(length_s) else max(0.0, self.began_at + length_s - now)


class Budgets:
    """The books of one scheduler. Every `reserve` that answers None is followed by one `settle`."""

    def __init__(self, *, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._accounts: dict[_Key, _Account] = {}
        self._in_flight: dict[str, tuple[tuple[_Account, ...], Spend]] = {}

    def __repr__(self) -> str:
        return f"<Budgets {len(self._accounts)} accounts, {len(self._in_flight)} in flight>"

    def shortage(self, ticket: Ticket, now: float) -> Shortage | None:
        """What keeps a ticket from going, the final one first; None: nothing."""
        passing: Shortage | None = None
        for budget in ticket.budgets:
            account = self._account(budget, now)
            for short in _shortages(account, ticket, now):
                if not short.may_pass:
                    return short
                passing = passing or short
        return passing

    def reserve(self, ticket: Ticket, now: float) -> Shortage | None:
        """Set the expected spend of a ticket aside in all of its budgets, or in none and say why."""
        short = self.shortage(ticket, now)
        if short is not None:
            return short
        if ticket.budgets:
            accounts = tuple(self._account(budget, now) for budget in ticket.budgets)
            for account in accounts:
                account.reserved += ticket.expected
            self._in_flight[ticket.id] = accounts, ticket.expected
        return None

    def wait(self, ticket: Ticket, short: Shortage, now: float) -> None:
        """Have a ticket named by a later `settle` of its holder."""
        self._account(short.budget, now).waiting[ticket.id] = None

    def settle(self, ticket: Ticket, actual: Spend, now: float) -> list[str]:
        """Book what an attempt really took. The tickets to look at again, in the order of their waits."""
        if not ticket.budgets:
            return []
        held = self._in_flight.pop(ticket.id, None)
        if held is None:
            raise ContractError(f"{ticket.id}: its budgets were settled already")
        accounts, reserved = held
        woken: dict[str, None] = {}
        for account in accounts:
            account.renew(now)
            account.reserved -= reserved
            account.spent += actual
            self._tell(account, now)
            woken.update(account.waiting)
            account.waiting.clear()
        return list(woken)

    def views(self, now: float) -> tuple[BudgetView, ...]:
        """Every account that a ticket has touched."""
        for account in self._accounts.values():
            account.renew(now)
        return tuple(
            BudgetView(
                budget=account.budget,
                spent=account.spent,
                reserved=account.reserved,
                renews_in_s=account.renews_in_s(now),
            )
            for account in self._accounts.values()
        )

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept."""
        for account in self._accounts.values():
            account.began_at -= delta_s

    def export(self, now: float) -> list[dict[str, object]]:
        """What was spent in periods that outlive a run, as plain JSON values."""
        return [
            {
                "scope": account.budget.scope.value,
                "name": account.budget.name,
                "per": account.budget.per.value,
                "tokens": account.spent.tokens,
                "micro_usd": account.spent.micro_usd,
                "age_s": max(0.0, now - account.began_at),
            }
            for account in self._accounts.values()
            if account.budget.per is not Period.RUN
        ]

    def restore(self, saved: Sequence[object], now: float) -> list[str]:
        """Take over what `export` gave at the instant `now`. What cannot be understood is named and left out."""
        oddities = []
        for one in saved:
            try:
                account = _restored(one, now)
            except (KeyError, TypeError, ValueError) as error:
                oddities.append(f"saved budget: {error!r}")
                continue
            budget = account.budget
            self._accounts.setdefault((budget.scope, budget.name, budget.per), account)
        return oddities

    def _account(self, budget: Budget, now: float) -> _Account:
        key = budget.scope, budget.name, budget.per
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account(budget, now)
        account.budget = budget
        account.renew(now)
        return account

    def _tell(self, account: _Account, now: float) -> None:
        """Once per period and unit at 85 %, and once at 100 %."""
        budget = account.budget
        for unit, limit, spent, _ in _units(account):
            percent = 100 if spent >= limit else WARN_PERCENT if spent * 100 >= limit * WARN_PERCENT else 0
            before = account.told.get(unit, 0)
            # A budget that was raised is told of anew.
            account.told[unit] = percent
            if percent > before:
                event = BudgetSpent if percent == 100 else BudgetWarned
                self._emit(event(at=now, budget=budget, unit=unit, spent=spent, limit=limit))


def _units(account: _Account) -> list[tuple[str, int, int, int]]:
    """Unit, limit, spent and reserved of each unit that the budget limits."""
    budget, spent, reserved = account.budget, account.spent, account.reserved
    units = []
    if budget.tokens is not None:
        units.append(("tokens", budget.tokens, spent.tokens, reserved.tokens))
    if budget.micro_usd is not None:
        units.append(("micro_usd", budget.micro_usd, spent.micro_usd, reserved.micro_usd))
    return units


def _shortages(account: _Account, ticket: Ticket, now: float) -> list[Shortage]:
    found = []
    for unit, limit, spent, reserved in _units(account):
        needed = ticket.expected.tokens if unit == "tokens" else ticket.expected.micro_usd
        if unit == "micro_usd" and ticket.price is None:
            continue
        if spent >= limit or spent + reserved + needed > limit:
            found.append(
                Shortage(
                    budget=account.budget,
                    unit=unit,
                    limit=limit,
                    spent=spent,
                    reserved=reserved,
                    needed=needed,
                    renews_in_s=account.renews_in_s(now),
                )
            )
    return found


def _restored(saved: object, now: float) -> _Account:
    if not isinstance(saved, Mapping):
        raise TypeError("no mapping")
    age_s, tokens, micro_usd = float(saved["age_s"]), int(saved["tokens"]), int(saved["micro_usd"])
    if not (math.isfinite(age_s) and age_s >= 0 and tokens >= 0 and micro_usd >= 0):
        raise ValueError("negative or no number")
    return _Account(
        budget=Budget(scope=Scope(saved["scope"]), name=str(saved["name"]), per=Period(saved["per"])),
        began_at=now - age_s,
        spent=Spend(tokens, micro_usd),
    )
