"""The statements of response headers about limits: meters, when to come back, and the account.

The trap is the format of a reset: timestamps, epochs in seconds and milliseconds, durations and plain numbers are
all in use, partly under a single header name. A header that cannot be understood is skipped, and becomes an oddity.
"""

import re
from collections.abc import Mapping

from hivemind_addon.formats.base.json_values import read_number, read_object
from hivemind_addon.formats.base.memo import by_thing
from hivemind_addon.formats.profile.model import MeterHeaders, Profile, WindowHeaders
from hivemind_addon.formats.wire.error import word
from hivemind_addon.formats.wire.waits import LONGEST_S, parse_reset, read_amount, read_instant, scaled, until_whole_s
from hivemind_addon.kernel.values.ticket import Hints, Reading, WindowReading

_MAX_AMOUNT = 1e15
_MAX_SHOWN_CHARS = 40
_LIKE_A_KEY = re.compile(r"[\w-]{16,}")
"""No part of a number or an instant is as long."""
_MAX_ACCOUNT_CHARS = 200
_CLOCK_TOLERANCE_S = 5.0
_MAX_STATUS_CHARS = 40
_MAX_WINDOWS = 16
_MOST_ITEMS = 16
_NO_HINTS = Hints()
_RETRY_AFTER_MS = ("retry-after-ms", "x-amz-retry-after")
"""Amazon's own SDKs obey the second."""
DELAY_HEADERS = frozenset({"retry-after", *_RETRY_AFTER_MS})
_MOST_SETS = 256
"""So many sets of headers are remembered for each profile."""

CODEX_WINDOWS = "codex.rate_limits"
"""The stream event in which ChatGPT's Codex endpoint reports the windows, turn by turn (2026-08)."""


class _HeaderReader:
    """Takes values out of a response's headers and remembers the unreadable ones. Names are lower-case."""

    def __init__(self, headers: Mapping[str, str], wall_now: float) -> None:
        self._headers = headers
        self.oddities: list[str] = []
        self._wall_now = wall_now
        date = headers.get("date")
        if date:
            sent_at = read_instant(date)
            # The provider's instants follow the provider's clock.
            if sent_at is not None and abs(sent_at - wall_now) > _CLOCK_TOLERANCE_S:
                self._wall_now = sent_at

    def _odd(self, name: str, value: str) -> None:
        shown = _LIKE_A_KEY.sub("…", value)
        shown = shown if len(shown) <= _MAX_SHOWN_CHARS else shown[: _MAX_SHOWN_CHARS - 1] + "…"
        self.oddities.append(f"{name}: cannot read {shown!r}")

    def _value(self, name: str, item: int | None = None) -> str | None:
        """The value of a header, or an item of the list there; None: nothing."""
        value = self._headers.get(name)
        if value is None or item is None:
            return value
        items = value.split(",", _MOST_ITEMS)
        return items[item].strip() if item < len(items) else None

    def amount(self, name: str, item: int | None = None) -> float | None:
        """A limit or the rest of a limit."""
        value = self._value(name, item)
        if value is None:
            return None
        number = read_amount(value.strip())
        if number is None or number > _MAX_AMOUNT:
            self._odd(name, value)
            return None
        return number

    def reset(self, name: str, item: int | None = None) -> float | None:
        """Seconds until a meter's reset."""
        value = self._value(name, item)
        if value is None:
            return None
        delay_s = parse_reset(value, self._wall_now)
        if delay_s is None:
            self._odd(name, value)
        return delay_s

    def retry_after(self) -> float | None:
        """Seconds to wait, from a header in milliseconds (the finer one), else from `retry-after`."""
        for name in (*_RETRY_AFTER_MS, "retry-after"):
            if (value := self._headers.get(name)) is None:
                continue
            is_ms = name in _RETRY_AFTER_MS
            delay_s = scaled(read_amount(value.strip()), 1e-3) if is_ms else parse_reset(value, self._wall_now)
            if delay_s is not None:
                return min(delay_s, LONGEST_S)
            self._odd(name, value)
        return None

    def should_retry(self) -> bool | None:
        """`x-should-retry`."""
        value = self._headers.get("x-should-retry", "")
        should = {"true": True, "false": False}.get(value.strip().lower())
        if should is None:
            self._odd("x-should-retry", value)
        return should

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
        """The reading of a meter; None: the headers have none that can be read."""
        limit = self.amount(meter.limit, meter.item)
        stated = self._value(meter.limit, meter.item) or ""
        if limit == 0:
            self._odd(meter.limit, stated)
        if limit == 0 or stated.strip().startswith("-"):
            # Azure's Responses API states limits of -1 and 0 that bind nothing; what is left of them is no news.
            return None
        remaining = self.amount(meter.remaining, meter.item)
        reset_in_s = self.reset(meter.reset, meter.item)
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
        """The reading of a long window; None: the headers have none that can be read."""
        used = self.amount(window.used) if window.used else None
        resets_in_s = self.reset(window.reset)
        minutes = self.amount(window.minutes) if window.minutes else None
        status = self._headers.get(window.status, "").strip() if window.status else ""
        if len(status) > _MAX_STATUS_CHARS or not status.isprintable():
            self._odd(window.status, status)
            status = ""
        if used is None and resets_in_s is None and not status:
            return None
        return WindowReading(
            window=window.window,
            used=scaled(used, 1 / window.full),
            status=status,
            resets_in_s=resets_in_s,
            length_s=scaled(minutes, 60.0),
        )


def read_hints(profile: Profile, headers: Mapping[str, str], wall_now: float) -> Hints:
    """The hints in a response's headers. `headers` is asked for lower-case names; `wall_now` in epoch seconds.

    Instants are taken relative to the response's own `date` where that differs from `wall_now` by more than 5 s.
    """
    places = _places_of(profile)
    told = places.names.intersection(headers)
    if not told:
        return _NO_HINTS
    meters, windows = places.told_by(told)
    reader = _HeaderReader(headers, wall_now)
    tells_delay = not DELAY_HEADERS.isdisjoint(told)
    return Hints(
        readings=tuple(one for one in map(reader.reading, meters) if one is not None) if meters else (),
        retry_after_s=reader.retry_after() if tells_delay else None,
        should_retry=reader.should_retry() if "x-should-retry" in told else None,
        account=reader.account(profile.response_account_headers),
        windows=tuple(one for one in map(reader.window, windows) if one is not None) if windows else (),
        oddities=tuple(reader.oddities),
    )


class _Places:
    """The headers that contain hints for a profile, and the meters and windows of each set of such headers."""

    def __init__(self, profile: Profile) -> None:
        self._meters = [(one, {one.limit, one.remaining, one.reset}) for one in profile.meters]
        self._windows = [(one, {one.used, one.status, one.reset}) for one in profile.windows]
        names = {*DELAY_HEADERS, "x-should-retry", *profile.response_account_headers}
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
    """The windows in a `CODEX_WINDOWS` event; none if unreadable. `wall_now` in epoch seconds."""
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
        if used is None or not 0 <= used < _MAX_AMOUNT or (resets_in_s or 0) > LONGEST_S:
            continue
        readings.append(
            WindowReading(
                window=name[:_MAX_STATUS_CHARS],
                used=used / 100,
                status=word(window.get("status"), _MAX_STATUS_CHARS),
                resets_in_s=resets_in_s,
                length_s=scaled(minutes, 60.0),
            )
        )
    return tuple(readings)
