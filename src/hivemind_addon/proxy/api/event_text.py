"""Events in words for people, and as lines of JSON for programs (docs/events.md lists all fields).

WARNING is for events that a person may act on, INFO for the causes of a slow hour, DEBUG for events of every request. A
probe that fails in a long outage is no news: only the opening and the closing of the breaker are reported.
"""

import json
import logging
from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from hivemind_addon.kernel.values.events import (
    SCHEMA_VERSION,
    AccountBlocked,
    AccountNamed,
    AccountUnblocked,
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    BreakerChanged,
    BudgetBooked,
    BudgetSpent,
    BudgetWarned,
    CommittedStreamFailed,
    ConcurrencyChanged,
    ContextCompacted,
    ContextFull,
    ContextKept,
    ContextShrank,
    Event,
    GuardTripped,
    Held,
    JobNoted,
    MachineSlept,
    MaximumReached,
    MeterLearned,
    Moved,
    OddityNoted,
    PersonActed,
    PoolBlocked,
    PoolsMerged,
    PriceMissing,
    StateUnsaved,
    Submitted,
    Superseded,
    TicketEnded,
    WaitOverruled,
    WindowUsed,
)
from hivemind_addon.proxy.api.pool_words import held_words, maximum_words
from hivemind_addon.proxy.api.words import PRICE_CURE, amount, conversation, lasting, several

_encode = msgspec.json.Encoder().encode

_STUBBORN = (3, 6, 12, 24, 48, 96)
"""The attempts whose failure is reported: one or two failures are normal, and a probe may fail all night."""
_LONG_S = 10.0
"""A pause of this length is reported; shorter pauses are normal for a busy key."""
_MINUTES_S = 600.0
"""From this length on, waits are shown in minutes, hours and days."""
_LEVEL_OF_END = {
    "delivered": logging.DEBUG,
    "cancelled": logging.DEBUG,
    # The client returns, to the place that is kept.
    "shed": logging.INFO,
    # The account block or the budget was reported.
    "refused": logging.DEBUG,
}


def level_of(event: Event) -> int:
    """The importance of an event: a level of `logging`."""
    level = _LEVELS[type(event)]
    return level if isinstance(level, int) else level(event)


