"""Times in headers, errors and sentences: how long to wait, and until when.

`parse_reset` reads a value: a timestamp, an epoch in seconds or milliseconds, a duration or a plain number. `wait_in`
reads a sentence: a span behind a word about coming back (`try again in 3 hours 20 minutes`), an epoch, or an instant
(`reset at 2026-11-28 03:59:59 +0800 CST`, `on Dec 1`, `resets Thu 3pm (America/New_York)`).
"""

import math
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from email.utils import parsedate_to_datetime
from zoneinfo import ZoneInfo

from hivemind_addon.formats.base.memo import by_text

LONGEST_S = 400 * 86_400.0
"""Monthly quotas exist; an end further away is a mistake."""
_CUT_S = 1.0
"""An instant in whole seconds may be cut, and then is up to so much later; Anthropic's headers of 2025-02-24 fit both
ways of rounding. Lateness costs a second, earliness a refusal. Delays are exact, by Anthropic's word (2026-08)."""
_MAX_VALUE_CHARS = 100
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)
_DURATION_PART = r"(\d+\.?\d*|\.\d+)(ms|us|µs|μs|ns|d|h|m|s)"
_DURATION = re.compile(f"(?:{_DURATION_PART})+", re.ASCII)
_DURATION_PARTS = re.compile(_DURATION_PART, re.ASCII)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)?", re.ASCII)
_DAY_S = 86_400.0
_UNIT_S = {"mo": 30 * _DAY_S, "w": 7 * _DAY_S, "d": _DAY_S, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "ns": 1e-9}
_UNIT_S |= dict.fromkeys(("us", "µs", "μs"), 1e-6)

