"""What an attempt cost in tokens: each part from the best source.

    input     as reported; else what a reported total leaves for it; else what was expected of the request
    output    as reported; else counted from the words of the answer. What a reported total exceeds the sum of the
              parts by is output, too: some providers report thinking apart from it. Where words followed the last
              report, the count is taken if it is higher

A part that is reported again replaces the earlier number: reports are cumulative. A zero, and a number that cannot be
true (negative, a fraction, more than any model takes), reports nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from hivemind_addon.formats.base.json_values import read_object
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.format import UsagePlaces
from hivemind_addon.formats.wire.conversation_parts import Values
from hivemind_addon.formats.wire.sse import SseEvent
from hivemind_addon.kernel.values.ticket import Usage

MAX_TOKENS = 20_000_000
"""Twice the longest context that any provider offers (10 million, 2026-08)."""
NOTHING_EXPECTED = Usage()
MOST_COUNTED_CHARS = 64 * 1024
# tiktoken's time grows with the square of a run without spaces; short pieces bound it.
_PIECE_CHARS = 4096
_PARTS = ("input", "output", "cache_read", "cache_write", "cache_write_1h", "total")
_SUMS = ("input", "output")

type Report = Mapping[str, Any]
"""The reported parts, by the names in `UsagePlaces`: whole numbers, and the text `tier`."""


class UsageReader:
    """Reads the reports of a format."""

    def __init__(self, places: UsagePlaces) -> None:
        self._at, self._in_events = ([Pointer.parse(one).steps for one in at] for at in (places.at, places.in_events))
        self._parts = {part: tuple(map(Pointer.parse, getattr(places, part))) for part in _PARTS}
        self._events = frozenset(places.events)
        self._includes_cache = places.input_includes_cache
        self._tier = tuple(map(Pointer.parse, places.tier))
        numbers = [one.steps[-1] for part in ("input", "output", "total") for one in self._parts[part]]
        names = [name for steps in self._in_events for name in (steps[-1:] or numbers)]
        self._marks = tuple(map(msgspec.json.encode, dict.fromkeys(names)))

    def in_answer(self, top: Values) -> Report:
        """The report in an answer that is one JSON object, its members decoded or still JSON."""
        return self._read(top, self._at)

    def in_event(self, event: SseEvent) -> Report:
        """The report in an event; cheap for events without a report."""
        if self._events and event.event and event.event not in self._events:
            return {}
        if not any(mark in event.data for mark in self._marks):
            return {}
        return self._read(read_object(event.data) or {}, self._in_events)

    def output_of(self, report: Report) -> int:
        """The reported output; 0: none."""
        given = self._input_of(report)
        output: int = max(report.get("output", 0), report.get("total", 0) - given if given else 0)
        return output

    def usage(self, report: Report, counted_tokens: int, expected: Usage = NOTHING_EXPECTED) -> Usage:
        """The usage of an attempt. `counted_tokens`: of the output, as far as it had to be counted."""
        told_output = self.output_of(report)
        output = max(told_output, counted_tokens)
        read, write = report.get("cache_read", 0), report.get("cache_write", 0)
        total_input = told_input = self._input_of(report) or max(0, report.get("total", 0) - output)
        if not told_input:
            if not read and not write:
                return replace(expected, output_tokens=output, reported=False, tier=report.get("tier", ""))
            total_input = max(expected.total_input_tokens, read + write)
        read = min(read, total_input)
        write = min(write, total_input - read)
        return Usage(
            input_tokens=total_input - read - write,
            cache_read_tokens=read,
            cache_write_tokens=write,
            output_tokens=output,
            reported=told_input > 0 and output == told_output,
            cache_write_1h_tokens=min(report.get("cache_write_1h", 0), write),
            tier=report.get("tier", ""),
        )

    def _input_of(self, report: Report) -> int:
        cached = 0 if self._includes_cache else report.get("cache_read", 0) + report.get("cache_write", 0)
        given: int = report.get("input", 0) + cached
        return given

    def _read(self, top: Values, places: Iterable[tuple[str, ...]]) -> Report:
        members = next(filter(None, (_members(top, steps) for steps in places)), None)
        if members is None:
            return {}
        report: dict[str, Any] = {part: found for part in _PARTS if (found := self._amount(part, members))}
        if report and (tier := next((one for at in self._tier if isinstance(one := at.find(top), str)), "")):
            report["tier"] = tier
        return report

    def _amount(self, part: str, members: Values) -> int:
        found = [_tokens(one.find(members)) for one in self._parts[part]]
        return sum(found) if part in _SUMS else next(filter(None, found), 0)


def count_words(text: str, counter: Callable[[str], int]) -> int:
    """Tokens of the words of an answer; of a long text the rest is estimated in proportion."""
    read = text[:MOST_COUNTED_CHARS]
    tokens = sum(counter(read[at : at + _PIECE_CHARS]) for at in range(0, len(read), _PIECE_CHARS))
    return round(tokens * len(text) / len(read)) if read else 0


def _members(top: Values, steps: tuple[str, ...]) -> Values:
    """The members of the object to which the steps lead, decoded or still JSON; none: there is no object."""
    for step in steps:
        value = top.get(step)
        top = value if isinstance(value, dict) else (read_object(value) or {}) if isinstance(value, msgspec.Raw) else {}
    return top


def _tokens(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0
