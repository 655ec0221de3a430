"""What the proxies of a cluster ask its coordinator: to carry out a command, and how the whole stands.

Whoever asks waits at most `ANSWER_S`, and is told in words where nobody answers.
"""

import asyncio
import logging

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base.json_values import packed_decoder
from hivemind_addon.kernel.values.command import SchedulerCommand
from hivemind_addon.kernel.values.events import Event
from hivemind_addon.kernel.values.snapshot import Snapshot
from hivemind_addon.plugins.cluster.node import ClusterNode, Question, Role
from hivemind_addon.proxy.api.command import CommandReply
from hivemind_addon.proxy.api.report import QUEUED_TOLD, ClusterView, StatsView
from hivemind_addon.proxy.record.buffer import EventBuffer
from hivemind_addon.proxy.record.history import Histories
from hivemind_addon.proxy.record.news import News
from hivemind_addon.proxy.record.stats import Stats
from hivemind_addon.proxy.record.sums import Sums
from hivemind_addon.proxy.run.driver import Driver

logger = logging.getLogger("hivemind")

ANSWER_S = 2.0
"""How long somebody waits for the coordinator's answer."""
FRESH_S = 0.5
"""What the coordinator told one member of the whole is good for the others as long."""
STALE_S = 10.0
"""What was told of the whole is shown no longer."""
_NOBODY = "no coordinator of the cluster answers just now; nothing was done, so ask again in a few seconds"


class AskCommand(Struct, frozen=True, tag="command"):
    """Carry out a command; answered with a `CommandReply`."""

    command: SchedulerCommand


class AskWhole(Struct, frozen=True, tag="whole"):
    """Tell of the whole; answered with a `Whole`."""


class Whole(Struct, frozen=True):
    """The whole cluster at one instant, told by its coordinator."""

    snapshot: Snapshot
    stats: StatsView
    cluster: ClusterView


_encode = msgspec.msgpack.Encoder().encode
_decode_ask = packed_decoder(AskCommand | AskWhole)
_decode_reply = packed_decoder(CommandReply)
_decode_whole = packed_decoder(Whole)


class WholeStats:
    """Sums over all members' tickets, from when this node became the coordinator: give it what it overhears."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was counted."""
        self._buffer = EventBuffer()
        sums, histories = Sums(self._buffer.flush), Histories(self._buffer.flush)
        self._buffer.feed(sums)
        self._buffer.feed(histories)
        self._stats = Stats(sums)
        self._news = News(histories.agent_of, to_log=False)
        self._hears = self._news.hears or frozenset()

    def __call__(self, event: Event) -> None:
        """Count one event."""
        self._buffer(event)
        if type(event) in self._hears:
            self._news(event)

    def view(self, now: float) -> StatsView:
        """What has been counted until now."""
        return self._stats.view(now, self._news.lines(now))


