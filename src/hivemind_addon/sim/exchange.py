"""What the two HTTP versions share: a request as it arrives, who answers it, and what a connection has seen."""

import asyncio
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from hivemind_addon.sim.faults import Hangup
from hivemind_addon.sim.plan import Step


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request's head."""

    at: float
    """When it came, on the loop's clock."""
    connection: int
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """Lower-case names; a repeated one's values are joined by `, `."""


@dataclass(slots=True)
class ConnectionLog:
    """One connection, as the server sees it."""

    number: int
    """Counted from 1, in the order of their opening."""
    http2: bool
    sni: str | None
    """The TLS server name; None without TLS or name."""
    open: bool = True
    requests: int = 0
    hosts: set[str] = field(default_factory=set)
    """Host headers, or HTTP/2 authorities."""
    header_names: set[str] = field(default_factory=set)
    """Of all requests, in lower case."""

    def copy(self) -> "ConnectionLog":
        """As it is now."""
        return replace(self, hosts=set(self.hosts), header_names=set(self.header_names))


class Incoming:
    """A request, from its head on. Keeps at most `keep_bytes` of its body."""

    def __init__(self, *, method: str, target: str, headers: Mapping[str, str], host: str, log: ConnectionLog) -> None:
        self.method = method
        self.path, _, self.query = target.partition("?")
        self.headers = headers
        """Lower-case names."""
        self.host = host
        self.log = log
        self.body = bytearray()
        self.size = 0
        """Bytes of the body that arrived."""
        self.keep_bytes = 0

    def receive(self, data: bytes | bytearray) -> None:
        """A piece of the body."""
        self.size += len(data)
        if (room := self.keep_bytes - len(self.body)) > 0:
            self.body += data[:room]


class Player(Protocol):
    """Performs the steps of one answer on its connection."""

    @property
    def dropped(self) -> bool:
        """Whether we ended the connection ourselves."""

    async def play(self, step: Step) -> None:
        """Returns when the step is done, and the connection can take more. Cancelled when the client goes."""


class Service(Protocol):
    """Answers requests; one for all connections."""

    def opened(self, *, http2: bool, sni: str | None) -> ConnectionLog:
        """A connection is ready."""

    def arrived(self, incoming: Incoming) -> None:
        """A request's head is here; its body follows."""

    def socket_life_s(self, incoming: Incoming) -> float | None:
        """How long the WebSocket lives that a request asks for; None: it asks for none, or gets none."""

    async def answer(self, incoming: Incoming, player: Player) -> None:
        """The request is complete."""


def start(service: Service, incoming: Incoming, player: Player) -> asyncio.Task[None]:
    """Answer, at once as far as it goes without waiting; the task may be done on return."""
    loop = asyncio.get_running_loop()
    return asyncio.Task(service.answer(incoming, player), loop=loop, eager_start=True)


def drop(transport: asyncio.Transport, how: Hangup) -> None:
    """End a connection, with what was written flushed (CLOSE) or lost (RESET)."""
    match how:
        case Hangup.CLOSE:
            transport.close()
        case Hangup.RESET:
            # A close with linger time 0 is what makes the kernel send RST instead of FIN.
            connection: socket.socket | None = transport.get_extra_info("socket")
            if connection is not None and connection.fileno() >= 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()


async def pause(pause_s: float) -> None:
    """Let time pass on the loop's clock."""
    gate = WriteGate()
    timer = asyncio.get_running_loop().call_later(pause_s, gate.release)
    try:
        await gate.wait()
    finally:
        timer.cancel()


class WritingProtocol(asyncio.Protocol):
    """A connection that knows whether the peer takes more."""

    def __init__(self) -> None:
        self.dropped = False
        """See Player."""
        self.gate = WriteGate()
        """Opens when the connection may take more."""
        self.can_write = True

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self.can_write = False

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.can_write = True
        self.gate.release()

    async def written(self) -> None:
        """Wait until the connection takes more."""
        while not self.can_write:
            await self.gate.wait()


class WriteGate:
    """Where writers wait while a connection takes no more."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def __repr__(self) -> str:
        return f"<Gate {len(self._waiting)} waiting>"

    async def wait(self) -> None:
        """Until the next `release`."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.add(turn)
        try:
            await turn
        finally:
            self._waiting.discard(turn)

    def release(self) -> None:
        """Let all who wait look again."""
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
