"""What the page asks of files that are not the proxy's to read: the journal's past, a request's story, fleets.

A question goes to a process of its own (`hivemind history page`), so that no request waits for the disk; both sides
speak these values as JSON. Instants are epoch seconds.
"""

from msgspec import Struct


class ChartsQuestion(Struct, frozen=True, tag="charts", forbid_unknown_fields=True):
    """What there was in a span, in equal parts of it."""

    since: float
    """The beginning of a part."""
    until: float
    part_s: float
    costs_since: float
    """Costs are told from here on, by hours or days."""
    by_day: bool
    """Costs by days of this machine's time; else by hours."""
    incidents_since: float


class StoryQuestion(Struct, frozen=True, tag="story", forbid_unknown_fields=True):
    """What became of one request."""

    ticket_id: str


class FleetsQuestion(Struct, frozen=True, tag="fleets", forbid_unknown_fields=True):
    """Which fleets there are."""


class FleetQuestion(Struct, frozen=True, tag="fleet", forbid_unknown_fields=True):
    """The tasks of one."""

    fleet_id: str


PastQuestion = ChartsQuestion | StoryQuestion | FleetsQuestion | FleetQuestion


class PastPart(Struct, frozen=True):
    """What came to pass in one part of a span: requests where they arrived, attempts where they began."""

    began: float
    requests: int = 0
    delivered: int = 0
    shed: int = 0
    """Told to come back."""
    failed: int = 0
    """Gave up, were refused for good, or were lost with their proxy."""
    wait_p50_s: float = 0.0
    """Of those requests, within a tenth."""
    wait_p95_s: float = 0.0
    attempts: int = 0
    throttled: int = 0
    """Attempts that a rate limit refused."""
    overloaded: int = 0
    broken: int = 0
    """Attempts that failed otherwise."""


class PastCost(Struct, frozen=True):
    """What one agent cost in an hour or a day."""

    began: float
    agent: str
    """Empty: all others of that time."""
    micro_usd: int
    tokens: int


class PastIncident(Struct, frozen=True):
    """A time in which something was wrong."""

    began: float
    ended: float | None
    """None: it is not over."""
    pool: str
    """Empty: no pool's own."""
    what: str
    ending: str


class PastCharts(Struct, frozen=True):
    """The answer to a ChartsQuestion. Parts without a request are left out."""

    parts: tuple[PastPart, ...]
    costs: tuple[PastCost, ...]
    incidents: tuple[PastIncident, ...]


class StoryLine(Struct, frozen=True):
    """What happened at one instant."""

    at: float
    text: str


class SessionNode(Struct, frozen=True):
    """One session of a request's tree, with what it came to in the day before and after the request."""

    agent: str
    session: str
    parent_session: str
    """Empty: none is known."""
    requests: int
    delivered: int
    micro_usd: int
    tokens: int
    first: float
    last: float
    newest_id: str
    """Its newest request."""


class RequestStory(Struct, frozen=True):
    """The answer to a StoryQuestion."""

    ticket_id: str
    agent: str
    session: str
    model: str
    pool: str
    end: str
    """Empty: it has not ended."""
    verdict: str
    """Did it run once, twice, never?"""
    summary: str
    facts: tuple[str, ...]
    arrived: float
    waited_s: float
    tokens: int
    micro_usd: int
    lines: tuple[StoryLine, ...]
    tree: tuple[SessionNode, ...]


class FleetTask(Struct, frozen=True):
    """One task; neither what it was told to do nor what it said."""

    name: str
    state: str
    depends_on: tuple[str, ...]
    parent: str
    """The task that submitted it; empty: none did."""
    agent: str
    """Its name in the proxy."""
    reason: str
    attempts: int
    began: float | None
    ended: float | None


class FleetSummary(Struct, frozen=True):
    """One fleet in a list."""

    fleet_id: str
    source: str
    """The name of its file; empty: its tasks were submitted one by one."""
    began: float
    ended: float | None
    runs: bool
    """Whether somebody runs it now."""
    counts: str
    """`28 done, 1 failed`."""


class FleetPicture(Struct, frozen=True):
    """The answer to a FleetQuestion."""

    fleet: FleetSummary
    at_most: int
    tasks: tuple[FleetTask, ...]


class NothingKnown(Struct, frozen=True):
    """The answer where there is none: one line that says why."""

    problem: str
