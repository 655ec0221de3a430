"""What is asked of a runner on its socket, and what it answers: one line of JSON each, one question a connection.

A `Wait` is answered when all its tasks are over; whoever closes the connection before waits no more.
"""

from collections.abc import Mapping

from msgspec import Struct

from hivemind_addon.tools.tasks.model import TaskSpec, TaskView

MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_SPECS = 10_000
"""Of one submission."""


class Submit(Struct, frozen=True, tag="submit", forbid_unknown_fields=True):
    """Run these, too. They may depend on one another, by name, and on tasks that are there already."""

    specs: tuple[TaskSpec, ...]
    parent: str = ""
    """The id of the task that asks; empty: none does."""
    environment: Mapping[str, str] | None = None
    """Of whoever asks, for the tasks to run in; it is never written down. None: the runner's own."""


class Wait(Struct, frozen=True, tag="wait", forbid_unknown_fields=True):
    """Answer when these are over."""

    ids: tuple[str, ...]
    waiter: str = ""
    """The id of the task that asks: it lends its place meanwhile."""


class CancelTask(Struct, frozen=True, tag="cancel", forbid_unknown_fields=True):
    """End a task, and what it submitted."""

    id: str


Question = Submit | Wait | CancelTask


class RunnerAnswer(Struct, frozen=True, omit_defaults=True):
    """To any of them."""

    refused: str = ""
    """Why nothing was done, in one line; empty: it was."""
    ids: tuple[str, ...] = ()
    """Of what was submitted, in its order."""
    tasks: tuple[TaskView, ...] = ()
    """What was waited for."""
    text: str = ""
    """What was done, for people."""
