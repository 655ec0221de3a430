"""Commands to the scheduler and their results, as values. `proxy/api/replies.py` has the texts for people.

The control socket, mitmproxy's commands and `hivemind top` use these. In JSON, each command is an object with a `type`:
`{"type": "pause", "pool": "*"}`. An unknown field is an error, because a typing error must not stop a fleet. A
priority is a name in any case (`"high"`) or a number.

A glob is shell-like (`*`, `?`, `[…]`), and always matches a name that is equal to the glob.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from fnmatch import fnmatchcase

from msgspec import Struct

from hivemind_addon.kernel.values.snapshot import BudgetView, LimitNeed
from hivemind_addon.kernel.values.spend import Budget, Period, Scope
from hivemind_addon.kernel.values.ticket import PoolKey, Priority, Reason

LONGEST_PRIORITY_S = 366 * 86_400.0
"""The longest time that `SetPriority.for_s` may name."""
_MARKS = re.compile(r"[*?[]")
"""The special characters of a glob."""


class _Ordered(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of the commands that change something. Defaults are not sent, so an older proxy understands the rest."""

    person: str = ""
    """The person who gives the command, if known: `ann, on the page`."""


class _OrderedByAgent(_Ordered, frozen=True, kw_only=True):
    """Base of the commands that agents with the right may give, too."""

    by: str = ""
    """The agent that gives the command; empty: a person."""


class Pause(_Ordered, frozen=True, tag="pause"):
    """Stop admissions; running attempts continue, and waiting tickets keep their places."""

    pool: str = "*"
    """Glob over pools' names (`host/account/model-group`), or over their hosts."""


class Resume(_Ordered, frozen=True, tag="resume"):
    """Start admissions again."""

    pool: str = "*"
    """Glob over pools' names, or over their hosts."""


class SetLimit(_Ordered, frozen=True, tag="limit"):
    """Cap the adaptive concurrency limit."""

    limit: int | None
    """At least 1; None removes the cap."""
    pool: str = "*"
    """Glob over pools' names, or over their hosts."""


class SetPriority(_OrderedByAgent, frozen=True, tag="priority"):
    """Serve the waiting and the future requests of agents with another priority than the agents ask for."""

    agent: str
    """Glob over agents' names."""
    priority: Priority | None
    """None: the priority that the agents ask for counts again."""
    for_s: float | None = None
    """Seconds until the priority ends; None: no end."""


class MoveToFront(_Ordered, frozen=True, tag="front"):
    """Serve a queued ticket next, within all limits."""

    ticket_id: str


class Cancel(_Ordered, frozen=True, tag="cancel"):
    """End a ticket and its running attempt at once; the client gets an error that clients do not retry."""

    ticket_id: str


class SetBudget(_OrderedByAgent, frozen=True, tag="set-budget"):
    """Give a holder a budget, instead of the agents file's budget for the same period."""

    scope: Scope
    name: str = ""
    """The group, or a glob over agents' names (each agent has a separate budget); empty for everyone."""
    per: Period = Period.RUN
    tokens: int | None = None
    micro_usd: int | None = None
    """All None: the agents file counts again."""
    calls: int | None = None


class AddBudget(_OrderedByAgent, frozen=True, tag="add-budget"):
    """Raise a holder's limits for the present period only."""

    scope: Scope
    name: str = ""
    per: Period | None = None
    """None: all of the holder's budgets."""
    tokens: int = 0
    micro_usd: int = 0
    calls: int = 0


class ResetBudget(_OrderedByAgent, frozen=True, tag="reset-budget"):
    """Forget a holder's spending: a new period begins with the next request, without added amounts."""

    scope: Scope
    name: str = ""
    per: Period | None = None
    """None: all of the holder's budgets."""


class ForeseeWait(Struct, frozen=True, tag="wait", forbid_unknown_fields=True):
    """Ask when a call by an agent would be sent if made now. The reply is a list of `WaitView`."""

    agent: str
    session: str = ""
    """Empty: the session of the agent that waits or ran last."""
    pool: str = "*"
    """Glob over pools' names, or over their hosts."""
    input_tokens: int = 0
    """0: as large as the agent's last call."""
    output_tokens: int = 0


