"""Which events deserve a call for help, and when. Pure: time is passed.

What wakes a person must be worth it: something that stops all agents of a pool until somebody acts, or for long.

    cause          begins with                                            is told            ends with
    account block  the provider refuses the account for hours             at once            the first answer
    refused        401, 402, no credit: the key is refused                after a minute     the first answer
    breaker        the provider is down or out of reach                   after 5 minutes    the first answer
    state          the journal cannot be written (a full disk)            at once            a write
    budget         a budget is spent, or cannot count a model             at once            -
    garbage        5 of the last 20 answers of a pool are garbage         at once            20 answers with 1 at most
    context        a conversation fills most of its context window        at once            -
    guard          an exception of ours, unscheduled traffic              at once            -

A trouble is called for once, and its end is called out if its beginning was. The same trouble again within ten minutes
waits until these are over, and is called for only if it lasts. A refused key waits a minute because clients that log in
get a 401 when their token has run out, and then fetch a new one.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from hivemind_addon.kernel.values.events import (
    AccountBlocked,
    AccountUnblocked,
    AttemptEnded,
    BreakerChanged,
    BudgetSpent,
    ContextFull,
    Event,
    GuardTripped,
    PoolsMerged,
    PriceMissing,
    StateUnsaved,
)
from hivemind_addon.kernel.values.snapshot import BreakerState
from hivemind_addon.kernel.values.spend import Budget
from hivemind_addon.kernel.values.ticket import Outcome, OutcomeKind, PoolKey
from hivemind_addon.proxy.api.event_text import line_of
from hivemind_addon.proxy.api.words import lasting, plain

AGAIN_S = 600.0
"""At most one call for the same trouble in this time."""
_TROUBLES_KEPT = 1000
_TEXT_CHARS = 1000
ANSWERS = 20
"""Newest answers of a pool that are looked at for garbage."""
MANY_GARBAGE = 5
FEW_GARBAGE = 1
_NO_CREDIT = ("billing", "credit", "insufficient", "balance", "payment")
"""In the names of providers' errors."""


class Cause(Enum):
    """What is wrong."""

    ACCOUNT_BLOCK = "account block"
    REFUSED = "refused"
    BREAKER = "breaker"
    STATE = "state"
    BUDGET = "budget"
    GARBAGE = "garbage"
    CONTEXT = "context"
    GUARD = "guard"


_PATIENCE_S = {Cause.REFUSED: 60.0, Cause.BREAKER: 300.0}
"""How long a trouble must last before it is called for; the others are at once."""


class Notice(Struct, frozen=True):
    """One call, as the command reads it. Instants are epoch seconds."""

    cause: str
    state: str
    """`began` or `ended`."""
    text: str
    """One line for people."""
    pool: str | None
    """`host/account/model-group`, where it is one pool's."""
    wall: float
    """Now."""
    ends_at: float | None
    """When the provider or we said that it will end; None: nobody knows."""


@dataclass(slots=True)
class _Trouble:
    pool: PoolKey | None
    text: str
    since: float
    lasts: bool
    """Whether an event will say that it is over."""
    until: float | None = None
    stands: bool = True
    is_told: bool = False
    """Of its present beginning."""
    told_at: float = float("-inf")

    def due_at(self, cause: Cause) -> float | None:
        """When it is to be called for; None: not (again), as it is now."""
        if not self.stands or self.is_told:
            return None
        return max(self.since + _PATIENCE_S.get(cause, 0.0), self.told_at + AGAIN_S)


