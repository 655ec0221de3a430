"""What one client of the server has, from its coming to its going: who it is, what it may do, what it holds.

What it may do is no wall: an agent with a shell can run `hivemind` itself. It is what an agent is offered, so that none
steers the others by a whim.
"""

import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from enum import Enum
from glob import escape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from hivemind_addon.formats.wire.proxy_user import clean
from hivemind_addon.kernel.values.command import Command, CommandReply
from hivemind_addon.plugins.contexts.store import FOLDER_NAME, ContextStore
from hivemind_addon.plugins.fleets.leases.model import Lease, LeaseError, LeaseStore
from hivemind_addon.plugins.fleets.tasks.model import RUNNER_VARIABLE, TASK_VARIABLE
from hivemind_addon.proxy.api.control import CommandUnanswered, control_socket, read_report, send_command, serving_ports
from hivemind_addon.proxy.api.report import Report
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.tools.history.reader import journal_of
from hivemind_addon.tools.launch.environment import LOOPBACK, PROXY_VARIABLES
from hivemind_addon.tools.launch.port import AGENT_VARIABLE, DEFAULT_PORT, PORT_VARIABLE

# Who it is ------------------------------------------------------------------------------------------------------------


class Caller(Struct, frozen=True):
    """One agent, as the proxy knows it."""

    agent: str
    """Empty: it is not known."""
    port: int
    """Of its proxy."""
    task: str = ""
    """The task that it is; empty: none."""
    runner: str = ""
    """The socket of the runner that started it; empty: none did."""

    @property
    def glob(self) -> str:
        """What matches this agent and no other one, whatever its name has in it."""
        return escape(self.agent)


def caller_of(
    environment: Mapping[str, str], *, agent: str = "", port: int | None = None, usual_port: int = DEFAULT_PORT
) -> Caller:
    """Who starts the server: what is told, else what `hivemind exec` has set, else what its proxy variable says."""
    user, its_port = _proxy_user(environment)
    return Caller(
        agent=clean(agent or environment.get(AGENT_VARIABLE, "") or user),
        port=port or _port(environment.get(PORT_VARIABLE, "")) or its_port or usual_port,
        task=environment.get(TASK_VARIABLE, ""),
        runner=environment.get(RUNNER_VARIABLE, ""),
    )


def _proxy_user(environment: Mapping[str, str]) -> tuple[str, int | None]:
    """Who a proxy variable says that we are, and where, if that proxy is on this machine."""
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


# What it may do -------------------------------------------------------------------------------------------------------

_ALL = "all"


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


class BadWord(ValueError):
    """A word that is none of `--allow`; one line that names it and the known ones."""


class ServerScope(Struct, frozen=True):
    """What the person who started the server allows."""

    allowed: frozenset[Permission] = frozenset()
    commands: bool = False
    """Whether tasks may be raw commands, and options such that run programs, name files or lead keys elsewhere."""

    def has(self, needs: frozenset[Permission]) -> bool:
        """Whether one of these is allowed, or none is needed."""
        return not needs or bool(needs & self.allowed)


def read_allow(text: str) -> frozenset[Permission]:
    """The words of `--allow`, between commas or blanks; `all`. Raises BadWord."""
    words = text.lower().replace(",", " ").split()
    return frozenset(one for word in words for one in _meant(word))


def flag(needs: Iterable[Permission]) -> str:
    """What a person has to add to the server's command line."""
    return f"--allow {min(needs, key=list(Permission).index).value}"


def _meant(word: str) -> Iterable[Permission]:
    if word == _ALL:
        return Permission
    known = [one.value for one in Permission]
    if word not in known:
        near = get_close_matches(word, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise BadWord(f"{word!r} is nothing to allow; there are {', '.join(known)} and {_ALL}{hint}")
    return (Permission(word),)


# What it holds --------------------------------------------------------------------------------------------------------


class NoProxy(Exception):
    """Nothing serves the port; one line with the cure."""


class NoName(Exception):
    """It is not known which agent calls; one line with the cure."""


class Session:
    """One client. Its methods block, and may be called from several threads."""

    def __init__(
        self,
        *,
        caller: Caller,
        scope: ServerScope,
        clock: Clock,
        leases: LeaseStore,
        pid: int | None = None,
    ) -> None:
        self.caller = caller
        self.scope = scope
        self.clock = clock
        self.pid = os.getpid() if pid is None else pid
        """The process that its leases end with."""
        self.leases = leases
        """Where leases are; everybody's."""
        self._held: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.submitted: set[str] = set()
        """Tasks that it started."""
        self.lowered = False
        """Whether its priority is one that it chose itself."""

    def __repr__(self) -> str:
        return f"<Session of {self.caller.agent or 'nobody'} on port {self.caller.port}, {len(self._held)} leases>"

    @property
    def agent(self) -> str:
        """The caller's name. Raises NoName."""
        if not self.caller.agent:
            raise NoName(
                "it is not known which agent you are: the person who starts this server has to start you with "
                "`hivemind exec --agent NAME -- …`, or the server with `hivemind mcp --agent NAME`"
            )
        return self.caller.agent

    def report(self) -> Report:
        """What the proxy tells of itself. Raises NoProxy, UnreadableReport, FolderNotPrivate, OSError."""
        report = read_report(control_socket(self.caller.port))
        if report is None:
            raise NoProxy(self._no_proxy())
        return report

    def tell(self, command: Command) -> CommandReply:
        """Have the proxy do something. Raises NoProxy, CommandUnanswered, FolderNotPrivate, OSError."""
        try:
            return send_command(control_socket(self.caller.port), command)
        except CommandUnanswered:
            if self.caller.port in serving_ports():
                raise
            raise NoProxy(self._no_proxy()) from None

    def _no_proxy(self) -> str:
        port, others = self.caller.port, serving_ports()
        text = f"no hivemind proxy serves port {port}; a person starts one with `hivemind run -p {port}`"
        return text + (f", or this server with `-p {others[0]}`, where one is" if others else "")

    def journal(self) -> Path:
        """The proxy's; where none runs, the usual one. Raises FolderNotPrivate, OSError."""
        return journal_of(self.caller.port)

    def contexts(self) -> ContextStore:
        """Beside the journal. Raises FolderNotPrivate, OSError."""
        return ContextStore(self.journal().parent / FOLDER_NAME)

    @property
    def held(self) -> dict[str, Lease]:
        """By their ids: what this client holds, as far as it was not taken from it."""
        with self._lock:
            return dict(self._held)

    def hold(self, lease: Lease) -> bool:
        """It is this client's, and is released with it. False: the client is gone, and so is the lease."""
        with self._lock:
            if not self._closed:
                self._held[lease.id] = lease
                return True
        self._release(lease.id)
        return False

    def let_go(self, lease_id: str) -> None:
        """It is this client's no more."""
        with self._lock:
            self._held.pop(lease_id, None)

    def close(self) -> None:
        """Its client is gone: what it holds is released."""
        with self._lock:
            self._closed = True
            held = list(self._held)
            self._held.clear()
        for lease_id in held:
            self._release(lease_id)

    def _release(self, lease_id: str) -> None:
        with suppress(LeaseError, OSError):  # it was over already, or is with our process's end
            self.leases.release(lease_id, self.leases.instant(self.clock))
