"""What a person asks of the scheduler, and what became of it. Values; `proxy/api/replies.py` has the words for people.

The control socket, mitmproxy's commands and `hivemind top` all speak these. As JSON each is an object with its
`type`: `{"type": "pause", "pool": "*"}`; a field that is none of its own is an error, for a slip must not stop a fleet.
A priority is a name in any case (`"high"`) or its number.

A glob is shell-like (`*`, `?`, `[…]`), and what it names exactly always matches.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from hivemind_addon.kernel.values.snapshot import BudgetView
from hivemind_addon.kernel.values.spend import Period, Scope
from hivemind_addon.kernel.values.ticket import PoolKey, Priority

LONGEST_PRIORITY_S = 366 * 86_400.0
"""A priority that ends by itself stands for no longer."""
_MARKS = re.compile(r"[*?[]")
"""What means more than itself in a glob."""


class BadCommand(ValueError):
    """It cannot be understood; one line that names what is wrong."""


class _Ordered(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What changes something. What is as usual is not sent, so that an older proxy understands it."""

    person: str = ""
    """The person who gives it, where that is known: `ann, on the page`."""


class Pause(_Ordered, frozen=True, tag="pause"):
    """Admit nothing more; what runs goes on, who waits keeps its place."""

    pool: str = "*"
    """Glob over pools' names (`host/account/model-group`), or over their hosts."""


class Resume(_Ordered, frozen=True, tag="resume"):
    """Admit again."""

    pool: str = "*"
    """Glob over pools' names, or over their hosts."""


class SetLimit(_Ordered, frozen=True, tag="limit"):
    """Cap the adaptive concurrency limit from above."""

    limit: int | None
    """At least 1; None takes the cap away."""
    pool: str = "*"
    """Glob over pools' names, or over their hosts."""


class SetPriority(_Ordered, frozen=True, tag="priority"):
    """Serve agents in another class than the one they ask for: those that wait, and those that come."""

    agent: str
    """Glob over agents' names."""
    priority: Priority | None
    """None: what they ask for counts again."""
    for_s: float | None = None
    """Taken back by itself after so many seconds; None: it stands until it is taken back."""
    by: str = ""
    """The agent that asks for it; empty: a person does."""


class MoveToFront(_Ordered, frozen=True, tag="front"):
    """Serve a queued ticket next; no limit is broken for it."""

    ticket_id: str


class Cancel(_Ordered, frozen=True, tag="cancel"):
    """End a ticket: its client gets an error that it does not retry; a running attempt is ended at once."""

    ticket_id: str


class SetBudget(_Ordered, frozen=True, tag="set-budget"):
    """Give a holder a budget, in the place of the one that a file gives it for the same period."""

    scope: Scope
    name: str = ""
    """The group's, or a glob over agents' names (each such agent has one of its own); empty for everyone's."""
    per: Period = Period.RUN
    tokens: int | None = None
    micro_usd: int | None = None
    """All None: what the file says counts again."""
    by: str = ""
    """The agent that asks for it; empty: a person does."""
    calls: int | None = None


class AddBudget(_Ordered, frozen=True, tag="add-budget"):
    """Raise a holder's limits for the present period only."""

    scope: Scope
    name: str = ""
    per: Period | None = None
    """None: every budget that the holder has."""
    tokens: int = 0
    micro_usd: int = 0
    by: str = ""
    """The agent that asks for it; empty: a person does."""
    calls: int = 0


class ResetBudget(_Ordered, frozen=True, tag="reset-budget"):
    """Forgive what a holder has spent: its period begins anew with its next request, and nothing is added."""

    scope: Scope
    name: str = ""
    per: Period | None = None
    """None: every budget that the holder has."""
    by: str = ""
    """The agent that asks for it; empty: a person does."""


class ForeseeWait(Struct, frozen=True, tag="wait", forbid_unknown_fields=True):
    """Ask when a call that an agent made now would be sent. `CommandReply.value`: list of `WaitView`."""

    agent: str
    session: str = ""
    """Empty: the agent's own, whichever waits or ran last."""
    pool: str = "*"
    """Glob over pools' names, or over their hosts."""
    input_tokens: int = 0
    """0: as large as the agent's last one."""
    output_tokens: int = 0


