"""What response headers say about limits: meters, when to come back, and whose account it is.

The trap is the format of a reset: timestamps, epochs in seconds and milliseconds, durations and plain numbers are
all in use, partly under one header name. What cannot be understood is skipped and told as an oddity.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from hivemind_addon.formats.base.json_values import read_number, read_object
from hivemind_addon.formats.base.memo import by_text, by_thing
from hivemind_addon.formats.profile.format import ResetFormat
from hivemind_addon.formats.profile.model import MeterHeaders, Profile, WindowHeaders
from hivemind_addon.formats.wire.error import word
from hivemind_addon.kernel.values.ticket import Hints, Reading, WindowReading

_MAX_RETRY_AFTER_S = 86_400.0
# Monthly quotas exist; what is further away is a mistake.
_MAX_RESET_S = 400 * 86_400.0
_MAX_AMOUNT = 1e15
_MAX_VALUE_CHARS = 100
_MAX_SHOWN_CHARS = 40
_LIKE_A_KEY = re.compile(r"[\w-]{16,}")
"""No part of a number or an instant is as long."""
_MAX_ACCOUNT_CHARS = 200
_CLOCK_TOLERANCE_S = 5.0
_CUT_S = 1.0
"""An instant in whole seconds may be cut: it is up to so much later. No provider says which way it rounds; Anthropic's
headers of 2025-02-24 (an answer of 22:25:32 GMT, requests whole again at 22:25:30Z, input tokens at 22:25:32Z) fit both
ways. To come late costs a second, to come early a refusal. Delays stay as they are: durations (`6m0s`, `12ms`) are
exact, and of its `retry-after` in whole seconds Anthropic says that earlier retries fail, not later ones (2026-08)."""
_MAX_STATUS_CHARS = 40
_MAX_WINDOWS = 16
_MOST_ITEMS = 16
_NO_HINTS = Hints()
_RETRY_AFTER_MS = ("retry-after-ms", "x-amz-retry-after")
"""Amazon's own SDKs obey the second."""
_DELAY_HEADERS = frozenset({"retry-after", *_RETRY_AFTER_MS})
_MOST_SETS = 256
"""So many sets of headers are remembered for each profile."""

CODEX_WINDOWS = "codex.rate_limits"
"""The stream event in which ChatGPT's Codex endpoint tells of its windows, turn by turn (2026-08)."""

_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)
_DURATION_PART = r"(\d+\.?\d*|\.\d+)(ms|us|µs|μs|ns|d|h|m|s)"
_DURATION = re.compile(f"(?:{_DURATION_PART})+", re.ASCII)
_DURATION_PARTS = re.compile(_DURATION_PART, re.ASCII)
_UNIT_S: Mapping[str, float] = {
    "d": 86_400,
    "h": 3600,
    "m": 60,
    "s": 1,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ns": 1e-9,
}
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)?", re.ASCII)


def parse_reset(value: str, reset_format: ResetFormat, wall_now: float) -> float | None:
    """Seconds from `wall_now` (epoch seconds) until the reset, 0 when it is past; None when it cannot be read.

    A value that states its own unit (a duration) is read under `SECONDS` as well, and a plain number is read as
    seconds under `DURATION`: Azure sends `10` where OpenAI sends `10s`. Of an instant in whole seconds it is the end.
    """
    value = value.strip()
    if not 0 < len(value) <= _MAX_VALUE_CHARS:
        return None
    match reset_format:
        case ResetFormat.RFC3339:
            delay_s = _until(_instant(value), wall_now)
        case ResetFormat.EPOCH_S:
            delay_s = _until(_number(value), wall_now)
        case ResetFormat.EPOCH_MS:
            delay_s = _until(_scaled(_number(value), 1e-3), wall_now)
        case ResetFormat.DURATION | ResetFormat.SECONDS:
            delay_s = _seconds(value)
        case ResetFormat.AUTO:
            delay_s = _guessed(value, wall_now)
    if delay_s is None or delay_s > _MAX_RESET_S:
        return None
    return delay_s + _cut_s(value, reset_format) if delay_s > 0 else 0.0


def _cut_s(value: str, reset_format: ResetFormat) -> float:
    """By so much at most what is written so was cut."""
    is_auto = reset_format is ResetFormat.AUTO
    if value.isdigit():
        is_whole = reset_format is ResetFormat.EPOCH_S or (is_auto and 1e9 < float(value) <= 1e12)
    else:
        is_whole = (is_auto or reset_format is ResetFormat.RFC3339) and "." not in value and bool(_instant(value))
    return _CUT_S if is_whole else 0.0


def until_whole_s(instant_at: float, wall_now: float) -> float:
    """Seconds until an instant in epoch seconds, 0 when it is past; of one in whole seconds, until it is over."""
    left_s = instant_at - wall_now
    return left_s + (_CUT_S if instant_at.is_integer() else 0.0) if left_s > 0 else 0.0


