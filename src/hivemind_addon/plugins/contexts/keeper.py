"""Conversations are kept: by a policy, and before a client hears that a spent budget refuses its request.

A request's own path only hands the request over. All that takes time is done in a thread, and waits are bounded:
a disk that hangs must stop neither a refusal nor the resolver, which has threads from the loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from hivemind_addon.kernel.budget import spend_of
from hivemind_addon.kernel.values.events import ContextKept
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.plugins.contexts.chain import answer_id, named_answer
from hivemind_addon.plugins.contexts.from_request import is_conversation, take
from hivemind_addon.plugins.contexts.handover import handed_over, whole_answer, whole_request
from hivemind_addon.plugins.contexts.newest_requests import HeldRequest, Holding
from hivemind_addon.plugins.contexts.store import NotKept, TakenResult
from hivemind_addon.proxy.api.words import amount, failing, several
from hivemind_addon.proxy.record.news import NOTICE
from hivemind_addon.proxy.run.append_file import breathe
from hivemind_addon.proxy.system.database import FileUnusable
from hivemind_addon.proxy.system.folders import FolderNotPrivate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hivemind_addon.kernel.values.spend import Shortage
    from hivemind_addon.kernel.values.ticket import Ticket
    from hivemind_addon.plugins.contexts.compaction import TakenOut
    from hivemind_addon.plugins.contexts.handover import HandedOver
    from hivemind_addon.plugins.contexts.policy import KeepPolicy
    from hivemind_addon.plugins.contexts.store import Context, ContextHead, ContextStore
    from hivemind_addon.proxy.gate.exchange import Exchange
    from hivemind_addon.proxy.run.driver import Driver

    _Outcome = tuple[HeldRequest[HandedOver], str, ContextHead | NotKept | str]
    """A request, the policy that keeps the request, and the context; a text: why the disk did not take the context."""

logger = logging.getLogger("hivemind")

PATIENCE_S = 2.0
"""How long a refusal waits for the disk."""
CLOSING_S = 5.0
"""How long a stopping proxy does."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Of requests that are not written yet: half is held by the policy, and half waits for the disk."""
TRIM_EVERY_S = 10.0
RESULTS_KNOWN_S = 3600.0
"""For so long nobody is expected to delete a written result of a compaction; then the result is written again."""
_OBJECTS_BYTES = 4096
"""About the memory that a request takes beside the body."""
_MOST_KNOWN_RESULTS = 10_000
_EXPECTED = (OSError, NotKept, FileUnusable, FolderNotPrivate)
_BATCH = 32
_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_S = 0.2
"""So many conversations are written at once, or fewer; a refusal may wait for them, and the event loop notes them."""
_BREATH_BYTES = 32 * 1024
"""So much is read, of small requests together, between two chances for the event loop."""
_BUDGET, _END = "budget", "end"
_CHAINED = (
    "it names an earlier answer that is not kept (previous_response_id), so what was said before cannot be put together"
)


