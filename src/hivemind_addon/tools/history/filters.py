"""Which requests a question selects, and the SQL of that selection."""

from collections.abc import Collection
from fnmatch import fnmatchcase

from msgspec import Struct

from hivemind_addon.tools.history.reader import JournalReader, Value

OPEN = "open"
"""As an asked end: requests that have no end yet."""
_WILD = frozenset("*?[")
_MUCH = 0.15
"""A share of the journal's time."""


class Span(Struct, frozen=True):
    """From the first to before the second instant, in epoch seconds."""

    since: float = float("-inf")
    until: float = float("inf")


class RequestFilter(Struct, frozen=True):
    """The selected requests. An empty text selects all; a glob always matches a name that equals the glob."""

    span: Span = Span()
    agent: str = ""
    """A glob, as are pool, task and session."""
    pool: str = ""
    """Matches a pool's name or host."""
    task: str = ""
    session: str = ""
    end: str = ""
    """As in `TicketRow.end`, or `open`."""


class SqlConditions:
    """Conditions on rows, all of which hold, and the values of their question marks."""

    def __init__(self) -> None:
        self._conditions: list[str] = []
        self.values: list[Value] = []

    def __str__(self) -> str:
        """With the leading WHERE; empty without a condition."""
        return f" WHERE {' AND '.join(self._conditions)}" if self._conditions else ""

    def add(self, condition: str, *values: Value) -> None:
        """Require another condition."""
        self._conditions.append(condition)
        self.values += values

    def one_of(self, column: str, values: Collection[Value]) -> None:
        """The column has one of these values."""
        self.add(f"{column} IN ({', '.join('?' * len(values))})", *values)

    def within(self, column: str, span: Span) -> None:
        """The column's instant lies in the span."""
        if span.since > float("-inf"):
            self.add(f"{column} >= ?", span.since)
        if span.until < float("inf"):
            self.add(f"{column} < ?", span.until)

    def matches(self, glob: str, *columns: str) -> None:
        """A column matches. A plain name is a comparison, which can use an index."""
        conditions, values = [f"{column} = ?" for column in columns], [glob] * len(columns)
        if not _WILD.isdisjoint(glob):
            # SQLite negates a class by `^`, shells do by `!`.
            conditions += [f"{column} GLOB ?" for column in columns]
            values += [glob.replace("[!", "[^")] * len(columns)
        if glob:
            self.add(f"({' OR '.join(conditions)})", *values)

    def selects(self, wanted: RequestFilter) -> None:
        """A row of the views `requests` or `costs` belongs to a selected request; the span is not looked at."""
        self.matches(wanted.agent, "agent")
        self.matches(wanted.pool, "pool", "host")
        self.matches(wanted.session, "session")
        if wanted.task:
            self.add("task != ''")  # the index over tasks has only named tasks
        self.matches(wanted.task, "task")
        if wanted.end:
            self.add('"end" = ?', "" if wanted.end == OPEN else wanted.end)


def selection(journal: JournalReader, wanted: RequestFilter, key: str, instant: str) -> SqlConditions:
    """The selected rows of a view, on the quickest way; `instant` is the column that the span is about.

    An index leads to rows all over the disk: measured on a million requests, an indexed row takes six times as long as
    a row in the order of the key. The plus keeps SQLite from using the index.
    """
    where = SqlConditions()
    if is_broad(journal, wanted):
        where.add(f"{key} >= ''")
        instant = f"+{instant}"
    where.within(instant, wanted.span)
    where.selects(wanted)
    return where


def is_broad(journal: JournalReader, wanted: RequestFilter) -> bool:
    """Whether the filter selects so much that reading the whole table is the quickest way.

    No index leads to the requests of a session or a pool.
    """
    if any(glob and _WILD.isdisjoint(glob) for glob in (wanted.agent, wanted.task)):
        return False
    ((first, last),) = journal.tuples("SELECT (SELECT min(arrived) FROM ticket), (SELECT max(arrived) FROM ticket)")
    if not isinstance(first, float) or not isinstance(last, float) or first >= last:
        return False
    part_s = min(wanted.span.until, last) - max(wanted.span.since, first)
    return part_s > _MUCH * (last - first)


def names_pool(glob: str, pool: str) -> bool:
    """Whether a glob matches a pool's name or host."""
    return any(glob == name or fnmatchcase(name, glob) for name in (pool, pool.partition("/")[0]))
