"""What the page shows of the journal and of fleets: asked of another process, kept while it is fresh.

A question that has no answer yet is answered by `None`, and its asker comes again; meanwhile one process reads. What a
chart has of times in which nothing changes any more is not asked for twice: of a month the last hours are read anew.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from hivemind_addon.formats.base import json_values
from hivemind_addon.proxy.api.page_questions import (
    ChartsQuestion,
    FleetQuestion,
    FleetsQuestion,
    NothingKnown,
    PastCharts,
    PastCost,
    PastIncident,
    PastPart,
    PastQuestion,
    StoryQuestion,
)
from hivemind_addon.proxy.journal.questions import Unanswered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from hivemind_addon.proxy.system.clock import Clock

logger = logging.getLogger("hivemind")

_HOUR_S, _DAY_S = 3600.0, 86_400.0
SETTLED_S = 6 * _HOUR_S
"""So long after a part's end its requests have ended."""
MOST_AT_ONCE = 2
"""Processes that read."""
_MOST_WAITING = 20
_MOST_KEPT = 100
_LEAST_SHARE = 20
"""Reading takes at most this part of the time, however many look."""
_STORY_S, _FLEET_S, _PROBLEM_S = 3.0, 3.0, 5.0


class ChartSpan(Enum):
    """What a chart is of."""

    DAY = "day"
    MONTH = "month"

    @property
    def length_s(self) -> float:
        """From its beginning until now."""
        return _DAY_S if self is ChartSpan.DAY else 30 * _DAY_S

    @property
    def part_s(self) -> float:
        """Of one point."""
        return 600.0 if self is ChartSpan.DAY else 4 * _HOUR_S

    @property
    def cost_part_s(self) -> float:
        """Of one bar, about: a day in which clocks change has another length."""
        return _HOUR_S if self is ChartSpan.DAY else _DAY_S

    @property
    def fresh_s(self) -> float:
        """How long one chart is good."""
        return 30.0 if self is ChartSpan.DAY else 300.0


class ShownCharts(msgspec.Struct, frozen=True):
    """As the page gets it."""

    span: str
    since: float
    until: float
    part_s: float
    charts: PastCharts


@dataclass(slots=True)
class _Kept:
    answer: bytes
    good_until: float


class Past:
    """Answers from what other processes read. On the event loop, which it never holds up."""

    def __init__(self, *, ask: Callable[[str], Awaitable[str]], clock: Clock) -> None:
        """`ask` says what a question is answered, as JSON; it raises Unanswered."""
        self._ask = ask
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._settled: dict[ChartSpan, tuple[PastCharts, float]] = {}
        """What does not change any more, and the instant before which its incidents ended."""

    def charts(self, span: ChartSpan) -> bytes | None:
        """`ShownCharts` or `NothingKnown`, as JSON; None: it is being read, ask again."""
        return self._answer(f"charts {span.value}", span.fresh_s, lambda: self._charts(span))

    def story(self, ticket_id: str) -> bytes | None:
        """`RequestStory` or `NothingKnown`; None as above."""
        return self._answer(f"story {ticket_id}", _STORY_S, lambda: self._plain(StoryQuestion(ticket_id)))

    def fleets(self) -> bytes | None:
        """A list of `FleetSummary`; None as above."""
        return self._answer("fleets", _FLEET_S, lambda: self._plain(FleetsQuestion()))

    def fleet(self, fleet_id: str) -> bytes | None:
        """`FleetPicture` or `NothingKnown`; None as above."""
        return self._answer(f"fleet {fleet_id}", _FLEET_S, lambda: self._plain(FleetQuestion(fleet_id)))

    async def close(self) -> None:
        """Nothing is read any more."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _answer(self, key: str, fresh_s: float, make: Callable[[], Awaitable[bytes]]) -> bytes | None:
        """What is known, be it stale; then it is read anew meanwhile."""
        kept, now = self._kept.get(key), self._clock.monotonic()
        if (kept is None or now >= kept.good_until) and key not in self._asking:
            if len(self._asking) >= _MOST_WAITING:
                return kept.answer if kept else _problem("too much is asked for at once; it comes")
            self._asking[key] = asyncio.ensure_future(self._make(key, fresh_s, make))
        return kept.answer if kept else None

    async def _make(self, key: str, fresh_s: float, make: Callable[[], Awaitable[bytes]]) -> None:
        try:
            async with self._places:
                began_at = self._clock.monotonic()
                try:
                    answer = await make()
                except (Unanswered, msgspec.MsgspecError) as error:
                    answer, fresh_s = _problem(str(error)), _PROBLEM_S
                except Exception as error:  # the guard at the edge: the page has to be told
                    logger.exception("hivemind: the page's %s could not be read", key)
                    answer, fresh_s = _problem(f"hivemind_addon failed: {error!r}"), _PROBLEM_S
            now = self._clock.monotonic()
            self._kept.pop(key, None)
            self._kept[key] = _Kept(answer, now + max(fresh_s, _LEAST_SHARE * (now - began_at)))
            if len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        finally:
            del self._asking[key]

    async def _plain(self, question: PastQuestion) -> bytes:
        return (await self._ask(msgspec.json.encode(question).decode())).encode()

    async def _charts(self, span: ChartSpan) -> bytes:
        now, part_s = self._clock.wall(), span.part_s
        since = now - span.length_s
        since -= since % part_s
        known, incidents_since = self._settled.get(span, (PastCharts((), (), ()), since))
        parts, costs = _within(known.parts, since), _within(known.costs, since)
        question = ChartsQuestion(
            since=max((one.began + part_s for one in parts[-1:]), default=since),
            until=now,
            part_s=part_s,
            # The newest settled hour or day is read again: when the next one begins is the calendar's matter.
            costs_since=max((one.began for one in costs[-1:]), default=since),
            by_day=span is ChartSpan.MONTH,
            incidents_since=incidents_since,
        )
        told = json_values.decode(await self._plain(question), PastCharts)
        merged = PastCharts(
            (*parts, *told.parts),
            (*(one for one in costs if one.began < question.costs_since), *told.costs),
            (*(one for one in known.incidents if not _ended_by(one, since)), *told.incidents),
        )
        until = now - SETTLED_S
        settled = PastCharts(
            tuple(one for one in merged.parts if one.began + part_s <= until),
            tuple(one for one in merged.costs if one.began + span.cost_part_s <= until),
            tuple(one for one in merged.incidents if _ended_by(one, until)),
        )
        self._settled[span] = settled, until
        return msgspec.json.encode(ShownCharts(span.value, since, now, part_s, merged))


def _within[Timed: (PastPart, PastCost)](things: Iterable[Timed], since: float) -> tuple[Timed, ...]:
    return tuple(one for one in things if one.began >= since)


def _ended_by(incident: PastIncident, instant: float) -> bool:
    return incident.ended is not None and incident.ended < instant


def _problem(text: str) -> bytes:
    return msgspec.json.encode(NothingKnown(text))
