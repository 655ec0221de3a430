"""What persons order about budgets, carried out and answered: given, added to, forgiven.

A budget that is given stands until it is taken back, and outlives a restart; what is added counts for the present
period only. What is forgiven is forgotten; attempts in flight are booked when they end, as ever.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec
from msgspec.structs import replace

from hivemind_addon.api.account import account_view, limits_of, words_of
from hivemind_addon.api.command import (
    AddBudget,
    BudgetCommand,
    ResetBudget,
    Said,
    SetBudget,
    asker,
    names_agent,
)
from hivemind_addon.api.events import Event, PersonActed
from hivemind_addon.api.spend import MOST_AMOUNT, Budget, Scope, Spend, amount
from hivemind_addon.proxy.core.account import Account
from hivemind_addon.proxy.core.budget import Budgets
from hivemind_addon.proxy.core.orders import Orders

_MOST_NAMED = 8
"""Holders that one answer names."""
_GLOB_SIGNS = "*?["
_COUNTED_IN = "what the journal knows to have been spent in this period before is counted in: `hivemind budget`"


class Treasurer:
    """Only `Steering` calls it. After what it has done, whoever waits for funds is to be looked at again."""

    def __init__(self, *, budgets: Budgets, orders: Orders, emit: Callable[[Event], None]) -> None:
        self._budgets = budgets
        self._orders = orders
        self._emit = emit

    def __repr__(self) -> str:
        return f"<Treasurer of {self._budgets!r}>"

    def obey(self, command: BudgetCommand, now: float) -> Said:
        """Do it, and say what was done and how it stands."""
        if problem := _problem(command):
            return Said(done=False, text=problem)
        match command:
            case SetBudget():
                return self._give(command, now)
            case AddBudget():
                return self._add(command, now)
            case ResetBudget():
                return self._forgive(command, now)
            case _:
                assert_never(command)

    def _give(self, command: SetBudget, now: float) -> Said:
        budget = Budget(command.scope, command.name, command.per, command.tokens, command.micro_usd)
        if not budget.limits_anything and all(
            (one.scope, one.name, one.per) != (budget.scope, budget.name, budget.per)
            for one in (given.budget for given in self._orders.budgets)
        ):
            text = f"nobody gave {budget.holder} a budget {words_of(budget.per)} at run time"
            return Said(done=False, text=f"{text}; `hivemind budget` lists those that somebody gave")
        if budget.limits_anything and not _is_glob(command):
            self._budgets.open(budget.scope, budget.name, budget.per, now)
        self._orders.give(budget, by=command.by)
        self._budgets.obey(now)
        accounts = self._find(command, now)
        if budget.limits_anything:
            each = "each " if _is_glob(command) else ""
            what = f"{each}{budget.holder} may spend {limits_of(budget)} {words_of(budget.per)}"
        else:
            what = f"{budget.holder}: what the agents file says {words_of(budget.per)} counts again"
        is_new = budget.limits_anything and (not accounts or any(account.is_untouched for account in accounts))
        said = self._done(command, what, accounts, now)
        return replace(said, text=f"{what}; {_COUNTED_IN}") if is_new else said

    def _add(self, command: AddBudget, now: float) -> Said:
        found = self._find(command, now)
        if not found:
            return self._unknown(command, now)
        more = Spend(command.tokens, command.micro_usd)
        accounts = [account for account in found if account.budget.plus(more) != account.budget]
        if not accounts:
            unit = "tokens" if command.tokens else "money"
            return Said(done=False, text=f"no budget in {unit} there: {_stand(found, now)}", value=_values(found, now))
        if any(max(account.added.tokens, account.added.micro_usd) > MOST_AMOUNT for account in accounts):
            return Said(done=False, text="more was added than anybody can spend; reset it, or set another budget")
        for account in accounts:
            if account.is_untouched:
                account.forgive(now)
            budget = account.budget
            account.added += Spend(
                0 if budget.tokens is None else more.tokens, 0 if budget.micro_usd is None else more.micro_usd
            )
            self._budgets.changed(account, now)
        return self._done(command, f"{_amounts(more)} added to {_whose(command)}", accounts, now)

    def _forgive(self, command: ResetBudget, now: float) -> Said:
        accounts = self._find(command, now)
        if not accounts:
            return self._unknown(command, now)
        for account in accounts:
            account.forgive(now)
            self._budgets.changed(account, now)
        return self._done(command, f"{_whose(command)} begins anew", accounts, now)

    def _done(self, command: BudgetCommand, what: str, accounts: Sequence[Account], now: float) -> Said:
        who = asker(command.by, command.name if command.scope is Scope.AGENT else "")
        self._emit(PersonActed(at=now, text=f"budget: {what} ({who})", by=command.by))
        stand = _stand(accounts, now)
        return Said(done=True, text=f"{what}: {stand}" if stand else what, value=_values(accounts, now))

    def _find(self, command: BudgetCommand, now: float) -> list[Account]:
        """The accounts that a command means, in their present period."""
        found = []
        for account in self._budgets:
            scope, name, per = account.key
            matches = names_agent(command.name, name) if scope is Scope.AGENT else command.name == name
            if scope is command.scope and matches and command.per in (None, per) and account.budget.limits_anything:
                found.append(account)
        for account in found:
            self._budgets.open(*account.key, now)  # a period that is over is not added to
        return found

    def _unknown(self, command: AddBudget | ResetBudget, now: float) -> Said:
        per = f" {words_of(command.per)}" if command.per else ""
        known = dict.fromkeys(account.budget.holder for account in self._budgets if account.budget.limits_anything)
        names = list(known)[:_MOST_NAMED]
        more = f" and {len(known) - len(names)} more" if len(known) > len(names) else ""
        who = ", ".join(names) + more if names else "nobody yet"
        text = (
            f"{_whose(command)} has no budget{per} that a request has used; known: {who}. "
            "`hivemind budget set` gives one"
        )
        return Said(done=False, text=text, value=_values([], now))


def _amounts(spend: Spend) -> str:
    return " and ".join(
        amount(unit, value) for unit, value in (("tokens", spend.tokens), ("micro_usd", spend.micro_usd)) if value
    )


def _stand(accounts: Sequence[Account], now: float) -> str:
    """The first ones, in words."""
    told = []
    for account in accounts[:_MOST_NAMED]:
        view = account.view(now)
        spent = ", ".join(
            f"{amount(unit, spent)} of {amount(unit, limit)}, {amount(unit, max(0, limit - spent - reserved))} left"
            for unit, limit, spent, reserved in account.units()
        )
        told.append(f"{view.budget.holder} has spent {spent} {words_of(view.budget.per)}")
    if len(accounts) > len(told):
        told.append(f"and {len(accounts) - len(told)} more")
    return "; ".join(told)


def _values(accounts: Sequence[Account], now: float) -> object:
    return msgspec.to_builtins([account_view(account.view(now)) for account in accounts])


def _is_glob(command: BudgetCommand) -> bool:
    return command.scope is Scope.AGENT and any(sign in command.name for sign in _GLOB_SIGNS)


def _whose(command: BudgetCommand) -> str:
    return f"{command.scope.value} {command.name}".rstrip()


def _problem(command: BudgetCommand) -> str:
    """What is wrong with it; empty: nothing."""
    if command.scope is Scope.EVERYONE:
        if command.name:
            return f"everyone's budget has no name; {command.name!r} was given"
    elif not command.name:
        return "name an agent, a glob or a group"
    if isinstance(command, ResetBudget):
        return ""
    amounts = [one for one in (command.tokens, command.micro_usd) if one is not None]
    if any(not 0 <= one <= MOST_AMOUNT for one in amounts):
        return "an amount is at least 0, and no budget is so large" if min(amounts) >= 0 else "no amount is negative"
    if isinstance(command, AddBudget) and not any(amounts):
        return "nothing was added: say how many tokens, or how much money"
    return ""
