"""Budgets: limits on the spending of agents, groups and all agents together.

    admitted:  spent + reserved + expected <= limit  ──► reserved += expected
    settled:   reserved -= expected; spent += actual
    short:     spent + expected <= limit   the ticket waits for a change of the holder's account
               otherwise                   the ticket is refused

Running attempts finish. So a fleet overshoots a budget by at most the sum of (actual - expected) over the attempts in
flight when `spent + reserved` crosses the limit. A ticket carries budgets from the agents file. Overrides hold the
budgets that a person gives at run time, which replace or join those of the file.

An account holds the limits, the spending and the reservations of one holder for one period. An attempt is booked in the
accounts that reserved for it, and in accounts of the same holders that were opened meanwhile, even if a person changes
the budgets. The caller counts in the spending from before an account was opened (`count_in`).

    the limits:   from a person, else the agents file, else an earlier process; plus amounts that a person added
    the period:   begins with the first reservation, and anew with the first after the end; views show the end at once
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import astuple
from msgspec.structs import replace as replace_limit

from hivemind_addon.kernel.heap import KeyedHeap
from hivemind_addon.kernel.overrides import Overrides
from hivemind_addon.kernel.values.events import BudgetBooked, BudgetSpent, BudgetWarned, Event, PriceMissing
from hivemind_addon.kernel.values.snapshot import BudgetView
from hivemind_addon.kernel.values.spend import (
    MOST_AMOUNT,
    AccountState,
    Balance,
    Budget,
    BudgetKey,
    Period,
    Price,
    Scope,
    Shortage,
    Spend,
)
from hivemind_addon.kernel.values.ticket import AttemptResult, ContractError, Demand, OutcomeKind, Ticket, Usage

WARN_PERCENT = 85
_SAME_S = 1.0
"""Instants of different processes that differ by less may be the same instant."""
_NOTHING = Spend()
ONE_CALL = Spend(calls=1)


@dataclass(slots=True, eq=False)
class Account:
    """A holder's account for a period. `Budgets` and `CommandHandler` alone change accounts, and emit `booked` then."""

    key: BudgetKey
    began_at: float
    given: Budget | None = None
    """A person's budget from run time; takes precedence."""
    filed: Budget | None = None
    """The budget of the agents file, as carried by the newest ticket."""
    left: Budget | None = None
    """The budget of an earlier process, until a person or the file gives another budget."""
    spent: Spend = field(default_factory=Spend)
    reserved: Spend = field(default_factory=Spend)
    added: Spend = field(default_factory=Spend)
    """Amounts that a person added to the limits of this period."""
    reported: dict[str, int] = field(default_factory=dict)
    """Unit → the highest percentage already reported."""
    share: float = 1.0
    """The fraction of the remaining amounts that this process may spend."""
    before: Spend = _NOTHING
    """`spent` when `share` began to apply, or of an earlier process; nothing once a new period has begun."""
    guesses: dict[str, str] = field(default_factory=dict)
    """Model that money counted in this period at another price → the model of that price."""
    waiting: dict[str, None] = field(default_factory=dict)
    """Ids of tickets to check again when the account changes, in order."""

    @property
    def budget(self) -> Budget:
        """The limits in the present period."""
        base = self.given or self.filed or self.left
        return Budget(*self.key) if base is None else base.plus(self.added)

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was spent, reserved or added: the period begins with the next change."""
        return self.spent == self.reserved == self.added == _NOTHING

    @property
    def ends_at(self) -> float:
        """The end of the period; infinite for a run."""
        return self.began_at + self.key[2].length_s

    def file(self, budget: Budget) -> None:
        """Take the limits that a ticket carries from the agents file."""
        self.filed, self.left = budget, None

    def give(self, budget: Budget | None) -> None:
        """Take the limits that a person gave; None: the person took the limits back."""
        self.given = budget
        if budget is not None:
            self.left = None

    def take_over(self, standing: AccountState, now: float) -> None:
        """Count in the account of an earlier process."""
        if self.given is None and self.filed is None:
            self.left = standing.budget.plus(_NOTHING - standing.added)
        began_at = now - standing.age_s
        self.began_at = began_at if self.is_untouched else min(self.began_at, began_at)
        self.spent += standing.spent
        self.before = self.spent
        self.added += standing.added
        # The earlier process has reported these percentages.
        self.reported = self.percents()

    def book(self, spend: Spend, spent_at: float) -> None:
        """Count in another process's spending. Negative: take back presumed spending, unless of an earlier period."""
        if min(spend.tokens, spend.micro_usd, spend.calls) < 0 and spent_at < self.began_at - _SAME_S:
            return
        self.began_at = spent_at if self.is_untouched else min(self.began_at, spent_at)
        self.spent = Spend(*(max(0, amount) for amount in astuple(self.spent + spend)))

    def renew(self, now: float) -> bool:
        """Begin a new period if the present period is over; attempts in flight are booked in the new period."""
        if now < self.ends_at:
            return False
        was_untouched = self.is_untouched
        self.forgive(now)
        return not was_untouched

    def forgive(self, now: float) -> None:
        """Begin a new period."""
        self.began_at = now
        self.spent = self.added = self.before = _NOTHING
        self.reported.clear()
        self.guesses.clear()

    def set_aside(self, ticket: Ticket, expected: Spend, now: float) -> None:
        """Reserve the expected spend of an attempt at a ticket."""
        if self.is_untouched:
            self.began_at = now
        self.reserved += expected
        guess = ticket.price.guess if ticket.price and self.budget.micro_usd is not None else ""
        if guess and len(self.guesses) < _MOST_UNPRICED:
            self.guesses[ticket.model] = guess

    def settle(self, expected: Spend, actual: Spend) -> None:
        """Replace the reservation of an ended attempt by the actual spend."""
        self.reserved -= expected
        self.spent += actual

    def add(self, more: Spend, now: float) -> None:
        """Raise the existing limits for this period."""
        if self.is_untouched:
            self.forgive(now)
        limits = dict(self.budget.by_unit)
        self.added += Spend(**{unit: amount for unit, amount in more.by_unit if limits[unit] is not None})

    @property
    def balances(self) -> list[Balance]:
        """Each limited unit, with the part of the limit that this process may spend."""
        balances = self.budget.balances(self.spent, self.reserved)
        if self.share == 1:
            return balances
        before = dict(self.before.by_unit)
        return [replace_limit(one, limit=_part_of(one.limit, before[one.unit], self.share)) for one in balances]

    def spend_only(self, share: float) -> None:
        """Let this process spend a share of the remaining amounts, and of the whole limits of later periods."""
        self.share, self.before = share, self.spent

    def percents(self) -> dict[str, int]:
        """Unit → 100 if spent, 85 if spent to at least 85 %, else 0."""
        percents = {}
        for balance in self.balances:
            is_most = balance.spent * 100 >= balance.limit * WARN_PERCENT
            percents[balance.unit] = 100 if balance.spent >= balance.limit else WARN_PERCENT if is_most else 0
        return percents

    def shortages(self, ticket: Ticket, now: float) -> list[Shortage]:
        """The units that are too short for a ticket."""
        found = []
        renews_in_s = self._renews_in_s(now)
        for balance in self.balances:
            needed = _needed(ticket, balance.unit)
            is_money = balance.unit == "micro_usd"
            unpriced = (ticket.model or "a request") if is_money and ticket.needs_price else ""
            is_free = is_money and ticket.price is None
            if unpriced or (
                not is_free
                and (balance.spent >= balance.limit or balance.spent + balance.reserved + needed > balance.limit)
            ):
                amounts = balance.limit, balance.spent, balance.reserved
                found.append(Shortage(self.budget, balance.unit, *amounts, needed, renews_in_s, unpriced))
        return found

    def view(self, now: float) -> BudgetView:
        """The account at an instant; changes nothing."""
        if now >= self.ends_at:
            budget, spent, added, guesses = self.budget.plus(_NOTHING - self.added), _NOTHING, _NOTHING, {}
        else:
            budget, spent, added, guesses = self.budget, self._told(self.spent), self.added, self.guesses.copy()
        return BudgetView(budget, spent, self._told(self.reserved), self._renews_in_s(now), added, guesses)

    def _told(self, spend: Spend) -> Spend:
        """The spend without calls unless calls are limited, and without unpriced tokens unless money is limited."""
        calls = 0 if self.budget.calls is None else spend.calls
        unpriced_tokens = 0 if self.budget.micro_usd is None else spend.unpriced_tokens
        return Spend(spend.tokens, spend.micro_usd, calls, unpriced_tokens)

    def standing(self, now: float) -> AccountState | None:
        """The account as saved for another process; None: the account is empty, or the period is over."""
        spent = self._told(self.spent)
        if now >= self.ends_at or spent == self.added == _NOTHING:
            return None
        return AccountState(self.budget, max(0.0, now - self.began_at), spent, self.added)

    def booked(self, now: float) -> BudgetBooked:
        """The event with the account's present state."""
        spent, reserved = self._told(self.spent), self._told(self.reserved)
        return BudgetBooked(now, self.budget, self.began_at, spent, reserved, self.added)

    def _renews_in_s(self, now: float) -> float | None:
        """Seconds until the period ends; None: never. A period that has not begun, or is over, would begin now."""
        if math.isinf(length_s := self.key[2].length_s):
            return None
        return length_s if self.is_untouched or now >= self.ends_at else max(0.0, self.ends_at - now)