def _guessed(value: str, wall_now: float) -> float | None:
    number = _number(value)
    if number is None:
        return _duration(value) if _DURATION.fullmatch(value) else _until(_instant(value), wall_now)
    if number > 1e12:
        return _until(number / 1000, wall_now)
    return _until(number, wall_now) if number > 1e9 else number


def _until(instant_at: float | None, wall_now: float) -> float | None:
    return None if instant_at is None else instant_at - wall_now


def _scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


def _number(value: str) -> float | None:
    """A plain non-negative finite number."""
    if len(value) > _MAX_VALUE_CHARS or not _NUMBER.fullmatch(value):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _seconds(value: str) -> float | None:
    number = _number(value)
    return _duration(value) if number is None else number


def _duration(value: str) -> float | None:
    """`6m0s`, `12ms`, `2m59.56s`, `1d` in seconds."""
    if len(value) > _MAX_VALUE_CHARS or not _DURATION.fullmatch(value):
        return None
    return sum(float(amount) * _UNIT_S[unit] for amount, unit in _DURATION_PARTS.findall(value))


def _instant(value: str) -> float | None:
    """An RFC 3339 timestamp in epoch seconds; UTC where it names no offset."""
    if not _RFC3339.fullmatch(value):
        return None
    try:
        instant = datetime.fromisoformat(value.upper())
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


@by_text  # all answers of a second have the same
def _http_date(value: str) -> float | None:
    """An HTTP date in epoch seconds."""
    if len(value) > _MAX_VALUE_CHARS:
        return None
    try:
        instant = parsedate_to_datetime(value)
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


class _HeaderReader:
    """Takes values out of one response's headers and remembers what it could not read. Names are lower-case."""

    def __init__(self, headers: Mapping[str, str], wall_now: float) -> None:
        self._headers = headers
        self.oddities: list[str] = []
        self._wall_now = wall_now
        date = headers.get("date")
        if date:
            sent_at = _http_date(date)
            # The provider's instants follow the provider's clock.
            if sent_at is not None and abs(sent_at - wall_now) > _CLOCK_TOLERANCE_S:
                self._wall_now = sent_at

    def _odd(self, name: str, value: str) -> None:
        shown = _LIKE_A_KEY.sub("…", value)
        shown = shown if len(shown) <= _MAX_SHOWN_CHARS else shown[: _MAX_SHOWN_CHARS - 1] + "…"
        self.oddities.append(f"{name}: cannot read {shown!r}")

    def _value(self, name: str, item: int | None = None) -> str | None:
        """What a header holds, or one item of the list there; None: nothing."""
        value = self._headers.get(name)
        if value is None or item is None:
            return value
        items = value.split(",", _MOST_ITEMS)
        return items[item].strip() if item < len(items) else None

    def amount(self, name: str, item: int | None = None) -> float | None:
        """A limit or what is left of it."""
        value = self._value(name, item)
        if value is None:
            return None
        number = _number(value.strip())
        if number is None or number > _MAX_AMOUNT:
            self._odd(name, value)
            return None
        return number

    def reset(self, name: str, reset_format: ResetFormat, item: int | None = None) -> float | None:
        """Seconds until a meter's reset."""
        value = self._value(name, item)
        if value is None:
            return None
        delay_s = parse_reset(value, reset_format, self._wall_now)
        if delay_s is None:
            self._odd(name, value)
        return delay_s

    def retry_after(self) -> float | None:
        """Seconds to wait, from what tells milliseconds (the finer one), else from `retry-after`."""
        delay_s = self._retry_after_ms()
        value = self._headers.get("retry-after")
        if delay_s is None and value is not None:
            delay_s = _seconds(value.strip())
            if delay_s is None:
                instant_at = _http_date(value)
                delay_s = None if instant_at is None else until_whole_s(instant_at, self._wall_now)
            if delay_s is None:
                self._odd("retry-after", value)
        return None if delay_s is None else min(max(delay_s, 0.0), _MAX_RETRY_AFTER_S)

    def _retry_after_ms(self) -> float | None:
        for name in _RETRY_AFTER_MS:
            value = self._headers.get(name)
            if value is None:
                continue
            number = _number(value.strip())
            if number is not None:
                return number * 1e-3
            self._odd(name, value)
        return None

    def should_retry(self) -> bool | None:
        """`x-should-retry`."""
        value = self._headers.get("x-should-retry")
        match value.strip().lower() if value is not None else None:
            case None:
                return None
            case "true":
                return True
            case "false":
                return False
        self._odd("x-should-retry", value or "")
        return None

    def account(self, names: tuple[str, ...]) -> str | None:
        """The first account that is named."""
        for name in names:
            value = self._headers.get(name, "").strip()
            if 0 < len(value) <= _MAX_ACCOUNT_CHARS and value.isprintable():
                return value
            if value:
                self._odd(name, value)
        return None

    def reading(self, meter: MeterHeaders) -> Reading | None:
        """One meter that the headers tell of; None when they say nothing that can be read."""
        limit = self.amount(meter.limit, meter.item)
        stated = self._value(meter.limit, meter.item) or ""
        if limit == 0:
            self._odd(meter.limit, stated)
        if limit == 0 or stated.strip().startswith("-"):
            # Azure's Responses API states limits of -1 and 0 that bind nothing; what is left of them is no news.
            return None
        remaining = self.amount(meter.remaining, meter.item)
        reset_in_s = self.reset(meter.reset, meter.reset_format, meter.item)
        if limit is None and remaining is None and reset_in_s is None:
            return None
        return Reading(
            meter=meter.meter,
            dimension=meter.dimension,
            window_s=meter.window_s,
            limit=limit,
            remaining=remaining,
            reset_in_s=reset_in_s,
            granularity=meter.granularity,
        )

    def window(self, window: WindowHeaders) -> WindowReading | None:
        """One long window that the headers tell of; None when they say nothing that can be read."""
        used = self.amount(window.used) if window.used else None
        resets_in_s = self.reset(window.reset, window.reset_format)
        minutes = self.amount(window.minutes) if window.minutes else None
        status = self._headers.get(window.status, "").strip() if window.status else ""
        if len(status) > _MAX_STATUS_CHARS or not status.isprintable():
            self._odd(window.status, status)
            status = ""
        if used is None and resets_in_s is None and not status:
            return None
        return WindowReading(
            window=window.window,
            used=_scaled(used, 1 / window.full),
            status=status,
            resets_in_s=resets_in_s,
            length_s=_scaled(minutes, 60.0),
        )


