"""What the tests of this room share: a real scheduler behind a real control socket, and the SDK's client before it."""

import json
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from mcp.shared.memory import create_connected_server_and_client_session as connected
from msgspec.structs import replace

from hivemind_addon.kernel.values.snapshot import SCHEMA_VERSION
from hivemind_addon.plugins.contexts.store import ContextStore
from hivemind_addon.plugins.fleets.leases.sqlite_store import SqliteLeases
from hivemind_addon.proxy.api.command import Command, CommandReply, OptionView, SetConfig, ShowConfig
from hivemind_addon.proxy.api.control import control_socket
from hivemind_addon.proxy.api.control_server import ControlServer
from hivemind_addon.proxy.api.pool_words import with_words
from hivemind_addon.proxy.api.replies import reply
from hivemind_addon.proxy.api.report import ContextPressure, ProxyView, Report
from hivemind_addon.proxy.record.stats import Stats
from hivemind_addon.proxy.record.sums import Sums
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.mcp.server import make_server
from hivemind_addon.tools.mcp.session import Caller, Permission, ServerScope, Session
from hivemind_addon.tools.mcp.tools import TOOLS
from tests.kernel.samples import Bench
from tests.proxy.api.samples import reports_of

PORT = 8080
ALL = ServerScope(frozenset(Permission), commands=True)


class Stage:
    """One proxy's inside, at instants that a test chooses, and what leads to it."""

    def __init__(self, folder: Path, *, slots: int = 1) -> None:
        self.bench = Bench(slots=slots)
        self.sums = Sums()
        self.told = 0
        self.options = {"hivemind_trace": "none", "hivemind_journal": str(folder / "journal.db")}
        self.guarded = {"hivemind_journal"}
        self.journal = folder / "journal.db"
        self.leases = SqliteLeases(folder / "leases.db")
        self.contexts = ContextStore(folder / "contexts")
        self.pressures: tuple[ContextPressure, ...] = ()
        """How full contexts are."""
        self.sessions: list[Session] = []
        self._server = ControlServer(
            control_socket(PORT), reports=reports_of(self.report), command=self.command, every_s=60
        )

    async def start(self) -> None:
        await self._server.start()

    def close(self) -> None:
        self._server.close()
        self.leases.close()

    @property
    def snapshot(self):
        made = self.bench.scheduler.snapshot(self.bench.now)
        return replace(made, pools=tuple(map(with_words, made.pools)))

    def report(self) -> Report:
        for event in self.bench.events[self.told :]:
            self.sums(event)
        self.told = len(self.bench.events)
        proxy = ProxyView(
            pid=7, port=PORT, listens=("127.0.0.1:8080",), confdir="/c", hosts=("api.test",), began_wall=40.0
        )
        return Report(
            version=SCHEMA_VERSION,
            proxy=proxy,
            snapshot=self.snapshot,
            stats=Stats(self.sums).view(self.bench.now),
            told_wall=100.0,
            contexts=self.pressures,
        )

    def command(self, command: Command) -> CommandReply:
        """What `proxy/gate/interfaces/control_socket.py` does; the proxy's options are mitmproxy's, and tested there."""
        match command:
            case ShowConfig():
                views = [
                    OptionView(name, value, "none", "What it is for.", guarded=name in self.guarded)
                    for name, value in self.options.items()
                ]
                return CommandReply(done=True, text="1 option", value=[msgspec.to_builtins(one) for one in views])
            case SetConfig(name=name, value=value):
                if name not in self.options:
                    return CommandReply(done=False, text=f"no option {name}")
                self.options[name] = value
                return CommandReply(done=True, text=f"{name} = {value}")
            case _:
                result = self.bench.scheduler.command(command, self.bench.now)
                self.bench.poll()
                return reply(command, result)

    def session(self, agent: str = "one", scope: ServerScope = ALL, **caller: str) -> Session:
        made = Session(
            caller=Caller(agent=agent, port=PORT, **caller),
            scope=scope,
            clock=SystemClock(),
            leases=self.leases,
        )
        self.sessions.append(made)
        return made

    @asynccontextmanager
    async def client(self, agent: str = "one", scope: ServerScope = ALL, tools=TOOLS, **caller: str):
        """An SDK client of a server for an agent."""
        server = make_server(tools, scope, lambda: self.session(agent, scope, **caller))
        async with connected(server) as client:
            yield client


async def given(client, name: str, /, **arguments: object) -> dict[str, object]:
    """What a tool gives; text and structure say the same."""
    result = await client.call_tool(name, arguments)
    assert not result.isError, result.content
    assert json.loads(result.content[0].text) == result.structuredContent
    return result.structuredContent


async def failing(client, name: str, /, **arguments: object) -> str:
    """Why a tool does not do it: one line."""
    result = await client.call_tool(name, arguments)
    assert result.isError, result.content
    assert result.structuredContent is None
    text = result.content[0].text
    assert "\n" not in text
    return text
