"""Events and the snapshot → what Prometheus scrapes.

Counters and histograms are counted as events come; gauges are read from a snapshot when somebody asks. Labels are
bounded whatever clients send: pools and budgets beyond the first hundred share the label `other`, and there is no
label of agents, sessions or models. After two pools have proved to be one, the merged one's counters stand still.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import Metric

from hivemind_addon.api.events import (
    AccountBlocked,
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    BreakerChanged,
    CommittedStreamFailed,
    Event,
    GuardTripped,
    Held,
    MachineSlept,
    OddityNoted,
    PoolBlocked,
    StateUnsaved,
    Submitted,
    Superseded,
    TicketEnded,
)
from hivemind_addon.api.snapshot import Snapshot
from hivemind_addon.api.ticket import OutcomeKind, PoolKey
from hivemind_addon.proxy.observe.gauges import GAUGES, MICRO, gauges_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_POOLS = 100
OTHER = "other"
_OTHER = PoolKey(OTHER, OTHER, OTHER)

_WAITS_S = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_DURATIONS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)
_TOKEN_KINDS = ("input", "cache_read", "cache_write", "output")
_ENDS = ("delivered", "gave up", "shed", "refused", "cancelled")


_OF_POOL = ("pool",)
_COUNTERS = {
    "tickets": ("Requests that asked for admission.", _OF_POOL),
    "tickets_ended": ("Tickets by their end: delivered, gave up, shed, refused, cancelled.", ("pool", "end")),
    "holds": ("Waits by the reason at their beginning.", ("pool", "reason")),
    "admissions": ("Attempts that were let go upstream.", _OF_POOL),
    "attempts_ended": ("Attempts by their outcome.", ("pool", "outcome")),
    "ambiguous_attempts": ("Attempts that ended without a status: possibly billed.", _OF_POOL),
    "ambiguous_resends": ("Re-sends after an attempt that may have been billed.", _OF_POOL),
    "garbage_answers": ("Complete answers that were garbage, delivered or tried again.", _OF_POOL),
    "retries": ("Failed attempts that are tried again.", _OF_POOL),
    "retries_absorbed": ("Failed attempts of tickets that were delivered all the same.", _OF_POOL),
    "committed_failures": ("Streams that failed after a keep-alive had sent their head.", _OF_POOL),
    "superseded": ("Attempts that were ended because their client came back.", _OF_POOL),
    "provider_pauses": ("Times that the provider asked for a pause.", _OF_POOL),
    "account_blocks": ("Times that the provider refused the account for long.", _OF_POOL),
    "breaker_changes": ("Changes of the breaker by its new state.", ("pool", "state")),
    "tokens": ("Tokens used, by kind: input (uncached), cache_read, cache_write, output.", ("pool", "kind")),
    "cost_dollars": ("What attempts cost by the profiles' prices; unpriced models count nothing.", _OF_POOL),
    "wasted_dollars": ("Of the cost, what attempts took that failed or whose clients went.", _OF_POOL),
    "booked_tokens": (
        "Tokens as budgets and journal book them: where nothing was reported or counted, what was expected.",
        _OF_POOL,
    ),
    "wasted_tokens": ("Of the booked tokens, those of attempts that failed or whose clients went.", _OF_POOL),
    "guard_trips": ("Exceptions of the addon's own, in any place.", ()),
    "oddities": ("What could not be understood, and was defaulted.", ()),
    "clock_jumps": ("Times that the machine slept.", ()),
}
"""Name, without its prefix → help and labels."""
_COUNTED = {
    BackedOff: "retries",
    CommittedStreamFailed: "committed_failures",
    Superseded: "superseded",
    PoolBlocked: "provider_pauses",
    AccountBlocked: "account_blocks",
    GuardTripped: "guard_trips",
    OddityNoted: "oddities",
    MachineSlept: "clock_jumps",
}
"""Events that count one of these by one, and nothing else."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """One pool's children of the metrics that most requests move; looked up once."""

    label: str
    tickets: Counter
    ends: dict[str, Counter]
    admissions: Counter
    waits: Histogram
    outcomes: dict[OutcomeKind, Counter]
    durations: Histogram
    spent: tuple[Counter, Counter, Counter, Counter]
    """Booked and wasted tokens, booked and wasted dollars."""
    tokens: tuple[Counter, ...]
    """In the order of `_TOKEN_KINDS`."""