_AMOUNT = re.compile(
    r"""(?:(?<![\d.])(\d{1,9}(?:\.\d{1,9})?)[\s-]{0,3}|\b(?:an?|one)\s)
    (m(?:illi)?s(?:ec\w*)?|mo(?:nth)?s?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:(?:ee)?ks?)?)
    (?![a-z])(?:[\s,]|and\b)*""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_BACK = r"""\b(?:again|retry|retries|reset|refresh|renew|available|access|resum|restor|replenish|regain|back|unlock|lift
    |expir|cool|next)\w*"""
_BEFORE_SPAN = re.compile(
    rf"""(?:\bwait(?:ing)?\b|{_BACK}[^\d.;!?\n]{{0,40}}?(?:\b(?:in|after|for|within|about|around)\b|[:=~(]))
    (?:[\s~":=(]|\b(?:in|about|around|approximately|another|for)\b)*""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_COUNTDOWN = re.compile(r"(\d+):(\d\d):(\d\d)\b", re.ASCII)
_BARE = re.compile(r"(\d+(?:\.\d+)?)(?=\s*(?:$|[,;)\]}\"']|\.(?!\d)))", re.ASCII)
_AFTER_SPAN = re.compile(
    r"\b(?:left|remaining|to go|until (?:the |your |it |next )*\w*(?:reset|renew|refresh))", re.IGNORECASE
)
_EPOCH = re.compile(r"(?<![\w.-])1[5-9]\d{8}(?:\d{3})?(?:\.\d+)?(?![\w-])", re.ASCII)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTH, _TH = rf"(?:{'|'.join(_MONTHS)})[a-z]*\.?", r"(?:st|nd|rd|th)?"
_DATE = re.compile(
    rf"""(?<![\w-])(?P<year>\d{{4}})[-/](?P<month>\d\d?)[-/](?P<day>\d\d?)(?![\d-])
    |\b(?P<named>{_MONTH}\s+\d\d?{_TH}|\d\d?{_TH}\s+(?:of\s+)?{_MONTH})(?!\w)(?:,?\s+(?P<of>\d{{4}})\b)?
    |\b(?P<month_after>next\ month|(?:1st|first)(?:\ day)?\ of\ (?:\w+\ )?month)\b
    |\b(?P<tomorrow>tomorrow)\b
    |{_BACK}[^.;]{{0,30}}?\b(?P<weekday>mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_CLOCK = re.compile(
    r"""(?<![\d:.+-])(?:(?P<hour>\d\d?)(?::(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.\d+)?)?)?(?:\s?(?P<half>[ap])\.?m\b)?
    |\b(?P<word>midnight|noon)\b)(?![\d:])""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_BEFORE_CLOCK = re.compile(
    rf"{_BACK}[^.;\d]{{0,30}}?\b(?:at|until|after|on|by)?\s*(?=\d|midnight|noon)", re.IGNORECASE | re.VERBOSE
)
_ZONE = re.compile(
    r"""(?:UTC|GMT)?\s?(?P<offset>[+-]\d\d:?\d\d)\b|(?:UTC|GMT)\s?(?P<hours>[+-]\d\d?)\b
    |(?P<utc>(?<![A-Za-z])(?:Z|UTC|GMT)\b)|(?P<name>\b[A-Z]\w+/[A-Z]\w+)
    |\b(?P<american>[PMCE])(?:[SD]?T\b|acific|ountain|entral|astern)""",
    re.ASCII | re.VERBOSE,
)
_AMERICAN = {"P": "America/Los_Angeles", "M": "America/Denver", "C": "America/Chicago", "E": "America/New_York"}
_CHINA = timezone(timedelta(hours=8))
"""Most providers that write a date in digits without a zone are in China. The nearer end counts."""
_SEASON = timedelta(days=100)
"""A date without a year is of the next year if that is so near; else the date is past."""
_DATE_CHARS = 30
"""Farthest place of a time of day from the date."""


def parse_reset(value: str, wall_now: float) -> float | None:
    """Seconds from `wall_now` (epoch seconds) until the reset, 0 if past; None if unreadable.

    A plain number above 1e12 is an epoch in milliseconds, above 1e9 in seconds, else seconds from now. An instant in
    whole seconds counts until that second is over.
    """
    value = value.strip()
    number = read_amount(value)
    if number is not None and number <= 1e9:
        delay_s = number
    elif _DURATION.fullmatch(value):
        delay_s = sum(float(amount) * _UNIT_S[unit] for amount, unit in _DURATION_PARTS.findall(value))
    else:
        instant_at = read_instant(value) if number is None else number / 1000 if number > 1e12 else number
        if instant_at is None:
            return None
        delay_s = instant_at - wall_now + cut_s(value) if instant_at > wall_now else 0.0
    return delay_s if delay_s <= LONGEST_S else None


def cut_s(value: str) -> float:
    """The most that was cut from an instant when the value was written."""
    is_whole = 1e9 < float(value) <= 1e12 if value.isdigit() else "." not in value and bool(read_instant(value))
    return _CUT_S if is_whole else 0.0


def until_whole_s(instant_at: float, wall_now: float) -> float:
    """Seconds until an instant in epoch seconds, 0 if past; an instant in whole seconds counts until that is over."""
    left_s = instant_at - wall_now
    return left_s + (_CUT_S if instant_at.is_integer() else 0.0) if left_s > 0 else 0.0


def read_amount(value: str) -> float | None:
    """A plain non-negative finite number."""
    if len(value) > _MAX_VALUE_CHARS or not _NUMBER.fullmatch(value):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def scaled(number: float | None, factor: float) -> float | None:
    """The product; None for None."""
    return None if number is None else number * factor


def _until(instant_at: float | None, wall_now: float) -> float | None:
    return None if instant_at is None else instant_at - wall_now


@by_text  # all answers of a second have the same
def read_instant(value: str) -> float | None:
    """An RFC 3339 timestamp, or an HTTP date, in epoch seconds; UTC without an offset."""
    if len(value) > _MAX_VALUE_CHARS:
        return None
    try:
        is_rfc3339 = _RFC3339.fullmatch(value)
        instant = datetime.fromisoformat(value.upper()) if is_rfc3339 else parsedate_to_datetime(value)
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def wait_in(text: str, wall_now: float) -> float | None:
    """Seconds from `wall_now` (epoch seconds) until the end that a sentence names; None: no end that is to come."""
    wait_s = _span_in(text, wall_now)
    if wait_s is None and (found := _EPOCH.search(text)):
        wait_s = parse_reset(found[0], wall_now)
    if wait_s is None:
        wait_s = _until_instant_in(text, wall_now)
    return wait_s if wait_s is not None and 0 <= wait_s <= LONGEST_S else None


def _span_in(text: str, wall_now: float) -> float | None:
    """The first span that the words before or behind it call a wait, in seconds."""
    for before in _BEFORE_SPAN.finditer(text):
        at = before.end()
        span_s, _ = _span_at(text, at)
        if span_s is not None:
            return span_s
        if found := _COUNTDOWN.match(text, at):
            return 3600.0 * int(found[1]) + 60 * int(found[2]) + int(found[3])
        if (found := _BARE.match(text, at)) and before[0].lower().startswith(("retry", "wait", "again")):
            return parse_reset(found[1], wall_now)
    at = 0
    while first := _AMOUNT.search(text, at):
        span_s, at = _span_at(text, first.start())
        if _AFTER_SPAN.match(text, at):
            return span_s
    return None


def _span_at(text: str, at: int) -> tuple[float | None, int]:
    """The seconds of a span that begins there (`3 hours and 20 minutes`), None where none does; and its end."""
    span_s = None
    while found := _AMOUNT.match(text, at):
        unit, at = found[2].lower(), found.end()
        unit = "ms" if unit.startswith(("ms", "mill")) else unit[: 2 if unit.startswith("mo") else 1]
        span_s = (span_s or 0.0) + float(found[1] or 1) * _UNIT_S[unit]
    return span_s, at


def _until_instant_in(text: str, wall_now: float) -> float | None:
    date = _DATE.search(text)
    if date is None:
        clock = next(
            filter(None, (_clock_in(text, one.end(), one.end()) for one in _BEFORE_CLOCK.finditer(text))), None
        )
        if clock is None:
            return None
    else:
        clock = _clock_in(text, date.end(), date.end() + _DATE_CHARS)
        clock = clock or _clock_in(text, max(0, date.start() - _DATE_CHARS), date.start())
    end = clock.end() if clock else date.end() if date else 0
    try:
        zones = _zones(_ZONE.search(text, end, end + _DATE_CHARS), is_iso=date is not None and bool(date["year"]))
        ends_at = [_next(date, clock, datetime.fromtimestamp(wall_now, zone)).timestamp() for zone in zones]
    except (ValueError, OverflowError, OSError):
        return None  # the 31st of a month that has 30
    return min((until_whole_s(at, wall_now) for at in ends_at if at > wall_now), default=None)


def _clock_in(text: str, start: int, last: int) -> re.Match[str] | None:
    """The first time of day that begins between two places; a number alone is none."""
    clocks = _CLOCK.finditer(text, start, last + len("00:00:00 p.m."))
    return next((one for one in clocks if one.start() <= last and (one["minute"] or one["half"] or one["word"])), None)


def _zones(found: re.Match[str] | None, *, is_iso: bool) -> tuple[tzinfo, ...]:
    """The time zone; the likely zones if the sentence names none."""
    if found is not None and not found["utc"]:
        if offset := found["offset"] or found["hours"]:
            hours, minutes = offset[1:3], offset[3:].lstrip(":")
            told = timedelta(hours=int(hours), minutes=int(minutes or 0))
            return (timezone(-told if offset[0] == "-" else told),)
        with suppress(KeyError, OSError):  # the machine has no list of zones, or not this one
            return (ZoneInfo(found["name"] or _AMERICAN[found["american"]]),)
    return (UTC, _CHINA) if is_iso and found is None else (UTC,)


def _next(date: re.Match[str] | None, clock: re.Match[str] | None, now: datetime) -> datetime:
    """The next instant of that date and time of day. ValueError: there is none."""
    hour, minute, second = (int(clock[name] or 0) if clock else 0 for name in ("hour", "minute", "second"))
    if clock and clock["half"]:
        hour = hour % 12 + (12 if clock["half"] in "pP" else 0)
    elif clock and clock["word"]:
        hour = 12 if clock["word"].lower() == "noon" else 0
    at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
    if date is None:
        return at if at > now else at + timedelta(days=1)
    if date["tomorrow"]:
        return at + timedelta(days=1)
    if date["month_after"]:
        return (at.replace(day=1) + timedelta(days=32)).replace(day=1)
    if date["weekday"]:
        at += timedelta(days=(_DAYS.index(date["weekday"][:3].lower()) - at.weekday()) % 7)
        return at if at > now else at + timedelta(days=7)
    if date["year"]:
        return at.replace(year=int(date["year"]), month=int(date["month"]), day=int(date["day"]))
    named = date["named"].lower()
    month = next(number for number, name in enumerate(_MONTHS, 1) if re.search(rf"\b{name}", named))
    at = at.replace(year=int(date["of"] or now.year), month=month, day=int(re.sub(r"\D", "", named)))
    later = at if date["of"] or at > now else at.replace(year=at.year + 1)
    return later if later - now < _SEASON else at
