"""A client of the server, as long as it is connected: name, permissions, leases.

The permissions are no wall: an agent with a shell can run `hivemind` itself. They are offers, so that no agent steers
the others by a whim.
"""

import os
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import Enum
from glob import escape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from hivemind_addon.formats.wire.proxy_user import clean
from hivemind_addon.plugins.contexts.store import FOLDER_NAME, ContextStore
from hivemind_addon.plugins.fleets.leases.model import Lease, LeaseError, LeaseStore
from hivemind_addon.plugins.fleets.tasks.model import RUNNER_VARIABLE, TASK_VARIABLE
from hivemind_addon.proxy.api.command import Command, CommandReply
from hivemind_addon.proxy.api.control import CommandUnanswered, control_socket, read_report, send_command, serving_ports
from hivemind_addon.proxy.api.report import Report
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.tools.history.reader import journal_of
from hivemind_addon.tools.launch.environment import LOOPBACK, PROXY_VARIABLES
from hivemind_addon.tools.launch.port import AGENT_VARIABLE, DEFAULT_PORT, PORT_VARIABLE

# Name -----------------------------------------------------------------------------------------------------------------


class Caller(Struct, frozen=True):
    """An agent, as the proxy knows it."""

    agent: str
    """Empty: unknown."""
    port: int
    """The proxy's port."""
    task: str = ""
    """The id of the task that the agent is; empty: none."""
    runner: str = ""
    """The socket of the runner that started the agent; empty: none did."""

    @property
    def glob(self) -> str:
        """A glob that matches this agent alone, with any characters in the name."""
        return escape(self.agent)


def caller_of(
    environment: Mapping[str, str], *, agent: str = "", port: int | None = None, usual_port: int = DEFAULT_PORT
) -> Caller:
    """The agent that starts the server: by the arguments, else by `hivemind exec`, else by the proxy variable."""
    user, its_port = _proxy_user(environment)
    return Caller(
        agent=clean(agent or environment.get(AGENT_VARIABLE, "") or user),
        port=port or _port(environment.get(PORT_VARIABLE, "")) or its_port or usual_port,
        task=environment.get(TASK_VARIABLE, ""),
        runner=environment.get(RUNNER_VARIABLE, ""),
    )


def _proxy_user(environment: Mapping[str, str]) -> tuple[str, int | None]:
    """The user and the port in a proxy variable, if that proxy is on this machine."""
    for name in (*PROXY_VARIABLES, *map(str.lower, PROXY_VARIABLES)):
        try:
            url = urlsplit(environment.get(name, ""))
            if url.hostname in LOOPBACK and url.username:
                return unquote(url.username), url.port
        except ValueError:
            continue  # no address
    return "", None


def _port(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) < 65_536 else None


# Permissions ----------------------------------------------------------------------------------------------------------


class Permission(Enum):
    """A word of `--allow`."""

    SUBMIT = "submit"
    """Start a task."""
    BATCH = "batch"
    """Start many tasks at once, with dependencies."""
    BUDGETS = "budgets"
    """Raise, set and reset anybody's budget."""
    CONFIG = "config"
    """Change options of the running proxy."""
    PRIORITY = "priority"
    """Set anybody's priority, upwards, too."""
    SETUP = "setup"
    """Write into the configuration files of agents' tools."""


class ServerScope(Struct, frozen=True):
    """The permissions from the person who started the server."""

    allowed: frozenset[Permission] = frozenset()
    commands: bool = False
    """Whether tasks may be raw commands, and options such that run programs, name files or lead keys elsewhere."""

    def has(self, needs: Collection[Permission]) -> bool:
        """Whether one of these is allowed, or none is needed."""
        return not needs or not self.allowed.isdisjoint(needs)


# Leases ---------------------------------------------------------------------------------------------------------------


class ToolFailed(Exception):
    """A call cannot be done; a line for the model, with the cure."""


class Session:
    """A client. The methods block, and may be called from several threads."""

    def __init__(self, *, caller: Caller, scope: ServerScope, clock: Clock, leases: LeaseStore) -> None:
        self.caller = caller
        self.scope = scope
        self.clock = clock
        self.pid = os.getpid()
        """The process that the leases end with."""
        self.leases = leases
        """The store of everybody's leases."""
        self._held: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.submitted: set[str] = set()
        """Ids of the tasks that the client started."""
        self.lowered = False
        """Whether the client lowered the priority itself."""

    def __repr__(self) -> str:
        return f"<Session of {self.caller.agent or 'nobody'} on port {self.caller.port}, {len(self._held)} leases>"

    @property
    def agent(self) -> str:
        """The caller's name. Raises ToolFailed: unknown."""
        if not self.caller.agent:
            raise ToolFailed(
                "it is not known which agent you are: the person who starts this server has to start you with "
                "`hivemind exec --agent NAME -- …`, or the server with `hivemind mcp --agent NAME`"
            )
        return self.caller.agent

    def report(self) -> Report:
        """The proxy's report. Raises ToolFailed: no proxy; UnreadableReport, FolderNotPrivate, OSError."""
        report = read_report(control_socket(self.caller.port))
        if report is None:
            raise ToolFailed(self._no_proxy())
        return report

    def tell(self, command: Command) -> CommandReply:
        """Have the proxy carry out a command.

        Raises ToolFailed: no proxy, or the proxy declines; CommandUnanswered, FolderNotPrivate, OSError.
        """
        try:
            said = send_command(control_socket(self.caller.port), command)
        except CommandUnanswered:
            if self.caller.port in serving_ports():
                raise
            raise ToolFailed(self._no_proxy()) from None
        if not said.done:
            raise ToolFailed(said.text)
        return said

    def _no_proxy(self) -> str:
        port, others = self.caller.port, serving_ports()
        text = f"no hivemind proxy serves port {port}; a person starts one with `hivemind run -p {port}`"
        return text + (f", or this server with `-p {others[0]}`, where one is" if others else "")

    def journal(self) -> Path:
        """The proxy's journal; the usual file if no proxy runs. Raises FolderNotPrivate, OSError."""
        return journal_of(self.caller.port)

    def contexts(self) -> ContextStore:
        """The store beside the journal. Raises FolderNotPrivate, OSError."""
        return ContextStore(self.journal().parent / FOLDER_NAME)

    @property
    def held(self) -> dict[str, Lease]:
        """The client's leases by their ids, as far as nobody has taken them."""
        with self._lock:
            return dict(self._held)

    def hold(self, lease: Lease) -> bool:
        """Release a lease when the client goes. False: the client is gone, and so is the lease."""
        with self._lock:
            if not self._closed:
                self._held[lease.id] = lease
                return True
        self._release(lease.id)
        return False

    def let_go(self, lease_id: str) -> None:
        """The client does not hold the lease any more."""
        with self._lock:
            self._held.pop(lease_id, None)

    def close(self) -> None:
        """The client is gone: release the leases."""
        with self._lock:
            self._closed = True
            held = list(self._held)
            self._held.clear()
        for lease_id in held:
            self._release(lease_id)

    def _release(self, lease_id: str) -> None:
        with suppress(LeaseError, OSError):  # it was over already, or is with our process's end
            self.leases.release(lease_id, self.leases.instant(self.clock))
