"""Connects a node, on asyncio, to the cluster's engine: the Valkey or Redis server that carries the messages.

The engine has two connections: one sends commands, one listens to the node's channel. Commands do not wait for the
answers to earlier commands; all commands of a turn of the event loop go in a single write. When either connection is
lost, both are made anew, for ever. Meanwhile nothing waits: the node's requests fail at once, and published messages
are lost, for which the node's channels make up (`plugins/cluster/channel.py`).

The server has the channels `hivemind:{NAME}:to:NODE` (the nodes' messages), `hivemind:{NAME}:beside:NODE` and
`hivemind:{NAME}:beside:` (messages of proxies, beside the nodes, to a proxy or to all), and three keys:

    hivemind:{NAME}:lease    the coordinator and the epoch, `EPOCH NODE`; expires
    hivemind:{NAME}:epoch    the newest epoch that was given out
    hivemind:{NAME}:kept     a hash: the state that outlives a coordinator (`data`), the `epoch`, and the time (`at`)
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, assert_never

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from hivemind_addon.plugins.cluster.messages import (
    EngineAnswer,
    EngineFailed,
    EngineRequest,
    Fetch,
    Fetched,
    Leased,
    Publish,
    Resign,
    Stored,
    StoreKept,
    TakeLease,
)
from hivemind_addon.plugins.cluster.node import ClusterNode
from hivemind_addon.proxy.run.driver import Driver
from hivemind_addon.proxy.system.engine_trouble import TooOld, has_gone, trouble
from hivemind_addon.proxy.system.engine_url import EngineAddress

logger = logging.getLogger("hivemind")

CONNECT_S = 2.0
"""How long making both connections may take."""
ANSWER_S = 1.0
"""How long the engine may take to answer."""
_FAIL_AFTER_S = 0.05
"""The delay of a failure while the engine is away: immediate repeats must not keep the loop busy."""
UNTOLD_S = 2.0
"""How long a closing proxy waits for a coordinator, to report the spending."""
LAST_WORDS_S = 0.5
"""How long a closing proxy tries to send the last messages."""
_LOOK_EVERY_S = 0.5
"""How often the engine checks for late answers."""
_LEAST_BACKOFF_S, _MOST_BACKOFF_S = 0.1, 1.0
_OLDEST = (6, 2)
"""The oldest Redis whose commands suffice; every Valkey reports a newer version."""

_TAKE_LEASE = """
local asked = tonumber(ARGV[2])
local newest = tonumber(redis.call('GET', KEYS[2]) or '-1')
local forgot = newest < asked and 1 or 0
local epoch, holder = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (.*)$')
if epoch and tonumber(epoch) >= asked then
  if holder == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[5])
    if newest < tonumber(epoch) then redis.call('SET', KEYS[2], epoch) end
  end
  return {holder, tonumber(epoch), forgot}
end
if ARGV[4] == '0' then return {'', math.max(newest, asked), forgot} end
epoch = asked
if ARGV[3] == '0' or newest > asked then epoch = math.max(newest, asked) + 1 end
redis.call('SET', KEYS[1], string.format('%d %s', epoch, ARGV[1]), 'PX', ARGV[5])
redis.call('SET', KEYS[2], string.format('%d', epoch))
return {ARGV[1], epoch, forgot}
"""
"""Carries out `TakeLease`. KEYS: lease, epoch. ARGV: node, epoch, renews, wants, milliseconds.

