"""A span of time as people write it: `90s`, `5m`, `1.5h`, `1h30m`, `2d`, `1w`; as an option's value also `90`."""

import math
import re

import click

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
