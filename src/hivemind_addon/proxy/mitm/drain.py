"""The end of the process: nobody loses an answer that is on its way."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

from hivemind_addon.proxy.observe.log import NOTICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hivemind_addon.proxy.mitm.intake import Intake

logger = logging.getLogger("hivemind")

DRAIN_S = 30
"""How long running streams may go on after SIGTERM or Ctrl-C."""


def end_on_hangup(end: Callable[[], None]) -> None:
    """Make SIGHUP what SIGTERM is, which mitmproxy does not; `nohup` keeps its promise.

    It is no second word: a terminal that is closed sends more than one.
    """
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, end)


async def drain(intake: Intake) -> None:
    """Held flows get their come-back refusal at once; running streams have 30 s; a second signal ends it."""
    second = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(name, second.set)
        except NotImplementedError:  # Windows' loop: no second signal there
            break
    intake.driver.close()
    intake.profiles_folder.stop()
    running = len(intake.live)
    if running:
        logger.log(NOTICE, "hivemind: stopping; %d requests may finish within %d s", running, DRAIN_S)
    waits = [asyncio.ensure_future(intake.drained()), asyncio.ensure_future(second.wait())]
    done, pending = await asyncio.wait(waits, timeout=DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
    for wait in pending:
        wait.cancel()
    if waits[0] in done:
        await intake.flushed()
    await intake.files.close()
    await intake.runtime.voices.close()
    if intake.control is not None:
        intake.control.close()
