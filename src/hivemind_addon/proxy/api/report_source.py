"""One encoded report for all who read it: the control socket's readers and the status page.

It is made in parts, and the event loop turns between them: no request waits for the whole of it. Each pool is told at
one instant; the sums, and what several pools have in common, a few turns of the loop later.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator

import msgspec

from hivemind_addon.kernel.sliced_work import whole
from hivemind_addon.proxy.api.report import Report

FRESH_S = 1.0
"""What was made for one reader is good for the others as long."""
LEAST_SHARE = 20
"""Making reports takes at most this part of the event loop's time, however many ask for one."""
_AGAIN_S = 3.0
"""Who asks twice within this time is likely to ask once more."""


class ReportSource:
    """Makes reports, and keeps the newest."""

    def __init__(
        self,
        parts: Callable[[], Generator[None, None, Report]],
        now: Callable[[], float],
        *,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`parts` make one report; `prepare` comes before, wherever one can be waited for."""
        self._parts = parts
        self._prepare = prepare
        self._now = now
        self._encode = msgspec.json.Encoder().encode
        self._making = asyncio.Lock()
        self._newest = b""
        self._begun_at = float("-inf")
        self._made_at = float("-inf")
        self.took_s = 0.0
        """Of the event loop's time, for the newest."""
        self._asked_at = float("-inf")
        """When it was last asked for at once."""
        self._timer: asyncio.TimerHandle | None = None
        self._ahead: asyncio.Task[bytes] | None = None

    async def make(self, *, max_age_s: float = 0.0) -> bytes:
        """One that was begun no longer ago than this, as a line of JSON."""
        oldest_at = self._now() - max_age_s
        async with self._making:
            if self._begun_at < oldest_at:
                if self._prepare is not None:
                    await self._prepare()
                await self._make_in_parts()
        return self._newest

    def at_once(self) -> bytes:
        """The newest, if it is fresh; else one that is made now, whole. For who cannot wait.

        Who asks again and again gets those that are made in parts meanwhile.
        """
        now = self._now()
        if now >= self._made_at + self._fresh_s:
            self._keep(now, self._line(whole(self._parts())), self._now() - now)
        if now - self._asked_at < _AGAIN_S and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._fresh_s / 2, self._make_ahead)
        self._asked_at = now
        return self._newest

    def outdate(self) -> None:
        """Somebody has changed something, and looks now: the newest is good for nobody more."""
        self._begun_at = self._made_at = float("-inf")

    @property
    def _fresh_s(self) -> float:
        return max(FRESH_S, LEAST_SHARE * self.took_s)

    def _make_ahead(self) -> None:
        self._timer = None
        self._ahead = asyncio.ensure_future(self.make(max_age_s=self._fresh_s / 2))
        self._ahead.add_done_callback(lambda task: task.cancelled() or task.exception())  # who asks next is told

    async def _make_in_parts(self) -> None:
        begun_at, took_s, parts = self._now(), 0.0, self._parts()
        report: Report | None = None
        while report is None:
            part_at = self._now()
            try:
                next(parts)
            except StopIteration as end:
                report = end.value
            took_s += self._now() - part_at
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no time passes
        encoding_at = self._now()
        line = self._line(report)
        self._keep(begun_at, line, took_s + self._now() - encoding_at)

    def _line(self, report: Report) -> bytes:
        return self._encode(report) + b"\n"

    def _keep(self, begun_at: float, line: bytes, took_s: float) -> None:
        if begun_at < self._begun_at:
            return  # one that was made at once meanwhile is newer
        self._newest, self._begun_at, self._made_at, self.took_s = line, begun_at, self._now(), took_s
