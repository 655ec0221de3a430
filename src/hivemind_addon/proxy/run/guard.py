"""The scheduler must not become the outage: what happens when our own code raises.

A trip is counted, noted as an event and logged with its traceback, unless it is one of many: a defect may trip on
every request of a night. The request goes on under a plain semaphore of its pool's last limit. Holders count as in
flight for the scheduler, where it still works.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from hivemind_addon.kernel.values.events import GuardTripped
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, ContractError, Outcome, OutcomeKind, PoolKey
from hivemind_addon.proxy.api.words import failing, lasting
from hivemind_addon.proxy.record.news import Repeats
from hivemind_addon.proxy.run.driver import Driver

logger = logging.getLogger(__name__)


class GuardedBlock:
    """A block that an exception of ours ends, as a guard trip. Can be entered any number of times."""

    __slots__ = ("_guard", "_where")

    def __init__(self, guard: "Guard", where: str) -> None:
        self._guard = guard
        self._where = where

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.trip(self._where, error)
        return True


class Guard:
    """Catches exceptions of ours at the edge and lets requests pass by the scheduler."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._semaphores: dict[PoolKey, asyncio.Semaphore] = {}
        self._holders: defaultdict[PoolKey, int] = defaultdict(int)
        self._owed: list[Attempt] = []
        """Reservations of ended requests that could not be settled yet."""
        self._repeats: Repeats[tuple[str, str]] = Repeats()
        """Trips by where, and by what was raised."""
        self.trips = 0

    def trip(self, where: str, error: Exception, ticket_id: str | None = None) -> None:
        """Count, note and log one exception. Never raises."""
        self.trips += 1
        now = self._driver.clock.monotonic()
        for (place, kind), counted, within_s in self._repeats.over(now):
            logger.error("hivemind: %d more guard trips in %s (%s) within %s", counted, place, kind, lasting(within_s))
        if self._repeats.lets((where, type(error).__name__), now):
            logger.error(
                "hivemind: guard trip in %s%s; the request goes on without scheduling",
                where,
                f" (ticket {ticket_id})" if ticket_id else "",
                exc_info=error,
            )
        with self.second_line("noting a guard trip"):
            self._driver.note(GuardTripped(at=now, ticket_id=ticket_id, where=where, error=failing(error)))

    @contextmanager
    def second_line(self, what: str) -> Iterator[None]:
        """For what is done after a trip, when the core may be the broken part: log, and go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the guard's own guard
            logger.warning("hivemind: %s failed too: %r", what, error)

    def give_back(self, attempt: Attempt) -> None:
        """End the attempt of a request that has ended unseen; where the core fails, `repay` tries again."""
        self._owed.append(attempt)
        self.repay()

    def repay(self) -> bool:
        """Settle what is owed, as far as the core works (again). False: some is still owed. Never raises."""
        owed, self._owed = self._owed, []
        for attempt in owed:
            try:
                self._driver.settle(attempt, AttemptResult(Outcome(OutcomeKind.CANCELLED, "ended unseen")))
            except ContractError:
                continue  # its own settle had come so far before it failed
            except Exception as error:  # noqa: BLE001 - the guard's own guard
                logger.warning("hivemind: settling failed too: %r", error)
                self._owed.append(attempt)
        return not self._owed

    async def enter(self, key: PoolKey) -> None:
        """Wait for one of the pool's last limit of places. Must be followed by `leave`, exactly once."""
        if key not in self._semaphores:
            limit = 1
            with self.second_line("reading a limit"):
                limit = max(1, self._driver.limit_of(key))
            self._semaphores[key] = asyncio.Semaphore(limit)
        await self._semaphores[key].acquire()
        self._holders[key] += 1
        with self.second_line("counting a bypass"):
            self._driver.bypass(key, +1)

    def leave(self, key: PoolKey) -> None:
        """Give the place back. The semaphore goes with its last holder, so that a later trip reads a new limit."""
        semaphore = self._semaphores[key]
        semaphore.release()
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            if not semaphore.locked():  # nobody waits for it, either
                del self._semaphores[key]
        with self.second_line("counting a bypass"):
            self._driver.bypass(key, -1)
