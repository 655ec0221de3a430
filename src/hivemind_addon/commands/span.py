"""A span of time as people write it: `90s`, `5m`, `1.5h`, `2d`, `1w`; as an option's value also `90`."""

import math
import re

import click

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def read_span(text: str) -> float | None:
    """Seconds; a bare number counts seconds. None: it is no span of time."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS:
        return None
    seconds = float(found[1]) * _UNITS[found[2]]
    return seconds if math.isfinite(seconds) else None


class Span(click.ParamType[float]):
    """Seconds."""

    name = "span"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """From a text; a bare number counts seconds."""
        if isinstance(value, int | float):
            return float(value)
        seconds = read_span(str(value))
        if seconds is None:
            self.fail(f"{value!r} is no span of time: try 90s, 5m or 1.5h", param, ctx)
        return seconds


SPAN = Span()
