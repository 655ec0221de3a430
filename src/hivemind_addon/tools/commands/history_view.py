"""The answers of a journal, as rows for programs and tables, and as lines for people."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from textwrap import TextWrapper
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct

from hivemind_addon.proxy.api.page_questions import StoryLine
from hivemind_addon.proxy.api.pool_words import held_words
from hivemind_addon.proxy.api.words import amount, brief, count, printable, several, span
from hivemind_addon.proxy.journal.tables import AttemptRow, BudgetRow
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.commands.printing import Format, Row, Words, print_rows
from hivemind_addon.tools.commands.times import day, hour, iso, shown
from hivemind_addon.tools.history.filters import OPEN
from hivemind_addon.tools.history.history import Biography
from hivemind_addon.tools.history.incidents import Incident
from hivemind_addon.tools.history.verdict import fate_of, verdict, verdict_head
from hivemind_addon.tools.history.views import LOST

_MOST_REASONS = 8
_HOUR = re.compile(r"  \d\d:\d\d:\d\d ")
_TEXT_AT = 21
"""The column where the text of a moment begins."""
_NOW_S = 0.05
"""Shorter waits are not mentioned."""


# Rows -----------------------------------------------------------------------------------------------------------------

_INSTANTS = ("arrived", "admitted", "began", "seen", "ended", "at", "retry_at")


def dollars(micro_usd: int) -> str:
    """An amount of money; empty: none."""
    return amount("micro_usd", micro_usd) if micro_usd else ""


_WORDS: Words = {
    **dict.fromkeys(("tokens_in", "tokens_cached", "tokens_out", "tokens"), count),
    **dict.fromkeys(("waited_s", "lasted_s", "window_s"), brief),
    **dict.fromkeys(("micro_usd", "wasted_micro_usd"), dollars),
    # These numbers are names: they get no thousands separators. Port 0 is unknown.
    **dict.fromkeys(("pid", "number"), str),
    "port": lambda port: str(port or ""),
}


def print_listing(
    rows: Iterable[Struct | Row],
    columns: str,
    form: Format,
    *,
    title: str = "",
    none: str = "nothing",
    words: Words = MappingProxyType({}),
    spare: str = "",
) -> None:
    """Print rows as `print_rows` does, with instants and amounts in words, and instants as text for programs.

    `columns` are a table's, as in `arrived=Came agent gave_up?`: a heading may follow a key, and a column with `?` is
    left out where all its cells are empty or zero. `spare`: keys, as in `print_rows`.
    """
    listed = [dated(row) for row in rows]
    headings = {}
    for column in columns.split():
        mark, _, heading = column.partition("=")
        key = mark.removesuffix("?")
        if mark == key or any(row.get(key) for row in listed):
            headings[key] = (heading or key).replace("_", " ").capitalize()
    hours: Words = dict.fromkeys(_INSTANTS, partial(shown, now=SystemClock().wall()))
    print_rows(listed, headings, form, title=title, none=none, words={**hours, **_WORDS, **words}, spare=spare.split())


def print_requests(rows: Iterable[Struct | Row], form: Format, none: str = "nothing") -> None:
    """Print requests with their sums."""
    print_listing(
        rows,
        "arrived=came id=request agent model task end proxy? attempts=tries waited_s=waited tokens_in=in"
        " tokens_cached=cached tokens_out=out micro_usd=cost",
        form,
        none=none,
        words={"end": lambda end: end or OPEN},
        spare="task model tokens_cached tokens_out tokens_in",
    )


def dated(row: Struct | Row) -> dict[str, Any]:
    """The fields of a row, each instant followed by the same instant as text."""
    fields: Row = msgspec.to_builtins(row) if isinstance(row, Struct) else row
    dated: dict[str, Any] = {}
    for name, value in fields.items():
        dated[name] = value
        if name in _INSTANTS:
            dated[f"{name}_iso"] = iso(value)  # type: ignore[arg-type]
    return dated


def whole(biography: Biography) -> dict[str, object]:
    """A request with everything about it."""
    return {
        **dated(biography.ticket),
        "verdict": verdict([biography.ticket], biography.attempts),
        "tries": [dated(attempt) | {"fate": fate_of(attempt).value} for attempt in biography.attempts],
        "waits": list(map(dated, biography.waits)),
        "happenings": list(map(dated, biography.happenings)),
    }


def incident_row(number: int, incident: Incident, now: float) -> dict[str, object]:
    """An incident with the number that asks for it."""
    ended = incident.ended
    return {
        "number": number,
        "pool": incident.pool,
        "what": ", ".join(kind.value for kind in incident.kinds),
        **dated({"began": incident.began, "ended": ended}),
        "lasted_s": round(max(0.0, (now if ended is None else ended) - incident.began), 3),
        "ending": incident.ending or "not over",
    }


def account_row(account: BudgetRow) -> dict[str, object]:
    """An account, with amounts in words beside the whole numbers."""
    row = dated(account)
    row["holder"] = f"{account.scope} {account.name}".strip()
    for name in ("limit", "spent", "reserved", "added"):
        values = ((unit, row[f"{name}_{unit}"]) for unit in ("tokens", "micro_usd", "calls"))
        row[name] = ", ".join(amount(*pair) for pair in values if pair[1] or (name == "limit" and pair[1] is not None))
    if account.spent_unpriced_tokens:
        row["spent"] = f"{row['spent']} ({amount('tokens', account.spent_unpriced_tokens)} not counted in money)"
    return row


# Lines ----------------------------------------------------------------------------------------------------------------


def story(biography: Biography) -> list[StoryLine]:
    """A request from the arrival to the end, in order."""
    ticket = biography.ticket
    lines = [(ticket.arrived, 0, "came")]
    lines += [(wait.began, 1, held_words(wait.position, wait.reason)) for wait in biography.waits]
    for attempt in biography.attempts:
        lines += _of_attempt(attempt)
    lines += [(row.at, 5, re.sub(rf"^{re.escape(ticket.id)}:? ", "", row.text)) for row in biography.happenings]
    if ticket.end:
        reason = f": {ticket.reason}" if ticket.reason and ticket.end != "delivered" else ""
        end = ticket.reason or "its proxy died" if ticket.end == LOST else ticket.end + reason
        lines.append((_end_of(biography), 9, end))
    return [StoryLine(at, printable(text)) for at, _, text in sorted(lines, key=lambda line: line[:2])]


def _end_of(biography: Biography) -> float:
    """The end of a lost request is unknown, but not before the proxy was last seen, nor before the last attempt."""
    ticket, run = biography.ticket, biography.run
    if ticket.ended is not None and ticket.end != LOST:
        return ticket.ended
    known = [ticket.ended or ticket.arrived, run.seen if run else ticket.arrived]
    return max(*known, *(attempt.ended or attempt.began for attempt in biography.attempts))


def _of_attempt(attempt: AttemptRow) -> Iterator[tuple[float, int, str]]:
    beside = f", {attempt.in_flight} in flight" if attempt.in_flight > 1 else ""
    waited = f" after {span(attempt.waited_s)}" if attempt.waited_s >= _NOW_S else ""
    yield attempt.began, 2, f"attempt {attempt.attempt} sent{waited}{beside}"
    if attempt.outcome == LOST:
        parts = [f"attempt {attempt.attempt}: nobody knows its end", _booked(attempt)]
        yield attempt.began, 3, "; ".join(filter(None, parts))
    elif attempt.ended is not None:
        text = f"{attempt.reason or attempt.outcome}, in {span(attempt.ended - attempt.began)}"
        parts = [f"attempt {attempt.attempt}: {text}", _used(attempt), _booked(attempt)]
        yield attempt.ended, 3, "; ".join(filter(None, parts))
        if attempt.retry_reason and attempt.retry_at is not None:
            again_s = max(0.0, attempt.retry_at - attempt.ended)
            yield attempt.ended, 4, f"again in {span(again_s)} ({attempt.retry_reason})"


def _used(attempt: AttemptRow) -> str:
    cached, written = attempt.cache_read_tokens or 0, attempt.cache_write_tokens or 0
    into = (attempt.input_tokens or 0) + cached + written
    if not into and not attempt.output_tokens:
        return ""
    caches = ", ".join(f"{tokens:,} {name}" for tokens, name in ((cached, "cached"), (written, "written")) if tokens)
    counted = "" if attempt.reported else ", by our count"
    return f"{into:,} in{f' ({caches})' if caches else ''} + {attempt.output_tokens or 0:,} out{counted}"


def _booked(attempt: AttemptRow) -> str:
    if attempt.micro_usd:
        return ("booked with " if attempt.outcome == LOST else "") + amount("micro_usd", attempt.micro_usd)
    return "" if _used(attempt) or not attempt.tokens else f"booked with {attempt.tokens:,} tokens"


def biography_lines(biography: Biography, now: float) -> Iterator[str]:
    """A request for people."""
    ticket = biography.ticket
    yield f"{ticket.id} {verdict([ticket], biography.attempts)}"
    yield ""
    yield from (f"  {printable(line)}" for line in (*facts(biography), summary(biography, now)))
    yield ""
    yield from _by_day(story(biography), ticket.arrived, now)


def facts(biography: Biography) -> Iterator[str]:
    """The client, the model and the kind of the request, a line each."""
    ticket = biography.ticket
    group = f" of group {ticket.group}" if ticket.group else ""
    yield f"agent {ticket.agent}{group}, session {ticket.session}"
    names = (("task", ticket.task), ("Idempotency-Key", ticket.idempotency_key))
    if named := ", ".join(f"{kind} {name}" for kind, name in names if name):
        yield named
    yield f"{ticket.model} at {ticket.pool}"
    yield f"{ticket.kind}, {ticket.priority} priority, {'streamed' if ticket.streamed else 'not streamed'}"


def summary(biography: Biography, now: float) -> str:
    """The time, wait, attempts and cost of a request, in a line."""
    ticket, attempts = biography.ticket, biography.attempts
    parts = [f"came {shown(ticket.arrived, now)}"]
    if ticket.end and ticket.end != LOST:
        parts.append(f"ended after {span(max(0.0, _end_of(biography) - ticket.arrived))}")
    parts.append(f"waited {span(ticket.waited_s)}" if ticket.waited_s >= _NOW_S else "")
    parts += several(len(attempts), "attempt"), dollars(ticket.micro_usd)
    return ", ".join(filter(None, parts))


def incident_lines(
    incident: Incident, number: int, aftermath: Mapping[str, Any], timeline: Sequence[StoryLine], now: float
) -> Iterator[str]:
    """An incident for people."""
    ended = incident.ended
    lasted = brief((now if ended is None else ended) - incident.began)
    kinds = ", ".join(kind.value for kind in incident.kinds)
    yield printable(f"incident {number}: {kinds}{f' at {incident.pool}' if incident.pool else ''}")
    yield ""
    until = f"to {shown(ended, now)}, {lasted}" if ended is not None else f"and is not over after {lasted}"
    yield f"  from {shown(incident.began, now)} {until}"
    if incident.ending:
        yield printable(f"  ended: {incident.ending}")
    yield from (f"  {line}" for line in _aftermath_lines(aftermath))
    yield ""
    yield from _by_day(timeline, incident.began, now)


def _by_day(lines: Iterable[StoryLine], began: float, now: float) -> Iterator[str]:
    """Lines with their hour and the seconds after the beginning; a line with the day stands before another day's."""
    last = "today"
    for line in lines:
        its_day, after_s = day(line.at, now), line.at - began
        if its_day != last:
            yield f"  {its_day}"
        last = its_day
        sign = "-" if after_s < -_NOW_S else "+"
        yield f"  {hour(line.at)}  {sign + brief(abs(after_s)):>7}  {printable(line.text)}"


