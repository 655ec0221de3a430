"""Traces: what a limiter did, in numbers that people can share. A trace is a capture without anything that names.

    capture ──trace_of──► JSON Lines ──read_recorded──► the same capture, whose names are `agent-1`, `model-2`, …

The first line is the head with the limits that became known, each further line is a call with its attempts. Instants
count from the first call, in steps of 1 ms. A text stays if a closed list has it (names of packaged profiles and of
their limits, words of this package); any other text becomes a key and a number, equal for equal texts, in the order of
appearance. So a field that is added to a capture names nobody either. docs/traces.md
explains every key.
"""

import gzip
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path

import msgspec

from hivemind_addon.formats.base import json_values
from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.wire.outcome import TransportTrouble
from hivemind_addon.kernel.values.events import HIDDEN
from hivemind_addon.kernel.values.snapshot import CONCURRENCY
from hivemind_addon.kernel.values.ticket import CallKind, Dimension, OutcomeKind
from hivemind_addon.plugins.captures.model import Capture, CapturedAttempt, CapturedCall, LimitSeen, NotACapture, later

VERSION = 1
"""Grows when a key disappears or changes meaning."""
MAX_BYTES = 256 * 1024 * 1024
"""Of a trace that is read, when unpacked."""
_MOST = 1e12
_PACKED = b"\x1f\x8b"
_MARK = b'{"hivemind_trace"'
_CURE = "write the trace again with `hivemind capture trace CAPTURE --output FILE`"
_CAUSES = (*(trouble.value for trouble in TransportTrouble), "stream")
_ALIKE = {"parent_session": "session", "account": "key", "request_hash": "request", "model_group": "group"}
"""Keys whose texts are numbered under another word."""


class _Head(msgspec.Struct):
    """The first line."""

    hivemind_trace: int
    limits: tuple[LimitSeen, ...] = ()


@cache
def _kept() -> Mapping[str, frozenset[str]]:
    """Key → the texts that stay."""
    profiles = load_profiles(None).by_name
    meters = (meter.meter for profile in profiles.values() for meter in profile.meters)
    kinds = (one.value for enum in (CallKind, OutcomeKind) for one in enum)
    dialects = ("anthropic", "openai-chat", "openai-responses", "ollama")
    return {
        "kind": frozenset((*kinds, "bucket", "window", "unknown")),
        "end": frozenset(("delivered", "gave up", "shed", "refused", "cancelled")),
        "reason": frozenset((*_CAUSES, *(kind.value for kind in OutcomeKind))),
        "dialect": frozenset(dialects),
        "delivery": frozenset(("stream", "whole")),
        "dimension": frozenset(one.value for one in Dimension),
        "profile": frozenset(profiles),
        "meter": frozenset((*meters, *HIDDEN, CONCURRENCY)),
    }


