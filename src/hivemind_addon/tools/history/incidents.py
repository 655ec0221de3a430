"""Happenings become incidents: times in which something was wrong with a pool, or with the proxy. Pure.

    breaker open                    until it closes
    account block                   until it ends, or its end has come
    a pause of 30 s or more         as long as the provider asked for it
    ten failures in a row           hard ones, with no answer between them; until the next answer
    the proxy died                  from the last sign of life until the start of the next that ever listened
    guard trip, clock jump          an instant, or as long as the machine slept

Troubles of a pool with less than a minute between them are an incident. Troubles without a pool (a death, a jump of
the clock) belong to the incidents of that time; if there are none, the trouble is an incident by itself.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import groupby, zip_longest
from typing import Any

from msgspec import Struct

from hivemind_addon.kernel.values.snapshot import BreakerState
from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.proxy.api.page_questions import StoryLine
from hivemind_addon.proxy.api.words import lasting, several, span
from hivemind_addon.proxy.journal.tables import HappeningRow
from hivemind_addon.tools.history.history import RunRecord

QUIET_S = 60.0
"""Troubles with less time between them are in the same incident."""
LONG_PAUSE_S = 30.0
ROW = 10
"""Failures in a row that are an incident without a breaker, which opens only for failures of two sessions."""
EVENTS = (
    "BreakerChanged",
    "AccountBlocked",
    "AccountUnblocked",
    "PoolBlocked",
    "PoolsMerged",
    "GuardTripped",
    "MachineSlept",
)
"""Events that make incidents."""
HARD = frozenset({OutcomeKind.FAILED.value, OutcomeKind.OVERLOADED.value})
"""Outcomes that speak against the provider."""
_NEVER = float("inf")


class IncidentKind(Enum):
    """The kind of a trouble."""

    BREAKER = "provider down"
    ACCOUNT_BLOCK = "account refused"
    PAUSE = "told to wait"
    FAILURES = "failures in a row"
    DEATH = "proxy died"
    GUARD = "guard trip"
    CLOCK = "clock jump"


class Trouble(Struct, frozen=True):
    """Something that was wrong."""

    kind: IncidentKind
    pool: str
    """Empty: of no single pool."""
    began: float
    ended: float | None
    """None: not over."""
    cause: str
    ending: str
    """How the trouble ended; empty: not over."""


class Incident(Struct, frozen=True):
    """Troubles that belong together, in the order of their begins."""

    pool: str
    """Empty: of no single pool."""
    troubles: tuple[Trouble, ...]

    @property
    def began(self) -> float:
        """The beginning of the first trouble."""
        return self.troubles[0].began

    @property
    def ended(self) -> float | None:
        """The end of the last trouble; None: not over."""
        return None if any(one.ended is None for one in self.troubles) else max(map(_end, self.troubles))

    @property
    def kinds(self) -> tuple[IncidentKind, ...]:
        """The kinds of the troubles, each once."""
        return tuple(dict.fromkeys(one.kind for one in self.troubles))

    @property
    def ending(self) -> str:
        """How the incident ended; empty: not over."""
        return max(self.troubles, key=_end).ending if self.ended is not None else ""


class AttemptEnd(Struct, frozen=True):
    """The end of an attempt."""

    ended: float
    pool: str
    outcome: str
    reason: str


def incidents(
    happenings: Iterable[HappeningRow], runs: Sequence[RunRecord], rows: Iterable[Trouble], *, now: float, live: int
) -> list[Incident]:
    """Oldest first. `happenings` and `runs` in their order; `rows` are `failure_rows`.

    `live`: the run that goes on; 0: none, and a newest run without an end has died.
    """
    found = (*_of_happenings(happenings, runs, live), *_deaths(runs, live), *rows)
    troubles = [_ended(one, None, "") if _end(one) > now else one for one in found]
    ours: list[Incident] = []
    homeless = [one for one in troubles if not one.pool]
    for pool in dict.fromkeys(one.pool for one in troubles if one.pool):
        groups = _together([one for one in troubles if one.pool in (pool, "")])
        ours += [Incident(pool, group) for group in groups if any(one.pool for one in group)]
    housed = {id(one) for incident in ours for one in incident.troubles}
    ours += [Incident("", group) for group in _together([one for one in homeless if id(one) not in housed])]
    return sorted(ours, key=lambda one: (one.began, one.pool))


def failure_rows(ends: Iterable[AttemptEnd]) -> Iterator[Trouble]:
    """Rows of at least ten hard failures of one pool, in which no attempt was answered. `ends` in their order."""
    rows: dict[str, list[AttemptEnd]] = {}
    for end in ends:
        row = rows.setdefault(end.pool, [])
        if end.outcome in HARD:
            if row and end.ended - row[-1].ended > QUIET_S:
                yield from _row(row, None)
                row.clear()
            row.append(end)
        elif end.outcome != OutcomeKind.CANCELLED.value:  # that proves nothing
            yield from _row(row, end)
            row.clear()
    for row in rows.values():
        yield from _row(row, None)


def _row(row: Sequence[AttemptEnd], answer: AttemptEnd | None) -> Iterator[Trouble]:
    if len(row) >= ROW:
        ended = row[-1].ended if answer is None else answer.ended
        cause = f"{several(len(row), 'attempt')} in a row, the last one: {row[-1].reason}"
        ending = f"the last of {len(row)} failures in a row" if answer is None else "an attempt was answered"
        yield Trouble(IncidentKind.FAILURES, row[0].pool, row[0].ended, ended, cause, ending)


def _of_happenings(happenings: Iterable[HappeningRow], runs: Sequence[RunRecord], live: int) -> Iterator[Trouble]:
    open_: dict[tuple[int, str, IncidentKind], Trouble] = {}
    """By run: no breaker and no account block outlives a run. `ended` of a block is the announced end."""
    for one in happenings:
        fields = _fields(one)
        match one.event:
            case "BreakerChanged":
                key = one.run, one.pool, IncidentKind.BREAKER
                if fields.get("state") != BreakerState.CLOSED.value:
                    cause = str(fields.get("reason", ""))
                    open_.setdefault(key, Trouble(IncidentKind.BREAKER, one.pool, one.at, None, cause, ""))
                elif key in open_:
                    yield _ended(open_.pop(key), one.at, "the provider answered again")
            case "AccountBlocked":
                key = one.run, one.pool, IncidentKind.ACCOUNT_BLOCK
                began, end = open_[key].began if key in open_ else one.at, one.at + _lasts_s(fields)
                open_[key] = Trouble(key[2], one.pool, began, end, str(fields.get("reason", "")), "")
            case "AccountUnblocked":
                if block := open_.pop((one.run, one.pool, IncidentKind.ACCOUNT_BLOCK), None):
                    yield _ended(block, one.at, "the account was served again")
            case "PoolsMerged":
                merged = fields.get("merged")
                name = "/".join(map(str, merged.values())) if isinstance(merged, dict) else ""
                for kind in (IncidentKind.BREAKER, IncidentKind.ACCOUNT_BLOCK):
                    if trouble := open_.pop((one.run, name, kind), None):
                        yield _ended(trouble, one.at, f"its pool is {one.pool} now")
            case "PoolBlocked" if (lasts_s := _lasts_s(fields)) >= LONG_PAUSE_S:
                cause = f"{lasting(lasts_s)}: {fields.get('reason', '')}"
                yield Trouble(IncidentKind.PAUSE, one.pool, one.at, one.at + lasts_s, cause, "the pause was over")
            case "GuardTripped":
                ending = "the request went past the scheduler"
                yield Trouble(IncidentKind.GUARD, one.pool, one.at, one.at, one.text, ending)
            case "MachineSlept":
                slept_s = max(0.0, _number(fields.get("slept_s")))
                yield Trouble(IncidentKind.CLOCK, "", one.at - slept_s, one.at, one.text, "the clock runs on")
    runs_by_id = {run.id: run for run in runs}
    for (run_id, _, _), trouble in open_.items():
        yield _ended_with_run(trouble, runs_by_id.get(run_id), is_live=run_id == live)


def _ended_with_run(trouble: Trouble, run: RunRecord | None, *, is_live: bool) -> Trouble:
    """End a trouble that lasted until its run ended; `trouble.ended` is the announced end."""
    if run is None:
        stopped, ending = trouble.began, "nothing more is known"
    elif run.ended is not None:
        stopped, ending = run.ended, "the proxy was stopped"
    else:
        stopped, ending = (_NEVER if is_live else run.seen), "the proxy died"
    by_itself = _end(trouble)
    if by_itself <= stopped:
        return trouble if by_itself == _NEVER else _ended(trouble, by_itself, "its end had come")
    return _ended(trouble, max(trouble.began, stopped), ending)


def _deaths(runs: Sequence[RunRecord], live: int) -> Iterator[Trouble]:
    served = [run for run in runs if run.listened or run.id == live]  # one that never listened left nobody alone
    for run, following in zip_longest(served, served[1:]):
        if run is not None and run.ended is None and run.id != live:
            cause, ended, ending = f"process {run.pid} ended without a word", None, ""
            if following is not None:
                ended = max(run.seen, following.began)
                ending = f"the next one started {span(ended - run.seen)} later"
            yield Trouble(IncidentKind.DEATH, "", run.seen, ended, cause, ending)


def _together(troubles: Sequence[Trouble]) -> list[tuple[Trouble, ...]]:
    """Groups of troubles with little time between them, in order."""
    groups: list[list[Trouble]] = []
    end = -_NEVER
    for one in sorted(troubles, key=lambda one: one.began):
        if not groups or one.began > end + QUIET_S:
            groups.append([])
        groups[-1].append(one)
        end = max(end, _end(one))
    return [tuple(group) for group in groups]


def _ended(trouble: Trouble, at: float | None, ending: str) -> Trouble:
    return Trouble(trouble.kind, trouble.pool, trouble.began, at, trouble.cause, ending)


def _end(trouble: Trouble) -> float:
    return _NEVER if trouble.ended is None else trouble.ended


def _fields(happening: HappeningRow) -> dict[str, Any]:
    """The fields of the event; a line that was cut has none."""
    try:
        fields = json.loads(happening.fields)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _lasts_s(fields: dict[str, Any]) -> float:
    return max(0.0, _number(fields.get("until")) - _number(fields.get("at")))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def timeline(incident: Incident, happenings: Iterable[HappeningRow], most: int) -> list[StoryLine]:
    """The incident in at most about so many lines: the first and the last of repeated happenings."""
    lines: list[StoryLine] = []
    for trouble in incident.troubles:
        if trouble.kind in (IncidentKind.DEATH, IncidentKind.FAILURES):  # no happening says so
            lines.append(StoryLine(trouble.began, f"{trouble.kind.value}: {trouble.cause}"))
            if trouble.ended is not None and trouble.ended > trouble.began:
                lines.append(StoryLine(trouble.ended, trouble.ending))
    there = [one for one in happenings if one.pool in (incident.pool, "") or not incident.pool]
    for _, alike in groupby(there, key=lambda one: (one.event, _fields(one).get("state"))):
        lines += _few(list(alike), incident.pool)
    lines.sort(key=lambda line: line.at)
    if len(lines) > most:
        half = most // 2
        left_out = lines[half : len(lines) - half]
        lines[half : len(lines) - half] = [StoryLine(left_out[0].at, f"… {several(len(left_out), 'more line')}")]
    return lines


def _few(alike: Sequence[HappeningRow], pool: str) -> Iterator[StoryLine]:
    first, *more = (StoryLine(one.at, one.text.removeprefix(f"{pool}: ") if pool else one.text) for one in alike)
    yield first
    if more:
        times = f"… {len(more)} times more until here, the last: " if len(more) > 1 else ""
        yield StoryLine(more[-1].at, times + more[-1].text)