def text_of(event: Event) -> str:
    """The event in words, without the subject."""
    match event:
        case Submitted(_, ticket):
            return f"submitted by {ticket.agent} for {ticket.pool}"
        case Held():
            return held_words(event.position, event.reason.value)
        case AttemptStarted():
            return f"attempt {event.attempt} in flight after {event.waited_s:.1f} s, {event.in_flight} in all"
        case AttemptEnded():
            return f"attempt {event.attempt}: {event.outcome.reason}, after {event.duration_s:.1f} s"
        case JobNoted():
            if event.until is None:
                return f"its work {event.job} has ended"
            return f"its work goes on as {event.job}, for at most {lasting(event.until - event.at)}"
        case BackedOff():
            wait_s = event.until - event.at
            again = f"in {wait_s:.1f} s" if wait_s > 0 else "when it is its turn"  # breaker or limit sets the time
            return f"attempt {event.attempt} failed ({event.reason}); again {again}"
        case TicketEnded():
            attempts = f"{event.attempts} attempt{'s' * (event.attempts != 1)}"
            last = f": {event.last_outcome}" if event.last_outcome else ""
            return f"{event.end} ({event.reason}{last}) after {attempts}, {event.waited_s:.1f} s waited"
        case ConcurrencyChanged():
            return f"concurrency limit {event.limit} ({event.reason})"
        case MaximumReached():
            return f"concurrency limit {event.limit}: {maximum_words(event.maximum_from)}"
        case BreakerChanged():
            return _breaker(event)
        case PoolBlocked():
            wait_s = event.until - event.at
            how_long = lasting(wait_s) if wait_s >= _MINUTES_S else f"{wait_s:.1f} s"
            return f"told to wait {how_long} ({event.reason})"
        case AccountBlocked():
            return (
                f"the account is refused for {lasting(event.until - event.at)} ({event.reason}); who waits longer is "
                "held, the others are told; one looks every 5 min, `hivemind resume` ends it"
            )
        case AccountUnblocked():
            return "the account is served again"
        case WindowUsed():
            return _window(event)
        case MeterLearned():
            limit = f"{event.limit:,.0f}" if event.limit >= 10 else f"{event.limit:.3g}"
            kind = f" ({event.kind})" if event.kind != "unknown" else ""
            return f"limit learned: {event.meter} {limit}{kind}"
        case AccountNamed():
            return f"the account is {event.name}"
        case BudgetWarned() | BudgetSpent():
            share = "has spent its budget" if isinstance(event, BudgetSpent) else "has spent most of its budget"
            spent, limit = amount(event.unit, event.spent), amount(event.unit, event.limit)
            return f"{event.budget.holder} {share}: {spent} of {limit} per {event.budget.per.value}"
        case PriceMissing():
            model = event.model or "a request"
            what = f"counts it as {event.guess}, a guess" if event.guess else "does not count it"
            if event.budget is None:
                return f"{model} has no known price: the sum of dollars {what}; {PRICE_CURE}"
            whose, dollars = event.budget.holder, amount("micro_usd", event.budget.micro_usd or 0)
            return f"{model} has no known price, and the budget of {whose} ({dollars}) {what}; {PRICE_CURE}"
        case BudgetBooked():
            spent = " and ".join(amount(unit, value) for unit, value in _spent(event))
            return f"{event.budget.holder}: {spent} spent per {event.budget.per.value}"
        case ContextKept():
            if event.context_id:
                return f"its conversation is kept, `hivemind context show {event.context_id}`"
            return f"its conversation could not be kept: {event.reason}"
        case ContextCompacted():
            whose = conversation(event.agent, event.session)
            taken = f"{several(event.results, 'old tool result')} taken out of the context of {whose}"
            return f"{taken}: {event.tokens_before:,} → {event.tokens_after:,} tokens"
        case ContextFull():
            return _full(event)
        case ContextShrank():
            return _shrank(event)
        case PoolsMerged():
            return f"{event.merged} is the same account"
        case Moved():
            return f"moved to {event.pool}, from {event.left}"
        case Superseded():
            return f"ended: its client came back with {event.by_ticket_id}"
        case MachineSlept():
            return f"the machine slept for {lasting(event.slept_s)}"
        case OddityNoted():
            return event.what
        case PersonActed():
            return event.text
        case StateUnsaved():
            return f"the journal cannot be written: {event.reason}" if event.reason else "the journal is written again"
        case CommittedStreamFailed():
            return f"failed after its keep-alives: {event.reason}"
        case WaitOverruled():
            idle, why = lasting(event.idle_s), event.reason.value
            return f"sent all the same: nothing went for {idle}, and only what was learned held it ({why})"
        case GuardTripped():
            return f"guard trip in {event.where}: {event.error}"
        case _:
            assert_never(event)


def _level_of_breaker(event: BreakerChanged) -> int:
    is_told = event.state == "closed" or (event.state == "open" and event.before != "half-open")
    return logging.WARNING if is_told else logging.DEBUG


