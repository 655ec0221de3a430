"""Replies to commands in words, for the sender of the command, the log and the journal.

The command line, MCP, mitmproxy's commands and the control socket all show these words.
"""

import math
from collections.abc import Mapping, Sequence
from glob import escape
from typing import assert_never

import msgspec

from hivemind_addon.kernel.values.command import (
    LONGEST_PRIORITY_S,
    AddBudget,
    Cancel,
    CommandResult,
    Declined,
    ForeseeWait,
    Foresight,
    MoveToFront,
    Order,
    Pause,
    ResetBudget,
    Resume,
    SchedulerCommand,
    SetBudget,
    SetLimit,
    SetPriority,
    is_glob,
)
from hivemind_addon.kernel.values.events import (
    CommandDone,
    Event,
    OrderEvent,
    OverridesStand,
    PersonActed,
    PriorityEnded,
    SchedulerEvent,
)
from hivemind_addon.kernel.values.snapshot import Snapshot
from hivemind_addon.kernel.values.spend import Budget, Scope, Spend
from hivemind_addon.proxy.api.account import account_view, limits_of, words_of
from hivemind_addon.proxy.api.command import CommandReply, WaitView
from hivemind_addon.proxy.api.pool_words import waiting_line, why_words
from hivemind_addon.proxy.api.words import amount

_MOST_HOLDERS = 8
"""Most holders in an answer."""
_MOST_OVERRIDES = 5
"""Most overrides of each kind, in the line about overrides in force."""
_TEN_MINUTES_S = 600
_COUNTED_IN = "what the journal knows to have been spent in this period before is counted in: `hivemind budget`"
_PROBLEMS = {
    Declined.NO_POOL_NAMED: "name a pool, a host or a glob",
    Declined.NO_AGENT_NAMED: "name an agent or a glob",
    Declined.NO_HOLDER_NAMED: "name an agent, a glob or a group",
    Declined.EVERYONE_NAMED: "everyone's budget has no name; {command.name!r} was given",
    Declined.NO_CALL_NAMED: "name an agent, and a pool, a host or a glob",
    Declined.NEGATIVE_TOKENS: "tokens are never below zero",
    Declined.NEGATIVE_AMOUNT: "no amount is negative",
    Declined.HUGE_AMOUNT: "an amount is at least 0, and no budget is so large",
    Declined.NOTHING_ADDED: "nothing was added: say how many tokens, or how much money",
    Declined.LIMIT_TOO_LOW: "a limit of {command.limit} sends nothing: pause it instead",
    Declined.BAD_SPAN: "an order stands for more than 0 s and at most {longest}, or for good",
    Declined.NOT_PAUSED: "nothing of {command.pool} is paused, and no account of it is refused",
    Declined.NO_SUCH_POOL: "no pool {command.pool!r}; there are {pools}",
    Declined.NOT_WAITING: "no request {command.ticket_id!r} waits: it may be over",
    Declined.NOT_ALIVE: "no request {command.ticket_id!r} waits or runs: it may be over",
    Declined.NEVER_GIVEN: "nobody gave {holder} a budget {per} at run time; `hivemind budget` lists those that "
    "somebody gave",
    Declined.NO_BUDGET: "{holder} has no budget{of_per} that a request has used; known: {known}. "
    "`hivemind budget set` gives one",
    Declined.NO_SUCH_UNIT: "no budget in {unit} there: {balance}",
    Declined.HUGE_SUM: "more was added than anybody can spend; reset it, or set another budget",
}
"""Each problem with the cure, or with the existing alternatives."""


def reply(command: SchedulerCommand, result: CommandResult) -> CommandReply:
    """The reply to the sender of a command."""
    text = _deed(command, result) if result.done else _problem(command, result)
    value: object = None
    match command:
        case SetBudget() | AddBudget() | ResetBudget():
            value = msgspec.to_builtins([account_view(view) for view in result.budgets])
        case ForeseeWait() if result.done:
            value = msgspec.to_builtins([wait_view(wait) for wait in result.waits])
    return CommandReply(done=result.done, text=text, value=value)


def in_words(event: SchedulerEvent) -> Event:
    """The event for observers: an event about an order becomes a `PersonActed`, others stay."""
    return person_acted(event) if isinstance(event, OrderEvent) else event


def person_acted(event: OrderEvent) -> PersonActed:
    """An event about an order, in the words of the log and the journal."""
    match event:
        case CommandDone(at=at, command=command, result=result):
            return _command_done(command, result, at)
        case PriorityEnded(at=at, priority=view):
            text = f"agent {view.agent}: priority {view.priority.name.lower()} ended, its time is over"
            return PersonActed(at=at, text=text)
        case OverridesStand(at=at):
            return PersonActed(at=at, text=f"orders from before the restart stand: {_standing(event)}")
        case _:
            assert_never(event)