BudgetCommand = SetBudget | AddBudget | ResetBudget
"""The commands about budgets. The reply is a list of `AccountView`."""
Order = Pause | Resume | SetLimit | SetPriority | MoveToFront | Cancel | BudgetCommand
"""The commands that change the scheduler's decisions."""
SchedulerCommand = Order | ForeseeWait
"""The commands to the scheduler."""


class Foresight(Struct, frozen=True):
    """When one more call would be sent in one pool, as values; `replies.wait_view` words it."""

    pool: PoolKey
    starts_in_s: float | None
    """0: at once; None: unknown."""
    before: int
    """Requests that would go first."""
    reason: Reason | None = None
    """What the call would wait for; None: nothing."""
    limit: LimitNeed | None = None
    """The limit that decides; None: no known limit does."""
    budget: Budget | None = None
    """The budget that the call would wait for."""
    block_reason: str = ""
    """Why the provider refuses the account; empty: it does not."""


class Declined(Enum):
    """Why the scheduler did not execute a command; nothing has changed."""

    NO_POOL_NAMED = auto()
    NO_AGENT_NAMED = auto()
    NO_HOLDER_NAMED = auto()
    EVERYONE_NAMED = auto()
    """The budget for everyone has no name."""
    NO_CALL_NAMED = auto()
    """`ForeseeWait` names neither an agent nor a pool."""
    NEGATIVE_TOKENS = auto()
    NEGATIVE_AMOUNT = auto()
    HUGE_AMOUNT = auto()
    NOTHING_ADDED = auto()
    LIMIT_TOO_LOW = auto()
    BAD_SPAN = auto()
    """The time for a priority is too short or too long."""
    NOT_PAUSED = auto()
    NO_SUCH_POOL = auto()
    NOT_WAITING = auto()
    """The ticket is not queued."""
    NOT_ALIVE = auto()
    """The ticket is neither queued nor in flight."""
    NEVER_GIVEN = auto()
    """No such budget was given at run time, so none can be taken back."""
    NO_BUDGET = auto()
    """No request has used a budget of the holder."""
    NO_SUCH_UNIT = auto()
    """The holder's budgets do not limit the unit to be added."""
    HUGE_SUM = auto()
    """The sum of added amounts in this period would be too large."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command to the scheduler."""

    declined: Declined | None = None
    """None: the command was executed."""
    pools: tuple[PoolKey, ...] = ()
    """The pools of the command or the ticket's pool; with NO_SUCH_POOL all pools."""
    nearest: str | None = None
    """The most similar existing name, if the given name does not exist; empty: no similar name."""
    budgets: tuple[BudgetView, ...] = ()
    """The budgets of the command, in their present state."""
    holders: tuple[str, ...] = ()
    """With NO_BUDGET: the holders that have budgets."""
    is_new: bool = False
    """Whether a holder got a new budget: the spending in this period must still be counted in."""
    was_running: bool = False
    """Whether the cancelled ticket is in flight, so that the attempt must be ended."""
    lifted: tuple[PoolKey, ...] = ()
    """The pools whose account block was lifted: requests are tried again at once."""
    waits: tuple[Foresight, ...] = ()

    @property
    def done(self) -> bool:
        """Whether the command was executed."""
        return self.declined is None


def is_glob(name: str) -> bool:
    """Whether a name contains special characters of globs."""
    return bool(_MARKS.search(name))


def names_pool(glob: str, key: PoolKey) -> bool:
    """Whether a glob matches a pool's name or host."""
    return any(glob == name or fnmatchcase(name, glob) for name in (str(key), key.host))


def nearest(glob: str, names: Iterable[str]) -> str:
    """The name that is most similar to a glob without a match; empty: no similar name."""
    import difflib  # noqa: PLC0415 - needed after typing errors only

    return next(iter(difflib.get_close_matches(glob, dict.fromkeys(names), n=1)), "")


def names_agent(glob: str, agent: str) -> bool:
    """Whether a glob matches an agent's name."""
    return glob == agent or fnmatchcase(agent, glob)