class Notices:
    """Hears events; says what to call for, and when to ask again."""

    hears = frozenset(
        {
            AttemptEnded,
            AccountBlocked,
            AccountUnblocked,
            BreakerChanged,
            StateUnsaved,
            BudgetSpent,
            ContextFull,
            GuardTripped,
            PoolsMerged,
            PriceMissing,
        }
    )
    """What matters to it."""

    def __init__(self) -> None:
        self._troubles: dict[tuple[Cause, object], _Trouble] = {}
        self._answers: OrderedDict[PoolKey, deque[bool]] = OrderedDict()
        """Pool → which of its newest answers were garbage."""
        self._ended: list[tuple[Cause, _Trouble]] = []
        """Told troubles whose end is to be told."""

    def __repr__(self) -> str:
        return f"<Notices of {sum(trouble.stands for trouble in self._troubles.values())} troubles>"

    def __call__(self, event: Event) -> bool:
        """Learn from one event. True: ask `due` and `next_wakeup` now."""
        match event:
            case AttemptEnded():
                return self._attempt_ended(event)
            case AccountBlocked():
                self._begin(Cause.ACCOUNT_BLOCK, event.pool, event, until=event.until, anew=True)
            case AccountUnblocked():
                self._end(Cause.ACCOUNT_BLOCK, event.pool)
            case BreakerChanged(state=BreakerState.OPEN.value):
                self._begin(Cause.BREAKER, event.pool, event)
            case BreakerChanged(state=BreakerState.CLOSED.value):
                self._end(Cause.BREAKER, event.pool)
            case StateUnsaved(reason=""):
                self._end(Cause.STATE, None)
            case StateUnsaved():
                self._begin(Cause.STATE, None, event)
            case BudgetSpent():
                self._begin(Cause.BUDGET, None, event, about=(event.budget, event.unit), lasts=False)
            case PriceMissing(budget=Budget()):
                self._begin(Cause.BUDGET, event.pool, event, about=("price", event.model), lasts=False)
            case ContextFull():
                # Of a fleet whose agents compact themselves one call in ten minutes is enough.
                self._begin(Cause.CONTEXT, None, event, about=Cause.CONTEXT, lasts=False)
            case GuardTripped():
                self._begin(Cause.GUARD, None, event, lasts=False)
            case PoolsMerged():
                self._merge(event)
            case _:
                return False
        return True

    def _attempt_ended(self, event: AttemptEnded) -> bool:
        told = self._answered(event)
        if _refuses_the_key(event.outcome):
            text = f"{event.pool}: the provider refuses the key ({event.outcome.reason})"
            self._begin(Cause.REFUSED, event.pool, event, text=text)
            return True
        if event.outcome.kind is not OutcomeKind.SUCCESS or (Cause.REFUSED, event.pool) not in self._troubles:
            return told
        self._end(Cause.REFUSED, event.pool)
        return True

    def _answered(self, event: AttemptEnded) -> bool:
        """A complete answer is garbage or not. True: something is to be told."""
        outcome, pool = event.outcome, event.pool
        if outcome.kind is not OutcomeKind.SUCCESS and not outcome.garbage:
            return False
        answers = self._answers.setdefault(pool, deque(maxlen=ANSWERS))
        self._answers.move_to_end(pool)
        if len(self._answers) > _TROUBLES_KEPT:
            self._answers.popitem(last=False)
        answers.append(bool(outcome.garbage))
        garbage = sum(answers)
        if outcome.garbage and garbage >= MANY_GARBAGE:
            text = f"{pool}: {garbage} of the last {len(answers)} answers were garbage, the newest: {outcome.garbage}"
            self._begin(Cause.GARBAGE, pool, event, text=text)
            return True
        if garbage <= FEW_GARBAGE and (Cause.GARBAGE, pool) in self._troubles:
            self._end(Cause.GARBAGE, pool)
            return True
        return False

    def _begin(
        self,
        cause: Cause,
        pool: PoolKey | None,
        event: Event,
        *,
        text: str = "",
        about: object = None,
        until: float | None = None,
        lasts: bool = True,
        anew: bool = False,
    ) -> None:
        """A trouble stands from now on, if it did not; `anew`: it begins again even where it did."""
        key = cause, about or pool
        trouble = self._troubles.get(key)
        if trouble is None:
            if len(self._troubles) >= _TROUBLES_KEPT and not self._forget(event.at):
                return
            trouble = self._troubles[key] = _Trouble(pool, "", event.at, lasts)
        elif trouble.stands and not anew and lasts:
            return
        trouble.text = text or line_of(event)
        trouble.since, trouble.until, trouble.stands, trouble.is_told = event.at, until, True, False

    def _end(self, cause: Cause, pool: PoolKey | None) -> None:
        trouble = self._troubles.get((cause, pool))
        if trouble is not None and trouble.stands:
            trouble.stands = False
            if trouble.is_told:
                self._ended.append((cause, trouble))

    def _merge(self, event: PoolsMerged) -> None:
        """The merged pool's troubles are its successor's, which tells of them itself; an account block goes over."""
        block = self._troubles.pop((Cause.ACCOUNT_BLOCK, event.merged), None)
        self._answers.pop(event.merged, None)
        for cause in (Cause.BREAKER, Cause.REFUSED, Cause.GARBAGE):
            self._troubles.pop((cause, event.merged), None)
        if block is not None and block.stands:
            self._troubles.setdefault((Cause.ACCOUNT_BLOCK, event.pool), block).pool = event.pool

    def _forget(self, now: float) -> bool:
        """Make room: what is over and would be told again anyway. False: there is nothing of the kind."""
        old = [
            key
            for key, trouble in self._troubles.items()
            if (not trouble.stands or (trouble.is_told and not trouble.lasts)) and now - trouble.told_at >= AGAIN_S
        ]
        for key in old:
            del self._troubles[key]
        return bool(old)

    def due(self, now: float, wall: float) -> list[Notice]:
        """What is to be called for now, each once. `wall`: the same instant in epoch seconds."""
        notices = [
            Notice(cause.value, "ended", _end_text(cause, trouble, now), _name(trouble.pool), wall, None)
            for cause, trouble in self._ended
        ]
        self._ended.clear()
        for (cause, _), trouble in self._troubles.items():
            due_at = trouble.due_at(cause)
            if due_at is None or due_at > now:
                continue
            if not trouble.lasts and due_at > trouble.since:
                trouble.stands = False  # one of a row that was called for; it is old by now
                continue
            if trouble.until is not None and trouble.until <= now:
                trouble.stands = False  # it ended by itself before its turn came
                continue
            trouble.is_told, trouble.told_at = True, now
            ends_at = None if trouble.until is None else wall + trouble.until - now
            text = _begin_text(cause, trouble, now)
            notices.append(Notice(cause.value, "began", text, _name(trouble.pool), wall, ends_at))
        return notices

    def next_wakeup(self) -> float | None:
        """The instant at which time alone makes something due; None: there is none. `due` first."""
        instants = (trouble.due_at(cause) for (cause, _), trouble in self._troubles.items())
        return min((instant for instant in instants if instant is not None), default=None)


def _refuses_the_key(outcome: Outcome) -> bool:
    if outcome.status in (401, 402):
        return True
    return outcome.kind is OutcomeKind.IGNORED and any(word in outcome.reason for word in _NO_CREDIT)


def _name(pool: PoolKey | None) -> str | None:
    return None if pool is None else plain(str(pool))


def _begin_text(cause: Cause, trouble: _Trouble, now: float) -> str:
    since = f", for {lasting(now - trouble.since)} now" if cause in _PATIENCE_S else ""
    return plain(f"{trouble.text}{since}", _TEXT_CHARS)


def _end_text(cause: Cause, trouble: _Trouble, now: float) -> str:
    subject = f"{trouble.pool}: " if trouble.pool else ""
    match cause:
        case Cause.ACCOUNT_BLOCK:
            what = "the account is served again"
        case Cause.STATE:
            what = "the journal is written again"
        case Cause.GARBAGE:
            what = "answers are sound again"
        case _:
            what = "the provider answers again"
    return plain(f"{subject}{what} after {lasting(now - trouble.since)}", _TEXT_CHARS)
