"""A provider's usage report, exported from the console or by the API, beside the journal: by day (UTC) and model.

    JSON   buckets with `results`, as Anthropic's usage and cost reports and OpenAI's usage and costs have them
    CSV    the exports of both consoles, with any of the usual separators

Columns are recognised by name, however they are written. Parts of the input (uncached, cache writes, cache reads) add
up, unless the report counts cached tokens within the input, as OpenAI's does.
"""

# ruff: noqa: S608 - names and conditions are of our own, and every value is bound

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hivemind_addon.proxy.api.words import several
from hivemind_addon.tools.history.filters import Span, SqlConditions
from hivemind_addon.tools.history.reader import JournalReader

_NAMES: Mapping[str, tuple[str, ...]] = {
    "day": ("usage_date_utc", "usage_date", "date_utc", "date", "day", "starting_at", "start_time_iso", "start_time"),
    "end": ("ending_at", "end_time_iso", "end_time"),
    "model": ("model_version", "model", "model_name", "model_id", "snapshot_id", "line_item"),
    "uncached": ("usage_input_tokens_no_cache", "uncached_input_tokens", "input_tokens_no_cache"),
    "write": ("usage_input_tokens_cache_write", "cache_creation_input_tokens", "cache_write_tokens"),
    "write_5m": ("usage_input_tokens_cache_write_5m", "ephemeral_5m_input_tokens"),
    "write_1h": ("usage_input_tokens_cache_write_1h", "ephemeral_1h_input_tokens"),
    "read": ("usage_input_tokens_cache_read", "cache_read_input_tokens", "cache_read_tokens"),
    "cached": ("input_cached_tokens", "cached_input_tokens", "n_cached_context_tokens_total"),
    "input": ("input_tokens", "n_context_tokens_total", "prompt_tokens"),
    "output": ("usage_output_tokens", "output_tokens", "n_generated_tokens_total", "completion_tokens"),
    "dollars": ("cost_usd", "amount_value", "amount_usd", "cost"),
    "amount": ("amount",),
}
"""Kind of value → names of the column; the first name that a record has counts."""
_TOKENS = ("uncached", "write", "write_5m", "write_1h", "read", "input", "output")
_BESIDE = re.compile(
    r"object|currency|amount_currency|description|batch|service_tier|speed|inference_geo|context_window|token_type"
    r"|cost_type|usage_type|list_price_usd|api_source|quantity|num_model_requests|num_requests|n_requests|operation"
    r"|web_search\w*|server_tool_use\w*|(api_?key|workspace|project|user|organization|account)\w*|(input|output)_\w+_tokens"
)
"""Names that are known and tell nothing here."""
_EXPECTED = (
    "expected is a usage or cost report of Anthropic (usage_report/messages, cost_report) or OpenAI "
    "(organization/usage/completions, organization/costs): the API's JSON, or the CSV that the console exports"
)
_DATED = re.compile(r"[-@](20\d{6}|20\d\d-\d\d-\d\d)(?=$|-v\d)|-latest$|-v\d+(:\d+)?$")
_ALL = "(all models)"
_DAY_S = 86_400
_INSTANT = re.compile(r"\d{9,13}")
_DATE = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})")


class UnreadableBill(Exception):
    """A file is no usage report; the text is a line with the file and the cure."""


@dataclass(slots=True)
class Figures:
    """The use of a model on a day."""

    input: int = 0
    """All input, cached or not."""
    output: int = 0
    micro_usd: int = 0

    def add(self, other: "Figures") -> None:
        """Add others."""
        self.input += other.input
        self.output += other.output
        self.micro_usd += other.micro_usd


@dataclass(slots=True)
class Bill:
    """The sum of some reports."""

    figures: defaultdict[tuple[str, str], Figures] = field(default_factory=lambda: defaultdict(Figures))
    """Day and `model_key` → figures."""
    names: dict[str, str] = field(default_factory=dict)
    """`model_key` → the name in the report."""
    has_tokens: bool = False
    has_money: bool = False
    unknown: dict[str, None] = field(default_factory=dict)
    """Columns that nothing is known of."""

    @property
    def has_models(self) -> bool:
        """Whether the report tells models apart."""
        return any(self.names)


def model_key(name: str) -> str:
    """The same for all names of a model: the words, sorted, without vendor, region and date."""
    name = _DATED.sub("", name.strip().lower().rpartition("/")[2].rpartition("anthropic.")[2])
    return "-".join(sorted(re.split(r"[-_. ]+", _DATED.sub("", name)))) if name else ""