def read_hints(profile: Profile, headers: Mapping[str, str], wall_now: float) -> Hints:
    """What one response's headers say. `headers` is asked for lower-case names; `wall_now` in epoch seconds.

    Instants are taken relative to the response's own `date` where that differs from `wall_now` by more than 5 s.
    """
    places = _places_of(profile)
    told = places.names.intersection(headers)
    if not told:
        return _NO_HINTS
    meters, windows = places.told_by(told)
    reader = _HeaderReader(headers, wall_now)
    tells_delay = not _DELAY_HEADERS.isdisjoint(told)
    return Hints(
        readings=tuple(one for one in map(reader.reading, meters) if one is not None) if meters else (),
        retry_after_s=reader.retry_after() if tells_delay else None,
        should_retry=reader.should_retry() if "x-should-retry" in told else None,
        account=reader.account(profile.response_account_headers),
        windows=tuple(one for one in map(reader.window, windows) if one is not None) if windows else (),
        oddities=tuple(reader.oddities),
    )


class _Places:
    """The headers that hints are read from, of one profile; and what those that a head has tell of."""

    def __init__(self, profile: Profile) -> None:
        self._meters = [(one, {one.limit, one.remaining, one.reset}) for one in profile.meters]
        self._windows = [(one, {one.used, one.status, one.reset}) for one in profile.windows]
        names = {*_DELAY_HEADERS, "x-should-retry", *profile.response_account_headers}
        names |= {one.minutes for one in profile.windows}
        self.names = frozenset(names.union(*(asked for _, asked in (*self._meters, *self._windows))) - {""})
        self._known: dict[frozenset[str], tuple[tuple[MeterHeaders, ...], tuple[WindowHeaders, ...]]] = {}

    def told_by(self, names: frozenset[str]) -> tuple[tuple[MeterHeaders, ...], tuple[WindowHeaders, ...]]:
        """The meters and the windows of which a head with these of the headers says anything."""
        told = self._known.get(names)
        if told is None:
            told = (
                tuple(meter for meter, asked in self._meters if not asked.isdisjoint(names)),
                tuple(window for window, asked in self._windows if not asked.isdisjoint(names)),
            )
            if len(self._known) >= _MOST_SETS:
                self._known.clear()
            self._known[names] = told
        return told


_places_of = by_thing(_Places)


def read_stream_windows(data: bytes, wall_now: float) -> tuple[WindowReading, ...]:
    """The windows that a `CODEX_WINDOWS` event tells; none where it cannot be read. `wall_now` in epoch seconds."""
    top = read_object(data) or {}
    limits = read_object(top["rate_limits"]) if "rate_limits" in top else None
    readings = []
    for name, raw in list((limits or {}).items())[:_MAX_WINDOWS]:
        window = read_object(raw)
        if window is None:
            continue
        used, minutes = read_number(window.get("used_percent")), read_number(window.get("window_minutes"))
        resets_at = read_number(window.get("reset_at")) or read_number(window.get("resets_at"))
        resets_in_s = None if resets_at is None else until_whole_s(resets_at, wall_now)
        if used is None or not 0 <= used < _MAX_AMOUNT or (resets_in_s or 0) > _MAX_RESET_S:
            continue
        readings.append(
            WindowReading(
                window=name[:_MAX_STATUS_CHARS],
                used=used / 100,
                status=word(window.get("status"), _MAX_STATUS_CHARS),
                resets_in_s=resets_in_s,
                length_s=_scaled(minutes, 60.0),
            )
        )
    return tuple(readings)
