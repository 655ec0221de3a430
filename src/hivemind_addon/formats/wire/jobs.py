"""Reads in answers how a job stands: work that outlives the request. The body passes unchanged.

A body is a JSON object, a stream of server-sent events, or a line of JSON for each result of a batch.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime

from hivemind_addon.formats.base.json_values import read_object
from hivemind_addon.formats.base.memo import by_thing
from hivemind_addon.formats.base.patterns import normal_path
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.model import JOB_IN_PATH, JobRule, Profile
from hivemind_addon.formats.wire.conversation_parts import Values
from hivemind_addon.formats.wire.decoding import BodyDecoder, DecodeError
from hivemind_addon.formats.wire.dialect import Dialect, dialect_named
from hivemind_addon.formats.wire.sse import BOM, SseParser
from hivemind_addon.kernel.values.ticket import AttemptResult, Job, Outcome, OutcomeKind, Usage

MOST_BYTES = 32 * 1024 * 1024
"""Longest JSON object that is read."""
_NOTHING_USED = Usage(reported=True)


class _Plan:
    """A rule, ready to read."""

    def __init__(self, rule: JobRule) -> None:
        before, _, _ = rule.path.partition(f"/{JOB_IN_PATH}")
        self.rule = rule
        self.asks = re.compile(f"{_pattern(before)}/([^/]+)(?:/([^/]+))?", re.DOTALL)
        self.begins = re.compile(_pattern(rule.begin or before), re.DOTALL)
        self.dialect: Dialect = dialect_named(rule.format)
        self.at = tuple(map(Pointer.parse, rule.at))
        self.usage_in = tuple(map(Pointer.parse, rule.usage_in))
        self.id, self.status = Pointer.parse(rule.id), Pointer.parse(rule.status)
        self.expires = Pointer.parse(rule.expires) if rule.expires else None
        self.streamed_if = Pointer.parse(rule.streamed_if) if rule.streamed_if else None
        self.mark = f'"{self.status.steps[-1]}"'.encode()


_plan = by_thing(_Plan)


def _pattern(glob: str) -> str:
    return ".*".join(map(re.escape, glob.lower().split("*")))


def job_begun(profile: Profile, path: str) -> JobRule | None:
    """The rule of the jobs that a POST to a path begins; None: it begins none."""
    normal = normal_path(path) if profile.jobs else ""
    return next((rule for rule in profile.jobs if _plan(rule).begins.fullmatch(normal)), None)


def job_asked(profile: Profile, path: str) -> tuple[JobRule, str, bool] | None:
    """The rule and the id of the job that a path names, and whether it leads to the results; None: it names none."""
    normal = normal_path(path) if profile.jobs else ""
    for rule in profile.jobs:
        if found := _plan(rule).asks.fullmatch(normal):
            return rule, found[1], bool(rule.results) and found[2] == rule.results
    return None


@dataclass(eq=False, slots=True)
class JobReader:
    """Reads a body. `feed` all pieces in order, then `finish` if the body is complete."""

    rule: JobRule
    coding: str = ""
    """The content coding."""
    is_results: bool = False
    """Whether each line is a result; the last line ends the job."""
    id: str = ""
    status: str = ""
    """The provider's word; empty: none was read."""
    is_streamed: bool = False
    usage: Usage | None = None
    may_outlive: bool = True
    """False: the work ends with the stream."""
    _until: str = ""
    _decoder: BodyDecoder | None = None
    _parser: SseParser | None = None
    _begun: bool = False
    _is_broken: bool = False
    _buffer: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        try:
            self._decoder = BodyDecoder(self.coding) if self.coding else None
        except DecodeError:
            self._is_broken = True

    @property
    def is_going(self) -> bool:
        """Whether the work goes on."""
        return self.status in self.rule.going

    @property
    def has_ended(self) -> bool:
        """Whether the end was seen, with the usage if there is any."""
        return not self._is_broken and bool(
            self.is_results or (self.status and not self.is_going and not self.rule.results)
        )

    @property
    def result(self) -> AttemptResult:
        """The end. Where work was done and no usage is reported, the expected usage counts."""
        usage = self.usage
        if usage is None and self.status not in self.rule.done:
            usage = _NOTHING_USED
        return AttemptResult(Outcome(OutcomeKind.SUCCESS, self.status or "results", status=200), usage)

    def job(self, host: str, wall_now: float) -> Job:
        """The job that has begun."""
        lasts_s = self.rule.lasts_s
        try:
            until = float(self._until) if self._until.isdecimal() else datetime.fromisoformat(self._until).timestamp()
            lasts_s = min(max(0.0, until - wall_now), 30 * lasts_s)
        except (ValueError, OverflowError):
            pass
        return Job(job_name(host, self.id), lasts_s)

    def feed(self, chunk: bytes) -> None:
        """Read a piece of the body."""
        if self._is_broken:
            return
        try:
            piece = chunk if self._decoder is None else self._decoder.feed(chunk)
        except DecodeError:
            self._is_broken = True
            return
        if not self._begun and (start := piece.removeprefix(BOM).lstrip()):
            self._begun, piece = True, start
            self._parser = None if start.startswith((b"{", b"[")) else SseParser()
        if self._parser is not None:
            self.is_streamed = True
            mark = _plan(self.rule).mark
            for event in self._parser.feed(piece):
                if mark in event.data:
                    self._read(event.data)
        elif len(self._buffer) + len(piece) <= MOST_BYTES:
            self._buffer += piece
            if self.is_results and b"\n" in piece:
                *lines, self._buffer = self._buffer.split(b"\n")
                for line in lines:
                    self._read(bytes(line))

    def finish(self) -> None:
        """The body is complete."""
        if self._parser is not None:
            for event in self._parser.finish():
                self._read(event.data)
        elif self._buffer:
            self._read(bytes(self._buffer))

    def _read(self, document: bytes) -> None:
        """Read a whole JSON object."""
        top, plan = read_object(document), _plan(self.rule)
        for place in plan.at if top is not None else ():
            for found in place.find_all(top):
                if isinstance(found, dict):
                    self._take(plan, found)

    def _take(self, plan: _Plan, work: Values) -> None:
        if not self.is_results:
            if not (status := _text(plan.status, work)):
                return
            self.id, self.status = _text(plan.id, work).rpartition("/")[2] or self.id, status
            self._until = (_text(plan.expires, work) if plan.expires else "") or self._until
            if self.is_streamed and plan.streamed_if is not None and plan.streamed_if.find(work) is not True:
                self.may_outlive = False
        used = [usage for place in plan.usage_in for one in place.find_all(work) if (usage := _usage(plan, one))]
        if used:
            total = sum(used[1:], used[0])
            self.usage = total if self.usage is None or not self.is_results else self.usage + total


def _usage(plan: _Plan, answer: object) -> Usage | None:
    reader = plan.dialect.usage
    report = reader.in_answer(plan.dialect.inner(answer)) if isinstance(answer, dict) else {}
    usage = reader.usage(report, 0)
    return usage if usage.reported else None


def _text(place: Pointer, work: Values) -> str:
    value = place.find(work)
    return str(value) if isinstance(value, str | int) else ""


def job_name(host: str, identifier: str) -> str:
    """The name by which a job is known: hosts are in the normal spelling, paths in lower case."""
    return f"{host}/{identifier.lower()}"
