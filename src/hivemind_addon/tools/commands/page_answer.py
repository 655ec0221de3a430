"""What the page asks of files: answered in a process of its own, from the journal and the fleets' folders."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from hivemind_addon.plugins.fleets.tasks import picture
from hivemind_addon.plugins.fleets.tasks.model import FleetView, NotTaken
from hivemind_addon.plugins.fleets.tasks.store import fleets, open_fleet
from hivemind_addon.proxy.api.page_questions import (
    ChartsQuestion,
    FleetPicture,
    FleetQuestion,
    FleetsQuestion,
    FleetSummary,
    FleetTask,
    NothingKnown,
    PastCharts,
    PastIncident,
    PastQuestion,
    RequestStory,
    SessionNode,
    StoryQuestion,
)
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.commands import history_view as view
from hivemind_addon.tools.history import history, over_time
from hivemind_addon.tools.history.filters import Span
from hivemind_addon.tools.history.incident_history import read_incidents
from hivemind_addon.tools.history.reader import JournalReader
from hivemind_addon.tools.history.verdict import verdict

_NICER = 10
"""The page may wait; requests may not."""
_MOST_FLEETS = 50
_MOST_INCIDENTS = 200
_MOST_SESSIONS = 200
_NEAR_S = 86_400.0
"""A session tree includes sessions from a day before the request to a day after."""


def answer(journal: Path, question: str) -> str:
    """As JSON. Raises msgspec.MsgspecError for what is no question, NoJournal."""
    os.nice(_NICER)
    asked: PastQuestion = msgspec.json.decode(question, type=PastQuestion)
    told: Struct | list[FleetSummary]
    match asked:
        case ChartsQuestion():
            told = _from(journal, lambda reader: _charts(reader, asked))
        case StoryQuestion(ticket_id):
            told = _from(journal, lambda reader: _story(reader, ticket_id))
        case FleetsQuestion():
            told = [_summary(one.view()) for one in fleets()[:_MOST_FLEETS]]
        case FleetQuestion(fleet_id):
            told = _fleet(fleet_id)
    return msgspec.json.encode(told).decode()


def _from[R: Struct](journal: Path, read: Callable[[JournalReader], R]) -> R:
    with JournalReader(journal) as reader:
        return read(reader)


def _charts(journal: JournalReader, asked: ChartsQuestion) -> PastCharts:
    now = SystemClock().wall()
    told = read_incidents(journal, Span(asked.incidents_since, asked.until), now)
    return PastCharts(
        parts=tuple(over_time.parts(journal, Span(asked.since, asked.until), asked.part_s)),
        costs=tuple(over_time.costs(journal, Span(asked.costs_since, asked.until), by_day=asked.by_day)),
        incidents=tuple(
            PastIncident(one.began, one.ended, one.pool, ", ".join(kind.value for kind in one.kinds), one.ending)
            for one in told[-_MOST_INCIDENTS:]
        ),
    )


def _story(journal: JournalReader, ticket_id: str) -> RequestStory | NothingKnown:
    found = history.find(journal, ticket_id, 1)
    if found.what != "request":
        return NothingKnown(f"the journal knows no request {ticket_id}")
    (story,) = history.biographies(journal, found.tickets)
    ticket = story.ticket
    beside = {
        "ticket_id": ticket.id,
        "verdict": verdict([ticket], story.attempts),
        "summary": view.summary(story, SystemClock().wall()),
        "facts": tuple(view.facts(story)),
        "lines": tuple(view.story(story)),
        "tree": tuple(_tree(journal, ticket.lineage, ticket.arrived)),
    }
    return msgspec.convert(msgspec.structs.asdict(ticket) | beside, RequestStory)


def _tree(journal: JournalReader, lineage: str, at: float) -> list[SessionNode]:
    """The sessions of one root, as they came. No index leads to a root's requests, so their time has to."""
    return journal.answers(
        SessionNode,
        """
        SELECT r.agent, r.session, max(r.parent_session) AS parent_session, count(DISTINCT r.id) AS requests,
            count(DISTINCT CASE WHEN r."end" = 'delivered' THEN r.id END) AS delivered,
            CAST(total(a.micro_usd) AS INTEGER) AS micro_usd, CAST(total(a.tokens) AS INTEGER) AS tokens,
            min(r.arrived) AS first, max(coalesce(r.ended, r.arrived)) AS last,
            substr(max(printf('%016.3f', r.arrived) || r.id), 17) AS newest_id
        FROM requests r LEFT JOIN attempts a ON a.ticket = r.id
        WHERE r.arrived >= ? AND r.arrived < ? AND r.lineage = ? AND r.lineage != ''
        GROUP BY r.agent, r.session ORDER BY first LIMIT ?
        """,
        (at - _NEAR_S, at + _NEAR_S, lineage, _MOST_SESSIONS),
    )


def _fleet(fleet_id: str) -> FleetPicture | NothingKnown:
    try:
        told = open_fleet(fleet_id).view()
    except NotTaken as error:
        return NothingKnown(str(error))
    tasks = tuple(
        FleetTask(
            name=one.id.partition("/")[2],
            state=one.state.value,
            depends_on=one.depends_on,
            parent=one.parent.partition("/")[2],
            agent=one.agent_name,
            reason=one.reason,
            attempts=one.attempts,
            began=one.began_wall,
            ended=one.ended_wall,
        )
        for one in told.tasks
    )
    return FleetPicture(_summary(told), told.at_most, tasks)


def _summary(told: FleetView) -> FleetSummary:
    return FleetSummary(
        fleet_id=told.id,
        source=Path(told.source).name if told.source else "",
        began=told.began_wall,
        ended=told.ended_wall,
        runs=told.runner_pid is not None,
        counts=picture.counts(told),
    )
