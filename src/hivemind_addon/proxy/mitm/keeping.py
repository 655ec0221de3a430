"""The conversation of a request that a spent budget refuses is kept, before its client hears of the refusal.

Off the event loop, in a thread of its own, and with a bounded wait: a disk that hangs must stop neither the refusal nor
the resolver, which has its threads from the loop.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from hivemind_addon.api.events import CheckpointKept
from hivemind_addon.api.spend import amount
from hivemind_addon.api.words import failing
from hivemind_addon.proxy.capture.flow_parts import plain_request
from hivemind_addon.proxy.capture.redact import PLAIN_QUERY, PlainHeaders
from hivemind_addon.proxy.checkpoint.store import NotKept
from hivemind_addon.proxy.checkpoint.taking import SentRequest, is_conversation, take
from hivemind_addon.proxy.runtime.append_file import breathe

if TYPE_CHECKING:
    from collections.abc import Callable

    from mitmproxy import http

    from hivemind_addon.api.spend import Shortage
    from hivemind_addon.api.ticket import Ticket
    from hivemind_addon.proxy.checkpoint.store import CheckpointHead, CheckpointStore
    from hivemind_addon.proxy.profile.model import Profile
    from hivemind_addon.proxy.runtime.driver import Driver
    from hivemind_addon.proxy.wire.dialect import Dialect

logger = logging.getLogger("hivemind")

PATIENCE_S = 2.0
"""How long a refusal waits for the disk."""
CLOSING_S = 5.0
"""How long a stopping proxy does."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Of requests that are not written yet; what comes above it is not kept."""
_MADE_ANEW = frozenset(
    (
        *("accept-encoding", "connection", "content-encoding", "content-length", "date", "host", "keep-alive"),
        *("te", "transfer-encoding", "upgrade", "via"),
    )
)
"""Headers that belong to one connection, or to the coding of one body."""


class ConversationKeeper:
    """Keeps them in a store. On the event loop."""

    def __init__(self, store: CheckpointStore, driver: Driver) -> None:
        self.store = store
        self._driver = driver
        self._waiting_bytes = 0
        self._writing: set[asyncio.Future[CheckpointHead]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")

    def __repr__(self) -> str:
        return f"<ConversationKeeper {self.store!r}, {len(self._writing)} to write>"

    async def keep(self, ticket: Ticket, read: Callable[[], SentRequest], short: Shortage) -> str:
        """Answers the checkpoint's id; empty: there is none, or none in time, which an event tells. Never raises.

        `read` reads the request.
        """
        if not is_conversation(ticket):
            return ""
        try:
            writing = self._begin(ticket, read(), short)
        except Exception as error:  # noqa: BLE001 - a refusal must not become an admission
            self._note(ticket, reason=_why(error))
            return ""
        done, _ = await asyncio.wait((writing,), timeout=PATIENCE_S)
        if not done:
            self._note(ticket, reason=f"not on disk after {PATIENCE_S:g} s; it is still being written")
        return writing.result().id if done and writing.exception() is None else ""

    async def close(self) -> None:
        """Write what waits, as far as the disk lets it be written; then keep no more."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=CLOSING_S)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self, ticket: Ticket, request: SentRequest, short: Shortage) -> asyncio.Future[CheckpointHead]:
        size = len(request.body)
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise NotKept("the disk is too slow")
        write = partial(self._write, ticket, request, reason_of(short), self._driver.clock.wall())
        writing = asyncio.get_running_loop().run_in_executor(self._thread, write)
        self._waiting_bytes += size
        self._writing.add(writing)
        writing.add_done_callback(partial(self._written, ticket, size))
        return writing

    def _write(self, ticket: Ticket, request: SentRequest, reason: str, now_wall: float) -> CheckpointHead:
        checkpoint = take(ticket, request, reason=reason, now_wall=now_wall)
        breathe()
        return self.store.keep(checkpoint)

    def _written(self, ticket: Ticket, size: int, writing: asyncio.Future[CheckpointHead]) -> None:
        self._writing.discard(writing)
        self._waiting_bytes -= size
        if writing.cancelled():
            return
        error = writing.exception()
        if error is not None:
            if not isinstance(error, OSError | NotKept):
                logger.error("hivemind: a conversation could not be kept", exc_info=error)
            self._note(ticket, reason=_why(error))
        elif writing.result().id == ticket.id:  # else it came again, and was told of before
            self._note(ticket, checkpoint_id=ticket.id)

    def _note(self, ticket: Ticket, *, checkpoint_id: str = "", reason: str = "") -> None:
        at = self._driver.clock.monotonic()
        self._driver.note(
            CheckpointKept(at=at, ticket_id=ticket.id, pool=ticket.pool, checkpoint_id=checkpoint_id, reason=reason)
        )


def sent_request(flow: http.HTTPFlow, profile: Profile, dialect: Dialect) -> SentRequest:
    """A flow's request without its credentials, and without what a new connection makes anew."""
    request = plain_request(flow)
    kept = PlainHeaders((profile,))
    written = ((name, kept.written(name, value.encode("utf-8", "replace"))) for name, value in request.headers.items())
    port = "" if request.port == (443 if request.scheme == "https" else 80) else f":{request.port}"
    path, _, query = request.path.partition("?")
    told = "&".join(one for one in query.split("&") if one.partition("=")[0] in PLAIN_QUERY)
    return SentRequest(
        dialect=dialect,
        method=flow.request.method,
        url=f"{request.scheme}://{request.host}{port}{path}{'?' if told else ''}{told}",
        headers={
            name: value.decode("utf-8", "replace")
            for name, value in written
            if value is not None and name not in _MADE_ANEW
        },
        body=request.body,
        encoding=request.headers.get("content-encoding", ""),
    )


def reason_of(short: Shortage) -> str:
    """Why a conversation is kept."""
    budget = short.budget
    spent, limit = amount(short.unit, short.spent), amount(short.unit, short.limit)
    what = "was spent" if short.spent >= short.limit else "had too little left"
    return f"the budget of {budget.holder} per {budget.per.value} {what}: {spent} of {limit}"


def _why(error: BaseException) -> str:
    match error:
        case NotKept():
            return str(error)
        case OSError(strerror=str() as text):
            return text
        case _:
            return failing(error)