@dataclass(frozen=True, slots=True)
class Described:
    """One metric, for the documentation."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


class Metrics:
    """An observer with its own registry. Owns nothing that decides."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody reads
        self.registry = CollectorRegistry(auto_describe=False)
        self._described: list[Described] = []
        self._counters = {
            name: self._counter(f"hivemind_{name}", text, labels) for name, (text, labels) in _COUNTERS.items()
        }
        self._unsaved = self._gauge("hivemind_state_unsaved", "1 while the journal cannot be written to disk.")
        self._waits = self._histogram(
            "hivemind_admission_wait_seconds",
            "How long attempts waited for their admission, backoff counted.",
            _WAITS_S,
        )
        self._durations = self._histogram(
            "hivemind_attempt_duration_seconds", "From admission to the end of an attempt.", _DURATIONS_S
        )
        self._pools: dict[PoolKey, _Pool] = {}
        self._labels: set[str] = set()
        """Of pools that have their own."""
        self._snapshot: Callable[[], Snapshot] | None = None
        """While an exposition is made."""
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def __repr__(self) -> str:
        return f"<Metrics of {len(self._pools)} pools>"

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        self._described.append(Described(f"{name}_total", "counter", labels, text))
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        self._described.append(Described(name, "gauge", (), text))
        return Gauge(name, text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        labels = ("pool",)
        self._described.append(Described(name, "histogram", labels, text))
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def described(self) -> list[Described]:
        """Every metric of ours; those of the process are prometheus_client's own."""
        gauges = (Described(name, "gauge", labels, text) for name, (text, labels) in GAUGES.items())
        return [*self._described, *gauges]

    def exposition(self, snapshot: Callable[[], Snapshot]) -> bytes:
        """Everything in Prometheus's text format. Counters are told even where `snapshot` raises."""
        self._snapshot = snapshot
        try:
            return generate_latest(self.registry)
        finally:
            self._snapshot = None

    # Events ----------------------------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Count one event."""
        if (name := _COUNTED.get(type(event))) is not None:
            counter, pool = self._counters[name], getattr(event, "pool", None)
            (counter if pool is None or not _COUNTERS[name][1] else counter.labels(self._of(pool).label)).inc()
            return
        match event:
            case Submitted():
                self._of(event.ticket.pool).tickets.inc()
            case Held():
                self._counters["holds"].labels(self._of(event.pool).label, event.reason.value).inc()
            case AttemptStarted():
                pool = self._of(event.pool)
                pool.admissions.inc()
                pool.waits.observe(event.waited_s)
            case AttemptEnded():
                self._attempt_ended(event)
            case TicketEnded():
                self._ended(event)
            case BreakerChanged():
                self._counters["breaker_changes"].labels(self._of(event.pool).label, event.state).inc()
            case StateUnsaved():
                self._unsaved.set(bool(event.reason))

    def _attempt_ended(self, event: AttemptEnded) -> None:
        pool, usage = self._of(event.pool), event.usage
        pool.outcomes[event.outcome.kind].inc()
        pool.durations.observe(event.duration_s)
        if event.outcome.garbage:
            self._counters["garbage_answers"].labels(pool.label).inc()
        if event.outcome.ambiguous:
            self._counters["ambiguous_attempts"].labels(pool.label).inc()
        if usage is not None:
            used = (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens, usage.output_tokens)
            for counter, tokens in zip(pool.tokens, used, strict=True):
                if tokens:
                    counter.inc(tokens)
        spent, wasted = event.spend, event.wasted
        amounts = (spent.tokens, wasted.tokens, spent.micro_usd * MICRO, wasted.micro_usd * MICRO)
        for counter, amount in zip(pool.spent, amounts, strict=True):
            if amount:
                counter.inc(amount)

    def _ended(self, event: TicketEnded) -> None:
        # One that was never submitted had its place kept, and came to its end under another's id: it counts, too.
        pool = self._of(event.pool)
        pool.ends[event.end].inc()
        if event.end == "delivered" and event.attempts > 1:
            self._counters["retries_absorbed"].labels(pool.label).inc(event.attempts - 1)
        if event.ambiguous_resends:
            self._counters["ambiguous_resends"].labels(pool.label).inc(event.ambiguous_resends)

    def _of(self, key: PoolKey) -> _Pool:
        pool = self._pools.get(key)
        if pool is None:
            label = self._label(key)
            if label is None:
                # Not remembered by its key: there may be any number of them.
                return self._pools.get(_OTHER) or self._remember(_OTHER, OTHER)
            pool = self._remember(key, label)
        return pool

    def _label(self, key: PoolKey) -> str | None:
        """The pool's name, as long as there is room for one more."""
        label = str(key)
        if label not in self._labels:
            if len(self._labels) >= MAX_POOLS:
                return None
            self._labels.add(label)
        return label

    def _remember(self, key: PoolKey, label: str) -> _Pool:
        counters = self._counters
        pool = self._pools[key] = _Pool(
            label=label,
            tickets=counters["tickets"].labels(label),
            ends={end: counters["tickets_ended"].labels(label, end) for end in _ENDS},
            admissions=counters["admissions"].labels(label),
            waits=self._waits.labels(label),
            outcomes={kind: counters["attempts_ended"].labels(label, kind.value) for kind in OutcomeKind},
            durations=self._durations.labels(label),
            spent=(
                counters["booked_tokens"].labels(label),
                counters["wasted_tokens"].labels(label),
                counters["cost_dollars"].labels(label),
                counters["wasted_dollars"].labels(label),
            ),
            tokens=tuple(counters["tokens"].labels(label, kind) for kind in _TOKEN_KINDS),
        )
        return pool

    # The snapshot ----------------------------------------------------------------------------------------------------

    def collect(self) -> Iterable[Metric]:
        """What prometheus_client asks a collector for: the gauges of this instant."""
        return () if self._snapshot is None else gauges_of(self._snapshot, self._label)
