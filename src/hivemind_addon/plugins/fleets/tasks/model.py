"""Tasks: what is to be run, and what became of it. A fleet is a set of tasks that depend on one another."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

TASK_VARIABLE = "HIVEMIND_TASK"
"""In a task's environment: its own id (`fleet/name`), so that what it submits is known as its child."""
RUNNER_VARIABLE = "HIVEMIND_RUNNER"
"""In a task's environment: the socket of the runner that started it; what it submits goes there."""
MAX_DEPTH = 8
"""Of tasks that wait for their children, and have lent them their place."""
USUAL_AT_MOST = 4
"""Tasks that run at once, where nobody says."""


class NotTaken(Exception):
    """A runner does not do what it was asked; one line that says why and what to do."""


class State(Enum):
    """Where a task is."""

    WAITING = "waiting"
    """For what it depends on, for its turn, or for its next try."""
    RUNNING = "running"
    LENDING = "lending"
    """It runs and waits for its own children, which may use its place."""
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Something that it depends on failed."""
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it."""
        return self in (State.DONE, State.FAILED, State.SKIPPED, State.CANCELLED)


class TaskSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One task, as a fleet file or a call of `submit` has it. Either `command`, or `agent` and `prompt`."""

    command: tuple[str, ...] = ()
    """What is run, without a shell. A text in a fleet file is split as a shell splits it."""
    agent: str = ""
    """An agent kind that is known: `claude-code`, `codex`, `gemini`, `aider`, `opencode`."""
    prompt: str = ""
    """What the agent is to do."""
    name: str = ""
    """Unique in its fleet: letters, digits, `-` and `_`, at most 60; empty: one is made."""
    depends_on: tuple[str, ...] = ()
    """Names of tasks that have to be done before."""
    priority: str = "normal"
    """`critical`, `high`, `normal` or `low`: of the task here, and of its requests in the proxy."""
    estimated_tokens: int | None = None
    """None: the mean of those that say."""
    budget_tokens: int | None = None
    budget_usd: float | None = None
    """What its requests may spend in all; None: nothing limits it."""
    group: str = ""
    """The worker group whose queue it is in; empty: the common one."""
    directory: str = ""
    """Where it runs; relative to the fleet file's folder."""
    environment: Mapping[str, str] = {}
    """Added to the runner's own."""
    timeout_s: float | None = None
    retries: int = 2
    """Of a failure that looks transient."""


class TaskView(Struct, frozen=True):
    """One task as it is now."""

    id: str
    """`fleet/name`."""
    state: State
    priority: str
    agent_name: str
    """Its name in the proxy: budgets, tables and history know it by this."""
    attempts: int
    depends_on: tuple[str, ...]
    parent: str
    """The task that submitted it; empty: none did."""
    reason: str
    """Why it waits, or how it ended, in one line."""
    exit_status: int | None
    submitted_wall: float
    began_wall: float | None
    ended_wall: float | None
    log: str
    """The file that has what it said; empty: it was not started."""
    result: str = ""
    """The end of what it wrote on standard output."""


class FleetView(Struct, frozen=True):
    """One fleet as it is now."""

    id: str
    source: str
    """The fleet file; empty: tasks that were submitted one by one."""
    at_most: int
    began_wall: float
    ended_wall: float | None
    runner_pid: int | None
    """None: nothing runs it (any more)."""
    tasks: tuple[TaskView, ...]
