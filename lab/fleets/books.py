"""What the addon wrote down of a fleet, in the same terms as the providers' own truth."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from hivemind_addon.sim.call import Truth

_ATTEMPTS = """
    SELECT ticket.agent, count(*), sum(attempt.outcome = 'success'),
        sum(CASE attempt.outcome WHEN 'success' THEN attempt.input_tokens + attempt.output_tokens ELSE 0 END)
    FROM attempt JOIN ticket ON attempt.ticket = ticket.id GROUP BY ticket.agent
"""


@dataclass(frozen=True, slots=True)
class Book:
    """The counts of the calls of a format."""

    calls: int = 0
    """That reached a provider."""
    complete: int = 0
    """Of these, the ones with a complete answer."""
    tokens: int = 0
    """Into and out of the complete ones."""


def journal_book(journal: Path, formats: Mapping[str, str]) -> Mapping[str, Book]:
    """The addon's, by format. `formats`: each agent's."""
    sums: dict[str, Counter[str]] = {}
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as connection:
        for agent, calls, complete, tokens in connection.execute(_ATTEMPTS):
            book = sums.setdefault(formats.get(agent, "nobody's"), Counter())
            book.update(calls=calls, complete=complete, tokens=tokens)
    return {name: Book(**sums[name]) for name in sorted(sums)}


def provider_book(truths: Iterable[Truth]) -> Mapping[str, Book]:
    """The providers', by format."""
    sums: dict[str, Counter[str]] = {}
    for truth in truths:
        for name, one in truth.dialects.items():
            tokens = one.input_tokens + one.cached_tokens + one.written_tokens + one.output_tokens
            book = sums.setdefault(name, Counter())
            book.update(calls=one.attempts, complete=one.completed, tokens=tokens)
    return {name: Book(**sums[name]) for name in sorted(sums)}
