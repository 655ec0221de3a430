"""What a running proxy tells of itself: one value for `hivemind status`, `hivemind top` and the status page."""

from msgspec import Struct, field
from msgspec.structs import replace

from hivemind_addon.kernel.values.snapshot import Snapshot
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import PoolKey, Usage

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
    waiting_clients: int = 0
    """Connections that wait until another one ends, since so many open files let no more be served."""
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
    cluster: str = ""
    """The name of the cluster that it belongs to; empty: to none."""
    engine: str = ""
    """URL of that cluster's engine, without a password."""
    engine_has_password: bool = False
    """Whether the proxy says a password there."""
    tool_hosts: tuple[str, ...] = ()
    """Of `hosts` those of services that are no models."""
    sharing: tuple[tuple[str, str], ...] = ()
    """Pools of accounts with several, and which models share limits."""
    key_variables: tuple[str, ...] = ()
    """Names of the variables of its environment from which it has keys of its profiles' upstreams."""


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
    input_tokens_per_minute: float = 0.0
    """Of the attempts that ended in the last minute, cached ones counted."""
    output_tokens_per_minute: float = 0.0


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


ACTIVE_S = 600.0
"""Seconds since its last answer within which a conversation is likely to go on."""


class ContextPressure(Struct, frozen=True, gc=False):
    """How full one conversation's context is. Tokens are as its provider counted them."""

    agent: str
    session: str
    model: str
    """Of its newest turn."""
    tokens: int
    """What its newest turn carried: all input, cached or not, and the output."""
    window_tokens: int | None
    """The model's context window; None: it is not known."""
    growth_per_turn: float
    """Tokens that a turn adds, the newest turns first; 0: not known yet."""
    turns: int
    """That were answered."""
    seen_ago_s: float
    cache_lapses_in_s: float | None
    """When the provider forgets what it has read of it, unless it goes on; 0: it has; None: it keeps nothing that is
    known of."""
    is_full: bool
    """A warning was told, and it has not been shorter since."""
    compactions: int = 0
    """Times that it went on with much less, whoever made it shorter."""
    compaction_cost: Spend = field(default_factory=Spend)
    """Of the calls that made the summaries, as far as profiles know them."""
    lost_tokens: int = 0
    """By all compactions."""
    newest_before_tokens: int = 0
    """By the newest one; 0: there was none."""
    newest_after_tokens: int = 0

    @property
    def share(self) -> float | None:
        """How much of the context window is full; None: that is not known."""
        return min(1.0, self.tokens / self.window_tokens) if self.window_tokens else None

    @property
    def turns_left(self) -> float | None:
        """How many more turns like the newest fit; None: not known."""
        if not self.window_tokens or self.growth_per_turn < 1:
            return None
        return max(0.0, self.window_tokens - self.tokens) / self.growth_per_turn


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


class ClusterMember(Struct, frozen=True, gc=False):
    """One proxy of a cluster."""

    name: str
    waiting: int
    """Its tickets that wait."""
    in_flight: int
    """Its attempts upstream."""


class ClusterView(Struct, frozen=True, gc=False):
    """A cluster, as one of its proxies sees it."""

    name: str
    me: str
    """This proxy's name in it."""
    role: str
    """This proxy's: `joining`, `member`, `coordinator` or `alone`."""
    coordinator: str
    """The name of the member that decides for all; empty: none is known."""
    epoch: int
    """The newest that is known: it grows with each coordinator."""
    members: tuple[ClusterMember, ...] = ()
    """As the coordinator knows them; empty: it has not told."""
    known_members: int = 1
    """How many there are, or were when a coordinator was heard of last."""
    share: float = 1.0
    """The part of the limits that this proxy uses: below 1 while it is alone."""
    since_s: float = 0.0
    """How long this proxy has had its role."""
    summed_s: float | None = None
    """How long the coordinator has counted the sums of the whole, which begin with it; None: it has not told."""


class Report(Struct, frozen=True, gc=False):
    """Everything at one instant."""

    version: int
    """Of the schema: it grows when a field changes its meaning or goes."""
    proxy: ProxyView
    snapshot: Snapshot
    stats: StatsView = field(default_factory=StatsView)
    told_wall: float = 0.0
    """Epoch seconds of this report."""
    cluster: ClusterView | None = None
    """None: the proxy is in none. Else `snapshot` and `stats` are of the whole cluster, as far as it can be reached."""
    contexts: tuple[ContextPressure, ...] = ()
    """The newest conversations, the one that was seen last at the end. Of this proxy alone, in a cluster as well."""
