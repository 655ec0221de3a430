"""Budgets: what agents, groups and everyone have spent of what they were given.

    admitted:  spent + reserved + expected <= limit  ──► reserved += expected
    settled:   reserved -= expected; spent += actual
    short:     spent + expected <= limit   the ticket waits for a change of the holder's account
               otherwise                   the ticket is refused

Running attempts finish. So a fleet overshoots a budget by no more than the sum of (actual - expected) over what is in
flight when `spent + reserved` crosses it. A ticket carries the budgets that the agents file gives it (several
holders, several periods); those that a person gives at run time are in the overrides, and count in their place or
beside them. An attempt is booked in the accounts in which it was reserved, whatever a person changes while it runs, and
in those of its holders that were opened meanwhile. What was spent before an account was opened is counted in from
outside.

An account is one holder's book for one period: what it may spend, has spent, and has set aside for what is in flight.

    the limits:   what a person gave at run time, else what the newest ticket brought from the agents file,
                  else what an earlier process left; and what was added for this period
    the period:   begins with the first reservation, and anew with the first one after its end

A period that is over is over for whoever looks, too; but only what changes an account begins a new one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replace_limits

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
"""Two instants of different processes that differ by less may be one."""
_NOTHING = Spend()
ONE_CALL = Spend(calls=1)


@dataclass(slots=True, eq=False)
class Account:
    """Only `Budgets` and `CommandHandler` change it; after each change they emit what `booked` says."""

    key: BudgetKey
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
    reported: dict[str, int] = field(default_factory=dict)
    """Unit → the highest percentage that a warning was given of."""
    share: float = 1.0
    """Of what is left, that this process may spend."""
    before: Spend = _NOTHING
    """What was spent when that began to count, or the period."""
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

    def take_over(self, standing: AccountState, now: float) -> None:
        """Count in what an earlier process left."""
        if self.given is None and self.filed is None:
            self.left = standing.budget.plus(_NOTHING - standing.added)
        began_at = now - standing.age_s
        self.began_at = began_at if self.is_untouched else min(self.began_at, began_at)
        self.spent += standing.spent
        self.before = self.spent
        self.added += standing.added
        # The process that spent it has warned of it.
        self.reported = self.percents()

    def book(self, spend: Spend, spent_at: float) -> None:
        """Count in what another process has spent for its holder, or take back what was only presumed.

        What was presumed in a period that is over is over with it.
        """
        if min(spend.tokens, spend.micro_usd, spend.calls) < 0 and spent_at < self.began_at - _SAME_S:
            return
        self.began_at = spent_at if self.is_untouched else min(self.began_at, spent_at)
        sums = self.spent + spend
        self.spent = Spend(
            max(0, sums.tokens), max(0, sums.micro_usd), max(0, sums.calls), max(0, sums.unpriced_tokens)
        )

    def count_in(self, standing: AccountState, now: float) -> None:
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
        self.spent = self.added = self.before = _NOTHING
        self.reported.clear()

    def set_aside(self, expected: Spend, now: float) -> None:
        """An attempt begins."""
        if self.is_untouched:
            self.began_at = now
        self.reserved += expected

    def settle(self, expected: Spend, actual: Spend) -> None:
        """An attempt has ended."""
        self.reserved -= expected
        self.spent += actual

    def add(self, more: Spend, now: float) -> None:
        """A person raised the limits that it has, for this period."""
        if self.is_untouched:
            self.forgive(now)
        budget = self.budget
        self.added += Spend(
            0 if budget.tokens is None else more.tokens,
            0 if budget.micro_usd is None else more.micro_usd,
            0 if budget.calls is None else more.calls,
        )

    @property
    def balances(self) -> list[Balance]:
        """Each unit that is limited, by what this process may spend of it."""
        budget, before = self.budget, self.before
        if self.share < 1:
            budget = replace_limits(
                budget,
                tokens=_part_of(budget.tokens, before.tokens, self.share),
                micro_usd=_part_of(budget.micro_usd, before.micro_usd, self.share),
                calls=_part_of(budget.calls, before.calls, self.share),
            )
        return budget.balances(self.spent, self.reserved)

    def spend_only(self, share: float) -> None:
        """Let this process spend a share of what is left, and of what there is when a period begins."""
        self.share, self.before = share, self.spent

    def percents(self) -> dict[str, int]:
        """Unit → 100 where it is spent, 85 where most of it is, else 0."""
        percents = {}
        for one in self.balances:
            is_most = one.spent * 100 >= one.limit * WARN_PERCENT
            percents[one.unit] = 100 if one.spent >= one.limit else WARN_PERCENT if is_most else 0
        return percents

    def shortages(self, ticket: Ticket, now: float) -> list[Shortage]:
        """What keeps a ticket from going, by unit."""
        found = []
        renews_in_s = self._renews_in_s(now)
        for one in self.balances:
            needed = _needed(ticket, one.unit)
            is_free = one.unit == "micro_usd" and ticket.price is None
            if not is_free and (one.spent >= one.limit or one.spent + one.reserved + needed > one.limit):
                short = Shortage(self.budget, one.unit, one.limit, one.spent, one.reserved, needed, renews_in_s)
                found.append(short)
        return found

    def view(self, now: float) -> BudgetView:
        """The account at one instant; nothing changes by it."""
        if now >= self.ends_at:
            budget, spent, added = self.budget.plus(_NOTHING - self.added), _NOTHING, _NOTHING
        else:
            budget, spent, added = self.budget, self._told(self.spent), self.added
        reserved = self._told(self.reserved)
        return BudgetView(budget, spent, reserved, renews_in_s=self._renews_in_s(now), added=added)

    def _told(self, spend: Spend) -> Spend:
        """Calls and what has no price are always counted; a budget reports them where it limits calls, and money."""
        calls = 0 if self.budget.calls is None else spend.calls
        unpriced_tokens = 0 if self.budget.micro_usd is None else spend.unpriced_tokens
        return Spend(spend.tokens, spend.micro_usd, calls, unpriced_tokens)

    def standing(self, now: float) -> AccountState | None:
        """What it leaves to another process; None: nothing, or its period is over."""
        spent = self._told(self.spent)
        if now >= self.ends_at or spent == self.added == _NOTHING:
            return None
        return AccountState(self.budget, max(0.0, now - self.began_at), spent, self.added)

    def booked(self, now: float) -> BudgetBooked:
        """The event that tells how it stands."""
        spent, reserved = self._told(self.spent), self._told(self.reserved)
        return BudgetBooked(now, self.budget, self.began_at, spent, reserved, self.added)

    def _renews_in_s(self, now: float) -> float | None:
        """None: never. What has not begun, or is over, would last from now on."""
        if math.isinf(length_s := self.key[2].length_s):
            return None
        return length_s if self.is_untouched or now >= self.ends_at else max(0.0, self.ends_at - now)


_MAY_BE_BILLED = {OutcomeKind.SUCCESS, OutcomeKind.CANCELLED}
_WERE_RUN = _MAY_BE_BILLED | {OutcomeKind.IGNORED}
_NEVER = math.inf
_MOST_STANDING = 1000 * MOST_AMOUNT
"""More was never booked by anybody."""
_MOST_UNPRICED = 100
"""Models without a price that are reported; clients may name any number of models."""


def spend_of(usage: Usage, price: Price | None) -> Spend:
    """What a usage comes to; no money without a price."""
    tokens = usage.total_input_tokens + usage.output_tokens
    if price is None:
        return Spend(tokens, unpriced_tokens=tokens)
    return Spend(
        tokens=tokens,
        micro_usd=price.micro_usd(
            input_tokens=usage.input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            output_tokens=usage.output_tokens,
        ),
    )


def actual_spend(ticket: Ticket, result: AttemptResult) -> Spend:
    """What an attempt took from its budgets.

    What the provider reported; where it did not, what was counted of a complete answer, what was expected (or more, if
    more was counted) of any other attempt that may have been billed, and nothing of one that was refused or never sent.
    """
    outcome, usage = result.outcome, result.usage
    is_complete = outcome.kind is OutcomeKind.SUCCESS
    if usage is not None and (usage.reported or (is_complete and usage.total_input_tokens)):
        return spend_of(usage, ticket.price)
    counted = _NOTHING if usage is None else spend_of(usage, ticket.price)
    never_sent = result.charged == Demand(requests=0)
    if never_sent or not (outcome.ambiguous or outcome.kind in _MAY_BE_BILLED):
        return counted
    return Spend(
        tokens=max(counted.tokens, ticket.expected.tokens),
        micro_usd=max(counted.micro_usd, ticket.expected.micro_usd),
        unpriced_tokens=max(counted.unpriced_tokens, ticket.expected.unpriced_tokens),
    )


def _part_of(limit: int | None, spent: int, share: float) -> int | None:
    """Up to where an account may be spent by a process that has a share of what is left; None: it is not limited."""
    return None if limit is None else min(limit, spent) + math.floor(max(0, limit - spent) * share)


def calls_of(result: AttemptResult) -> int:
    """1 where an attempt was run, or may have been: what a limit refused, what failed or was never sent is no call."""
    outcome = result.outcome
    was_sent = result.charged != Demand(requests=0)
    return int(was_sent and (outcome.ambiguous or outcome.kind in _WERE_RUN))


def _needed(ticket: Ticket, unit: str) -> int:
    return dict((ticket.expected + ONE_CALL).by_unit)[unit]


class Budgets:
    """The books of one scheduler. Each `reserve` that answers None and each `take_in_flight` has one `settle`."""

    def __init__(self, *, emit: Callable[[Event], None], overrides: Overrides) -> None:
        """`overrides`: what persons gave at run time."""
        self._emit = emit
        self._overrides = overrides
        self._accounts: dict[BudgetKey, Account] = {}
        self._in_flight: dict[str, tuple[tuple[Account, ...], Spend]] = {}
        self._share = 1.0
        """Of what is left in each account, that may be spent here."""
        self._unpriced: set[str] = set()
        """Models without a price that were reported."""
        self.renewals: KeyedHeap[Account] = KeyedHeap()
        """Accounts that tickets wait for, by the end of their period. Only this class changes it."""

    def __repr__(self) -> str:
        return f"<Budgets {len(self._accounts)} accounts, {len(self._in_flight)} in flight>"

    def __iter__(self) -> Iterator[Account]:
        """All accounts."""
        return iter(self._accounts.values())

    # Tickets ----------------------------------------------------------------------------------------------------------

    def shortage(self, ticket: Ticket, now: float) -> Shortage | None:
        """What keeps a ticket from going, the final one first; None: nothing."""
        return _worst(self._payers(ticket, now), ticket, now)

    def foresee(self, ticket: Ticket, now: float) -> Shortage | None:
        """What would keep a ticket from going that is not there: no account is opened, begun or told of by it."""
        payers: dict[BudgetKey, Account] = {}
        for budget, is_filed in self._allotments(ticket):
            known = payers.get(budget.key) or self._accounts.get(budget.key) or self._new_account(budget.key, now)
            payers[budget.key] = account = replace(known, reported={}, waiting={})
            account.renew(now)
            account.file(budget) if is_filed else account.give(budget)
        return _worst(tuple(payers.values()), ticket, now)

    def is_near(self, ticket: Ticket, times: int) -> bool:
        """Whether a budget has less left than so many times what a ticket is expected to take from it."""
        if not ticket.budgets and not self._overrides.has_budgets:
            return False
        for budget, _ in self._allotments(ticket):
            account = self._accounts.get(budget.key)
            for one in budget.balances(_NOTHING, _NOTHING) if account is None else account.balances:
                if one.left < times * _needed(ticket, one.unit):
                    return True
        return False

    def reserve(self, ticket: Ticket, now: float) -> Shortage | None:
        """Set the expected spend of a ticket aside in all of its budgets, or in none and say why."""
        if not ticket.budgets and not self._overrides.has_budgets:
            return None
        payers = self._payers(ticket, now)
        short = _worst(payers, ticket, now)
        if short is None:
            self._set_aside(ticket, payers, now, now)
        return short

    def take_in_flight(self, ticket: Ticket, admitted_at: float, now: float) -> None:
        """An attempt was admitted by another process: set its expected spend aside, however little is left."""
        self._set_aside(ticket, self._payers(ticket, now), admitted_at, now)

    def _set_aside(self, ticket: Ticket, payers: tuple[Account, ...], at: float, now: float) -> None:
        if payers:
            expected = ticket.expected + ONE_CALL
            for account in payers:
                account.set_aside(expected, at)
                self._emit(account.booked(now))
                if expected.unpriced_tokens and account.budget.micro_usd is not None:
                    self._report_unpriced(ticket, account.budget, now)
            self._in_flight[ticket.id] = payers, expected

    def _report_unpriced(self, ticket: Ticket, budget: Budget, now: float) -> None:
        """Once per model: a budget in money cannot count it."""
        if ticket.model not in self._unpriced and len(self._unpriced) < _MOST_UNPRICED:
            self._unpriced.add(ticket.model)
            self._emit(PriceMissing(now, ticket.pool, ticket.model, budget))

    def wait(self, ticket: Ticket, short: Shortage, now: float) -> None:
        """Have a ticket named when the account that is short changes."""
        account = self.open(short.budget.key, now)
        account.waiting[ticket.id] = None
        if account.ends_at < _NEVER:
            self.renewals.put(account, account.ends_at)

    def settle(self, ticket: Ticket, actual: Spend, now: float) -> list[str]:
        """Book what an attempt really took. The tickets to look at again, in the order of their waits."""
        held = self._in_flight.pop(ticket.id, None)
        if held is None:
            if ticket.budgets:
                raise ContractError(f"{ticket.id}: its budgets were settled already")
            if not self._accounts:
                return []
            held = (), _NOTHING  # it had none when it was admitted
        payers, expected = held
        woken: dict[str, None] = {}
        for account in (*payers, *self._opened_since(ticket, payers)):
            account.renew(now)
            account.settle(expected if account in payers else _NOTHING, actual)
            self.changed(account, now)
            self._wake(account, woken)
        return list(woken)

    def _opened_since(self, ticket: Ticket, payers: Sequence[Account]) -> list[Account]:
        """Accounts of a ticket's holders that were opened while its attempt ran: it counts in them, too."""
        found = (
            self._accounts.get((*holder, per)) for holder in holders_of(ticket.agent, ticket.group) for per in Period
        )
        return [account for account in found if account is not None and account not in payers]

    # Time -------------------------------------------------------------------------------------------------------------

    def renewed(self, now: float) -> list[str]:
        """The tickets to look at again because a period is over, in the order of their waits."""
        woken: dict[str, None] = {}
        while self.renewals.first_key <= now and (account := self.renewals.first) is not None:
            self._renew(account, now)
            self._wake(account, woken)
        return list(woken)

    def views(self, now: float) -> tuple[BudgetView, ...]:
        """Every account that limits something."""
        return tuple(account.view(now) for account in self._accounts.values() if account.budget.limits_anything)

    def restore(self, standings: Sequence[AccountState], now: float) -> list[str]:
        """Count in what an earlier process left, once. What cannot be is named and left out."""
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
        """Add what was spent in the present periods of accounts before these were opened."""
        for standing in standings:
            account = self._accounts.get(standing.budget.key)
            if account is None or not _is_sound(standing) or standing.age_s >= standing.budget.per.length_s:
                continue
            account.count_in(standing, now)
            if account in self.renewals:
                self.renewals.put(account, account.ends_at)
            self.changed(account, now)

    def book(
        self, budgets: Sequence[Budget], holders: Sequence[tuple[Scope, str]], spend: Spend, age_s: float, now: float
    ) -> list[str]:
        """Count in, so long after it, what another process has spent. The tickets to look at again.

        It counts in these accounts, in those that a person gave their holders and these, and in those that any of them
        has already; not where a period that began then is over.
        """
        keys = dict.fromkeys([*((budget.scope, budget.name) for budget in budgets), *holders])
        payers = self._payers_of([(budget, True) for budget in budgets] + self._given_to(keys), now)
        opened = (self._accounts.get((*holder, per)) for holder in keys for per in Period)
        woken: dict[str, None] = {}
        for account in dict.fromkeys([*payers, *(one for one in opened if one is not None)]):
            self._renew(account, now)
            if spend != _NOTHING and age_s < account.key[2].length_s:
                account.book(spend, now - max(0.0, age_s))
                if account in self.renewals:
                    self.renewals.put(account, account.ends_at)
                self.changed(account, now)
                self._wake(account, woken)
        return list(woken)

    def share(self, share: float) -> list[str]:
        """Let only a share be spent of what is left in each account. The tickets to look at again."""
        self._share = share
        for account in self._accounts.values():
            account.spend_only(share)
        return self.wake()

    def standings(self, now: float) -> tuple[AccountState, ...]:
        """Every account as `restore` takes it; what is reserved is not spent yet."""
        standings = (account.standing(now) for account in self._accounts.values())
        return tuple(one for one in standings if one is not None)

    # Overrides --------------------------------------------------------------------------------------------------------

    def apply_overrides(self, now: float) -> None:
        """Budgets were given at run time, or taken back."""
        for account in self._accounts.values():
            before = account.budget
            account.give(self._given(account.key))
            if account.budget != before:
                self.changed(account, now)

    def changed(self, account: Account, now: float) -> None:
        """Tell of an account; once per period and unit at 85 % of its limit, and once at 100 %."""
        self._emit(account.booked(now))
        percents = account.percents()
        for one in account.balances:
            if percents[one.unit] > account.reported.get(one.unit, 0):
                event = BudgetSpent if percents[one.unit] == 100 else BudgetWarned
                self._emit(event(at=now, budget=account.budget, unit=one.unit, spent=one.spent, limit=one.limit))
        account.reported = percents  # a budget that was raised is told of anew

    def wake(self) -> list[str]:
        """All tickets that wait for their budgets, to be looked at again."""
        woken: dict[str, None] = {}
        for account in self._accounts.values():
            self._wake(account, woken)
        return list(woken)

    # Accounts ---------------------------------------------------------------------------------------------------------

    def _payers(self, ticket: Ticket, now: float) -> tuple[Account, ...]:
        """The accounts that a ticket is paid from."""
        if not ticket.budgets and not self._overrides.has_budgets:
            return ()
        return self._payers_of(self._allotments(ticket), now)

    def _payers_of(self, allotments: Iterable[tuple[Budget, bool]], now: float) -> tuple[Account, ...]:
        payers = {}
        for budget, is_filed in allotments:
            account = self.open(budget.key, now)
            if is_filed:
                account.file(budget)
            payers[account.key] = account
        return tuple(payers.values())

    def _allotments(self, ticket: Ticket) -> Iterable[tuple[Budget, bool]]:
        """What its holders were given, and whether by the agents file; the same account may come twice."""
        return [*((budget, True) for budget in ticket.budgets), *self._given_to(holders_of(ticket.agent, ticket.group))]

    def _given_to(self, holders: Iterable[tuple[Scope, str]]) -> list[tuple[Budget, bool]]:
        """What these were given at run time."""
        if not self._overrides.has_budgets:
            return []
        given = (budget for holder in holders for budget in self._overrides.budgets_of(*holder).values())
        return [(budget, False) for budget in given]

    def open(self, key: BudgetKey, now: float) -> Account:
        """A holder's account in its present period, also one that nobody has asked for yet."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = self._new_account(key, now)
            account.give(self._given(key))
        self._renew(account, now)
        return account

    def _new_account(self, key: BudgetKey, now: float) -> Account:
        return Account(key, now, share=self._share)

    def _given(self, key: BudgetKey) -> Budget | None:
        scope, name, per = key
        return self._overrides.budgets_of(scope, name).get(per) if self._overrides.has_budgets else None

    def _renew(self, account: Account, now: float) -> None:
        if account.renew(now):
            self._emit(account.booked(now))

    def _wake(self, account: Account, woken: dict[str, None]) -> None:
        woken.update(account.waiting)
        account.waiting.clear()
        self.renewals.drop(account)


def holders_of(agent: str, group: str) -> list[tuple[Scope, str]]:
    """Whose budgets count what an agent spends; empty: it is in no group."""
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
        and all(0 <= one <= _MOST_STANDING for _, one in (*spent.by_unit, *added.by_unit))
        and 0 <= spent.unpriced_tokens <= spent.tokens
        and all(limit is None or more <= limit <= _MOST_STANDING for (_, limit), (_, more) in limits)
    )
