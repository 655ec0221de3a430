"""Watches requests that pass by for jobs: they ask for work that outlives its request, or begin a batch.

All of them pass untouched, and are read on the way. `tap` gives the layer the function that sees each piece of an
answer. A request that begins a batch is not scheduled; only a spent budget refuses it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from hivemind_addon.formats.base.patterns import normal_host
from hivemind_addon.formats.profile.load import format_for
from hivemind_addon.formats.wire.dialect import dialect_of
from hivemind_addon.formats.wire.jobs import JobReader, job_asked, job_begun, job_name
from hivemind_addon.kernel.values.decision import Refused
from hivemind_addon.proxy.gate.refusal import make_refused
from hivemind_addon.proxy.host.flow_parts import destination, plain_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from mitmproxy import http

    from hivemind_addon.formats.profile.model import JobRule, Profile
    from hivemind_addon.proxy.gate.intake import Intake
    from hivemind_addon.proxy.gate.settings import LiveSettings
    from hivemind_addon.proxy.run.driver import Driver
    from hivemind_addon.proxy.run.guard import GuardedBlock

_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,200})"')
_HEAD_BYTES = 64 * 1024
_WHOLE = frozenset({200, 201, 202})
"""Statuses of answers that are whole and tell of a job."""


class _Watched:
    """A request that passes by, and the answer to it."""

    def __init__(
        self,
        jobs: JobWatch,
        flow: http.HTTPFlow,
        profile: Profile,
        rule: JobRule,
        name: str = "",
        *,
        is_results: bool = False,
    ) -> None:
        self._jobs = jobs
        self._flow = flow
        self._profile = profile
        self._rule = rule
        self._is_results = is_results
        self._reader = JobReader(rule)
        self._name = name
        """The job's name; empty: the request begins one."""
        self._head = b""
        """The first bytes of a request that begins a job."""
        self._body_bytes = 0

    def request(self, chunk: bytes) -> bytes:
        """A piece of the request passes."""
        self._body_bytes += len(chunk)
        if len(self._head) < _HEAD_BYTES:
            self._head += chunk[:_HEAD_BYTES]
        return chunk

    def head(self, coding: str) -> None:
        """The head of the answer came, with its content coding."""
        self._reader = JobReader(self._rule, coding, is_results=self._is_results)

    def answer(self, chunk: bytes) -> bytes:
        """A piece of the answer passes; an empty piece is the end."""
        with self._jobs.guarded("job"):
            if chunk:
                self._reader.feed(chunk)
            else:
                self._reader.finish()
                self._end()
        return chunk

    def _end(self) -> None:
        reader, driver = self._reader, self._jobs.driver
        if self._name:
            if reader.has_ended:
                driver.end_job(self._name, reader.result)
        elif reader.id and reader.is_going:
            found = _MODEL.search(self._head)
            model = found[1].decode("utf-8", "replace") if found else ""
            ticket = self._jobs.intake.adopt(self._flow, self._profile, model, self._body_bytes)
            driver.adopt(ticket, reader.job(_host(self._flow), driver.clock.wall()))


class JobWatch:
    """The requests that are watched. Memory: one entry per flow that lives."""

    def __init__(
        self, *, driver: Driver, intake: Intake, settings: LiveSettings, guarded: Callable[[str], GuardedBlock]
    ) -> None:
        self.driver = driver
        self.intake = intake
        self.guarded = guarded
        self._settings = settings
        self._watched: WeakKeyDictionary[http.HTTPFlow, _Watched] = WeakKeyDictionary()

    def came(self, flow: http.HTTPFlow, profile: Profile) -> None:
        """The head of a request that passes by."""
        request = flow.request
        asked = job_asked(profile, request.path)
        if asked is not None and self.driver.has_job(name := job_name(_host(flow), asked[1])):
            self._watched[flow] = _Watched(self, flow, profile, asked[0], name, is_results=asked[2])
            return
        rule = job_begun(profile, request.path) if request.method == "POST" else None
        if rule is None:
            return
        ticket = self.intake.adopt(flow, profile, "", 0)
        short = self.driver.shortage(ticket)
        if short is not None and not short.may_pass:
            dialect, settings = dialect_of(format_for(profile, request.path)), self._settings.current
            refused = Refused(ticket=ticket, cause=short)
            clock, port = self.driver.clock, settings.port
            flow.response = make_refused(profile, dialect, refused, settings.agents.file, clock, port=port)
            flow.request.stream = False
            return
        self._watched[flow] = watched = _Watched(self, flow, profile, rule)
        flow.request.stream = watched.request

    def tap(self, flow: http.HTTPFlow, response: http.Response) -> bool | Callable[[bytes], bytes]:
        """What sees each piece of an answer that passes by; True: nothing does."""
        watched = self._watched.pop(flow, None)
        if watched is None or response.status_code not in _WHOLE:
            return True
        with self.guarded("job"):
            watched.head(plain_headers(response.headers.fields).get("content-encoding", ""))
            return watched.answer
        return True


def _host(flow: http.HTTPFlow) -> str:
    return normal_host(destination(flow)[0])