def _command_done(command: Order, result: CommandResult, now: float) -> PersonActed:
    only, person = result.pools[0] if len(result.pools) == 1 else None, command.person
    match command:
        case Pause() | Resume() | SetLimit():
            which = "" if only else f"{_pools_meant(command.pool, result)}: "
            text = f"{which}{_change(command)}{_lifted(result)} ({asker('', person=person)})"
            return PersonActed(at=now, text=text, pool=only, person=person)
        case SetPriority(agent=agent, by=by):
            text = f"agent {agent}: {_change(command)} ({asker(by, agent, person=person)})"
            return PersonActed(at=now, text=text, by=by, person=person)
        case SetBudget() | AddBudget() | ResetBudget():
            who = asker(command.by, command.name if command.scope is Scope.AGENT else "", person=person)
            return PersonActed(at=now, text=f"budget: {_change(command)} ({who})", by=command.by, person=person)
        case MoveToFront(ticket_id=ticket_id) | Cancel(ticket_id=ticket_id):
            text = f"{_change(command)} {asker('', person=person)}"
            return PersonActed(at=now, text=text, pool=only, ticket_id=ticket_id, person=person)
        case _:
            assert_never(command)


def _standing(event: OverridesStand) -> str:
    """The overrides; pauses and caps, which hold agents up, with the command that ends them."""
    priorities = [
        f"{view.agent} {view.priority.name.lower()}"
        + ("" if view.ends_in_s is None else f" for {span_words(_rounded(view.ends_in_s))}")
        for view in event.priorities
    ]
    kinds = (
        ("paused", _paused(event.pauses), " (`hivemind resume`)"),
        ("at most at once", _capped(event.caps), " (`hivemind cap auto`)"),
        ("priorities", priorities, ""),
        ("budgets", list(dict.fromkeys(given.budget.holder for given in event.given)), ""),
    )
    return "; ".join(f"{kind}: {_first(names, _MOST_OVERRIDES)}{cure}" for kind, names, cure in kinds if names)


def pool_overrides(snapshot: Snapshot) -> list[str]:
    """Every pause and cap in force, also for pools that have not come: a line for each kind."""
    kinds = (("paused", _paused(snapshot.pauses)), ("at most at once", _capped(snapshot.caps)))
    return [f"{kind}: {', '.join(names)}" for kind, names in kinds if names]


def wait_view(wait: Foresight) -> WaitView:
    """A foreseen wait, for people and programs."""
    reason, why = wait.reason, ""
    if reason is not None:
        why = why_words(reason, wait.limit, wait.budget.holder if wait.budget else wait.block_reason)
    return WaitView(str(wait.pool), wait.starts_in_s, wait.before, reason.value if reason else "", why)


def wait_words(view: WaitView) -> str:
    """`at once`, `3rd; requests: needs 1, 0 left, in about 4 s`, `paused by a person; nobody can tell when`."""
    if view.starts_in_s is None:
        return f"{view.why or view.reason}; nobody can tell when" if view.reason else "nobody can tell when"
    return waiting_line(view.before + 1, view.why or view.reason, view.starts_in_s) if view.reason else "at once"


def span_words(seconds: float) -> str:
    """A span that a person gave: `90 s`, `45 min`, `2 h`."""
    if seconds < _TEN_MINUTES_S and round(seconds, 1) % 60:
        return f"{round(seconds, 1):g} s"
    minutes = round(seconds / 60)
    days, hours = minutes / (24 * 60), minutes / 60
    return f"{days:g} d" if days.is_integer() else f"{hours:g} h" if hours.is_integer() else f"{minutes} min"


def asker(by: str, agent: str = "", *, person: str = "") -> str:
    """The sender of a command, in words. `agent`: glob of the agents concerned. `person`: as in a command."""
    if not by:
        return f"by {person or 'a person'}"
    alone = agent in (by, escape(by))  # as a glob that matches only this name
    return f"by {by} itself" if alone else f"by agent {by}"


def _change(command: SchedulerCommand) -> str:
    """The change of a command, with the holder if a budget changes."""
    match command:
        case Pause():
            return "paused: nothing is sent until somebody resumes it"
        case Resume():
            return "resumed"
        case SetLimit(limit=limit):
            return "as many attempts at once as it takes" if limit is None else f"at most {limit} attempts at once"
        case SetPriority(priority=priority, for_s=for_s):
            what = "the priority that it asks for" if priority is None else f"priority {priority.name.lower()}"
            return what + ("" if for_s is None else f" for {span_words(for_s)}")
        case SetBudget(scope=scope, name=name, per=per):
            budget = Budget(scope, name, per, command.tokens, command.micro_usd, command.calls)
            if not budget.limits_anything:
                return f"{budget.holder}: what the agents file says {words_of(per)} counts again"
            each = "each " if scope is Scope.AGENT and is_glob(name) else ""
            return f"{each}{budget.holder} may spend {limits_of(budget)} {words_of(per)}"
        case AddBudget(tokens=tokens, micro_usd=micro_usd, calls=calls):
            added = [amount(unit, value) for unit, value in Spend(tokens, micro_usd, calls).by_unit if value]
            return f"{' and '.join(added)} added to {_holder(command)}"
        case ResetBudget():
            return f"{_holder(command)} begins anew"
        case MoveToFront():
            return "moved to the front"
        case Cancel():
            return "cancelled"
        case ForeseeWait():
            return "nothing"
        case _:
            assert_never(command)


