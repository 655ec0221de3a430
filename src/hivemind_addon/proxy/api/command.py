"""Commands to a running proxy, beside those to the scheduler, and the replies, as values.

`replies.py` has the texts for people.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from hivemind_addon.kernel.values.command import SchedulerCommand
from hivemind_addon.kernel.values.spend import Period, Scope
from hivemind_addon.kernel.values.ticket import Priority


class BadCommand(ValueError):
    """A command that cannot be understood; the message names the error in a line."""


class ShowConfig(Struct, frozen=True, tag="config", forbid_unknown_fields=True):
    """Ask for the options of a running proxy. `CommandReply.value`: list of `OptionView`."""


class SetConfig(Struct, frozen=True, tag="set-config", forbid_unknown_fields=True):
    """Set an option of a running proxy, as `--set` does at the start."""

    name: str
    """A name from the list of `ShowConfig`."""
    value: str
    by: str = ""
    """The agent that gives the command; empty: a person."""


class Record(Struct, frozen=True, tag="record", forbid_unknown_fields=True):
    """Record every call into a capture file from now on."""

    file: str | None
    """Absolute path; None: stop recording."""
    content: bool = True
    """Whether the texts of prompts and answers are recorded."""


class OpenPage(Struct, frozen=True, tag="open-page", forbid_unknown_fields=True):
    """Ask for a key to the controls of the page. `CommandReply.value`: a `PageKey`."""

    user: str = ""
    """The user who asks, for the journal; empty: unknown."""


class AskMembers(Struct, frozen=True, tag="ask-members", forbid_unknown_fields=True):
    """Ask the journals of all proxies of the cluster. `CommandReply.value`: list of `MemberAnswer`."""

    question: str
    """In the form of `tools/history/everywhere.py`."""


Command = SchedulerCommand | Record | ShowConfig | SetConfig | AskMembers | OpenPage
"""The commands to a running proxy."""


class CommandReply(Struct, frozen=True, omit_defaults=True):
    """The reply to a command."""

    done: bool
    """False: nothing changed, and `text` has the reason."""
    text: str
    """A line for people."""
    value: object = None
    """The requested data as plain JSON values; None: no data was requested."""


class PageKey(Struct, frozen=True):
    """A key that opens the controls of the page once."""

    url: str
    """The page's URL with the key in the fragment, which no browser sends."""
    lasts_s: float


class MemberAnswer(Struct, frozen=True):
    """The answer of a proxy in a cluster."""

    member: str
    answer: str
    """Empty: no answer."""
    problem: str = ""
    """Why there is no answer, in a line."""


class AccountView(Struct, frozen=True):
    """The state of a holder's budget; None for a unit without a limit."""

    holder: Annotated[str, Meta(description="In words: `agent agent-7`, `group reviewers`, `everyone`")]
    scope: Scope
    name: str
    per: Period
    limit_tokens: Annotated[int | None, Meta(description="With added amounts; null: not limited")]
    spent_tokens: int
    reserved_tokens: Annotated[int, Meta(description="By attempts in flight")]
    added_tokens: int
    left_tokens: Annotated[int | None, Meta(description="The amount that may still be reserved; never negative")]
    limit_micro_usd: int | None
    spent_micro_usd: int
    reserved_micro_usd: int
    added_micro_usd: int
    left_micro_usd: int | None
    renews_in_s: Annotated[float | None, Meta(description="Null: with the next run")]
    limit_calls: int | None = None
    spent_calls: Annotated[int, Meta(description="0 unless calls are limited")] = 0
    reserved_calls: int = 0
    added_calls: int = 0
    left_calls: int | None = None
    unpriced_tokens: Annotated[
        int,
        Meta(
            description="Of the spent tokens those of models without a price, not counted in a limit in money; else 0"
        ),
    ] = 0
    guesses: Annotated[
        dict[str, str],
        Meta(description="Model counted in a limit in money at a guess → the model whose price is taken"),
    ] = {}


class WaitView(Struct, frozen=True):
    """When another call would be sent in a pool."""

    pool: str
    starts_in_s: Annotated[float | None, Meta(description="0: at once; null: unknown")]
    before: Annotated[int, Meta(description="Requests that would go first")]
    reason: Annotated[str, Meta(description="The kind of wait; empty: no wait")]
    why: Annotated[str, Meta(description="The reason in words: `input tokens: needs 7.1k, 3.9k left`")] = ""


class OptionView(Struct, frozen=True):
    """An option of a running proxy."""

    name: str
    value: Any
    default: Any
    help: str
    settable: Annotated[bool, Meta(description="Whether the option can change while the proxy runs")] = True
    guarded: Annotated[
        bool,
        Meta(description="Whether only persons may set it: a file, a program, or the destination or users of keys"),
    ] = False


def read_command(value: object) -> Command:
    """Decode a command from plain JSON values. Raises BadCommand."""
    if isinstance(value, dict) and value.get("type") == "priority" and isinstance(value.get("priority"), str):
        name = value["priority"]
        if name.upper() not in Priority.__members__:
            known = ", ".join(priority.name.lower() for priority in Priority)
            raise BadCommand(f"no priority {name!r}; there are {known}, and null for what agents ask for")
        value = {**value, "priority": Priority[name.upper()].value}
    try:
        command: Command = msgspec.convert(value, Command)
    except msgspec.ValidationError as error:
        raise BadCommand(f"no command: {error}") from error
    return command