_BECAME = {
    "delivered": "delivered",
    "shed": "told to come back",
    "gave_up": "gave up",
    "refused": "refused",
    "cancelled": "cancelled",
    "lost": "lost with the proxy",
    "unfinished": "not over",
}


def _aftermath_lines(sums: Mapping[str, Any]) -> Iterator[str]:
    became = ", ".join(f"{sums[end]:,} {words}" for end, words in _BECAME.items() if sums[end])
    waited = f", {sums['waited']:,} of them waited" if sums["waited"] else ""
    yield f"{several(sums['requests'], 'request')} in that time{waited}{f': {became}' if became else ''}"
    if not sums["failed_attempts"]:
        yield "no attempt failed"
        return
    cost = " and ".join(amount(unit, sums[unit]) for unit in ("tokens", "micro_usd") if sums[unit])
    yield f"{several(sums['failed_attempts'], 'attempt')} failed, which cost {cost or 'nothing'}:"
    for reason, number in list(sums["reasons"].items())[:_MOST_REASONS]:
        yield printable(f"  {number:>6,}  {reason}")
    if (more := len(sums["reasons"]) - _MOST_REASONS) > 0:
        yield f"          and {several(more, 'other reason')}"
    retried = f"of the requests that failed so {sums['retried']:,} were tried again"
    yield f"{retried}, {sums['rescued']:,} were delivered after all"


def folded(lines: Iterable[str], width: int) -> Iterator[str]:
    """Break lines that are too long; the rest stands below the text."""
    for line in lines:
        indent = _TEXT_AT if _HOUR.match(line) else len(line) - len(line.lstrip()) + 2
        wrapper = TextWrapper(width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
        yield from wrapper.wrap(line) or [""]


def reasons_counted(reasons: str) -> str:
    """`529 overloaded_error; 529 overloaded_error; cut` as `2 x 529 overloaded_error; cut`."""
    counts = Counter(reasons.split("; "))
    return "; ".join(f"{number} x {reason}" if number > 1 else reason for reason, number in counts.items())


def task_verdict(stories: Sequence[Biography], *, has_more: bool) -> str:
    """The fates of a task's requests, in a sentence: `12 requests: 11 ran once, 1 never ran`."""
    heads = Counter(verdict_head(story.attempts, is_live=not story.ticket.end) for story in stories)
    words = ", ".join(f"{number:,} {head}" for head, number in heads.most_common())
    return f"{'the newest ' if has_more else ''}{several(len(stories), 'request')}: {words}"