Answers the holder, the epoch, and 1 if the engine's newest epoch was older than ARGV's. The holder is empty if nobody
holds the lease and the node does not want the lease.
"""
_RESIGN = """
if redis.call('GET', KEYS[1]) == ARGV[2] .. ' ' .. ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
"""Carries out `Resign`. KEYS: lease. ARGV: node, epoch."""
_KEEP = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[2] .. ' ' .. ARGV[1] then return 0 end
if tonumber(redis.call('HGET', KEYS[2], 'epoch') or '0') > tonumber(ARGV[2]) then return 0 end
local time = redis.call('TIME')
redis.call('HSET', KEYS[2], 'epoch', ARGV[2], 'data', ARGV[3], 'at', string.format('%.3f', time[1] + time[2] / 1e6))
return 1
"""
"""Carries out `StoreKept`. KEYS: lease, kept. ARGV: node, epoch, data. Answers 1 if the data was written."""
_FETCH = """
local kept = redis.call('HMGET', KEYS[1], 'data', 'at')
if not kept[1] then return false end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
return {kept[1], math.floor(1000 * math.max(0, now - (kept[2] or now)))}
"""
"""Carries out `Fetch`. KEYS: kept. Answers the data and the age in milliseconds."""


@dataclass(slots=True)
class _Session:
    """Both connections, from the beginning until either is lost."""

    commands: AbstractConnection
    channel: AbstractConnection
    asked: deque[tuple[TakeLease | Resign | StoreKept | Fetch | str, float]] = field(default_factory=deque)
    """Commands without an answer yet, in order, and when they were sent; a name: a message published to that node,
    empty: to no node."""
    pinged_at: float | None = None
    """When the pending ping was sent on the channel; None: no ping is pending."""

    def is_late(self, now: float) -> bool:
        """Whether an answer should have come."""
        asked_at = self.asked[0][1] if self.asked else now
        pinged_at = now if self.pinged_at is None else self.pinged_at
        return min(asked_at, pinged_at) + ANSWER_S <= now


class Engine:
    """Carries out a node's requests to the server, from `start` to `close`; on the running event loop."""

    def __init__(
        self,
        *,
        node: ClusterNode,
        driver: Driver,
        address: EngineAddress,
        name: str,
        after_turn: Callable[[], None] = lambda: None,
        hear_beside: Callable[[bytes], None] = lambda data: None,  # noqa: ARG005
    ) -> None:
        """`name`: the cluster's. The engine calls `after_turn` after each turn that news from the server caused.

        `hear_beside` gets messages that another proxy sent with `say_beside`.
        """
        self._node = node
        self._driver = driver
        self._clock = driver.clock
        self._connection = _connection_maker(address)
        self._address = address.shown
        self._speaks_tls = address.tls
        self._name = name
        self._after_turn = after_turn
        self._hear_beside = hear_beside
        self._beside: list[tuple[str, bytes]] = []
        self._prefix = f"hivemind:{{{name}}}:"
        self._lease, self._epoch, self._kept = (self._prefix + key for key in ("lease", "epoch", "kept"))
        self._session: _Session | None = None
        self._running: asyncio.Task[None] | None = None
        self._is_closing = False
        self._has_news = asyncio.Event()
        self._turn: asyncio.Handle | None = None
        self._failing: asyncio.TimerHandle | None = None
        self._lost_at: float | None = None
        self._told_why = ""
        """The reason of a loss that is in the log."""
        self._told_refusal = ""
        """The reason of a refused command that is in the log."""

    def __repr__(self) -> str:
        return f"<Engine {self._address}, {'connected' if self._session else 'lost'}>"

    @property
    def is_connected(self) -> bool:
        """Whether the server is connected."""
        return self._session is not None

    def start(self) -> None:
        """Connect, and keep trying; returns at once. A second call does nothing."""
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())
            self._turn_soon()  # the node's first turn, which starts the node's clock

    def wake(self) -> None:
        """Report that the node has something to send. May be called at any time, also before `start`."""
        if self._session is not None:
            self._has_news.set()
        elif self._failing is None:
            self._failing = asyncio.get_running_loop().call_later(_FAIL_AFTER_S, self._fail_all)

    def say_beside(self, data: bytes, *, to: str = "") -> None:
        """Send a message to a proxy, or to all proxies, this proxy too. While the server is away, messages are lost."""
        if self._session is not None:
            self._beside.append((f"{self._prefix}beside:{to}", data))
            self._has_news.set()

    async def close(self) -> None:
        """Let the node leave, send the node's last messages, for a short time, and end."""
        latest_at = self._clock.monotonic() + UNTOLD_S
        while self._node.has_untold and self._session is not None and self._clock.monotonic() < latest_at:
            await self._pause(_FAIL_AFTER_S)
        self._is_closing = True
        self._node.leave(self._clock.monotonic())
        session = self._session
        if session is not None:
            with suppress(TimeoutError, RedisError, OSError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await self._send(session)
                    await self._answered_all(session)
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        for timer in (self._turn, self._failing):
            if timer is not None:
                timer.cancel()

    # The connection ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff_s = _LEAST_BACKOFF_S
        while True:
            why, is_away, is_connected = "", True, False
            session = _Session(self._connection(), self._connection())
            try:
                try:
                    async with asyncio.timeout(CONNECT_S):
                        await self._connect(session)
                    is_connected = True
                    self._came(session)
                    backoff_s = _LEAST_BACKOFF_S
                    await self._serve(session)
                finally:
                    self._session = None
                    await _close(session)
            except Exception as error:
                handshake = self._speaks_tls and not is_connected
                why, is_away = trouble(error, self._prefix, handshake=handshake), has_gone(error)
                if not isinstance(error, RedisError | OSError | TooOld):
                    logger.exception("hivemind: the connection to the cluster's engine failed")
            self._was_lost(session, why, is_away=is_away)
            await self._pause(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311, TID251 - so that a hundred do not come at once
            backoff_s = min(_MOST_BACKOFF_S, 2 * backoff_s)

    async def _connect(self, session: _Session) -> None:
        await session.commands.connect()  # type: ignore[no-untyped-call]  # the client's
        await self._check_version(session.commands)
        await session.channel.connect()  # type: ignore[no-untyped-call]
        beside = f"{self._prefix}beside:"
        channels = [self._channel_of(self._node.me), beside, f"{beside}{self._node.me}"]
        await session.channel.send_command("SUBSCRIBE", *channels)
        for _ in channels:
            await session.channel.read_response()

    async def _check_version(self, connection: AbstractConnection) -> None:
        """Raises TooOld."""
        try:
            await connection.send_command("INFO", "server")
            told = await connection.read_response()
        except NoPermissionError:
            return
        lines = dict(line.split(":", 1) for line in told.decode(errors="replace").splitlines() if ":" in line)
        version = lines.get("redis_version", "")
        numbers = [int(number) for number in version.split(".")[:2] if number.isdecimal()]
        if len(numbers) == 2 and tuple(numbers) < _OLDEST:
            raise TooOld(version)

    async def _serve(self, session: _Session) -> None:
        """Serve until a connection is lost; raises the cause."""
        works = [self._write(session), self._read_answers(session), self._read_channel(session), self._watch(session)]
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, session: _Session) -> None:
        """Raises TimeoutError when an answer is late."""
        while not session.is_late(self._clock.monotonic()):
            if session.pinged_at is None:
                session.pinged_at = self._clock.monotonic()
                await session.channel.send_command("PING")
            await self._pause(_LOOK_EVERY_S)
        raise TimeoutError

    async def _pause(self, pause_s: float) -> None:
        over = asyncio.Event()
        timer = asyncio.get_running_loop().call_later(pause_s, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    def _came(self, session: _Session) -> None:
        self._session = session
        self._beside.clear()
        self._has_news.set()
        if self._lost_at is not None:
            away_s = self._clock.monotonic() - self._lost_at
            told = "hivemind: cluster %s: the engine %s is back after %.1f s"
            logger.warning(told, self._name, self._address, away_s)
        self._lost_at = None
        self._told_why = self._told_refusal = ""

    def _was_lost(self, session: _Session, why: str, *, is_away: bool) -> None:
        """Log the loss once, and again if a person can cure the cause."""
        is_first = self._lost_at is None
        if is_first:
            self._lost_at = self._clock.monotonic()
        if is_first or (not is_away and why != self._told_why):
            self._told_why = why
            goes_on = "tried again until it is back; without it this proxy goes on alone"
            logger.warning("hivemind: cluster %s: the engine %s %s; %s", self._name, self._address, why, goes_on)
        for request, _ in session.asked:
            if not isinstance(request, str):
                self._fail(request, why)
        self._turn_soon()
        self.wake()

    # What the node asks for -----------------------------------------------------------------------------------------

    async def _write(self, session: _Session) -> None:
        while True:
            self._has_news.clear()
            await self._send(session)
            await self._has_news.wait()

    async def _send(self, session: _Session) -> None:
        now = self._clock.monotonic()
        requests = self._node.drain_outbox(now)
        beside, self._beside = self._beside, []
        if not requests and not beside:
            return
        pack, packed = session.commands.pack_command, list[bytes]()
        for request in requests:
            packed += pack(*self._command(request))
            session.asked.append((request.to if isinstance(request, Publish) else request, now))
        for channel, data in beside:
            packed += pack("PUBLISH", channel, data)
            session.asked.append(("", now))
        await session.commands.send_packed_command([b"".join(packed)])

    def _command(self, request: EngineRequest) -> Iterable[str | bytes | int]:
        me = self._node.me
        match request:
            case Publish(to, data=data):
                return "PUBLISH", self._channel_of(to), data
            case TakeLease(epoch, renews=renews, wants=wants, ttl_s=ttl_s):
                words = (me, epoch, int(renews), int(wants), max(1, round(ttl_s * 1000)))
                return "EVAL", _TAKE_LEASE, 2, self._lease, self._epoch, *words
            case Resign(epoch):
                return "EVAL", _RESIGN, 1, self._lease, me, epoch
            case StoreKept(epoch, data=data):
                return "EVAL", _KEEP, 2, self._lease, self._kept, me, epoch, data
            case Fetch():
                return "EVAL", _FETCH, 1, self._kept
            case _:
                assert_never(request)

    def _channel_of(self, node: str) -> str:
        return f"{self._prefix}to:{node}"

    # What the engine says -------------------------------------------------------------------------------------------

    async def _read_answers(self, session: _Session) -> None:
        while True:
            try:
                answer = await session.commands.read_response()
            except ResponseError as error:
                request, _ = session.asked.popleft()
                if isinstance(request, str):
                    raise  # a proxy that cannot publish is in no cluster
                self._refused(request, error)
            else:
                request, _ = session.asked.popleft()
                if not isinstance(request, str):
                    self._told_refusal = ""
                    self._answer(request, answer)
                elif request and not answer:
                    self._node.unheard(request, self._clock.monotonic())
            if self._is_closing:
                self._has_news.set()

    async def _answered_all(self, session: _Session) -> None:
        while session.asked:
            self._has_news.clear()
            await self._has_news.wait()

    async def _read_channel(self, session: _Session) -> None:
        own = self._channel_of(self._node.me).encode()
        while True:
            kind, *rest = await session.channel.read_response()
            if kind == b"message" and rest[0] == own:
                self._hear(rest[1])
            elif kind == b"message":
                self._hear_beside(rest[1])
            else:
                session.pinged_at = None

    def _hear(self, data: bytes) -> None:
        try:
            self._node.receive(data, self._clock.monotonic())
        except Exception:
            logger.exception("hivemind: a message of the cluster failed")
        self._turn_soon()

    def _answer(self, request: TakeLease | Resign | StoreKept | Fetch, said: object) -> None:
        answer: EngineAnswer
        match request, said:
            case TakeLease(asked_at=asked_at), [bytes() as holder, int() as epoch, int() as forgot]:
                answer = Leased(holder.decode(errors="replace"), epoch, asked_at, forgot=bool(forgot))
            case StoreKept(), int():
                answer = Stored(bool(said))
            case Fetch(), None:
                answer = Fetched(None)
            case Fetch(), [bytes() as data, int() as age_ms]:
                answer = Fetched(data, age_ms / 1000)
            case Resign(), _:
                return
            case _:
                answer = EngineFailed(request, f"an answer that is none: {said!r:.80}")
        self._node.answered(answer, self._clock.monotonic())
        self._turn_soon()

    def _refused(self, request: TakeLease | Resign | StoreKept | Fetch, error: ResponseError) -> None:
        why = trouble(error, self._prefix)
        if why != self._told_refusal:
            self._told_refusal = why
            logger.warning("hivemind: cluster %s: the engine %s %s", self._name, self._address, why)
        self._fail(request, why)
        self._turn_soon()

    def _fail(self, request: TakeLease | Resign | StoreKept | Fetch, why: str) -> None:
        self._node.answered(EngineFailed(request, why), self._clock.monotonic())

    # Turns ----------------------------------------------------------------------------------------------------------

    def _turn_soon(self) -> None:
        """Schedule a single turn for all news since the last turn."""
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self._driver.tick()
        self._after_turn()

    def _fail_all(self) -> None:
        self._failing = None
        if self._session is not None:
            self._has_news.set()
            return
        for request in self._node.drain_outbox(self._clock.monotonic()):
            if not isinstance(request, Publish):
                self._fail(request, self._told_why or "is not connected yet")
                self._turn_soon()


async def _close(session: _Session) -> None:
    for connection in (session.commands, session.channel):
        with suppress(RedisError, OSError):
            await connection.disconnect(nowait=True)


def _connection_maker(address: EngineAddress) -> Callable[[], AbstractConnection]:
    """Makes connections that are not open yet: for RESP2, and without a time limit of their own."""
    options: dict[str, Any] = dict(parse_url(address.redis_url))
    kind = options.pop("connection_class", Connection)
    return lambda: kind(**options, protocol=2, socket_timeout=None)
