"""Events → lines for people, in mitmproxy's log and in the report: one for each change that is worth their attention.

What was told already is not told again, and of a crowd only the first few; the others are counted.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from hivemind_addon.kernel.values.events import (
    BackedOff,
    CommittedStreamFailed,
    ContextFull,
    ContextShrank,
    Event,
    MeterLearned,
    OddityNoted,
    PoolBlocked,
    Superseded,
    TicketEnded,
    WindowUsed,
)
from hivemind_addon.kernel.values.ticket import PoolKey
from hivemind_addon.proxy.api.event_text import NEWS, level_of, subject_of, text_of
from hivemind_addon.proxy.api.report import LogLine
from hivemind_addon.proxy.api.words import lasting, plain

logger = logging.getLogger("hivemind")

NOTICE = logging.INFO + 1
"""What a calm log (`hivemind run`) shows and mitmproxy's own INFO is below: its level `alert`."""
LINES = 200
"""The newest, which a report has."""
_KEPT = 1000
"""Oddities, and limits, that are remembered as told."""
_SAME = 0.1
"""A limit that has moved by less than this share is no news; a pace moves a little all the time."""
BURST = 5
"""Lines of one kind that are told one by one within `EVERY_S`."""
EVERY_S = 300.0
_KINDS_KEPT = 1000


@dataclass(slots=True)
class _Crowd:
    began_at: float
    told: int = 0
    counted: int = 0


class Repeats[Kind]:
    """Lines that come in a crowd: the first few are told, the others are counted. Time is passed."""

    def __init__(self) -> None:
        self._crowds: dict[Kind, _Crowd] = {}
        """Oldest first: each goes `EVERY_S` after it began."""

    def lets(self, kind: Kind, now: float) -> bool:
        """Whether a line of this kind is to be told; else it is counted. Call `over` first."""
        crowd = self._crowds.get(kind)
        if crowd is None:
            if len(self._crowds) >= _KINDS_KEPT:
                return True
            crowd = self._crowds[kind] = _Crowd(now)
        if crowd.told < BURST:
            crowd.told += 1
            return True
        crowd.counted += 1
        return False

    def over(self, now: float) -> list[tuple[Kind, int, float]]:
        """The crowds that are over, with how many lines were only counted and over how many seconds; each once."""
        ended = []
        while self._crowds:
            kind, crowd = next(iter(self._crowds.items()))
            if now - crowd.began_at < EVERY_S:
                break
            del self._crowds[kind]
            if crowd.counted:
                ended.append((kind, crowd.counted, now - crowd.began_at))
        return ended


class _Line(NamedTuple):
    at: float
    level: int
    text: str
    ticket_id: str | None
    pool: PoolKey | None
    agent: str
    """Whose ticket it is; empty: it is about none."""


class News:
    """An observer that writes what is news to the log, and keeps the newest lines. At DEBUG the log has everything."""

    def __init__(self, agent_of: Callable[[str], str] = lambda _: "", *, to_log: bool = True) -> None:
        """`agent_of`: a ticket's id → whose it is; empty: nobody knows, or it has ended before this event.

        `to_log`: false where the lines are only kept.
        """
        self._agent_of = agent_of
        self._to_log = to_log
        self._lines: deque[_Line] = deque(maxlen=LINES)
        self._oddities: set[tuple[object, str]] = set()
        self._limits: dict[tuple[PoolKey, str], float] = {}
        """Told ones, by pool and meter."""
        self._repeats: Repeats[tuple[PoolKey | None, str]] = Repeats()

    @property
    def hears(self) -> frozenset[type[Event]] | None:
        """The events that may be news; None: all, for a log at DEBUG."""
        return None if self._to_log and logger.isEnabledFor(logging.DEBUG) else NEWS

    def __call__(self, event: Event) -> None:
        """Tell one event, if it is news."""
        for (pool, what), counted, within_s in self._repeats.over(event.at):
            where = f"{pool}: " if pool else ""
            text = f"{where}{counted} more {what} within {lasting(within_s)}"
            self._tell(_Line(event.at, logging.INFO, text, None, pool, ""))
        level = level_of(event)
        if level >= logging.INFO or (self._to_log and logger.isEnabledFor(logging.DEBUG)):
            self._consider(event, level)

    def lines(self, now: float) -> tuple[LogLine, ...]:
        """The newest, oldest first."""
        return tuple(
            LogLine(
                ago_s=max(0.0, now - line.at),
                level=logging.getLevelName(line.level),
                text=line.text,
                ticket_id=line.ticket_id,
                pool=line.pool,
                agent=line.agent,
            )
            for line in self._lines
        )

    def _consider(self, event: Event, level: int) -> None:
        if not self._is_new(event):
            return
        pool, ticket_id, subject = getattr(event, "pool", None), getattr(event, "ticket_id", None), subject_of(event)
        text = f"{subject}: {text_of(event)}" if subject else text_of(event)
        line = _Line(event.at, level, text, ticket_id, pool, self._agent_of(ticket_id) if ticket_id else "")
        crowd = _crowd(event)
        if level >= logging.INFO and (crowd is None or self._repeats.lets((pool, crowd), event.at)):
            self._tell(line)
        elif self._to_log and logger.isEnabledFor(logging.DEBUG):
            _log(line)

    def _tell(self, line: _Line) -> None:
        self._lines.append(line)
        if self._to_log:
            _log(line)

    def _is_new(self, event: Event) -> bool:
        match event:
            case OddityNoted(_, pool, _, what):
                if (pool, what) in self._oddities or len(self._oddities) >= _KEPT:
                    return False
                self._oddities.add((pool, what))
            case MeterLearned(_, pool, meter, _, limit):
                known = self._limits.get((pool, meter))
                if abs(limit - known) <= _SAME * known if known is not None else len(self._limits) >= _KEPT:
                    return False
                self._limits[pool, meter] = limit
            case _:
                pass
        return True


def _crowd(event: Event) -> str | None:
    """What many of its kind are called together; None: each one is told."""
    match event:
        case TicketEnded():
            return f"requests {event.end}"
        case BackedOff():
            return "failed attempts"
        case PoolBlocked():
            return "pauses"
        case Superseded():
            return "clients that came back early"
        case CommittedStreamFailed():
            return "failures after keep-alives"
        case ContextFull():
            return "contexts that are full"
        case ContextShrank():
            return "compactions"
        case WindowUsed():
            return f"changes of window {event.window}"
        case MeterLearned():
            return f"changes of {event.meter}"
        case _:
            return None


def _log(line: _Line) -> None:
    level = NOTICE if line.level == logging.INFO else line.level
    logger.log(level, "hivemind: %s", f"{plain(line.agent)}: {line.text}" if line.agent else line.text)
