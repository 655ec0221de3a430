"""Carries out the commands that persons and agents give the scheduler.

Overrides stand until somebody takes them back: they are kept in `overrides.py`, which every pool reads. A command about
one ticket acts at once. The next poll refuses a queued ticket that was cancelled; the driver ends an attempt in flight.

A given budget stands until somebody takes the budget back, also after a restart. An added amount counts for the present
period only. A reset forgets the spending so far; attempts in flight are booked when they end.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from hivemind_addon.kernel.budget import Account, Budgets
from hivemind_addon.kernel.overrides import Overrides
from hivemind_addon.kernel.pool import Pool
from hivemind_addon.kernel.values.command import (
    LONGEST_PRIORITY_S,
    AddBudget,
    BudgetCommand,
    Cancel,
    CommandResult,
    Declined,
    ForeseeWait,
    MoveToFront,
    Pause,
    ResetBudget,
    Resume,
    SchedulerCommand,
    SetBudget,
    SetLimit,
    SetPriority,
    is_glob,
    names_agent,
    names_pool,
    nearest,
)
from hivemind_addon.kernel.values.decision import Refused
from hivemind_addon.kernel.values.spend import MOST_AMOUNT, Budget, Scope, Spend
from hivemind_addon.kernel.values.ticket import Attempt, PoolKey


@dataclass(frozen=True, slots=True)
class CommandEffect:
    """The result of a command, and what the scheduler has to do next."""

    result: CommandResult
    woken: Collection[Pool] = ()
    """Pools to poll."""
    funded: Sequence[str] = ()
    """Tickets to look at again, because they waited for their budgets."""
    ended: Refused | Attempt | None = None
    """The queued ticket to refuse, or the attempt to end."""


class CommandHandler:
    """Changes overrides, budgets and pools. Only the scheduler calls this class."""

    def __init__(
        self,
        *,
        overrides: Overrides,
        budgets: Budgets,
        pools: Mapping[PoolKey, Pool],
        pool_of: Callable[[str], Pool | None],
    ) -> None:
        """`pool_of`: the pool of a ticket; None: the ticket has ended."""
        self._overrides = overrides
        self._budgets = budgets
        self._pools = pools
        self._pool_of = pool_of

    def carry_out(self, command: SchedulerCommand, now: float) -> CommandEffect:
        """Carry out a command, or decline the command without any change."""
        match command:
            case Pause() | Resume() | SetLimit():
                return self._change_pools(command, now)
            case SetPriority():
                return self._set_priority(command, now)
            case SetBudget() | AddBudget() | ResetBudget():
                return self._change_budget(command, now)
            case MoveToFront(ticket_id=ticket_id):
                return self._move_to_front(ticket_id, now)
            case Cancel(ticket_id=ticket_id):
                return self._cancel(ticket_id, now)
            case ForeseeWait():
                return CommandEffect(self._foresee(command, now))
            case _:
                assert_never(command)

    def apply_overrides(self, now: float) -> Collection[Pool]:
        """Apply changed overrides to all pools. Returns the pools to poll."""
        for pool in self._pools.values():
            pool.apply_overrides(now)
        return self._pools.values()

    def review_budgets(self, now: float) -> CommandEffect:
        """Apply changed budgets: tickets that wait for a budget may go, and others may have none left."""
        self._budgets.apply_overrides(now)
        for pool in self._pools.values():
            pool.review = True
        return CommandEffect(CommandResult(), self._pools.values(), self._budgets.wake())

    def _change_pools(self, command: Pause | Resume | SetLimit, now: float) -> CommandEffect:
        glob = command.pool
        if not glob:
            return _declined(Declined.NO_POOL_NAMED)
        meant = tuple(key for key in self._pools if names_pool(glob, key))
        lifted: tuple[PoolKey, ...] = ()
        match command:
            case Pause():
                self._overrides.pause(glob, paused=True)
            case Resume():
                is_paused = any(self._pools[key].capacity.paused for key in meant) or self._overrides.pauses_for(glob)
                lifted = tuple(key for key in meant if self._pools[key].capacity.lift_block(now))
                if not is_paused and not lifted:
                    return _declined(Declined.NOT_PAUSED)
                if is_paused:
                    self._overrides.pause(glob, paused=False)
            case SetLimit(limit=limit):
                if limit is not None and limit < 1:
                    return _declined(Declined.LIMIT_TOO_LOW)
                self._overrides.cap(glob, limit)
        names = (name for key in self._pools for name in (key.host, str(key)))
        near = None if meant or glob == "*" else nearest(glob, names)
        result = CommandResult(pools=meant, nearest=near, lifted=lifted)
        return CommandEffect(result, self.apply_overrides(now))

    def _set_priority(self, asked: SetPriority, now: float) -> CommandEffect:
        if not asked.agent:
            return _declined(Declined.NO_AGENT_NAMED)
        if asked.for_s is not None and not 0 < asked.for_s <= LONGEST_PRIORITY_S:
            return _declined(Declined.BAD_SPAN)
        ends_at = math.inf if asked.for_s is None else now + asked.for_s
        self._overrides.prefer(asked.agent, asked.priority, ends_at=ends_at, by=asked.by)
        near = self._nearest_caller(Scope.AGENT, asked.agent)
        return CommandEffect(CommandResult(nearest=near), self.apply_overrides(now))

    def _nearest_caller(self, scope: Scope, name: str) -> str | None:
        """The agent or group that was probably meant; None: a caller has this name."""
        callers = [caller for pool in self._pools.values() for caller in pool.callers.agents.items()]
        known = sorted({agent if scope is Scope.AGENT else group for agent, group in callers} - {""})
        if scope is Scope.EVERYONE or any(_names(scope, name, caller) for caller in known):
            return None
        return nearest(name, known)

    # Budgets ----------------------------------------------------------------------------------------------------------

    def _change_budget(self, command: BudgetCommand, now: float) -> CommandEffect:
        if problem := _problem(command):
            return _declined(problem)
        match command:
            case SetBudget():
                result = self._give(command, now)
            case AddBudget():
                result = self._add(command, now)
            case ResetBudget():
                result = self._reset(command, now)
            case _:
                assert_never(command)
        if not result.done:
            return CommandEffect(result)
        return replace(self.review_budgets(now), result=result)

    def _give(self, command: SetBudget, now: float) -> CommandResult:
        budget = Budget(command.scope, command.name, command.per, command.tokens, command.micro_usd, command.calls)
        if budget.limits_anything:
            if budget.scope is not Scope.AGENT or not is_glob(budget.name):
                self._budgets.open(budget.key, now)
        elif all(given.budget.key != budget.key for given in self._overrides.budgets):
            return CommandResult(Declined.NEVER_GIVEN)
        self._overrides.give(budget, by=command.by)
        self._budgets.apply_overrides(now)
        accounts = self._find(command, now)
        is_new = budget.limits_anything and (not accounts or any(account.is_untouched for account in accounts))
        result = CommandResult(is_new=is_new, nearest=self._nearest_caller(command.scope, command.name))
        return _with(accounts, result, now)

    def _add(self, command: AddBudget, now: float) -> CommandResult:
        found = self._find(command, now)
        if not found:
            return self._no_budget()
        more = Spend(command.tokens, command.micro_usd, command.calls)
        accounts = [account for account in found if account.budget.plus(more) != account.budget]
        if not accounts:
            return _with(found, CommandResult(Declined.NO_SUCH_UNIT), now)
        if any(max(amount for _, amount in account.added.by_unit) > MOST_AMOUNT for account in accounts):
            return CommandResult(Declined.HUGE_SUM)
        for account in accounts:
            account.add(more, now)
            self._budgets.changed(account, now)
        return _with(accounts, CommandResult(), now)

    def _reset(self, command: ResetBudget, now: float) -> CommandResult:
        accounts = self._find(command, now)
        if not accounts:
            return self._no_budget()
        for account in accounts:
            account.forgive(now)
            self._budgets.changed(account, now)
        return _with(accounts, CommandResult(), now)

    def _find(self, command: BudgetCommand, now: float) -> list[Account]:
        """The accounts that a command means, each in the present period."""
        found = []
        for account in self._budgets:
            scope, name, per = account.key
            is_meant = scope is command.scope and _names(scope, command.name, name) and command.per in (None, per)
            if is_meant and account.budget.limits_anything:
                found.append(account)
        for account in found:
            self._budgets.open(account.key, now)  # begins a new period if the last is over
        return found

    def _no_budget(self) -> CommandResult:
        holders = dict.fromkeys(account.budget.holder for account in self._budgets if account.budget.limits_anything)
        return CommandResult(Declined.NO_BUDGET, holders=tuple(holders))

    # Tickets ----------------------------------------------------------------------------------------------------------

    def _move_to_front(self, ticket_id: str, now: float) -> CommandEffect:
        pool = self._pool_of(ticket_id)
        if pool is None or not pool.queue.move_to_front(ticket_id, now):
            return _declined(Declined.NOT_WAITING)
        return CommandEffect(CommandResult(pools=(pool.key,)), [pool])

    def _cancel(self, ticket_id: str, now: float) -> CommandEffect:
        pool = self._pool_of(ticket_id)
        ended = None if pool is None else pool.call_off(ticket_id, now)
        if pool is None or ended is None:
            return _declined(Declined.NOT_ALIVE)
        was_running = isinstance(ended, Attempt)
        return CommandEffect(CommandResult(pools=(pool.key,), was_running=was_running), [pool], ended=ended)

    def _foresee(self, asked: ForeseeWait, now: float) -> CommandResult:
        """Foresee the wait in each pool that the agent has used, the last one first; for a new agent, in all pools."""
        if not asked.agent or not asked.pool:
            return CommandResult(Declined.NO_CALL_NAMED)
        if asked.input_tokens < 0 or asked.output_tokens < 0:
            return CommandResult(Declined.NEGATIVE_TOKENS)
        matching = [pool for key, pool in self._pools.items() if names_pool(asked.pool, key)]
        if self._pools and not matching:
            return CommandResult(Declined.NO_SUCH_POOL, pools=tuple(self._pools))
        called_at = {pool: at for pool in matching if (at := pool.callers.called_at(asked.agent)) is not None}
        chosen = sorted(called_at, key=called_at.__getitem__, reverse=True) or matching
        return CommandResult(waits=tuple(pool.foresee(asked, now) for pool in chosen))


def _declined(why: Declined) -> CommandEffect:
    return CommandEffect(CommandResult(why))


def _with(accounts: Sequence[Account], result: CommandResult, now: float) -> CommandResult:
    return replace(result, budgets=tuple(account.view(now) for account in accounts))


def _names(scope: Scope, glob: str, name: str) -> bool:
    """Whether the name in a command means a holder. Only agents are named by globs."""
    return names_agent(glob, name) if scope is Scope.AGENT else glob == name


def _problem(command: BudgetCommand) -> Declined | None:
    """Why a command is invalid, regardless of the scheduler's state."""
    if command.scope is Scope.EVERYONE and command.name:
        return Declined.EVERYONE_NAMED
    if command.scope is not Scope.EVERYONE and not command.name:
        return Declined.NO_HOLDER_NAMED
    if isinstance(command, ResetBudget):
        return None
    amounts = [amount for amount in (command.tokens, command.micro_usd, command.calls) if amount is not None]
    if any(amount < 0 for amount in amounts):
        return Declined.NEGATIVE_AMOUNT
    if any(amount > MOST_AMOUNT for amount in amounts):
        return Declined.HUGE_AMOUNT
    return Declined.NOTHING_ADDED if isinstance(command, AddBudget) and not any(amounts) else None
