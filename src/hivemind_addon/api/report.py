"""What a running proxy tells of itself: one value for `hivemind status`, `hivemind top` and the status page."""

from msgspec import Struct, field
from msgspec.structs import replace

from hivemind_addon.api.snapshot import Snapshot
from hivemind_addon.api.ticket import PoolKey, Usage

QUEUED_TOLD = 250
"""Tickets that wait, of each pool, which a report has: it is made once a second, on the event loop."""


VENDORS_OWN = "since the keys, the limits and the format are its vendor's own: there is nothing to schedule"
"""Why what Cursor and Windsurf say to their own servers passes."""


class ProxyView(Struct, frozen=True, gc=False):
    """The process that serves."""

    pid: int
    port: int
    """Of its first listener."""
    listens: tuple[str, ...]
    """`host:port` of every listener."""
    confdir: str
    """Mitmproxy's folder, which holds the CA."""
    hosts: tuple[str, ...]
    """Globs of the hosts (`host` or `host:port`) that its profiles name: what is intercepted."""
    version: str = ""
    """Of this package."""
    began_wall: float = 0.0
    """Epoch seconds of its start."""
    web: str = ""
    """Address of mitmweb's page, without its token; empty: there is none."""
    open_files: int | None = None
    """How many files and connections it may have open; None: as many as there are."""
    unscheduled: tuple[str, ...] = ()
    """Hosts of models that were called and passed by, since no profile claims them or their paths."""
    vendors: tuple[str, ...] = ()
    """Hosts that were called and are tunnelled: `VENDORS_OWN`."""
    distrusting: tuple[tuple[str, str], ...] = ()
    """Client and host, where a client has not trusted the proxy's certificate."""
    sockets: tuple[tuple[str, str], ...] = ()
    """Agent and host, where an agent has opened a WebSocket for model calls which is not scheduled."""
    refused_sockets: tuple[tuple[str, str], ...] = ()
    """Agent and host, where a WebSocket was refused: the agent sends plain requests, which are scheduled."""


class Sample(Struct, frozen=True, gc=False):
    """What a pool came to at most within ten seconds."""

    ago_s: float
    """Since its end; below 0 in the sample that is not over."""
    queued: int
    in_flight: int
    limit: int | None
    """None: it had not moved yet."""


class LimitMove(Struct, frozen=True, gc=False):
    """The concurrency limit moved."""

    ago_s: float
    limit: int
    reason: str


class PoolStats(Struct, frozen=True, gc=False):
    """What came of one pool."""

    key: PoolKey
    admitted: int
    """Attempts."""
    delivered: int
    retries_absorbed: int
    """Attempts that failed unseen by their clients, which got an answer all the same."""
    throttled: int
    failed: int
    """Attempts that ended in another failure."""
    usage: Usage
    """As reported or counted."""
    micro_usd: int
    """What was booked, as is `tokens`: the budgets and the journal say the same."""
    wait_p50_s: float | None
    """Of the newest admissions; None: there are none."""
    wait_p95_s: float | None
    history: tuple[Sample, ...]
    """Oldest first."""
    moves: tuple[LimitMove, ...]
    """The newest, newest first."""
    tokens: int = 0
    wasted_tokens: int = 0
    """Of these, what attempts took that came to nothing: they failed, or their client went."""
    wasted_micro_usd: int = 0
    garbage: int = 0
    """Complete answers that were garbage, delivered or tried again."""


class SessionStats(Struct, frozen=True, gc=False):
    """What came of one agent's session."""

    agent: str
    session: str
    parent_session: str = ""
    """Empty: none is known."""
    model: str = ""
    """Of its newest request."""
    tickets: int = 0
    delivered: int = 0
    lost: int = 0
    """Tickets that gave up."""
    shed: int = 0
    cancelled: int = 0
    retries_absorbed: int = 0
    waited_s: float = 0.0
    """Sum over its tickets that have ended."""
    usage: Usage = field(default_factory=Usage)
    """As reported or counted."""
    micro_usd: int = 0
    """What was booked, as is `tokens`: the budgets and the journal say the same."""
    is_priced: bool = True
    """Whether every model that it used has a price."""
    seen_ago_s: float = 0.0
    live: int = 0
    """Tickets that have not ended."""
    refused: int = 0
    """Tickets that were refused for good: by a budget, or as their account is."""
    tokens: int = 0
    wasted_tokens: int = 0
    """Of these, what attempts took that came to nothing: they failed, or their client went."""
    wasted_micro_usd: int = 0

    def __add__(self, other: "SessionStats") -> "SessionStats":
        """Both together, under the first one's names."""
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMMED},
            model=self.model or other.model,
            is_priced=self.is_priced and other.is_priced,
            seen_ago_s=min(self.seen_ago_s, other.seen_ago_s),
        )


_SUMMED = (
    *("tickets", "live", "delivered", "lost", "refused", "shed", "cancelled", "retries_absorbed", "waited_s"),
    *("usage", "tokens", "wasted_tokens", "micro_usd", "wasted_micro_usd"),
)


class LogLine(Struct, frozen=True, gc=False):
    """One event in words, or many of a kind."""

    ago_s: float
    level: str
    """`INFO` or `WARNING`."""
    text: str
    ticket_id: str | None
    pool: PoolKey | None
    agent: str = ""
    """Whose ticket it is; empty: it is about none, or about one that is not known."""


class StatsView(Struct, frozen=True, gc=False):
    """The stats at one instant."""

    pools: tuple[PoolStats, ...] = ()
    sessions: tuple[SessionStats, ...] = ()
    """The newest, the one that was seen last at the end."""
    more_sessions: int = 0
    """Older ones that are known and not in `sessions`."""
    log: tuple[LogLine, ...] = ()
    """Oldest first."""


class Report(Struct, frozen=True, gc=False):
    """Everything at one instant."""

    version: int
    """Of the schema: it grows when a field changes its meaning or goes."""
    proxy: ProxyView
    snapshot: Snapshot
    stats: StatsView = field(default_factory=StatsView)
    told_wall: float = 0.0
    """Epoch seconds of this report."""
