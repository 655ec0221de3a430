"""The journal as an observer: takes every event, never waits, and is written by a thread of its own.

A disk that is slow, full or gone never makes the proxy wait or grow: what does not fit into a bounded buffer is
dropped, counted and told. What budgets have spent is never dropped, since only the last word on each account counts.
"""

import asyncio
import atexit
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Protocol

from hivemind_addon.kernel.values.events import (
    AccountNamed,
    BudgetBooked,
    Event,
    JobNoted,
    MeterLearned,
    PersonActed,
    PoolsMerged,
    StateUnsaved,
)
from hivemind_addon.kernel.values.spend import AccountState, Budget
from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.journal import runs
from hivemind_addon.proxy.journal.retention import JournalKeep
from hivemind_addon.proxy.journal.runs import Inherited
from hivemind_addon.proxy.journal.writer import Writer
from hivemind_addon.proxy.run.append_file import breathe
from hivemind_addon.proxy.system.clock import Clock

logger = logging.getLogger("hivemind")

KEPT = 20_000
"""Events that wait for the disk; some minutes of a busy fleet."""
SAVE_EVERY_S = 30.0
"""How often what the scheduler has learned is looked at; it is written where it has changed."""
SOON_S = 1.0
"""How soon it is looked at after something was learned."""
_GATHER_S = 0.05
"""How long the first of many events waits for the others, to be written at once; a proxy that dies loses no more.

So long, too, until orders are looked at that a person has given: they are kept as they stand, not as events.
"""
_SAVED_WITHIN_S: dict[type[Event], float] = {
    PersonActed: _GATHER_S,
    JobNoted: SOON_S,
    MeterLearned: SOON_S,
    AccountNamed: SOON_S,
    PoolsMerged: SOON_S,
}
"""How soon after an event what the scheduler exports is looked at."""
_AGAIN_S = 5.0
"""From a write that failed to the next one."""
_BATCH = 1_000
"""Events of one transaction."""
_BREATH = 250
"""Events between two chances for the event loop: half a millisecond. To hand over more often costs a request more than
all the rest of the journal (90 µs instead of 35 at 20, 2026-11)."""
_TRIM_EVERY_S = 600.0
START_S = 10.0
"""How long the start waits for the disk."""
FLUSH_S = 5.0
"""How long a stopping proxy waits for the disk."""


class Keeper(Protocol):
    """Whose state outlives the process; the driver."""

    def export(self) -> dict[str, object]:
        """Plain JSON values by name, which nobody changes any more."""

    def restore(self, kept: Mapping[str, object], standings: Sequence[AccountState]) -> None:
        """Take over what was exported, and how budgets stand, as far as it can be understood."""

    def count_in(self, standings: Sequence[AccountState]) -> None:
        """Add what was spent in the present periods of accounts before these were opened."""


