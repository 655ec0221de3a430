"""Spans of time and instants as people write and read them; in this machine's time.

A span: `90s`, `5m`, `1.5h`, `1h30m`, `2d`, `1w`; as an option's value also `90`.
An instant: `today`, `2h` (so long ago), `14:30`, `2026-01-31`.
"""

import math
import re
from datetime import datetime, timedelta
from typing import Any

import click

from hivemind_addon.proxy.system.clock import SystemClock

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PART = re.compile(rf"({_NUMBER.pattern})\s*([a-z]+)\s*")
_SPAN = re.compile(rf"(?:{_PART.pattern})+")


def read_span(text: str) -> float | None:
    """Seconds; a bare number counts seconds. None: it is no span of time."""
    text = text.strip().lower()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
    elif _SPAN.fullmatch(text):
        parts = _PART.findall(text)
        if not all(unit in _UNITS for _, unit in parts):
            return None
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        return None
    return seconds if math.isfinite(seconds) else None


class Duration(click.ParamType[float]):
    """Seconds."""

    name = "span"

    def __init__(self, *, above_zero: bool = False) -> None:
        self._above_zero = above_zero

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """From a text; a bare number counts seconds."""
        seconds = float(value) if isinstance(value, int | float) else read_span(str(value))
        if seconds is None:
            self.fail(f"{value!r} is no span of time: try 90s, 5m or 1.5h", param, ctx)
        if self._above_zero and not seconds > 0:
            self.fail(f"{value!r} is no time at all: try 90s, 5m or 1.5h", param, ctx)
        return seconds


SPAN = Duration()
SOME_TIME = Duration(above_zero=True)

_HOUR = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_DAYS_BACK = {"today": 0, "yesterday": 1}
_KNOWN = "today, yesterday, now, 90s, 30m, 2h, 3d, 1w, 14:30, 2026-01-31, 2026-01-31T14:30 (+01:00, Z)"


class BadInstant(ValueError):
    """It cannot be understood; one line."""


def read_instant(text: str, now: float) -> float:
    """Epoch seconds. A length of time is so long ago, an hour today's, a day its beginning. Raises BadInstant."""
    said = text.strip().lower()
    if said == "now":
        return now
    try:
        if said in _DAYS_BACK:
            return _beginning(datetime.fromtimestamp(now).astimezone() - timedelta(days=_DAYS_BACK[said]))
        ago_s = None if said.isdecimal() else read_span(said.removesuffix("ago"))  # 20260131 is a day
        if ago_s is not None:
            datetime.fromtimestamp(now - ago_s)  # noqa: DTZ006 - it raises where there was no such time
            return now - ago_s
        if hour := _HOUR.fullmatch(said):
            today = datetime.fromtimestamp(now)  # noqa: DTZ006 - a person's own hour
            at = today.replace(hour=int(hour[1]), minute=int(hour[2]), second=int(hour[3] or 0), microsecond=0)
            return at.timestamp()
        instant = datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise BadInstant(f"{text!r} is no instant; there are {_KNOWN}") from error
    if not math.isfinite(instant):
        raise BadInstant(f"{text!r} is no instant; there are {_KNOWN}")
    return instant


def iso(instant: float | None) -> str | None:
    """As machines read it: local time with its offset, to the millisecond."""
    local = _local(instant)
    return None if local is None else local.isoformat(timespec="milliseconds")


def shown(instant: float | None, now: float) -> str:
    """As people read it: today's to the second, other days' to the minute; empty for None."""
    local = _local(instant)
    if local is None:
        return ""
    if local.date() == datetime.fromtimestamp(now).astimezone().date():
        return f"{local:%H:%M:%S}"
    return f"{day(instant, now)} {local:%H:%M}"


def day(instant: float | None, now: float) -> str:
    """`today`, `Nov 21`, `2025-11-21`; empty for None."""
    local, today = _local(instant), datetime.fromtimestamp(now).astimezone()
    if local is None:
        return ""
    if local.date() == today.date():
        return "today"
    return f"{local:%b} {local.day:>2}" if local.year == today.year else f"{local:%Y-%m-%d}"


def hour(instant: float) -> str:
    """To the second."""
    local = _local(instant)
    return "" if local is None else f"{local:%H:%M:%S}"


class Instant(click.ParamType[float]):
    """An option that is an instant: epoch seconds."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Tells click what is wrong."""
        if isinstance(value, float):
            return value
        try:
            return read_instant(str(value), SystemClock().wall())
        except BadInstant as error:
            self.fail(str(error), param, ctx)


def _local(instant: float | None) -> datetime | None:
    if instant is None:
        return None
    try:
        return datetime.fromtimestamp(instant).astimezone()
    except (ValueError, OverflowError, OSError):  # of a clock that was set wildly
        return None


def _beginning(day: datetime) -> float:
    return datetime(day.year, day.month, day.day).timestamp()  # noqa: DTZ001 - this machine's day
