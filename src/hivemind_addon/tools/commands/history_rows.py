"""What `hivemind history` prints as rows: the values of a journal as tables, JSON and CSV."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from hivemind_addon.api.spend import amount
from hivemind_addon.api.words import brief, count
from hivemind_addon.proxy.journal.tables import BudgetRow
from hivemind_addon.system.clock import SystemClock
from hivemind_addon.tools.commands.instants import iso, shown
from hivemind_addon.tools.commands.printing import Format, Row, Words, print_rows
from hivemind_addon.tools.history.asked import OPEN
from hivemind_addon.tools.history.history import Biography
from hivemind_addon.tools.history.incidents import Incident
from hivemind_addon.tools.history.reader import JournalReader
from hivemind_addon.tools.history.records import Listed, RunRecord
from hivemind_addon.tools.history.verdict import fate_of, verdict

AMOUNTS = (
    "limit_tokens",
    "limit_micro_usd",
    "spent_tokens",
    "spent_micro_usd",
    "reserved_tokens",
    "reserved_micro_usd",
    "added_tokens",
    "added_micro_usd",
)


def _dollars(micro_usd: int) -> str:
    return amount("micro_usd", micro_usd) if micro_usd else ""


_NUMBERS: Words = {
    "waited_s": brief,
    "tokens_in": count,
    "tokens_cached": count,
    "tokens_out": count,
    "tokens": count,
    "micro_usd": _dollars,
    "wasted_micro_usd": _dollars,
}
_INSTANTS = ("arrived", "began", "at")


def print_listing(
    rows: Sequence[Row],
    columns: Mapping[str, str],
    form: Format,
    *,
    title: str = "",
    none: str = "nothing",
    words: Words = MappingProxyType({}),
    headings: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """`headings`: the columns of CSV, which is for programs; `spare`: what a narrow terminal does without."""
    now = SystemClock().wall()
    hours: Words = {key: partial(shown, now=now) for key in _INSTANTS}
    chosen = {name: name for name in headings} if form is Format.CSV else columns
    # A process's number is no amount, nor is a port's; 0 is none.
    names: Words = {"pid": str, "number": str, "port": lambda port: str(port or "")}
    print_rows(rows, chosen, form, title=title, none=none, words={**hours, **_NUMBERS, **names, **words}, spare=spare)


def print_requests(rows: Sequence[Row], form: Format, none: str = "nothing") -> None:
    """Requests, each with what it has used."""
    columns = {"arrived": "Came", "id": "Request", "agent": "Agent", "model": "Model", "task": "Task", "end": "End"}
    columns |= {"attempts": "Tries", "waited_s": "Waited", "tokens_in": "In", "tokens_cached": "Cached"}
    columns |= {"tokens_out": "Out", "micro_usd": "Cost"}
    dates = ("arrived", "admitted", "ended")
    print_listing(
        [dated(row, *dates) for row in rows],
        columns,
        form,
        none=none,
        words={"end": lambda end: end or OPEN},
        headings=fields(Listed, *dates),
        spare=("task", "model", "tokens_cached", "tokens_out", "tokens_in"),
    )


def fields(kind: type[msgspec.Struct], *instants: str) -> tuple[str, ...]:
    """A value's fields, with the instants as text beside them."""
    return tuple(
        key for name in kind.__struct_fields__ for key in ((name, f"{name}_iso") if name in instants else (name,))
    )


def dated(row: Mapping[str, Any], *instants: str) -> dict[str, object]:
    """A row with its instants as text, too."""
    dated: dict[str, object] = {}
    for name, value in row.items():
        dated[name] = value
        if name in instants:
            dated[f"{name}_iso"] = iso(value)
    return dated


def summed(biography: Biography) -> dict[str, object]:
    """A request as it is listed."""
    tries = biography.attempts
    return msgspec.structs.asdict(biography.ticket) | {
        "tokens_in": sum(
            (one.input_tokens or 0) + (one.cache_read_tokens or 0) + (one.cache_write_tokens or 0) for one in tries
        ),
        "tokens_cached": sum(one.cache_read_tokens or 0 for one in tries),
        "tokens_out": sum(one.output_tokens or 0 for one in tries),
        "tokens": sum(one.tokens for one in tries),
        "micro_usd": sum(one.micro_usd for one in tries),
    }


def whole(biography: Biography) -> dict[str, object]:
    """A request with all that belongs to it."""
    return {
        **dated(summed(biography), "arrived", "admitted", "ended"),
        "verdict": verdict([biography.ticket], biography.attempts),
        "tries": [
            dated(msgspec.structs.asdict(one), "began", "ended", "retry_at") | {"fate": fate_of(one).value}
            for one in biography.attempts
        ],
        "waits": [dated(msgspec.structs.asdict(one), "began") for one in biography.waits],
        "happenings": [dated(msgspec.structs.asdict(one), "at") for one in biography.happenings],
    }


def incident_row(number: int, incident: Incident, now: float) -> dict[str, object]:
    """An incident under the number by which it is asked for."""
    ended = incident.ended
    return {
        "number": number,
        "pool": incident.pool,
        "what": ", ".join(kind.value for kind in incident.kinds),
        **dated({"began": incident.began, "ended": ended}, "began", "ended"),
        "lasted_s": round(max(0.0, (now if ended is None else ended) - incident.began), 3),
        "ending": incident.ending or "not over",
    }


def account_row(account: BudgetRow) -> dict[str, object]:
    """With its amounts as a person reads them beside the whole numbers."""
    row = dated(msgspec.structs.asdict(account), "began")
    row["holder"] = f"{account.scope} {account.name}".strip()
    for name in ("limit", "spent", "reserved", "added"):
        values = ((unit, row[f"{name}_{unit}"]) for unit in ("tokens", "micro_usd"))
        told = ((unit, value) for unit, value in values if isinstance(value, int) and (value or name == "limit"))
        row[name] = ", ".join(amount(unit, value) for unit, value in told)
    return row


def fate(journal: JournalReader, run: RunRecord) -> str:
    """What became of a run of the proxy."""
    if run.ended is not None:
        return "stopped"
    if run.id == journal.live_run:
        return "runs"
    return "died" if run.listened else "was killed while it started"