_NEVER = math.inf
_MOST_STANDING = 1000 * MOST_AMOUNT
"""Larger amounts in a saved account are taken for errors."""
_MOST_UNPRICED = 100
"""At most this many models without a price are reported, because clients may name any number of models."""


def cost_of(usage: Usage, price: Price) -> int:
    """The cost of an attempt in micro-dollars; only the sum is rounded up."""
    tier, total_input_tokens = usage.tier or price.tier, usage.total_input_tokens
    special = [one for one in price.special if one.tier == tier] or [one for one in price.special if not one.tier]
    rates = next((one for one in special if total_input_tokens > one.above), price)
    for_an_hour = usage.cache_write_1h_tokens
    total = (
        usage.input_tokens * rates.input
        + (usage.cache_write_tokens - for_an_hour) * rates.cache_write
        + for_an_hour * (rates.cache_write if rates.cache_write_1h is None else rates.cache_write_1h)
        + usage.cache_read_tokens * rates.cache_read
        + usage.output_tokens * rates.output
    )
    return -(-total // 1_000_000)


def spend_of(usage: Usage, price: Price | None) -> Spend:
    """The spend for a usage; no money without a price."""
    tokens = usage.total_input_tokens + usage.output_tokens
    if price is None:
        return Spend(tokens, unpriced_tokens=tokens)
    return Spend(tokens=tokens, micro_usd=cost_of(usage, price))


def actual_usage(ticket: Ticket, result: AttemptResult) -> Usage | None:
    """The tokens to book for an ended attempt; None: none.

    As the result says. If nothing of an answer is known: what was expected of an attempt that may have been billed, and
    nothing for an attempt refused or never sent.
    """
    if result.usage is not None or not result.outcome.may_be_billed or result.charged == Demand(requests=0):
        return result.usage
    expected, output = ticket.expected.tokens, min(ticket.expected.tokens, ticket.demand.output_tokens)
    cached = min(ticket.cached_tokens, expected - output)
    return Usage(expected - output - cached, cache_read_tokens=cached, output_tokens=output)


def actual_spend(ticket: Ticket, result: AttemptResult) -> Spend:
    """The amount to book for an ended attempt; the tokens are those of `actual_usage`."""
    usage = actual_usage(ticket, result)
    if usage is None:
        return _NOTHING
    return ticket.expected if result.usage is None else spend_of(usage, ticket.price)


def _part_of(limit: int, spent: int, share: float) -> int:
    """The limit for a process that may spend a share of the remaining amount."""
    return min(limit, spent) + math.floor(max(0, limit - spent) * share)


def calls_of(result: AttemptResult) -> int:
    """1 for an attempt that was run or may have been run; 0 if refused by a limit, failed, or never sent."""
    outcome = result.outcome
    was_sent = result.charged != Demand(requests=0)
    return int(was_sent and (outcome.may_be_billed or outcome.kind is OutcomeKind.IGNORED))


def _needed(ticket: Ticket, unit: str) -> int:
    return dict((ticket.expected + ONE_CALL).by_unit)[unit]


class Budgets:
    """The accounts of a scheduler. `settle` follows each `reserve` that returned None, and each `take_in_flight`."""

    def __init__(self, *, emit: Callable[[Event], None], overrides: Overrides) -> None:
        """`overrides`: the budgets that persons gave at run time."""
        self._emit = emit
        self._overrides = overrides
        self._accounts: dict[BudgetKey, Account] = {}
        self._in_flight: dict[str, tuple[tuple[Account, ...], Spend]] = {}
        self._share = 1.0
        """The fraction of each account's remaining amounts that this process may spend."""
        self._unpriced: dict[str, bool] = {}
        """Reported model without an own price → whether under a budget in money."""
        self.renewals: KeyedHeap[Account] = KeyedHeap()
        """Accounts with waiting tickets, by the end of the period. Only this class changes the heap."""

    def __iter__(self) -> Iterator[Account]:
        """All accounts."""
        return iter(self._accounts.values())

    # Tickets ----------------------------------------------------------------------------------------------------------

    def shortage(self, ticket: Ticket, now: float) -> Shortage | None:
        """The shortage that keeps a ticket from going, preferably a final shortage; None: no shortage."""
        return self._short(self._payers(self._allotments(ticket), now), ticket, now)

    def foresee(self, ticket: Ticket, now: float) -> Shortage | None:
        """The shortage that a hypothetical ticket would meet. Opens, renews and reports no account."""
        payers: dict[BudgetKey, Account] = {}
        for budget, is_filed in self._allotments(ticket):
            known = (
                payers.get(budget.key) or self._accounts.get(budget.key) or Account(budget.key, now, share=self._share)
            )
            payers[budget.key] = account = replace(known, reported={}, waiting={})
            account.renew(now)
            account.file(budget) if is_filed else account.give(budget)
        return _worst(tuple(payers.values()), ticket, now)

    def is_near(self, ticket: Ticket, times: int) -> bool:
        """Whether any of a ticket's budgets has less left than `times` the expected spend of the ticket."""
        if not ticket.budgets and not self._overrides.has_budgets:
            return False
        for budget, _ in self._allotments(ticket):
            account = self._accounts.get(budget.key)
            for balance in budget.balances(_NOTHING, _NOTHING) if account is None else account.balances:
                if balance.left < times * _needed(ticket, balance.unit):
                    return True
        return False

    def reserve(self, ticket: Ticket, now: float) -> Shortage | None:
        """Reserve the expected spend of a ticket in all its budgets, or in none and return the shortage."""
        payers = self._payers(self._allotments(ticket), now)
        short = self._short(payers, ticket, now)
        if short is None:
            self._set_aside(ticket, payers, now, now)
        return short

    def _short(self, payers: tuple[Account, ...], ticket: Ticket, now: float) -> Shortage | None:
        short = _worst(payers, ticket, now)
        if short is not None and short.unpriced:
            self._report_unpriced(ticket, short.budget, now)
        return short

    def take_in_flight(self, ticket: Ticket, admitted_at: float, now: float) -> None:
        """Reserve for an attempt that another process admitted, however little is left."""
        self._set_aside(ticket, self._payers(self._allotments(ticket), now), admitted_at, now)

    def take_over(self, ticket: Ticket, admitted_at: float, now: float) -> None:
        """Reserve for an attempt of an earlier process, whose saved accounts count the attempt as spent."""
        payers = self._payers(self._allotments(ticket), now)
        for account in payers:
            account.book(_NOTHING - ticket.expected - ONE_CALL, admitted_at)
        self._set_aside(ticket, payers, admitted_at, now)

    def _set_aside(self, ticket: Ticket, payers: tuple[Account, ...], at: float, now: float) -> None:
        in_money = next((one.budget for one in payers if one.budget.micro_usd is not None), None)
        self._report_unpriced(ticket, in_money, now)
        if payers:
            expected = ticket.expected + ONE_CALL
            for account in payers:
                account.set_aside(ticket, expected, at)
                self._emit(account.booked(now))
            self._in_flight[ticket.id] = payers, expected

    def _report_unpriced(self, ticket: Ticket, budget: Budget | None, now: float) -> None:
        """Report a model without an own price: once, and once more under a budget in money."""
        guess = ticket.price.guess if ticket.price else ""
        if not guess and not ticket.expected.unpriced_tokens:
            return
        known = self._unpriced.get(ticket.model)
        is_new = known is None and len(self._unpriced) < _MOST_UNPRICED
        if is_new or (known is False and budget is not None):
            self._unpriced[ticket.model] = budget is not None
            self._emit(PriceMissing(now, ticket.pool, ticket.model, budget, guess))

    def wait(self, ticket: Ticket, short: Shortage, now: float) -> None:
        """Let a ticket wait for a change of the short account; later calls return the ticket's id then."""
        account = self.open(short.budget.key, now)
        account.waiting[ticket.id] = None
        if account.ends_at < _NEVER:
            self.renewals.put(account, account.ends_at)

    def settle(self, ticket: Ticket, actual: Spend, now: float) -> list[str]:
        """Book the actual spend of an attempt. Returns the ids of the tickets to check again, in waiting order."""
        held = self._in_flight.pop(ticket.id, None)
        if held is None:
            if ticket.budgets:
                raise ContractError(f"{ticket.id}: its budgets were settled already")
            if not self._accounts:
                return []
            held = (), _NOTHING  # the ticket had no budget at admission
        payers, expected = held
        # The attempt counts in accounts that were opened meanwhile, too.
        accounts = dict.fromkeys([*payers, *self._opened(holders_of(ticket.agent, ticket.group))])
        for account in accounts:
            account.renew(now)
            account.settle(expected if account in payers else _NOTHING, actual)
            self.changed(account, now)
        return self._wake(accounts)

    def _opened(self, holders: Iterable[tuple[Scope, str]]) -> list[Account]:
        """The accounts of these holders."""
        keys = ((*holder, per) for holder in holders for per in Period)
        return [self._accounts[key] for key in keys if key in self._accounts]

    # Time -------------------------------------------------------------------------------------------------------------

    def renewed(self, now: float) -> list[str]:
        """Begin new periods where due. Returns the ids of the tickets to check again, in waiting order."""
        woken: list[str] = []
        while self.renewals.first_key <= now and (account := self.renewals.first) is not None:
            self._renew(account, now)
            woken += self._wake([account])
        return woken

    def views(self, now: float) -> tuple[BudgetView, ...]:
        """Every account with a limit."""
        return tuple(account.view(now) for account in self._accounts.values() if account.budget.limits_anything)

    def restore(self, standings: Sequence[AccountState], now: float) -> list[str]:
        """Count in the accounts of an earlier process; call once. Returns a line for each unsound account."""
        oddities = []
        for standing in standings:
            if not _is_sound(standing):
                oddities.append(f"saved budget of {standing.budget.holder} is left out: {standing}"[:300])
                continue
            if standing.age_s >= standing.budget.per.length_s:
                continue
            account = self.open(standing.budget.key, now)
            account.take_over(standing, now)
            self._emit(account.booked(now))
        return oddities

    def count_in(self, standings: Sequence[AccountState], now: float) -> None:
        """Add the spending in the present periods from before the accounts were opened."""
        for standing in standings:
            account = self._accounts.get(standing.budget.key)
            if account is None or not _is_sound(standing) or standing.age_s >= standing.budget.per.length_s:
                continue
            self._book(account, standing.spent, now - standing.age_s, now)

    def book(
        self, budgets: Sequence[Budget], holders: Sequence[tuple[Scope, str]], spend: Spend, age_s: float, now: float
    ) -> list[str]:
        """Count in another process's spending. Returns the ids of the tickets to check again.

        `age_s`: the age of the spending; it counts only in longer periods. Booked in the accounts of `budgets`, and in
        all given or open accounts of their holders and of `holders`.
        """
        keys = dict.fromkeys([*((budget.scope, budget.name) for budget in budgets), *holders])
        payers = self._payers([(budget, True) for budget in budgets] + self._given_to(keys), now)
        booked = []
        for account in dict.fromkeys([*payers, *self._opened(keys)]):
            self._renew(account, now)
            if spend != _NOTHING and age_s < account.key[2].length_s:
                self._book(account, spend, now - max(0.0, age_s), now)
                booked.append(account)
        return self._wake(booked)

    def _book(self, account: Account, spend: Spend, spent_at: float, now: float) -> None:
        account.book(spend, spent_at)
        if account in self.renewals:
            self.renewals.put(account, account.ends_at)
        self.changed(account, now)

    def share(self, share: float) -> list[str]:
        """Let this process spend only a share of each account. Returns the ids of the tickets to check again."""
        self._share = share
        for account in self._accounts.values():
            account.spend_only(share)
        return self.wake()

    def standings(self, now: float) -> tuple[AccountState, ...]:
        """Every account as `restore` takes it, without reservations."""
        standings = (account.standing(now) for account in self._accounts.values())
        return tuple(standing for standing in standings if standing is not None)

    # Overrides --------------------------------------------------------------------------------------------------------

    def apply_overrides(self, now: float) -> None:
        """Apply the budgets that were given or taken back at run time."""
        for account in self._accounts.values():
            before = account.budget
            account.give(self._given(account.key))
            if account.budget != before:
                self.changed(account, now)

    def changed(self, account: Account, now: float) -> None:
        """Emit an account's state, and warnings: once per period and unit at 85 % of the limit, and once at 100 %."""
        self._emit(account.booked(now))
        percents = account.percents()
        for balance in account.balances:
            if percents[balance.unit] > account.reported.get(balance.unit, 0):
                event = BudgetSpent if percents[balance.unit] == 100 else BudgetWarned
                self._emit(
                    event(at=now, budget=account.budget, unit=balance.unit, spent=balance.spent, limit=balance.limit)
                )
        account.reported = percents  # a raised budget is reported again

    def wake(self) -> list[str]:
        """The ids of all tickets that wait for budgets, to check again."""
        return self._wake(self._accounts.values())

    # Accounts ---------------------------------------------------------------------------------------------------------

    def _payers(self, allotments: Iterable[tuple[Budget, bool]], now: float) -> tuple[Account, ...]:
        """The accounts that pay, as `_allotments` gives their budgets."""
        payers = {}
        for budget, is_filed in allotments:
            account = self.open(budget.key, now)
            if is_filed:
                account.file(budget)
            payers[account.key] = account
        return tuple(payers.values())

    def _allotments(self, ticket: Ticket) -> Iterable[tuple[Budget, bool]]:
        """The budgets of a ticket's holders, each with whether the agents file gave it; an account may come twice."""
        filed = [(budget, True) for budget in ticket.budgets]
        if not self._overrides.has_budgets:
            return filed
        return filed + self._given_to(holders_of(ticket.agent, ticket.group))

    def _given_to(self, holders: Iterable[tuple[Scope, str]]) -> list[tuple[Budget, bool]]:
        """The budgets that these holders got at run time."""
        given = (budget for holder in holders for budget in self._overrides.budgets_of(*holder).values())
        return [(budget, False) for budget in given]

    def open(self, key: BudgetKey, now: float) -> Account:
        """A holder's account in the present period, made if missing."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(key, now, share=self._share)
            account.give(self._given(key))
        self._renew(account, now)
        return account

    def _given(self, key: BudgetKey) -> Budget | None:
        scope, name, per = key
        return self._overrides.budgets_of(scope, name).get(per)

    def _renew(self, account: Account, now: float) -> None:
        if account.renew(now):
            self._emit(account.booked(now))

    def _wake(self, accounts: Iterable[Account]) -> list[str]:
        woken: dict[str, None] = {}
        for account in accounts:
            woken.update(account.waiting)
            account.waiting.clear()
            self.renewals.drop(account)
        return list(woken)


def holders_of(agent: str, group: str) -> list[tuple[Scope, str]]:
    """The holders whose budgets count an agent's spending; an empty `group`: the agent is in no group."""
    holders = [(Scope.AGENT, agent), (Scope.EVERYONE, "")]
    return [*holders, (Scope.GROUP, group)] if group else holders


def _worst(payers: Sequence[Account], ticket: Ticket, now: float) -> Shortage | None:
    passing: Shortage | None = None
    for account in payers:
        for short in account.shortages(ticket, now):
            if not short.may_pass:
                return short
            passing = passing or short
    return passing


def _is_sound(standing: AccountState) -> bool:
    budget, spent, added = standing.budget, standing.spent, standing.added
    limits = zip(budget.by_unit, added.by_unit, strict=True)
    return (
        0 <= standing.age_s < _NEVER
        and all(0 <= amount <= _MOST_STANDING for _, amount in (*spent.by_unit, *added.by_unit))
        and 0 <= spent.unpriced_tokens <= spent.tokens
        and all(limit is None or more <= limit <= _MOST_STANDING for (_, limit), (_, more) in limits)
    )