class ShowConfig(Struct, frozen=True, tag="config", forbid_unknown_fields=True):
    """Ask for the options of a running proxy. `CommandReply.value`: list of `OptionView`."""


class SetConfig(Struct, frozen=True, tag="set-config", forbid_unknown_fields=True):
    """Set one option of a running proxy, as `--set` does at its start."""

    name: str
    """One of those that `ShowConfig` lists."""
    value: str
    by: str = ""
    """The agent that asks for it; empty: a person does."""


class Record(Struct, frozen=True, tag="record", forbid_unknown_fields=True):
    """Record every call into a capture file from now on."""

    file: str | None
    """Absolute; None: record no more."""
    content: bool = True
    """Whether words are recorded, too."""


class OpenPage(Struct, frozen=True, tag="open-page", forbid_unknown_fields=True):
    """Ask for a key to the page's steering. `CommandReply.value`: a `PageKey`."""

    user: str = ""
    """Who asks, for the journal; empty: that is not known."""


class AskMembers(Struct, frozen=True, tag="ask-members", forbid_unknown_fields=True):
    """Ask the journals of all proxies of the cluster. `CommandReply.value`: list of `MemberAnswer`."""

    question: str
    """As `tools/history/everywhere.py` words it."""


BudgetCommand = SetBudget | AddBudget | ResetBudget
"""`CommandReply.value`: how the accounts concerned stand now, a list of `AccountView`."""
Order = Pause | Resume | SetLimit | SetPriority | MoveToFront | Cancel | BudgetCommand
"""What changes what the scheduler does."""
SchedulerCommand = Order | ForeseeWait
"""What the scheduler carries out."""
Command = SchedulerCommand | Record | ShowConfig | SetConfig | AskMembers | OpenPage
"""What a running proxy carries out."""


class CommandReply(Struct, frozen=True, omit_defaults=True):
    """What became of a command, for the one who gave it."""

    done: bool
    """False: nothing changed, and `text` says why."""
    text: str
    """One line for people."""
    value: object = None
    """What was asked for, as plain JSON values; None: nothing was."""


class PageKey(Struct, frozen=True):
    """Opens the page's steering, once."""

    url: str
    """Of the page, with the key in its fragment, which no browser sends."""
    lasts_s: float


class MemberAnswer(Struct, frozen=True):
    """What one proxy of a cluster has answered."""

    member: str
    answer: str
    """Empty: it has none."""
    problem: str = ""
    """Why it has none, in one line."""


class AccountView(Struct, frozen=True):
    """How one holder's budget stands; what is not limited is None."""

    holder: str
    """In words: `agent agent-7`, `group reviewers`, `everyone`."""
    scope: Scope
    name: str
    per: Period
    limit_tokens: int | None
    """With what was added."""
    spent_tokens: int
    reserved_tokens: int
    """By attempts in flight."""
    added_tokens: int
    left_tokens: int | None
    """What may still be set aside; never negative."""
    limit_micro_usd: int | None
    spent_micro_usd: int
    reserved_micro_usd: int
    added_micro_usd: int
    left_micro_usd: int | None
    renews_in_s: float | None
    """None: with the next run."""
    limit_calls: int | None = None
    spent_calls: int = 0
    """Counted where calls are limited."""
    reserved_calls: int = 0
    added_calls: int = 0
    left_calls: int | None = None
    unpriced_tokens: int = 0
    """Of `spent_tokens`, those of models without a price, which the limit in money does not count; 0 without one."""


class WaitView(Struct, frozen=True):
    """When one more call would be sent, in one pool."""

    pool: str
    starts_in_s: float | None
    """0: at once; None: nothing tells."""
    before: int
    """Requests that would go first."""
    reason: str
    """What it would wait for; empty: nothing."""
    why: str = ""
    """The same in the words of every view: `input tokens: needs 7.1k, 3.9k left`."""


