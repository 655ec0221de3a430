"""The end of the process: nobody loses an answer that is on its way."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hivemind_addon.mitm.intake import Intake

logger = logging.getLogger("hivemind")

DRAIN_S = 30
"""How long running streams may go on after SIGTERM or Ctrl-C."""


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
    running = len(intake.live)
    if running:
        logger.info("hivemind: stopping; %d requests may finish within %d s", running, DRAIN_S)
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
