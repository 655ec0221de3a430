"""Which requests a question means, and how that is said to SQLite."""

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from msgspec import Struct

from hivemind_addon.tools.history.reader import JournalReader, Value

LOST = "lost"
"""The end of a request, and the outcome of an attempt, whose proxy died before it could tell."""
OPEN = "open"
"""Asked for as an end: requests that have none."""
_WILD = frozenset("*?[")
_MUCH = 0.15
"""Of all the time that a journal is of."""


class Span(Struct, frozen=True):
    """From the first to before the second instant, in epoch seconds."""

    since: float = float("-inf")
    until: float = float("inf")


class RequestFilter(Struct, frozen=True):
    """Which requests are meant. An empty text: all. Globs are as in commands; what they name exactly always matches."""

    span: Span = Span()
    agent: str = ""
    """Glob."""
    pool: str = ""
    """Glob over pools' names, or over their hosts."""
    task: str = ""
    """Glob."""
    session: str = ""
    """Glob."""
    end: str = ""
    """As in `TicketRow.end`, or `open`."""


class SqlConditions:
    """Conditions on rows, all of which hold, and the values of their question marks."""

    def __init__(self) -> None:
        self._conditions: list[str] = []
        self.values: list[Value] = []

    def __str__(self) -> str:
        """With its WHERE; empty without a condition."""
        return f" WHERE {' AND '.join(self._conditions)}" if self._conditions else ""

    def add(self, condition: str, *values: Value) -> None:
        """One more."""
        self._conditions.append(condition)
        self.values += values

    def one_of(self, column: str, values: Collection[Value]) -> None:
        """A column has one of these values."""
        self.add(f"{column} IN ({', '.join('?' * len(values))})", *values)

    def within(self, column: str, span: Span) -> None:
        """An instant lies in it."""
        if span.since > float("-inf"):
            self.add(f"{column} >= ?", span.since)
        if span.until < float("inf"):
            self.add(f"{column} < ?", span.until)

    def matches(self, glob: str, *columns: str) -> None:
        """One of the columns does. A plain name is a comparison, for which there may be an index."""
        if not glob:
            return
        if _WILD.isdisjoint(glob):
            self.add(_either(f"{column} = ?" for column in columns), *[glob] * len(columns))
        else:
            # SQLite negates a class by `^`, shells do by `!`.
            values = [glob, glob.replace("[!", "[^")] * len(columns)
            self.add(_either(f"{column} = ? OR {column} GLOB ?" for column in columns), *values)

    def through(self, key: str) -> None:
        """Go through the table in the order in which it lies on the disk, by its key."""
        self.add(f"{key} >= ''")

    def selects(self, journal: JournalReader, wanted: RequestFilter) -> None:
        """A ticket `t` is one that is asked for, but for its time."""
        self.matches(wanted.agent, "t.agent")
        self.matches(wanted.pool, "t.pool", "t.host")
        self.matches(wanted.session, "t.session")
        if wanted.task:
            self.add("t.task != ''")  # lets the index over tasks be used, which has no others
        self.matches(wanted.task, "t.task")
        if wanted.end:
            self.add(f"{end_of(journal)} = ?", "" if wanted.end == OPEN else wanted.end)


def names_pool(glob: str, pool: str) -> bool:
    """Whether a glob means a pool, by its name or its host."""
    return any(glob == name or fnmatchcase(name, glob) for name in (pool, pool.partition("/")[0]))


def end_of(journal: JournalReader) -> str:
    """The SQL of how a ticket `t` ended; one that its dead proxy has left open is lost."""
    return f"""CASE WHEN t."end" = '' AND t.run != {journal.live_run} THEN '{LOST}' ELSE t."end" END"""


def outcome_of(journal: JournalReader) -> str:
    """The SQL of how an attempt `a` of a ticket `t` ended; one that its dead proxy has left open is lost."""
    return f"CASE WHEN a.outcome = '' AND t.run != {journal.live_run} THEN '{LOST}' ELSE a.outcome END"


def booked(journal: JournalReader, unit: str) -> str:
    """The SQL of what an attempt `a` of a ticket `t` counts with, in `tokens` or `micro_usd`.

    Of one that is lost nobody knows: as in the budgets it counts with what was expected.
    """
    return f"CASE WHEN {outcome_of(journal)} = '{LOST}' THEN a.expected_{unit} ELSE a.{unit} END"


def is_broad(journal: JournalReader, wanted: RequestFilter) -> bool:
    """Whether so much is asked for that reading everything in the disk's order is the quickest.

    An index leads to rows all over the disk: measured on a million requests it is six times as slow a row. No index
    leads to one session's or one pool's requests.
    """
    if any(glob and _WILD.isdisjoint(glob) for glob in (wanted.agent, wanted.task)):
        return False
    ((first, last),) = journal.tuples("SELECT (SELECT min(arrived) FROM ticket), (SELECT max(arrived) FROM ticket)")
    if not isinstance(first, float) or not isinstance(last, float) or first >= last:
        return False
    part_s = min(wanted.span.until, last) - max(wanted.span.since, first)
    return part_s > _MUCH * (last - first)


def _either(conditions: Iterable[str]) -> str:
    return f"({' OR '.join(conditions)})"
