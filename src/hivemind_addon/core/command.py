"""What a person asks of the scheduler. Values; `Scheduler.command` carries them out and says what it did.

The control socket, mitmproxy's commands and `hivemind top` all speak these. As JSON each is an object with its
`type`: `{"type": "pause", "pool": "*"}`; a field that is none of its own is an error, for a slip must not stop a fleet.
A priority is a name in any case (`"high"`) or its number.

A glob is shell-like (`*`, `?`, `[…]`), and what it names exactly always matches.
"""

from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from hivemind_addon.core.ticket import PoolKey, Priority


class BadCommand(ValueError):
    """It cannot be understood; one line that names what is wrong."""


class Pause(Struct, frozen=True, tag="pause", forbid_unknown_fields=True):
    """Admit nothing more; what runs goes on, who waits keeps its place."""

    pool: str = "*"
    """Glob over pools' names (`host/account/model-group`), or over their hosts."""


class Resume(Struct, frozen=True, tag="resume", forbid_unknown_fields=True):
    """Admit again."""

    pool: str = "*"
    """Glob over pools' names, or over their hosts."""


class SetLimit(Struct, frozen=True, tag="limit", forbid_unknown_fields=True):
    """Cap the adaptive concurrency limit from above."""

    limit: int | None
    """At least 1; None takes the cap away."""
    pool: str = "*"
    """Glob over pools' names, or over their hosts."""


class SetPriority(Struct, frozen=True, tag="priority", forbid_unknown_fields=True):
    """Serve agents in another class than the one they ask for: those that wait, and those that come."""

    agent: str
    """Glob over agents' names."""
    priority: Priority | None
    """None: what they ask for counts again."""


class MoveToFront(Struct, frozen=True, tag="front", forbid_unknown_fields=True):
    """Serve a queued ticket next; no limit is broken for it."""

    ticket_id: str


class Cancel(Struct, frozen=True, tag="cancel", forbid_unknown_fields=True):
    """End a ticket: its client gets an error that it does not retry; a running attempt is ended at once."""

    ticket_id: str


class Record(Struct, frozen=True, tag="record", forbid_unknown_fields=True):
    """Record every call into a capture file from now on."""

    file: str | None
    """Absolute; None: record no more."""
    content: bool = True
    """Whether words are recorded, too."""


SchedulerCommand = Pause | Resume | SetLimit | SetPriority | MoveToFront | Cancel
"""What the scheduler carries out."""
Command = SchedulerCommand | Record
"""What a running proxy carries out."""


class Said(Struct, frozen=True):
    """What became of a command."""

    done: bool
    """False: nothing changed, and `text` says why."""
    text: str
    """One line for people."""


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


def names_pool(glob: str, key: PoolKey) -> bool:
    """Whether a glob means a pool: by its name or by its host."""
    return any(glob == name or fnmatchcase(name, glob) for name in (str(key), key.host))


def names_agent(glob: str, agent: str) -> bool:
    """Whether a glob means an agent."""
    return glob == agent or fnmatchcase(agent, glob)
