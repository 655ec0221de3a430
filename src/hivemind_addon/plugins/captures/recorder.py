"""Writes each call that ends into a capture file, from its making to `stop`."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING, Any

from hivemind_addon import __version__
from hivemind_addon.kernel.limits.learned import read_saved
from hivemind_addon.plugins.captures.flow_file import dump, whole_bytes
from hivemind_addon.plugins.captures.recording import Recording, Served, Tape, metadata
from hivemind_addon.plugins.captures.redact import FlowRedactor
from hivemind_addon.proxy.record.news import NOTICE
from hivemind_addon.proxy.run.append_file import AppendFile

if TYPE_CHECKING:
    from pathlib import Path

    from mitmproxy import http

    from hivemind_addon.formats.profile.load import Profiles
    from hivemind_addon.kernel.values.ticket import Ticket
    from hivemind_addon.proxy.run.driver import Driver

logger = logging.getLogger("hivemind")

_RECORD_BYTES = 8192
"""Of a record without its bodies, roughly."""


class Recorder:
    """One recording into one file. On the event loop."""

    def __init__(self, path: Path, *, content: bool, driver: Driver, profiles: Profiles) -> None:
        """Begin. Raises OSError, NotACapture (whose text does not name the file)."""
        self.path = path
        self.content = content
        self._driver = driver
        self._file = AppendFile(path, whole_bytes=whole_bytes)
        self._redactor = FlowRedactor(profiles.by_name.values(), content=content)
        self._recording = Recording(
            driver.snapshot(),
            read_saved(driver.export()["learned"]).pools,
            began_wall=driver.clock.wall(),
            proxy_version=__version__,
            profiles=tuple(sorted(profiles.by_name)),
            content=content,
        )
        driver.listen(self._recording)

    def __repr__(self) -> str:
        return f"<Recorder {self._file!r}>"

    def begin(self, ticket: Ticket) -> Tape:
        """A call arrived."""
        return self._recording.begin(ticket)

    def ended(self, flow: http.HTTPFlow, ticket: Ticket, served: Served, refusal: http.Response | None) -> None:
        """Its ticket is over; its answer is complete in a moment. `refusal`: what its client got instead."""
        asyncio.get_running_loop().call_soon(self._record, flow, ticket, served, refusal)

    async def stop(self) -> None:
        """End it; what has ended until now is written."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn  # after whatever `ended` has put before it
        self._driver.unlisten(self._recording)
        await self._file.close()
        logger.log(NOTICE, "hivemind: %d calls are in %s", self._file.written, self.path)

    def _record(self, flow: http.HTTPFlow, ticket: Ticket, served: Served, refusal: http.Response | None) -> None:
        try:
            call = self._recording.end(ticket, served, request_bytes=len(flow.request.raw_content or b""))
            if call is None:
                return
            state = flow.get_state()
            if state["response"] is None and refusal is not None:
                state["response"] = refusal.get_state()
            state["metadata"] = metadata(call, self._recording.circumstances())
            bodies = (message["content"] for message in (state["request"], state["response"]) if message)
            size = sum(len(body or b"") for body in bodies)
            self._file.append(functools.partial(self._made, state), size + _RECORD_BYTES)
        except Exception:
            logger.exception("hivemind: a call could not be captured")

    def _made(self, state: dict[str, Any]) -> bytes:
        """The record; in the file's own thread."""
        return dump(self._redactor.clean_state(state))
