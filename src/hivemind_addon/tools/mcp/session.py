"""What one client of the server has, from its coming to its going: who it is, what it may do, what it holds."""

import os
import threading
from contextlib import suppress
from pathlib import Path

from hivemind_addon.api.command import Command, Said
from hivemind_addon.api.control import NotSaid, control_socket, read_report, send_command, serving_ports
from hivemind_addon.api.report import Report
from hivemind_addon.proxy.checkpoint.folder_store import FOLDER_NAME, FolderStore
from hivemind_addon.proxy.checkpoint.model import CheckpointStore
from hivemind_addon.system.clock import Clock
from hivemind_addon.tools.history.place import journal_of
from hivemind_addon.tools.locks.model import Lease, LeaseError
from hivemind_addon.tools.locks.sqlite_store import SqliteLeases
from hivemind_addon.tools.mcp.caller import Caller
from hivemind_addon.tools.mcp.scope import ServerScope


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
        leases: SqliteLeases,
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

    def tell(self, command: Command) -> Said:
        """Have the proxy do something. Raises NoProxy, NotSaid, FolderNotPrivate, OSError."""
        try:
            return send_command(control_socket(self.caller.port), command)
        except NotSaid:
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

    def checkpoints(self) -> CheckpointStore:
        """Beside the journal. Raises FolderNotPrivate, OSError."""
        return FolderStore(self.journal().parent / FOLDER_NAME)

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
            self.leases.release(lease_id, self.clock.awake())
