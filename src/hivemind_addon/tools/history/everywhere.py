"""What is asked of the journals of all proxies of a cluster: each answers for itself; the answers are put together."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from hivemind_addon.kernel.values.command import AskMembers, MemberAnswer
from hivemind_addon.proxy.api.control import CommandUnanswered, control_socket, send_command
from hivemind_addon.tools.history import history, sums
from hivemind_addon.tools.history.filters import RequestFilter, Span
from hivemind_addon.tools.history.history import RequestSummary
from hivemind_addon.tools.history.reader import JournalReader, NoJournal
from hivemind_addon.tools.history.sums import CostSum, GroupBy

_PATIENCE_S = 10.0
MOST = 10_000
"""Requests that one proxy tells."""


class JournalQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """What a journal is asked from elsewhere."""

    wanted: RequestFilter
    most: int = 0
    """The newest requests, so many at most; 0: sums."""
    by: GroupBy = GroupBy.AGENT
    """What sums are made for."""
    since: float | None = None
    until: float | None = None
    """The span: an open end has no number in JSON."""


def make_question(wanted: RequestFilter, *, most: int = 0, by: GroupBy = GroupBy.AGENT) -> str:
    """As it is sent."""
    span = wanted.span
    return msgspec.json.encode(
        JournalQuestion(
            wanted=msgspec.structs.replace(wanted, span=Span(0.0, 0.0)),
            most=most,
            by=by,
            since=None if span.since == float("-inf") else span.since,
            until=None if span.until == float("inf") else span.until,
        )
    ).decode()


def answer(journal: JournalReader, question: str) -> str:
    """What a journal says to it, as JSON. Raises msgspec.MsgspecError for what is no question."""
    asked = msgspec.json.decode(question, type=JournalQuestion)
    usual = Span()
    span = Span(
        usual.since if asked.since is None else asked.since, usual.until if asked.until is None else asked.until
    )
    wanted = msgspec.structs.replace(asked.wanted, span=span)
    if asked.most:
        return msgspec.json.encode(history.requests(journal, wanted, min(asked.most, MOST))).decode()
    return msgspec.json.encode(sums.costs(journal, wanted, asked.by)).decode()


def ask_members(port: int, question: str) -> tuple[str, list[MemberAnswer]]:
    """Who answered, in words, and what each said. Raises NoJournal where the port's proxy cannot ask."""
    try:
        said = send_command(control_socket(port), AskMembers(question), timeout_s=_PATIENCE_S)
    except CommandUnanswered as error:
        raise NoJournal(f"--all asks the proxies of a cluster by the one on port {port}: {error}") from error
    if not said.done:
        raise NoJournal(said.text)
    return said.text, msgspec.convert(said.value, list[MemberAnswer])


def newest(answers: Iterable[MemberAnswer], most: int) -> list[tuple[str, RequestSummary]]:
    """The newest requests of all, newest first, each with its proxy."""
    found = [
        (one.member, row)
        for one in answers
        if one.answer
        for row in msgspec.json.decode(one.answer, type=list[RequestSummary])
    ]
    return sorted(found, key=lambda pair: -pair[1].arrived)[:most]


def together(answers: Iterable[MemberAnswer], by: GroupBy) -> list[CostSum]:
    """The sums of all."""
    found = [row for one in answers if one.answer for row in msgspec.json.decode(one.answer, type=list[CostSum])]
    return sums.merged(found, by)


def problems(answers: Sequence[MemberAnswer]) -> list[str]:
    """Who could not answer, and why."""
    return [f"{one.member}: {one.problem}" for one in answers if one.problem]
