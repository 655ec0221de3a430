"""Questions to the journals of all proxies of a cluster: each proxy answers, and the answers are put together."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base import json_values
from hivemind_addon.proxy.api.command import AskMembers, MemberAnswer
from hivemind_addon.proxy.api.control import CommandUnanswered, control_socket, send_command
from hivemind_addon.tools.history import history, sums
from hivemind_addon.tools.history.filters import RequestFilter, Span
from hivemind_addon.tools.history.history import RequestRecord
from hivemind_addon.tools.history.reader import JournalReader, NoJournal
from hivemind_addon.tools.history.sums import GroupBy, Sums

_PATIENCE_S = 10.0
MOST = 10_000
"""Requests that a proxy sends."""


class JournalQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """A question to another proxy's journal."""

    wanted: RequestFilter
    most: int = 0
    """The newest requests, at most so many; 0: sums."""
    by: GroupBy = GroupBy.AGENT
    """The groups of the sums."""
    since: float | None = None
    until: float | None = None
    """The span: JSON has no number for an open end."""


def make_question(wanted: RequestFilter, *, most: int = 0, by: GroupBy = GroupBy.AGENT) -> str:
    """The question as JSON, in which infinity becomes null."""
    spanless = msgspec.structs.replace(wanted, span=Span(0.0, 0.0))
    asked = JournalQuestion(spanless, most, by, wanted.span.since, wanted.span.until)
    return msgspec.json.encode(asked).decode()


def answer(journal: JournalReader, question: str) -> str:
    """The journal's answer, as JSON. Raises msgspec.MsgspecError for anything but a question."""
    asked = json_values.decode(question, JournalQuestion)
    ends = {"since": asked.since, "until": asked.until}
    span = Span(**{name: instant for name, instant in ends.items() if instant is not None})
    wanted = msgspec.structs.replace(asked.wanted, span=span)
    if asked.most:
        return msgspec.json.encode(history.requests(journal, wanted, min(asked.most, MOST))).decode()
    return msgspec.json.encode(sums.costs(journal, wanted, asked.by)).decode()


def ask_members(port: int, question: str) -> tuple[str, list[MemberAnswer]]:
    """Which members answered, in words, and the answers. Raises NoJournal if the port's proxy cannot ask."""
    try:
        said = send_command(control_socket(port), AskMembers(question), timeout_s=_PATIENCE_S)
    except CommandUnanswered as error:
        raise NoJournal(f"--all asks the proxies of a cluster by the one on port {port}: {error}") from error
    if not said.done:
        raise NoJournal(said.text)
    return said.text, msgspec.convert(said.value, list[MemberAnswer])


def newest(answers: Iterable[MemberAnswer], most: int) -> list[tuple[str, RequestRecord]]:
    """The newest requests of all members, newest first, each with the member's name."""
    found = [
        (member.member, row)
        for member in answers
        if member.answer
        for row in json_values.decode(member.answer, list[RequestRecord])
    ]
    return sorted(found, key=lambda pair: -pair[1].arrived)[:most]


def together(answers: Iterable[MemberAnswer], by: GroupBy) -> list[Sums]:
    """The sums over all members."""
    return sums.merged((row for member in answers if member.answer for row in json_values.decode(member.answer)), by)