def read_bill(files: Sequence[Path]) -> Bill:
    """Add up reports. Raises UnreadableBill, OSError."""
    bill = Bill()
    for file in files:
        records = list(_records(file))
        if not records:
            raise UnreadableBill(f"{file} reports no usage: {_EXPECTED}")
        for where, record in records:
            _take(bill, record, f"{file}, {where}")
    return bill


def _records(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each line or result of a report, by normal names."""
    raw = file.read_bytes()
    try:
        text = raw.decode("utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise UnreadableBill(f"{file} is no text: {_EXPECTED}") from error
    if not text:
        raise UnreadableBill(f"{file} is empty: {_EXPECTED}")
    if text.startswith(("{", "[")):
        try:
            buckets = list(_buckets(json.loads(text)))
        except (ValueError, RecursionError) as error:
            raise UnreadableBill(f"{file} is broken JSON ({error}): {_EXPECTED}") from error
        for number, bucket in enumerate(buckets, start=1):
            yield f"result {number}", bucket
        return
    header = text.partition("\n")[0]
    delimiter = max(",;\t|", key=header.count)
    for number, row in enumerate(csv.DictReader(text.splitlines(), delimiter=delimiter), start=2):
        if any((value or "").strip() for name, value in row.items() if name is not None):
            named = {_normal(name): value for name, value in row.items() if name and value}
            yield f"line {number}", named | ({"decimal": ","} if delimiter == ";" else {})


def _buckets(value: object) -> Iterator[dict[str, Any]]:
    """The results of pages, each with the instants of its bucket."""
    if isinstance(value, list):
        for one in value:
            yield from _buckets(one)
    elif isinstance(value, dict):
        inner = value.get("data", value.get("results", value.get("result")))
        beside = {_normal(name): one for name, one in value.items() if not isinstance(one, list | dict)}
        if isinstance(inner, list):
            kept = {name: one for name, one in beside.items() if name in (*_NAMES["day"], *_NAMES["end"])}
            for one in _buckets(inner):
                yield kept | one
        else:
            for name, one in value.items():
                if isinstance(one, dict):
                    prefix = "" if name == "cache_creation" else f"{name}_"
                    beside |= {_normal(prefix + key): within for key, within in one.items()}
            yield beside


def _normal(name: str) -> str:
    return re.sub(r"\W+", "_", name.strip().lower()).strip("_")


def _take(bill: Bill, record: Mapping[str, Any], where: str) -> None:
    # The first of the names counts.
    told = (name for name, value in record.items() if value not in (None, ""))
    present = set(told)
    known = {what: name for what, names in _NAMES.items() for name in reversed(names) if name in present}
    tells_tokens = any(what in known for what in _TOKENS)
    tells_money = "dollars" in known or "amount" in known
    if "day" not in known or not (tells_tokens or tells_money):
        raise UnreadableBill(f"{where}: neither tokens nor dollars of a day ({', '.join(record)[:200]}); {_EXPECTED}")
    used = {*known.values(), "decimal"}
    bill.unknown |= dict.fromkeys(name for name in record if name not in used and not _BESIDE.fullmatch(name))
    bill.has_tokens |= tells_tokens
    bill.has_money |= tells_money
    name = str(record[known["model"]]).partition(", ")[0] if "model" in known else ""
    key = model_key(name)
    bill.names.setdefault(key, name)

    def number(what: str) -> float:
        return _number(record, known[what], where, tokens=what in (*_TOKENS, "cached")) if what in known else 0

    parts = sum(map(number, ("uncached", "write", "write_5m", "write_1h", "read")))
    # The amounts of Anthropic's cost report are cents.
    micro_usd = number("dollars") * 1e6 or number("amount") * (1e4 if "starting_at" in record else 1e6)
    figures = Figures(round(number("input") + parts), round(number("output")), round(micro_usd))
    bill.figures[_day(record, known, where), key].add(figures)


def _number(record: Mapping[str, Any], name: str, where: str, *, tokens: bool) -> float:
    value = record[name]
    text = re.sub(r"[\s'_$€]", "", str(value))
    last = max(text.rfind(","), text.rfind("."))
    digits = len(text) - last - 1
    mark = text[last] if last >= 0 else ""
    is_group = (
        text.count(mark) > 1
        or (tokens and digits == 3)
        or (mark == "," and digits == 3 and record.get("decimal") != ",")
    )
    if mark and isinstance(value, str):
        whole = re.sub("[,.]", "", text[:last])
        text = whole + ("" if is_group else ".") + text[last + 1 :]
    try:
        found = float(text)
    except ValueError as error:
        raise UnreadableBill(f"{where}: {name} is no number: {str(value)[:40]!r}") from error
    if not 0 <= abs(found) < 1e15:
        raise UnreadableBill(f"{where}: {name} is no number that can be: {str(value)[:40]!r}")
    return found


def _day(record: Mapping[str, Any], known: Mapping[str, str], where: str) -> str:
    """The day in UTC. A day of another time zone is part of two: such a report cannot be compared."""
    begins = _instant(record[known["day"]], where)
    ends = _instant(record[known["end"]], where) if "end" in known else begins
    begins_at_s = begins.timestamp() % _DAY_S
    if begins_at_s and ends - begins >= timedelta(days=1):
        raise UnreadableBill(
            f"{where}: its days begin at {begins:%H:%M} UTC, so they are of another time zone; export it by days of UTC"
        )
    return f"{begins:%Y-%m-%d}"


def _instant(value: object, where: str) -> datetime:
    text = str(value).strip()
    try:
        if _INSTANT.fullmatch(text.partition(".")[0]):
            seconds = float(text)
            return datetime.fromtimestamp(seconds / 1000 if seconds > 1e11 else seconds, UTC)
        if date := _DATE.fullmatch(text):
            return datetime(*map(int, date.groups()), tzinfo=UTC)  # type: ignore[misc, arg-type]  # three numbers
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError) as error:
        raise UnreadableBill(f"{where}: no day: {text[:40]!r}; write 2026-01-31") from error
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)


def compare(bill: Bill, journal: JournalReader, pool: str, tolerance: float) -> list[dict[str, Any]]:
    """A row for each day and model: theirs, ours, and whether these differ by more than the tolerance, a fraction.

    Ours are the calls at `pool`, a glob; without it those of all hosts that served a model of the report.
    """
    days = sorted(day for day, _ in bill.figures)
    first = datetime.fromisoformat(days[0]).replace(tzinfo=UTC).timestamp()
    last = datetime.fromisoformat(days[-1]).replace(tzinfo=UTC).timestamp() + _DAY_S
    where = SqlConditions()
    where.within("began", Span(since=first, until=last))
    where.matches(pool, "pool", "host")
    found = journal.rows(
        "SELECT date(began, 'unixepoch') AS day, model, host, sum(tokens_in) AS input, sum(tokens_out) AS output,"
        " sum(tokens) AS tokens, sum(micro_usd) AS micro_usd"
        f" FROM costs{where} GROUP BY 1, 2, 3",
        where.values,
    )
    hosts = {row["host"] for row in found if pool or not bill.has_models or model_key(str(row["model"])) in bill.names}
    ours: defaultdict[tuple[str, str], Figures] = defaultdict(Figures)
    names = dict(bill.names)
    for row in found:
        if row["host"] in hosts:
            key = model_key(str(row["model"])) if bill.has_models else ""
            names.setdefault(key, str(row["model"]))
            # What was booked without a report of its parts is output, too: the whole is what budgets count.
            rest = max(0, int(row["tokens"] or 0) - int(row["input"] or 0))
            ours[str(row["day"]), key].add(Figures(int(row["input"] or 0), rest, int(row["micro_usd"] or 0)))
    keys = sorted({*bill.figures, *ours}, key=lambda one: (one[0], names[one[1]]))
    return [
        _row(bill, day, names[key] or _ALL, bill.figures.get((day, key), Figures()), ours[day, key], tolerance)
        for day, key in keys
    ]


def _row(bill: Bill, day: str, model: str, theirs: Figures, ours: Figures, tolerance: float) -> dict[str, Any]:
    units = [(theirs.input, ours.input), (theirs.output, ours.output)] if bill.has_tokens else []
    units += [(theirs.micro_usd, ours.micro_usd)] if bill.has_money else []
    whole = (theirs.input + theirs.output, ours.input + ours.output) if bill.has_tokens else units[-1]
    return {
        "day": day,
        "model": model,
        **({"their_input": theirs.input, "our_input": ours.input} if bill.has_tokens else {}),
        **({"their_output": theirs.output, "our_output": ours.output} if bill.has_tokens else {}),
        **({"tokens_difference": whole[1] - whole[0]} if bill.has_tokens else {}),
        "percent": round(100 * (whole[1] - whole[0]) / whole[0], 2) if whole[0] else None,
        **({"their_micro_usd": theirs.micro_usd, "our_micro_usd": ours.micro_usd} if bill.has_money else {}),
        "differs": any(abs(theirs - ours) > tolerance * max(theirs, ours) for theirs, ours in units),
    }


def unknown_columns(bill: Bill) -> str:
    """A line about columns that are not known; empty: all are."""
    names = list(bill.unknown)
    return f"{several(len(names), 'column')} not known, and not compared: {', '.join(names)[:300]}" if names else ""