def _deed(command: SchedulerCommand, result: CommandResult) -> str:
    """The change, the present state, and the name that was probably meant if no agent has the given name."""
    what = _change(command)
    match command:
        case Pause() | Resume() | SetLimit():
            come = _nobody("it stands for pools that come", result)
            return f"{_pools_meant(command.pool, result)}: {what}{_lifted(result)}{come}"
        case SetPriority(agent=agent):
            return f"agent {agent}: {what}{_nobody('no such agent has called yet', result)}"
        case SetBudget(scope=scope):
            who = "such agent has" if scope is Scope.AGENT else "agent of this group has"
            now = f"; {_COUNTED_IN}" if result.is_new else _balance(result, before=": ")
            return f"{what}{now}{_nobody(f'no {who} called yet', result)}"
        case AddBudget() | ResetBudget():
            return f"{what}{_balance(result, before=': ')}"
        case MoveToFront(ticket_id=ticket_id):
            return f"{ticket_id} goes next"
        case Cancel(ticket_id=ticket_id):
            return f"{ticket_id} is cancelled{', its running attempt ended' if result.was_running else ''}"
        case ForeseeWait(agent=agent):
            waits = "; ".join(f"{wait.pool}: {wait_words(wait_view(wait))}" for wait in result.waits)
            return f"{agent}: {waits or 'at once; nothing was sent yet, so no limit is known'}"
        case _:
            assert_never(command)


def _problem(command: SchedulerCommand, result: CommandResult) -> str:
    """The problem and the cure."""
    assert result.declined is not None
    words = {"longest": span_words(LONGEST_PRIORITY_S), "pools": ", ".join(map(str, result.pools))}
    match command:
        case SetBudget() | AddBudget() | ResetBudget():
            words |= {
                "holder": _holder(command),
                "per": words_of(command.per) if command.per else "",
                "of_per": f" {words_of(command.per)}" if command.per else "",
                "known": _first(result.holders, _MOST_HOLDERS) or "nobody yet",
                "unit": "tokens" if isinstance(command, AddBudget) and command.tokens else "money",
                "balance": _balance(result),
            }
    return _PROBLEMS[result.declined].format(command=command, **words)


def _balance(result: CommandResult, *, before: str = "") -> str:
    """The state of the first budgets; `before` precedes them, if there are any."""
    words = []
    for view in result.budgets[:_MOST_HOLDERS]:
        spent = ", ".join(
            f"{amount(one.unit, one.spent)} of {amount(one.unit, one.limit)}, {amount(one.unit, one.left)} left"
            for one in view.balances
        )
        words.append(f"{view.budget.holder} has spent {spent} {words_of(view.budget.per)}")
    if len(result.budgets) > len(words):
        words.append(f"and {len(result.budgets) - len(words)} more")
    return before + "; ".join(words) if words else ""


def _nobody(words: str, result: CommandResult) -> str:
    """An addition for a name that no agent has."""
    if result.nearest is None:
        return ""
    return f"; {words}" + (f", did you mean {result.nearest}?" if result.nearest else "")


def _lifted(result: CommandResult) -> str:
    """An addition for an account that was refused for long."""
    return ", and the account that was refused is tried again" if result.lifted else ""


def _pools_meant(glob: str, result: CommandResult) -> str:
    match result.pools:
        case ():
            return f"{glob} (no pool yet)"
        case (only,):
            return str(only)
        case pools:
            return f"{glob} ({len(pools)} pools)"


def _holder(command: SetBudget | AddBudget | ResetBudget) -> str:
    return Budget(command.scope, command.name).holder


def _paused(pauses: Mapping[str, bool]) -> list[str]:
    return [
        *(glob for glob, is_paused in pauses.items() if is_paused),
        *(f"but not {glob}" for glob, is_paused in pauses.items() if not is_paused),
    ]


def _capped(caps: Mapping[str, int | None]) -> list[str]:
    return [
        *(f"{cap} in {glob}" for glob, cap in caps.items() if cap is not None),
        *(f"but not {glob}" for glob, cap in caps.items() if cap is None),
    ]


def _first(names: Sequence[str], most: int) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _rounded(left_s: float) -> float:
    """Remaining times need no more precision than minutes."""
    return left_s if left_s < _TEN_MINUTES_S / 5 else math.ceil(left_s / 60) * 60
