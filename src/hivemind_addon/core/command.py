"""What a person asks of the scheduler. Values; `Scheduler.command` carries them out and says what it did.

The control socket, mitmproxy's commands and `hivemind top` all speak these.
"""

from msgspec import Struct

from hivemind_addon.core.ticket import Priority


class Pause(Struct, frozen=True, tag="pause"):
    """Admit nothing more; what runs goes on, who waits keeps its place."""

    pool: str = "*"
    """Glob over pools' names (`host/account/model-group`)."""


class Resume(Struct, frozen=True, tag="resume"):
    """Admit again."""

    pool: str = "*"
    """Glob over pools' names."""


class SetLimit(Struct, frozen=True, tag="limit"):
    """Cap the adaptive concurrency limit from above."""

    limit: int | None
    """At least 1; None takes the cap away."""
    pool: str = "*"
    """Glob over pools' names."""


class SetPriority(Struct, frozen=True, tag="priority"):
    """Serve agents in another class than the one they ask for: those that wait, and those that come."""

    agent: str
    """Glob over agents' names."""
    priority: Priority | None
    """None: what they ask for counts again."""


class MoveToFront(Struct, frozen=True, tag="front"):
    """Serve a queued ticket next; no limit is broken for it."""

    ticket_id: str


class Cancel(Struct, frozen=True, tag="cancel"):
    """End a ticket: its client gets an error that it does not retry; a running attempt is ended at once."""

    ticket_id: str


Command = Pause | Resume | SetLimit | SetPriority | MoveToFront | Cancel


class Said(Struct, frozen=True):
    """What became of a command."""

    done: bool
    """False: nothing changed, and `text` says why."""
    text: str
    """One line for people."""