class Declined(Enum):
    """Why a command of the scheduler was not carried out; nothing has changed."""

    NO_POOL_NAMED = auto()
    NO_AGENT_NAMED = auto()
    NO_HOLDER_NAMED = auto()
    EVERYONE_NAMED = auto()
    """Everyone's budget has no name."""
    NO_CALL_NAMED = auto()
    """Neither an agent nor a pool, whose wait is asked for."""
    NEGATIVE_TOKENS = auto()
    NEGATIVE_AMOUNT = auto()
    HUGE_AMOUNT = auto()
    NOTHING_ADDED = auto()
    LIMIT_TOO_LOW = auto()
    BAD_SPAN = auto()
    """No priority is set for so short or so long."""
    NOT_PAUSED = auto()
    NO_SUCH_POOL = auto()
    NOT_WAITING = auto()
    """A ticket that is not queued."""
    NOT_ALIVE = auto()
    """A ticket that is neither queued nor in flight."""
    NEVER_GIVEN = auto()
    """No such budget was given at run time: there is nothing to take back."""
    NO_BUDGET = auto()
    """The holder has none that a request has used."""
    NO_SUCH_UNIT = auto()
    """The holder's budgets do not limit what is to be added."""
    HUGE_SUM = auto()
    """More was added in this period than anybody can spend."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What became of a command of the scheduler."""

    declined: Declined | None = None
    """None: it was carried out."""
    pools: tuple[PoolKey, ...] = ()
    """Those that the command means, or whose ticket it means; with NO_SUCH_POOL all that there are."""
    nearest: str | None = None
    """The name that was probably meant, where nobody has the one that was given; empty: none is like it."""
    budgets: tuple[BudgetView, ...] = ()
    """How the budgets stand that a command is about."""
    holders: tuple[str, ...] = ()
    """With NO_BUDGET: who has one."""
    is_new: bool = False
    """Somebody had no such budget before: what was spent in its period is still to be counted in."""
    was_running: bool = False
    """The ticket that is cancelled is in flight, and its attempt is ended."""
    lifted: tuple[PoolKey, ...] = ()
    """Those whose account was refused for long, and is tried again at once."""
    waits: tuple[WaitView, ...] = ()

    @property
    def done(self) -> bool:
        """Whether it was carried out."""
        return self.declined is None


class OptionView(Struct, frozen=True):
    """One option of a running proxy."""

    name: str
    value: object
    default: object
    help: str
    settable: bool = True
    """Whether it can be changed while the proxy runs."""
    guarded: bool = False
    """It names a file, runs a program, or says where keys go and who may use them: for persons to set."""


def read_command(value: object) -> Command:
    """A command from plain JSON values. Raises BadCommand."""
    if isinstance(value, dict) and value.get("type") == "priority" and isinstance(value.get("priority"), str):
        name = value["priority"]
        if name.upper() not in Priority.__members__:
            known = ", ".join(one.name.lower() for one in Priority)
            raise BadCommand(f"no priority {name!r}; there are {known}, and null for what agents ask for")
        value = {**value, "priority": Priority[name.upper()].value}
    try:
        command: Command = msgspec.convert(value, Command)
    except msgspec.ValidationError as error:
        raise BadCommand(f"no command: {error}") from error
    return command


def asker(by: str, agent: str = "", *, person: str = "") -> str:
    """Who asked, in words; `agent`: a glob over those that it was asked for. `person`: as in a command."""
    if not by:
        return f"by {person or 'a person'}"
    alone = agent in (by, _MARKS.sub(r"[\g<0>]", by))  # as a glob that means nobody else
    return f"by {by} itself" if alone else f"by agent {by}"


def is_glob(name: str) -> bool:
    """Whether a name may mean several."""
    return bool(_MARKS.search(name))


def names_pool(glob: str, key: PoolKey) -> bool:
    """Whether a glob means a pool: by its name or by its host."""
    return any(glob == name or fnmatchcase(name, glob) for name in (str(key), key.host))


def nearest(glob: str, names: Iterable[str]) -> str:
    """Of some names the one that a word which means nobody is most like; empty: it is like none."""
    import difflib  # noqa: PLC0415 - for who mistypes

    return next(iter(difflib.get_close_matches(glob, dict.fromkeys(names), n=1)), "")


def names_agent(glob: str, agent: str) -> bool:
    """Whether a glob means an agent."""
    return glob == agent or fnmatchcase(agent, glob)
