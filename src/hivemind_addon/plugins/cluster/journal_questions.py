"""What proxies of a cluster ask each other's journals: one asks all, and each answers for itself.

It goes beside the nodes: no coordinator is needed for it, and what is lost is told as missing.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base.json_values import packed_decoder
from hivemind_addon.proxy.api.command import MemberAnswer
from hivemind_addon.proxy.api.words import failing

logger = logging.getLogger("hivemind")

ANSWERS_S = 6.0
"""How long answers are waited for."""
_MOST_AT_ONCE = 4
"""Questions that one proxy answers."""
MOST_BYTES = 16 * 1024 * 1024
"""Of one answer."""


class ToAll(Struct, frozen=True, tag="all"):
    """A question to every proxy."""

    id: str
    asker: str
    question: str


class ToAsker(Struct, frozen=True, tag="asker"):
    """The answer of one."""

    id: str
    said: MemberAnswer


_encode = msgspec.msgpack.Encoder().encode
_decode = packed_decoder(ToAll | ToAsker)


class Beside:
    """Asks and answers for one proxy; give `hear` what the others say."""

    def __init__(self, *, me: str, say: Callable[[bytes, str], None]) -> None:
        """`say`: something to one proxy; to nobody by name is to all."""
        self.answer: Callable[[str], Awaitable[str]] | None = None
        """Answers a question for this proxy. Its errors are told in one line."""
        self._me = me
        self._say = say
        self._open: dict[str, asyncio.Queue[MemberAnswer]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Beside {self._me}, {len(self._open)} open>"

    async def ask_all(self, question: str, expected: int) -> list[MemberAnswer]:
        """What each of so many proxies answers; those that answer within some seconds."""
        asked_id, answers = secrets.token_hex(8), list[MemberAnswer]()
        coming = self._open[asked_id] = asyncio.Queue()
        try:
            self._say(_encode(ToAll(asked_id, self._me, question)), "")
            async with asyncio.timeout(ANSWERS_S):
                while len(answers) < expected:
                    answers.append(await coming.get())
        except TimeoutError:
            pass
        finally:
            del self._open[asked_id]
        return sorted(answers, key=lambda one: one.member)

    def hear(self, data: bytes) -> None:
        """Something that another proxy, or this one, has said."""
        try:
            said = _decode(data)
        except msgspec.MsgspecError:
            return  # another version's
        match said:
            case ToAll() if self.answer is not None:
                task = asyncio.ensure_future(self._tell(said))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            case ToAsker(asked_id, said=answer) if asked_id in self._open:
                self._open[asked_id].put_nowait(answer)

    def close(self) -> None:
        """Answer no more."""
        for task in self._answering:
            task.cancel()

    async def _tell(self, asked: ToAll) -> None:
        assert self.answer is not None
        answer, problem = "", ""
        try:
            if len(self._answering) > _MOST_AT_ONCE:
                problem = "it answers others already; ask again"
            else:
                answer = await self.answer(asked.question)
            if len(answer) > MOST_BYTES:
                answer, problem = "", "its answer is too long; ask for less"
        except Exception as error:  # noqa: BLE001 - the guard at the edge: who asks is told
            problem = str(error) or failing(error)
        self._say(_encode(ToAsker(asked.id, MemberAnswer(self._me, answer, problem))), asked.asker)
