"""A journal is asked for somebody elsewhere: by `hivemind`, in its own process, so that no request waits for it."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

_PATIENCE_S = 5.0
"""Whoever asks from elsewhere waits a little longer."""


class Unanswered(Exception):
    """One line that says why."""


async def ask_journal(journal: Path | None, question: str) -> str:
    """What `hivemind history answer` says to a question. Raises Unanswered."""
    if journal is None:
        raise Unanswered("it keeps no journal (hivemind_journal=off)")
    command = (sys.executable, "-P", "-m", "hivemind_addon", "history", "answer", "--journal", str(journal))
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    except (OSError, NotImplementedError) as error:
        raise Unanswered(f"its journal cannot be asked: {error}") from error
    try:
        async with asyncio.timeout(_PATIENCE_S):
            told, complaint = await process.communicate(question.encode())
    except TimeoutError:
        raise Unanswered("its journal does not answer in time") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = complaint.decode(errors="replace").strip().splitlines() or ["its journal cannot be read"]
        raise Unanswered(lines[-1].removeprefix("Error: ")[:300])
    return told.decode(errors="replace")