class ConversationKeeper:
    """Keeps them in a store. On the event loop."""

    def __init__(self, store: ContextStore, driver: Driver, policy: KeepPolicy | None = None) -> None:
        """Without a policy only requests that a spent budget stops are kept."""
        self.store = store
        self._driver = driver
        self._holding: Holding[HandedOver] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._queue: deque[tuple[HeldRequest[HandedOver], str]] = deque()
        """To be written by the policy, some at a time, so that no refusal waits for more than these; the thread takes
        from the beginning."""
        self._is_writing = False
        """Some of these."""
        self._waiting_bytes = 0
        self._writing: set[asyncio.Future[Any]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="contexts")
        self._quiet = asyncio.Event()
        """Set while nothing waits for the disk."""
        self._quiet.set()
        self._trimmed_at = -TRIM_EVERY_S
        self._is_trimming = False
        self._has_ended = False
        """Nothing is written any more, nor deleted."""
        self._lost = 0
        """Requests since something could last be kept by the policy."""
        self._is_closed = False
        self._has_told_of_chains = False
        self.follow(policy)
        self.lost_results = ""
        """Why results that were taken out of a request could not be written last; empty: they could."""
        self._known_results: OrderedDict[str, float] = OrderedDict()
        """When each was written, a monotonic instant: every request names all that are gone from the conversation."""

    def __repr__(self) -> str:
        return f"<ConversationKeeper {self.store!r}, {self._holding!r}, {len(self._queue)} to write>"

    def follow(self, policy: KeepPolicy | None) -> None:
        """Keep by another policy from now on; held requests are written."""
        if self._holding is not None and self._holding.policy == policy:
            return
        if self._holding is not None:
            self._write_soon(self._holding.take_all())
        self._holding = Holding(policy, most_bytes=MAX_WAITING_BYTES // 2) if policy is not None else None
        self._arm()

    # By the policy ---------------------------------------------------------------------------------------------------

    def ended(self, exchange: Exchange) -> None:
        """A request is over: hold the request, or write it soon. Never raises."""
        if self._holding is None or exchange.kept_as or not is_conversation(exchange.ticket):
            return
        try:
            self._hold(exchange, self._holding)
        except Exception:
            logger.exception("hivemind: a conversation could not be handed over")

    def _hold(self, exchange: Exchange, holding: Holding[HandedOver]) -> None:
        handed, ticket, used = handed_over(exchange), exchange.ticket, exchange.used
        held = HeldRequest(
            lane=(ticket.agent, ticket.session),
            opening=exchange.opening,
            what=handed,
            size_bytes=handed.body_bytes + len(exchange.delivered or b"") + _OBJECTS_BYTES,
            at=self._driver.clock.monotonic(),
            spent=spend_of(used, ticket.price) if used is not None else Spend(),
        )
        if handed.has_past:
            # The next one names its answer, so it is to be found by then, and before it what it names.
            self._write_soon(holding.take_lane(held.lane))
            self._write_soon((held,))
        else:
            self._write_soon(holding.hold(held))
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_at = self._holding.next_at() if self._holding is not None else None
        if due_at is not None:
            delay_s = max(0.0, due_at - self._driver.clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._holding is not None:
            self._write_soon(self._holding.take_due(self._driver.clock.monotonic()))
            self._arm()

    def _write_soon(self, due: Iterable[HeldRequest[HandedOver]], why: str = "") -> None:
        for held in due:
            if self._is_closed or self._waiting_bytes + held.size_bytes > MAX_WAITING_BYTES // 2:
                self._lose(held.what.ticket, "the disk is too slow")
                continue
            self._waiting_bytes += held.size_bytes
            self._queue.append((held, why or (_END if self._holding is None else self._holding.policy.name)))
        if self._queue and not self._is_writing:
            self._is_writing = True
            self._quiet.clear()
            # Not before the layer has stored the answer, which it does when this request's turn of the loop goes on.
            asyncio.get_running_loop().call_soon(self._write_next)

    def _write_next(self) -> None:
        try:
            writing = asyncio.get_running_loop().run_in_executor(
                self._thread, self._write_some, self._driver.clock.wall()
            )
        except RuntimeError:  # closed meanwhile
            self._is_writing = False
            self._tell_quiet()
            return
        self._writing.add(writing)
        writing.add_done_callback(self._written_by_policy)

    def _write_some(self, now_wall: float) -> list[_Outcome]:
        """In the thread: write waiting requests, as many as suit a transaction."""
        outcomes: list[_Outcome] = []
        contexts: list[tuple[HeldRequest[HandedOver], str, Context]] = []
        size, read, until = 0, 0, self._driver.clock.monotonic() + _BATCH_S
        while len(contexts) < _BATCH and size < _BATCH_BYTES and self._driver.clock.monotonic() < until:
            if self._has_ended or not self._queue:
                break
            if contexts and len(self._writing) > 1:  # somebody who is refused waits for the thread
                break
            if contexts and self._queue[0][0].what.has_past:  # it may name what is not there yet
                break
            held, why = self._queue.popleft()
            size += held.size_bytes
            try:
                contexts.append((held, why, self._taken(held, why, now_wall)))
            except Exception as error:  # noqa: BLE001 - reported, as a failure to write is
                outcomes.append((held, why, _untraced(error)))
            if (read := read + held.size_bytes) >= _BREATH_BYTES:
                read = 0
                breathe()
        return outcomes + self._kept_together(contexts)

    def _kept_together(self, contexts: Sequence[tuple[HeldRequest[HandedOver], str, Context]]) -> list[_Outcome]:
        """In the thread. An error that no single context causes befalls all."""
        try:
            heads: Sequence[ContextHead | NotKept | str] = self.store.keep_all([context for *_, context in contexts])
        except Exception as error:  # noqa: BLE001 - as above
            if len(contexts) > 1 and not isinstance(error, _EXPECTED):
                return [outcome for one in contexts for outcome in self._kept_together((one,))]
            heads = [_untraced(error)] * len(contexts)
        return [(held, why, head) for (held, why, _), head in zip(contexts, heads, strict=True)]

    def _taken(self, held: HeldRequest[HandedOver], why: str, now_wall: float) -> Context:
        """In the thread."""
        handed = held.what
        answer = whole_answer(handed)
        request = whole_request(handed, self.store)
        if handed.has_past and named_answer(request.body):
            raise NotKept(_CHAINED)
        return take(
            handed.ticket,
            request,
            reason=why,
            now_wall=now_wall,
            arrived_wall=handed.arrived_wall,
            tokens=handed.tokens,
            spent=held.spent,
            answer=answer,
            answer_id=answer_id(handed.dialect, answer) if answer else "",
        )

    def _written_by_policy(self, writing: asyncio.Future[list[_Outcome]]) -> None:
        self._writing.discard(writing)
        self._is_writing = bool(self._queue)
        for held, why, outcome in [] if writing.cancelled() else writing.result():
            self._waiting_bytes -= held.size_bytes
            match outcome:
                case NotKept():
                    self._not_kept(held.what, str(outcome))
                case str():
                    self._lose(held.what.ticket, outcome)
                case head:
                    self._kept(held.what.ticket, head, why)
        if self._is_writing:
            self._write_next()
        self._trim_soon()
        self._tell_quiet()

    def _tell_quiet(self) -> None:
        if not (self._writing or self._is_writing or self._is_trimming):
            self._quiet.set()

    def _kept(self, ticket: Ticket, head: ContextHead, why: str) -> None:
        if self._lost:
            logger.log(NOTICE, "hivemind: contexts are kept again; %s", several(self._lost, "request") + " missing")
            self._lost = 0
        if head.ticket_id == ticket.id:  # else the same request was kept before
            self._note(ticket, context_id=head.id, by=why)

    def _not_kept(self, handed: HandedOver, reason: str) -> None:
        """Only the first conversation that cannot be put together is reported."""
        if reason == _CHAINED and not self._has_told_of_chains:
            self._has_told_of_chains = True
            self._note(handed.ticket, reason=reason)

    def _lose(self, ticket: Ticket, reason: str) -> None:
        """Reported only the first time, until something can be kept again."""
        self._lost += 1
        if self._lost == 1:
            self._note(ticket, reason=reason)

    # For a spent budget ----------------------------------------------------------------------------------------------

    async def keep(self, exchange: Exchange, short: Shortage) -> str:
        """Answers the context's id; empty: there is none, or none in time, which an event tells. Never raises."""
        ticket = exchange.ticket
        if not is_conversation(ticket):
            return ""
        try:
            writing = self._begin(handed_over(exchange), short)
        except Exception as error:  # noqa: BLE001 - a refusal must not become an admission
            self._note(ticket, reason=_why(error))
            return ""
        done, _ = await asyncio.wait((writing,), timeout=PATIENCE_S)
        if not done:
            self._note(ticket, reason=f"not on disk after {PATIENCE_S:g} s; it is still being written")
        return writing.result().id if done and writing.exception() is None else ""

    def _begin(self, handed: HandedOver, short: Shortage) -> asyncio.Future[ContextHead]:
        size = handed.body_bytes
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise NotKept("the disk is too slow")
        write = partial(self._write_refused, handed, reason_of(short), self._driver.clock.wall())
        writing = asyncio.get_running_loop().run_in_executor(self._thread, write)
        self._waiting_bytes += size
        self._quiet.clear()
        self._writing.add(writing)
        writing.add_done_callback(partial(self._written, handed.ticket, size))
        return writing

    def _write_refused(self, handed: HandedOver, reason: str, now_wall: float) -> ContextHead:
        """In the thread."""
        context = take(
            handed.ticket,
            whole_request(handed, self.store),
            reason=reason,
            now_wall=now_wall,
            arrived_wall=handed.arrived_wall,
            tokens=handed.tokens,
        )
        return self.store.keep(context, durable=True)

    def _written(self, ticket: Ticket, size: int, writing: asyncio.Future[ContextHead]) -> None:
        self._writing.discard(writing)
        self._waiting_bytes -= size
        self._trim_soon()
        self._tell_quiet()
        if writing.cancelled():
            return
        error = writing.exception()
        if error is not None:
            self._note(ticket, reason=str(_untraced(error)))
        elif writing.result().ticket_id == ticket.id:  # else it came again, and was told of before
            self._note(ticket, context_id=writing.result().id)

    # What a compaction took out --------------------------------------------------------------------------------------

    def keep_results(self, agent: str, session: str, taken: Sequence[TakenOut]) -> int:
        """Write results that were taken out of a request; answers how many were not known before.

        Whether that works, `lost_results` says later.
        """
        now, now_wall = self._driver.clock.monotonic(), self._driver.clock.wall()
        due = [one for one in taken if now - self._known_results.get(one.id, -math.inf) > RESULTS_KNOWN_S]
        if not due or self._is_closed:
            return 0
        size = sum(len(one.value) for one in due)
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            self.lost_results = "the disk is too slow"
            return 0
        new = sum(one.id not in self._known_results for one in due)
        for one in due:
            self._known_results[one.id] = now
            self._known_results.move_to_end(one.id)
        while len(self._known_results) > _MOST_KNOWN_RESULTS:
            self._known_results.popitem(last=False)
        rows = [TakenResult(one.id, now_wall, agent, session, one.call_id, Raw(one.value)) for one in due]
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self.store.keep_results, rows)
        self._waiting_bytes += size
        self._quiet.clear()
        self._writing.add(writing)
        writing.add_done_callback(partial(self._results_written, due, size))
        return new

    def _results_written(self, due: Sequence[TakenOut], size: int, writing: asyncio.Future[None]) -> None:
        self._writing.discard(writing)
        self._waiting_bytes -= size
        self._trim_soon()
        self._tell_quiet()
        if writing.cancelled():
            return
        error = writing.exception()
        self.lost_results = "" if error is None else _why(error)
        if error is not None:
            for one in due:
                self._known_results.pop(one.id, None)

    # What is too much ------------------------------------------------------------------------------------------------

    def _trim_soon(self) -> None:
        """Something was written: delete old or surplus contexts, as long as nobody waits for the disk."""
        is_due = self._driver.clock.monotonic() - self._trimmed_at >= TRIM_EVERY_S
        if not is_due or self._is_trimming or self._has_ended:
            return
        self._is_trimming = True
        trimming = asyncio.get_running_loop().run_in_executor(self._thread, self._trim, self._driver.clock.wall())
        trimming.add_done_callback(self._trimmed)

    def _trim(self, now_wall: float) -> bool:
        """In the thread. False: there is more to delete."""
        with suppress(*_EXPECTED):  # who writes next is told of it
            while self.store.trim(now_wall):
                if self._writing or self._queue or self._has_ended:
                    return False
                breathe()
        return True

    def _trimmed(self, trimming: asyncio.Future[bool]) -> None:
        self._is_trimming = False
        self._tell_quiet()
        if trimming.cancelled():
            return
        error = trimming.exception()
        if error is not None:
            logger.error("hivemind: the file of contexts could not be made smaller", exc_info=error)
        if error is not None or trimming.result():
            self._trimmed_at = self._driver.clock.monotonic()

    # All of it -------------------------------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Waiting requests are written, as far as the disk allows in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                await self._quiet.wait()

    async def write_held(self) -> None:
        """Held requests are written now, before they are due, as far as the disk allows in time."""
        await self.settled()  # else there may be too much at once
        if self._holding is not None:
            self._write_soon(self._holding.take_all())
            self._arm()
        await self.settled()

    async def close(self) -> None:
        """Write held and waiting requests, as far as the disk allows; then keep no more."""
        if self._holding is not None:
            self._write_soon(self._holding.take_all(), _END)
            self._holding = None
        self._arm()
        self._is_closed = True
        self.lost_results = "it is kept elsewhere from now on, or not at all"
        await self.settled()
        self._has_ended = True
        if self._queue:
            logger.warning(
                "hivemind: the disk is too slow: %s", several(len(self._queue), "conversation") + " not kept"
            )
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _note(self, ticket: Ticket, *, context_id: str = "", by: str = _BUDGET, reason: str = "") -> None:
        at = self._driver.clock.monotonic()
        self._driver.note(
            ContextKept(at=at, ticket_id=ticket.id, pool=ticket.pool, context_id=context_id, reason=reason, by=by)
        )


def reason_of(short: Shortage) -> str:
    """Why a conversation is kept."""
    budget = short.budget
    spent, limit = amount(short.unit, short.spent), amount(short.unit, short.limit)
    what = "was spent" if short.spent >= short.limit else "had too little left"
    return f"the budget of {budget.holder} per {budget.per.value} {what}: {spent} of {limit}"


def _untraced(error: BaseException) -> NotKept | str:
    """An error as an outcome. The error's own traceback leads to the list of outcomes, and so back to the error."""
    if not isinstance(error, _EXPECTED):
        logger.error("hivemind: a conversation could not be kept", exc_info=error)
    return NotKept(*error.args) if isinstance(error, NotKept) else _why(error)


def _why(error: BaseException) -> str:
    match error:
        case NotKept() | FileUnusable() | FolderNotPrivate():
            return str(error)
        case OSError(strerror=str() as text):
            return text
        case _:
            return failing(error)
