"""What persons ask, carried out: the scheduler's second hand, on the same pools.

Orders that stand are kept in `orders.py`, and every pool looks at them; what concerns one ticket is done here and now.
A queued ticket that is cancelled is refused with the next poll; an attempt in flight has to be ended from outside.

Budgets are given, added to, forgiven. One that is given stands until it is taken back, and outlives a restart; what is
added counts for the present period only. What is forgiven is forgotten; attempts in flight are booked when they end, as
ever.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import msgspec
from msgspec.structs import replace

from hivemind_addon.api.account import account_view, limits_of, words_of
from hivemind_addon.api.command import (
    AddBudget,
    BudgetCommand,
    Cancel,
    ForeseeWait,
    MoveToFront,
    Pause,
    ResetBudget,
    Resume,
    Said,
    SchedulerCommand,
    SetBudget,
    SetLimit,
    SetPriority,
    WaitView,
    asker,
    names_agent,
    names_pool,
    nearest,
)
from hivemind_addon.api.events import Event, PersonActed
from hivemind_addon.api.spend import MOST_AMOUNT, Budget, Scope, Spend, amount
from hivemind_addon.api.ticket import Attempt, PoolKey
from hivemind_addon.proxy.core.budget import Account, Budgets
from hivemind_addon.proxy.core.orders import Orders, time_words
from hivemind_addon.proxy.core.pool import Pool
from hivemind_addon.proxy.core.retry import Refused

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


_LONGEST_S = 366 * 86_400.0
"""An order that ends by itself stands for no longer."""


class Steering:
    """Shares the scheduler's books; only the scheduler calls it."""

    def __init__(
        self,
        *,
        orders: Orders,
        pools: Mapping[PoolKey, Pool],
        pool_of_ticket: Mapping[str, Pool],
        changed: dict[Pool, None],
        budgets: Budgets,
        emit: Callable[[Event], None],
    ) -> None:
        """`changed`: where pools are put that are to be polled."""
        self._orders = orders
        self._pools = pools
        self._pool_of_ticket = pool_of_ticket
        self._changed = changed
        self._budgets = budgets
        self._treasurer = Treasurer(budgets=budgets, orders=orders, emit=emit)
        self._emit = emit
        self._refused: list[Refused] = []
        self._called_off: list[Attempt] = []

    def __repr__(self) -> str:
        return f"<Steering by {self._orders!r}>"

    def obey(self, command: SchedulerCommand, now: float) -> Said:
        """Do it, and say what was done."""
        match command:
            case Pause(pool=glob) | Resume(pool=glob):
                return self._pause(glob, now, paused=isinstance(command, Pause))
            case SetLimit(limit=limit, pool=glob):
                return self._set_limit(glob, limit, now)
            case SetPriority():
                return self._set_priority(command, now)
            case SetBudget() | AddBudget() | ResetBudget():
                return self._change_budget(command, now)
            case MoveToFront(ticket_id=ticket_id):
                return self._move_to_front(ticket_id, now)
            case Cancel(ticket_id=ticket_id):
                return self._call_off(ticket_id, now)
            case ForeseeWait():
                return self._foresee(command, now)
            case _:
                assert_never(command)

    def look_again(self, ticket_ids: Sequence[str], now: float) -> None:
        """These waited for their budgets, which have changed."""
        for ticket_id in ticket_ids:
            if pool := self._pool_of_ticket.get(ticket_id):
                pool.look_again(ticket_id, now)
                self._changed[pool] = None

    def expire(self, now: float) -> None:
        """Orders have ended by themselves."""
        for view in self._orders.priorities(now):
            if view.ends_in_s == 0:
                text = f"agent {view.agent}: priority {view.priority.name.lower()} ended, its time is over"
                self._emit(PersonActed(at=now, text=text))
        self._orders.expire(now)
        self._look_at_orders(now)

    def orders_changed(self, now: float) -> None:
        """Orders of an earlier run stand again."""
        self._look_at_orders(now)
        self._budgets.obey(now)
        self._review_funds(now)

    def drain_refused(self) -> list[Refused]:
        """Tickets that were queued and are cancelled, since the last call."""
        refused, self._refused = self._refused, []
        return refused

    def drain_called_off(self) -> list[Attempt]:
        """Attempts that are cancelled and run, since the last call."""
        called_off, self._called_off = self._called_off, []
        return called_off

    def _pause(self, glob: str, now: float, *, paused: bool) -> Said:
        if not glob:
            return Said(done=False, text="name a pool, a host or a glob")
        affected = [key for key in self._pools if names_pool(glob, key)]
        is_paused = any(self._pools[key].paused for key in affected) or self._orders.pauses_for(glob)
        if not paused and not is_paused:
            return Said(done=False, text=f"nothing of {glob} is paused")
        self._orders.pause(glob, paused=paused)
        what = "paused: nothing is sent until somebody resumes it" if paused else "resumed"
        return self._obeyed(what, glob, affected, now)

    def _set_limit(self, glob: str, limit: int | None, now: float) -> Said:
        if not glob:
            return Said(done=False, text="name a pool, a host or a glob")
        if limit is not None and limit < 1:
            return Said(done=False, text=f"a limit of {limit} sends nothing: pause it instead")
        self._orders.cap(glob, limit)
        what = "as many attempts at once as it takes" if limit is None else f"at most {limit} attempts at once"
        return self._obeyed(what, glob, [key for key in self._pools if names_pool(glob, key)], now)

    def _obeyed(self, what: str, glob: str, affected: Sequence[PoolKey], now: float) -> Said:
        """Let all pools look at the orders; tell those concerned, and the person."""
        self._look_at_orders(now)
        one = affected[0] if len(affected) == 1 else None
        which = {0: f"{glob} (no pool yet)", 1: str(one)}.get(len(affected), f"{glob} ({len(affected)} pools)")
        meant = "" if affected or glob == "*" else self._nearest_pool(glob)
        self._emit(
            PersonActed(at=now, text=f"{what} (by a person)" if one else f"{which}: {what} (by a person)", pool=one)
        )
        return Said(done=True, text=f"{which}: {what}{meant}")

    def _nearest_pool(self, glob: str) -> str:
        """What to add to an answer about a name that no pool has yet."""
        hint = nearest(glob, (name for key in self._pools for name in (key.host, str(key))))
        return "; it stands for pools that come" + (f", {hint}" if hint else "")

    def _nearest_caller(self, scope: Scope, name: str) -> str:
        """What to add to an answer about a name that no agent, or no agent's group, has yet; empty: one has it."""
        callers = [one for pool in self._pools.values() for one in pool.agents.items()]
        known = sorted({agent if scope is Scope.AGENT else group for agent, group in callers} - {""})
        if scope is Scope.EVERYONE or any(
            names_agent(name, one) if scope is Scope.AGENT else name == one for one in known
        ):
            return ""
        who = "such agent has" if scope is Scope.AGENT else "agent of this group has"
        hint = nearest(name, known)
        return f"; no {who} called yet" + (f", {hint}" if hint else "")

    def _set_priority(self, asked: SetPriority, now: float) -> Said:
        glob, priority, for_s = asked.agent, asked.priority, asked.for_s
        if not glob:
            return Said(done=False, text="name an agent or a glob")
        if for_s is not None and not 0 < for_s <= _LONGEST_S:
            return Said(
                done=False, text=f"an order stands for more than 0 s and at most {time_words(_LONGEST_S)}, or for good"
            )
        ends_at = math.inf if for_s is None else now + for_s
        self._orders.prefer(glob, priority, ends_at=ends_at, by=asked.by)
        self._look_at_orders(now)
        what = "the priority that it asks for" if priority is None else f"priority {priority.name.lower()}"
        what += "" if for_s is None else f" for {time_words(for_s)}"
        self._emit(PersonActed(at=now, text=f"agent {glob}: {what} ({asker(asked.by, glob)})", by=asked.by))
        return Said(done=True, text=f"agent {glob}: {what}{self._nearest_caller(Scope.AGENT, glob)}")

    def _look_at_orders(self, now: float) -> None:
        for pool in self._pools.values():
            pool.obey(now)
            self._changed[pool] = None

    def _change_budget(self, command: BudgetCommand, now: float) -> Said:
        said = self._treasurer.obey(command, now)
        if not said.done:
            return said
        self._review_funds(now)
        if isinstance(command, SetBudget):
            return replace(said, text=said.text + self._nearest_caller(command.scope, command.name))
        return said

    def _review_funds(self, now: float) -> None:
        """Who waits for its budget may go now; who waits for something else may have none any more."""
        self.look_again(self._budgets.wake(), now)
        for pool in self._pools.values():
            pool.review_funds()
            self._changed[pool] = None

    def _move_to_front(self, ticket_id: str, now: float) -> Said:
        pool = self._pool_of_ticket.get(ticket_id)
        if pool is None or not pool.expedite(ticket_id, now):
            return _unknown(ticket_id, "waits")
        self._changed[pool] = None
        self._tell_of_ticket(ticket_id, "moved to the front by a person", now)
        return Said(done=True, text=f"{ticket_id} goes next")

    def _call_off(self, ticket_id: str, now: float) -> Said:
        pool = self._pool_of_ticket.get(ticket_id)
        answer = None if pool is None else pool.call_off(ticket_id, now)
        if pool is None or answer is None:
            return _unknown(ticket_id, "waits or runs")
        self._tell_of_ticket(ticket_id, "cancelled by a person", now)
        if isinstance(answer, Refused):
            self._refused.append(answer)
            self._changed[pool] = None
            return Said(done=True, text=f"{ticket_id} is cancelled")
        self._called_off.append(answer)
        return Said(done=True, text=f"{ticket_id} is cancelled, its running attempt ended")

    def _foresee(self, asked: ForeseeWait, now: float) -> Said:
        """In the pools that the agent has used, the last one first; of one that has used none, in all."""
        if not asked.agent or not asked.pool:
            return Said(done=False, text="name an agent, and a pool, a host or a glob")
        if asked.input_tokens < 0 or asked.output_tokens < 0:
            return Said(done=False, text="tokens are never below zero")
        if not self._pools:
            return Said(done=True, text=f"{asked.agent}: at once; nothing was sent yet, so no limit is known", value=[])
        matching = [pool for key, pool in self._pools.items() if names_pool(asked.pool, key)]
        if not matching:
            return Said(done=False, text=f"no pool {asked.pool!r}; there are {', '.join(map(str, self._pools))}")
        called_at = {pool: at for pool in matching if (at := pool.called_at(asked.agent)) is not None}
        chosen = sorted(called_at, key=called_at.__getitem__, reverse=True) or matching
        views = [pool.foresee(asked, now) for pool in chosen]
        text = "; ".join(f"{view.pool}: {_foreseen(view)}" for view in views)
        return Said(done=True, text=f"{asked.agent}: {text}", value=msgspec.to_builtins(views))

    def _tell_of_ticket(self, ticket_id: str, text: str, now: float) -> None:
        self._emit(PersonActed(at=now, text=text, pool=self._pool_of_ticket[ticket_id].key, ticket_id=ticket_id))


def _unknown(ticket_id: str, what: str) -> Said:
    return Said(done=False, text=f"no request {ticket_id!r} {what}: it may be over")


def _foreseen(view: WaitView) -> str:
    if view.starts_in_s is None:
        return f"nobody can tell ({view.reason})" if view.reason else "nobody can tell"
    if not view.reason:
        return "at once"
    behind = f", {view.before} before it" if view.before else ""
    return f"in about {view.starts_in_s:.0f} s ({view.reason}{behind})"