class Journal:
    """An observer, to be called on the event loop from which it was made; ends with `close`."""

    def __init__(
        self,
        path: Path,
        *,
        keep: JournalKeep,
        keeper: Keeper,
        clock: Clock,
        note: Callable[[StateUnsaved], None],
        port: int = 0,
        fresh: bool = False,
    ) -> None:
        """`note` hears when nothing can be written, and when it can again.

        `port`: whose orders and budgets per run are taken over and kept; 0: nobody knows. `fresh`: none are taken over.
        """
        self._port = port
        self.path = path
        """May be changed by `follow`."""
        self._keep = keep
        self._keeper = keeper
        self._clock = clock
        self._note = note
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Event] = deque()
        """Both ends are safe to use from two threads."""
        self._spilled: dict[Budget, Event] = {}
        """The last word on each account, where there was no room; under `_sharing`, as the two below."""
        self._dropped = 0
        self._exported: dict[str, object] | None = None
        """What is to be kept, until the thread takes it."""
        self._sharing = threading.Lock()
        self._holder = f"process {os.getpid()}"
        self._is_deaf = False
        """There is no writing this file at all."""
        self._is_taken = False
        """Another proxy writes this file: what happens waits until that one ends, or we do."""
        self._beside: Writer | None = None
        """The thread's: writes what waits for another proxy's file into one of our own, lest it dies with us."""
        self._beside_path = path
        self._copied = 0
        """Of what waits, the first so many events are there."""
        self._inherited: Inherited | None = None
        self._answered = threading.Event()
        """The file is open, or it is known why not."""
        self._awake = threading.Event()
        self._is_woken = False
        """The thread has been woken for an event, and will take all that wait by then: it need not be again."""
        self._closing = threading.Event()
        self._closed = asyncio.Event()
        self._timer = self._loop.call_later(SAVE_EVERY_S, self._on_timer)
        self._soon: asyncio.TimerHandle | None = None
        self._kept: dict[str, str] = {}
        """The thread's: the last export, as JSON."""
        self._writer = Writer(
            clock=clock,
            warn=self._warn,
            unsaved=self._unsaved,
            inherited=self._on_inherited,
            port=port,
            fresh=fresh,
        )
        self._trim_at = clock.monotonic()
        """The thread's."""
        self._thread = threading.Thread(target=self._run, name="hivemind-journal", daemon=True)
        self._thread.start()
        atexit.register(self._end_with_process)

    def __repr__(self) -> str:
        return f"<Journal {self.path}, {len(self._waiting)} events wait>"

    def __call__(self, event: Event) -> None:
        """Take one event; never waits."""
        if self._is_deaf and not isinstance(event, BudgetBooked):
            return
        is_elsewhere = self._is_deaf or (self._is_taken and isinstance(event, BudgetBooked))
        if is_elsewhere or len(self._waiting) >= KEPT:
            self._spill(event)
            return
        self._waiting.append(event)
        if not self._is_woken:
            self._is_woken = True
            self._awake.set()
        if (within_s := _SAVED_WITHIN_S.get(type(event))) is not None:
            self._save_within(within_s)

    def restore(self) -> None:
        """Give the keeper what earlier runs have left. Waits for the disk, once, at the start, and not for ever.

        Where the disk takes longer it is given as soon as it is there.
        """
        self._keeper_waits = True
        if not self._answered.wait(START_S):
            self._say(f"the journal {self.path} does not open; going on without what it has, until it does")
        self._take_over()

    _keeper_waits = False
    """Nothing has been restored yet, and is to be."""

    def follow(self, path: Path, keep: JournalKeep) -> None:
        """Write there from now on, and keep so much."""
        self._keep = keep
        if path != self.path:
            self.path = path
            self._is_deaf = self._is_taken = False
            self._save()

    def is_at(self, port: int) -> None:
        """The proxy listens there; others who want the same file are told."""
        self._holder = f"the one at port {port}, process {os.getpid()}"
        self._awake.set()

    async def close(self) -> None:
        """Take no more; what waits is written if the disk takes it in time."""
        atexit.unregister(self._end_with_process)
        self._timer.cancel()
        self._save()
        if self._soon is not None:
            self._soon.cancel()
        self._closing.set()
        self._awake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._closed.wait()

    def _end_with_process(self) -> None:
        """A process that ends by itself has not died, be it that it never listened: its run ends, too."""
        self._closing.set()
        self._awake.set()
        self._thread.join(FLUSH_S)

    def _spill(self, event: Event) -> None:
        with self._sharing:
            if isinstance(event, BudgetBooked):
                self._spilled[_account(event)] = event
            else:
                self._dropped += 1

    def _save_within(self, seconds: float) -> None:
        due = self._loop.time() + seconds
        if self._soon is not None:
            if self._soon.when() <= due:
                return
            self._soon.cancel()
        self._soon = self._loop.call_at(due, self._save)

    def _on_timer(self) -> None:
        self._timer = self._loop.call_later(SAVE_EVERY_S, self._on_timer)
        self._save()

    def _save(self) -> None:
        """Hand the thread what is to be kept."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._is_deaf or self._is_taken:
            return
        try:
            exported = self._keeper.export()
        except Exception:
            logger.exception("hivemind: what was learned could not be exported")
            return
        with self._sharing:
            self._exported = exported
        self._awake.set()

    def _take_over(self) -> None:
        """Once: as it is asked for, or later when the disk has answered."""
        inherited = self._inherited
        if inherited is None or not self._keeper_waits:
            return
        self._keeper_waits = False
        kept: dict[str, object] = {}
        for name, text in inherited.kept.items():
            try:
                kept[name] = json.loads(text)
            except (ValueError, RecursionError, TypeError) as error:
                self._say(f"{name} in {self.path} cannot be used ({failing(error)}); starting fresh")
        try:
            self._keeper.restore(kept, inherited.standings(self._clock.wall()))
        except Exception:
            logger.exception("hivemind: what %s has could not be taken over; starting fresh", self.path)

    def _say(self, line: str) -> None:
        logger.warning("hivemind: %s", line)

    # The thread's ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        more = True  # what was left to delete, and the opening at the start
        while not self._closing.is_set():
            if self._writer.failure:
                self._closing.wait(_AGAIN_S)
            elif not more:
                self._awake.wait(self._writer.rest_s)
                self._closing.wait(_GATHER_S)
            elif self._answered.is_set():
                self._closing.wait(_GATHER_S)
            self._awake.clear()
            self._is_woken = False  # after it: an event in between is taken by this turn
            more = self._guarded_turn()
            self._answered.set()
        self._guarded_turn()
        if self._beside is not None:
            self._leave_beside()
        left = len(self._waiting)
        if left and not self._is_deaf:
            self._warn(f"the journal ends without the last {left} events: {self._writer.failure}")
        self._writer.close()
        self._tell(self._closed.set)

    def _write_beside(self) -> None:
        """Another proxy has the file: copy what waits for it into one of our own beside it, as long as that goes."""
        with self._sharing:
            booked = list(self._spilled.values())
        if not (self._waiting or booked):
            return
        if self._beside is None:
            self._beside_path = _free_beside(self.path)
            self._beside = Writer(
                clock=self._clock, warn=self._warn, unsaved=_ignore, inherited=_ignore, port=self._port
            )
        if self._beside.holder != self._holder:
            self._beside.listens(self._holder)
        if not self._beside.ready(self._beside_path):
            return
        ahead_s = self._ahead_s()
        while self._copied < len(self._waiting):  # its newest are near the end, where a deque is quick
            event = self._waiting[self._copied]
            self._beside.rows.take(event, ahead_s + event.at)
            self._copied += 1
            if not self._copied % _BREATH:
                breathe()
        for event in booked:
            self._beside.rows.take(event, ahead_s + event.at)
        self._beside.write({})

    def _leave_beside(self) -> None:
        """We end, and the other proxy still has the file."""
        assert self._beside is not None, "something is in it"
        if self._dropped:
            self._beside.rows.happened("EventsDropped", _missing(self._dropped), self._clock.wall())
        if self._is_taken and self._beside.write({}) and self._copied == len(self._waiting):
            self._waiting.clear()
            self._warn(
                f"{self.path} is still another proxy's: what happened here is in {self._beside_path} (--journal)"
            )
        self._beside.close()

    def _drop_beside(self) -> None:
        """All of it is in the journal now."""
        if self._beside is not None:
            self._beside.close()
            self._beside, self._copied = None, 0
            for side in ("", "-wal", "-shm", ".lock"):
                with suppress(OSError):
                    Path(f"{self._beside_path}{side}").unlink()

    def _guarded_turn(self) -> bool:
        try:
            return self._turn()
        except Exception:
            logger.exception("hivemind: the journal has failed; what it was to write is lost")
            self._writer.rows.written()
            return False

    def _turn(self) -> bool:
        """Write what waits. True: there is more to do soon."""
        path, writer = self.path, self._writer
        if not writer.ready(path):
            if writer.refused == path == self.path:
                self._is_taken = writer.waits_for_another
                self._is_deaf = not self._is_taken
                if self._is_deaf:
                    self._forget()
                else:
                    self._write_beside()
            return False
        if path != self.path:
            return True  # opening it took its time, and another was named meanwhile
        self._is_deaf = self._is_taken = False
        if writer.holder != self._holder:
            writer.listens(self._holder)
        while True:
            if not writer.failure:
                self._fold()
            if not writer.write(self._kept):
                return not writer.failure  # a damaged file was moved aside: go on with the next one
            if not self._waiting:
                break
        self._drop_beside()
        if standings := writer.spent_before():
            self._tell(lambda: self._keeper.count_in(standings))
        if self._closing.is_set() or self._clock.monotonic() < self._trim_at:
            return False
        if writer.trim(self._keep):
            return True
        self._trim_at = self._clock.monotonic() + _TRIM_EVERY_S
        return False

    def _forget(self) -> None:
        """What waits goes nowhere; but the last word on each account is kept until the file is ours."""
        last = {}
        self._copied = 0
        while self._waiting:
            event = self._waiting.popleft()
            if isinstance(event, BudgetBooked):
                last[_account(event)] = event
        with self._sharing:
            for account, event in last.items():
                spilled = self._spilled.get(account)
                if spilled is None or spilled.at < event.at:
                    self._spilled[account] = event

    def _fold(self) -> None:
        """Turn what waits into rows."""
        rows, ahead_s = self._writer.rows, self._ahead_s()
        for number in range(1, min(len(self._waiting), _BATCH) + 1):
            event = self._waiting.popleft()
            rows.take(event, ahead_s + event.at)
            if not number % _BREATH:
                breathe()
        if self._waiting:
            return
        with self._sharing:
            dropped, self._dropped = self._dropped, 0
            spilled, self._spilled = self._spilled, {}
            exported, self._exported = self._exported, None
        for event in spilled.values():
            rows.take(event, ahead_s + event.at)
        if dropped:
            rows.happened("EventsDropped", _missing(dropped), self._clock.wall())
            self._warn(f"the journal has lost {dropped} events: {self.path} was not written fast enough")
        if exported is not None:
            texts = {name: json.dumps(value, sort_keys=True, allow_nan=False) for name, value in exported.items()}
            self._kept = {runs.of_port(name, self._port): text for name, text in texts.items()}

    def _ahead_s(self) -> float:
        """What makes epoch seconds of the events' instants."""
        return self._clock.wall() - self._clock.monotonic()

    def _on_inherited(self, inherited: Inherited | None) -> None:
        self._inherited = inherited
        self._answered.set()
        if inherited is not None:
            self._tell(self._take_over)

    def _unsaved(self, reason: str) -> None:
        self._tell(lambda: self._note(StateUnsaved(at=self._clock.monotonic(), reason=reason)))

    def _warn(self, line: str) -> None:
        self._tell(lambda: self._say(line))

    def _tell(self, what: Callable[[], None]) -> None:
        """Do it on the loop, if that still runs."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what)


def _free_beside(path: Path) -> Path:
    """A name of our own beside a journal; one that another process has left is not touched."""
    names = chain([""], (f"-{number}" for number in count(2)))
    ours = (path.with_name(f"{path.stem}-{os.getpid()}{more}{path.suffix}") for more in names)
    return next(one for one in ours if not one.exists())


def _ignore(_: object) -> None:
    """Nobody needs to know."""


def _missing(events: int) -> str:
    return f"{events} events are missing: too many waited for the file"


def _account(event: BudgetBooked) -> Budget:
    return Budget(event.budget.scope, event.budget.name, event.budget.per)