class _Numbered:
    """Takes the names out of values: texts become numbers."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {}

    def line(self, value: object) -> bytes:
        """A value as a line of a trace."""
        return msgspec.json.encode(self._of("", msgspec.to_builtins(value))) + b"\n"

    def _of(self, key: str, value: object) -> object:
        match value:
            case str() if value in _kept().get(key, ()):
                return value
            case str():
                word = _ALIKE.get(key, key)
                known = self._known.setdefault(word, {})
                return f"{word}-{known.setdefault(value, len(known) + 1)}"
            case float():
                return round(min(_MOST, max(0.0, value)), 3)
            case dict():
                return {name: self._of(name, one) for name, one in value.items() if not _is_empty(name, one)}
            case list() | tuple():
                return [self._of(key, one) for one in value]
            case _:
                return value


def _is_empty(key: str, value: object) -> bool:
    """Whether a reader takes the same for granted; an instant of 0 is a value."""
    if key.endswith(("_tokens", "_bytes")):
        return not value
    return value is None or value is False or value in ("", [], ())


def trace_of(capture: Capture) -> bytes:
    """The trace of a capture, as JSON Lines."""
    begin_s = min((call.at_s for call in capture.calls), default=0.0)
    numbered = _Numbered()
    calls = [numbered.line(_shared(later(call, -begin_s))) for call in capture.calls]
    pools = {call.pool for call in capture.calls}
    limits = tuple(replace(one, at_s=one.at_s - begin_s) for one in capture.limits if one.pool in pools)
    return b"".join((numbered.line(_Head(VERSION, limits)), *calls))


def _shared(call: CapturedCall) -> CapturedCall:
    """The call without its words, and without sizes and times of the pieces of the answer."""
    attempts = (replace(one, reason=_reason(one), chunks=()) for one in call.attempts)
    return replace(call, reason="", request_bytes=0, attempts=tuple(attempts))


def _reason(attempt: CapturedAttempt) -> str:
    cause = next((cause for cause in _CAUSES if attempt.reason.startswith(cause)), "")
    return cause or attempt.kind.value


def write_trace(capture: Capture, output: Path) -> int:
    """Write the trace of a capture into a new file, packed if the name ends in `.gz`; bytes written. Raises OSError."""
    data = trace_of(capture)
    with output.open("xb") as file:
        return file.write(gzip.compress(data, mtime=0) if output.suffix == ".gz" else data)


def read_recorded(path: Path) -> Capture:
    """A capture, or a trace as a capture whose names are made of the trace's numbers. Raises NotACapture."""
    start = b""
    with suppress(OSError), path.open("rb") as file:
        start = file.read(len(_MARK))
    if start.startswith((_PACKED, _MARK)):
        return _read_trace(path, is_packed=start.startswith(_PACKED))
    from hivemind_addon.plugins.captures.file import read_capture  # noqa: PLC0415 - it loads mitmproxy

    return read_capture(path)


def _read_trace(path: Path, *, is_packed: bool) -> Capture:
    try:
        with gzip.open(path) if is_packed else path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise NotACapture(f"{path}: the packed file is damaged ({error}); {_CURE}") from error
    if len(data) > MAX_BYTES:
        raise NotACapture(f"{path}: it is larger than {MAX_BYTES:,} bytes; trace a shorter capture")
    head, *lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()] or [(1, b"")]
    if not head[1].startswith(_MARK):
        raise NotACapture(f"{path}: line 1: this is no trace; {_CURE}")
    version, limits = msgspec.structs.astuple(_value(path, *head, _Head))
    if version > VERSION:
        raise NotACapture(
            f"{path}: line 1: hivemind_trace: the trace is of version {version}, this package reads {VERSION}; "
            "upgrade hivemind-addon"
        )
    calls = [_value(path, number, line, CapturedCall) for number, line in lines]
    return Capture(
        calls=tuple(sorted(calls, key=lambda call: call.at_s)),
        limits=limits,
        ended_s=max((call.ended_s for call in calls), default=0.0),
        profiles=tuple(sorted({call.profile for call in calls if call.profile})),
    )


def _value[T](path: Path, number: int, line: bytes, kind: type[T]) -> T:
    """The value of a line, whose numbers are in bounds."""
    try:
        plain = json_values.decode(line, object)
        if wrong := _out_of_bounds("", plain):
            key, problem = wrong
        else:
            return msgspec.convert(plain, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        problem, _, key = str(error).partition(" - at `$")
    where = f"line {number}: {key.strip('.`')}".removesuffix(": ")
    raise NotACapture(f"{path}: {where}: {problem}; correct that line, or {_CURE}")


def _out_of_bounds(key: str, value: object) -> tuple[str, str] | None:
    """The key of the first number that is no amount, with the problem."""
    match value:
        case bool():
            return None
        case int() | float() if not 0 <= value <= _MOST or value == inf:
            return key, f"{value:g} is not between 0 and {_MOST:g}"
        case dict():
            return next(filter(None, (_out_of_bounds(f"{key}.{name}", one) for name, one in value.items())), None)
        case list():
            return next(filter(None, (_out_of_bounds(f"{key}[{n}]", one) for n, one in enumerate(value))), None)
    return None
