"""What lies in files is asked of `hivemind`, in a process of its own, so that no request waits for the disk."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

_PATIENCE_S = 5.0
"""Clients elsewhere wait a little longer."""
_PAGE_PATIENCE_S = 180.0
"""A month with a million requests takes nine seconds of a processor that may be busy; a page shows what it has."""


class Unanswered(Exception):
    """One line that says why."""


async def ask_journal(journal: Path | None, question: str) -> str:
    """What `hivemind history answer` says to a question. Raises Unanswered."""
    return await _ask("answer", journal, question, _PATIENCE_S)


async def ask_for_page(journal: Path | None, question: str) -> str:
    """What `hivemind history page` says to a question of `proxy/api/page_questions.py`. Raises Unanswered."""
    return await _ask("page", journal, question, _PAGE_PATIENCE_S)


async def _ask(who: str, journal: Path | None, question: str, patience_s: float) -> str:
    if journal is None:
        raise Unanswered("it keeps no journal (hivemind_journal=off)")
    command = (sys.executable, "-P", "-m", "hivemind_addon", "history", who, "--journal", str(journal))
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    except OSError as error:
        raise Unanswered(f"its journal cannot be asked: {error}") from error
    try:
        async with asyncio.timeout(patience_s):
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