_LEVELS: dict[type[Event], int | Callable[[Any], int]] = {
    Submitted: logging.DEBUG,
    Held: logging.DEBUG,
    AttemptStarted: logging.DEBUG,
    AttemptEnded: logging.DEBUG,
    JobNoted: logging.DEBUG,
    BackedOff: lambda event: logging.INFO if event.attempt in _STUBBORN else logging.DEBUG,
    TicketEnded: lambda event: _LEVEL_OF_END.get(event.end, logging.WARNING),
    ConcurrencyChanged: logging.DEBUG,
    MaximumReached: logging.INFO,
    BreakerChanged: _level_of_breaker,
    PoolBlocked: lambda event: logging.INFO if event.until - event.at >= _LONG_S else logging.DEBUG,
    AccountBlocked: logging.WARNING,
    AccountUnblocked: logging.WARNING,
    WindowUsed: lambda event: logging.INFO if event.status in ("", "allowed") else logging.WARNING,
    MeterLearned: logging.INFO,
    AccountNamed: logging.DEBUG,
    BudgetWarned: logging.WARNING,
    BudgetSpent: logging.WARNING,
    PriceMissing: logging.WARNING,
    BudgetBooked: logging.DEBUG,
    ContextKept: lambda event: logging.DEBUG if event.is_routine else logging.WARNING,
    ContextCompacted: logging.INFO,
    ContextFull: logging.WARNING,
    ContextShrank: lambda event: logging.DEBUG if event.by_proxy else logging.INFO,
    PoolsMerged: logging.INFO,
    Moved: logging.DEBUG,
    Superseded: logging.INFO,
    MachineSlept: logging.WARNING,
    OddityNoted: logging.WARNING,
    PersonActed: logging.WARNING,
    StateUnsaved: logging.WARNING,
    CommittedStreamFailed: logging.WARNING,
    WaitOverruled: logging.WARNING,
    GuardTripped: logging.DEBUG,  # the guard itself logs the traceback
}
NEWS = frozenset(kind for kind, level in _LEVELS.items() if level != logging.DEBUG)
"""Events that may matter more than DEBUG."""


def line_of(event: Event) -> str:
    """A complete line about an event: subject and text."""
    subject = subject_of(event)
    text = text_of(event)
    return f"{subject}: {text}" if subject else text


def subject_of(event: Event) -> str:
    """The ticket, the conversation, or else the pool of an event; empty: none."""
    if isinstance(event, ContextFull | ContextShrank):
        return conversation(event.agent, event.session)
    return getattr(event, "ticket_id", None) or str(getattr(event, "pool", None) or "")


def _breaker(event: BreakerChanged) -> str:
    match event.state:
        case "open" if event.before != "half-open":
            return f"breaker open ({event.reason}); requests wait, one at a time is tried"
        case "closed":
            return f"breaker closed, the provider answers again ({event.reason})"
        case _:
            return f"breaker {event.state} ({event.reason})"


def _full(event: ContextFull) -> str:
    left = max(0, event.window_tokens - event.tokens)
    turns = left / event.growth_per_turn if event.growth_per_turn >= 1 else None
    ends = "" if turns is None else f", room for about {several(round(turns), 'turn')} more"
    share = min(1.0, event.tokens / max(1, event.window_tokens))
    return f"its context is {share:.0%} full: {event.tokens:,} of {event.window_tokens:,} tokens{ends}"


def _shrank(event: ContextShrank) -> str:
    cost = ", ".join(
        amount(unit, value)
        for unit, value in (("tokens", event.spend.tokens), ("micro_usd", event.spend.micro_usd))
        if value
    )
    taken = f"; its summary took {cost}" if cost else ""
    return f"its context was compacted: {event.before_tokens:,} → {event.after_tokens:,} tokens{taken}"


def _spent(event: BudgetBooked) -> list[tuple[str, int]]:
    """Units and amounts; money and calls only if there are any."""
    tokens, *others = event.spent.by_unit
    return [tokens, *((unit, value) for unit, value in others if value)]


def _window(event: WindowUsed) -> str:
    used = "" if event.used is None else f" {event.used:.0%} used"
    status = f" ({event.status})" if event.status else ""
    reset = "" if event.resets_in_s is None else f", anew in {lasting(event.resets_in_s)}"
    return f"window {event.window}{used}{status}{reset}"


def event_line(event: Event, wall: float) -> bytes:
    r"""The line of an event, with the line end. `wall` is the event's instant in epoch seconds.

    An event's own fields follow `v`, `wall` and `event`; they hold no prompts, keys or tokens' contents.
    """
    head = f'{{"v":{SCHEMA_VERSION},"wall":{wall:.3f},'
    try:
        fields = _encode(event)
    except UnicodeEncodeError:  # header bytes that are no text; escaped they are still JSON
        fields = json.dumps(msgspec.to_builtins(event)).encode()
    return head.encode() + fields[1:] + b"\n"


def dropped_line(lines: int, wall: float) -> bytes:
    """The line in place of lines that could not be written."""
    return _encode({"v": SCHEMA_VERSION, "wall": round(wall, 3), "event": "LinesDropped", "lines": lines}) + b"\n"
