"""Answers to the page, from the journal and the fleets' folders, in a separate process."""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base import json_values
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
"""A session tree covers a day before and after the request."""


def answer(journal: Path, question: str) -> str:
    """Answer in JSON. Raises msgspec.MsgspecError for anything but a question, NoJournal."""
    os.nice(_NICER)
    asked: PastQuestion = json_values.decode(question, PastQuestion)
    said: Struct | list[FleetSummary]
    match asked:
        case FleetsQuestion():
            said = [_summary(fleet.view()) for fleet in fleets()[:_MOST_FLEETS]]
        case FleetQuestion(fleet_id):
            said = _fleet(fleet_id)
        case ChartsQuestion() | StoryQuestion():
            with JournalReader(journal) as reader:
                said = _charts(reader, asked) if isinstance(asked, ChartsQuestion) else _story(reader, asked.ticket_id)
    return msgspec.json.encode(said).decode()


def _charts(journal: JournalReader, asked: ChartsQuestion) -> PastCharts:
    now = SystemClock().wall()
    found = read_incidents(journal, Span(asked.incidents_since, asked.until), now)
    return PastCharts(
        parts=tuple(over_time.parts(journal, Span(asked.since, asked.until), asked.part_s)),
        costs=tuple(over_time.costs(journal, Span(asked.costs_since, asked.until), by_day=asked.by_day)),
        incidents=tuple(
            PastIncident(one.began, one.ended, one.pool, ", ".join(kind.value for kind in one.kinds), one.ending)
            for one in found[-_MOST_INCIDENTS:]
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
    """The sessions of a root, in order. No index leads to a root's requests, only to their time."""
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
        fleet = open_fleet(fleet_id).view()
    except NotTaken as error:
        return NothingKnown(str(error))
    tasks = tuple(
        FleetTask(
            name=task.id.partition("/")[2],
            state=task.state.value,
            depends_on=task.depends_on,
            parent=task.parent.partition("/")[2],
            agent=task.agent_name,
            reason=task.reason,
            attempts=task.attempts,
            began=task.began_wall,
            ended=task.ended_wall,
        )
        for task in fleet.tasks
    )
    return FleetPicture(_summary(fleet), fleet.at_most, tasks)


def _summary(fleet: FleetView) -> FleetSummary:
    return FleetSummary(
        fleet_id=fleet.id,
        source=Path(fleet.source).name if fleet.source else "",
        began=fleet.began_wall,
        ended=fleet.ended_wall,
        runs=fleet.runner_pid is not None,
        counts=picture.counts(fleet),
    )