class Asks:
    """Asks and answers for one node. After each turn that came of the engine call `after_turn`."""

    def __init__(self, *, node: ClusterNode, driver: Driver, stats: WholeStats) -> None:
        self.told: Whole | None = None
        """Of the whole, by its coordinator, lately."""
        self._told_at = float("-inf")
        self._node = node
        self._driver = driver
        self._stats = stats
        self._open: dict[int, asyncio.Future[bytes | None]] = {}
        self._telling: asyncio.Task[None] | None = None
        self._to_tell: list[Question] = []
        self._line = b""
        self._line_at = float("-inf")
        self._refreshing: asyncio.Future[None] | None = None
        self._forget: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Asks, {len(self._open)} open>"

    async def command(self, command: SchedulerCommand) -> CommandReply:
        """Have the coordinator carry out a command."""
        answer = await self._ask(AskCommand(command))
        if answer is None:
            return CommandReply(done=False, text=_NOBODY)
        return _decode_reply(answer)

    async def refresh(self) -> None:
        """Have the newest state of the whole told to this node, where another one knows it."""
        if self._node.role is not Role.MEMBER:
            return
        await asyncio.wait([self._refresh_begun()])

    def refresh_soon(self) -> None:
        """The same, without waiting for it, unless that was just told."""
        is_fresh = self._driver.clock.monotonic() < self._told_at + FRESH_S
        if self._node.role is Role.MEMBER and not is_fresh:
            self._refresh_begun()

    def close(self) -> None:
        """Nobody waits any more."""
        for task in (self._telling, self._refreshing):
            if task is not None:
                task.cancel()
        if self._forget is not None:
            self._forget.cancel()

    def after_turn(self) -> None:
        """Hand answers to those who wait for them, and answer what others ask."""
        for asked_id, answer in self._node.drain_answers():
            waits = self._open.pop(asked_id, None)
            if waits is not None and not waits.done():
                waits.set_result(answer)
        for asked in self._node.drain_asked():
            self._take(asked)

    # Asking --------------------------------------------------------------------------------------------------------

    async def _ask(self, what: AskCommand | AskWhole) -> bytes | None:
        asked_id = self._node.ask(_encode(what))
        waits: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._open[asked_id] = waits
        self.after_turn()
        try:
            await asyncio.wait([waits], timeout=ANSWER_S)
            return waits.result() if waits.done() else None
        finally:
            self._open.pop(asked_id, None)

    def _refresh_begun(self) -> asyncio.Future[None]:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._refresh())
        return self._refreshing

    async def _refresh(self) -> None:
        try:
            answer = await self._ask(AskWhole())
            if answer is not None:
                self.told, self._told_at = _decode_whole(answer), self._driver.clock.monotonic()
                self._node.told = self.told.snapshot
                if self._forget is not None:
                    self._forget.cancel()
                self._forget = asyncio.get_running_loop().call_later(STALE_S, self._forget_told)
        except msgspec.MsgspecError as error:
            logger.warning("hivemind: the cluster's coordinator tells what this version cannot read: %s", error)

    def _forget_told(self) -> None:
        self.told = self._node.told = None

    # Answering -----------------------------------------------------------------------------------------------------

    def _take(self, asked: Question) -> None:
        try:
            what = _decode_ask(asked.what)
        except msgspec.MsgspecError as error:
            said = CommandReply(done=False, text=f"the coordinator's version does not know that: {error}")
            self._node.tell(asked, _encode(said))
            return
        match what:
            case AskCommand(command):
                try:
                    reply = self._driver.command(command)
                except Exception as error:  # the guard at the edge: who asks gets an answer
                    logger.exception("hivemind: a command failed")
                    reply = CommandReply(done=False, text=f"hivemind_addon failed: {error!r}")
                self._node.tell(asked, _encode(reply))
                self._line_at = float("-inf")  # who looks after an order sees what came of it
                self.after_turn()
            case AskWhole():
                self._to_tell.append(asked)
                # A task may be over before its maker has it: tasks begin at once here.
                if self._telling is None or self._telling.done():
                    self._telling = asyncio.ensure_future(self._tell_whole())

    async def _tell_whole(self) -> None:
        """Make it in parts, once for all who ask meanwhile."""
        while self._to_tell:
            if self._driver.clock.monotonic() >= self._line_at + FRESH_S:
                whole = await self._make()
                self._line, self._line_at = _encode(whole), self._driver.clock.monotonic()
            asking, self._to_tell = self._to_tell, []
            for asked in asking:
                self._node.tell(asked, self._line)
            self.after_turn()

    async def _make(self) -> Whole:
        parts, snapshot = self._driver.snapshot_in_parts(most_queued=QUEUED_TOLD), None
        while snapshot is None:
            try:
                next(parts)
            except StopIteration as end:
                snapshot = end.value
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no time passes
        now = self._driver.clock.monotonic()
        return Whole(snapshot, self._stats.view(now), self._node.cluster_view(now))
