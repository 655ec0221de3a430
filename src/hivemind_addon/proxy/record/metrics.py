"""Sums and the snapshot → what Prometheus scrapes.

Counters and histograms tell the sums, gauges a snapshot, both as they are when somebody asks. Labels are bounded
whatever clients send: pools and budgets beyond the first hundred share the label `other`, sessions and models have no
label, and agents one only where it is asked for: the so and so many that use most, and `other`. After two pools have
proved to be one, the merged one's counters stand still.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from hivemind_addon.kernel.values.snapshot import Snapshot
from hivemind_addon.kernel.values.ticket import PoolKey
from hivemind_addon.proxy.api.report import ClusterView
from hivemind_addon.proxy.record.attempt_usage import Used
from hivemind_addon.proxy.record.contexts import Contexts
from hivemind_addon.proxy.record.gauges import CLUSTER_GAUGES, GAUGES, MICRO, cluster_gauges_of, gauges_of
from hivemind_addon.proxy.record.sums import DURATIONS_S, WAITS_S, Distribution, PoolSums, Sums

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_POOLS = 100
OTHER = "other"

Amounts = Mapping[tuple[str, ...], float]
"""By the labels after the pool's."""
_OF_POOL = ("pool",)


def _one(place: str, scale: float = 1) -> tuple[tuple[str, ...], Callable[[PoolSums], Amounts]]:
    amount = attrgetter(place)
    return _OF_POOL, lambda pool: {(): amount(pool) * scale}


def _counted(name: str) -> tuple[tuple[str, ...], Callable[[PoolSums], Amounts]]:
    return _OF_POOL, lambda pool: {(): pool.counts[name]}


def _by(
    label: str, amounts: Callable[[PoolSums], Mapping[str, float]]
) -> tuple[tuple[str, ...], Callable[[PoolSums], Amounts]]:
    return ("pool", label), lambda pool: {(label,): amount for label, amount in amounts(pool).items()}


def _tokens(used: Used) -> Mapping[str, float]:
    return {
        "input": used.input_tokens,
        "cache_read": used.cache_read_tokens,
        "cache_write": used.cache_write_tokens,
        "output": used.output_tokens,
    }


_COUNTERS: Mapping[str, tuple[str, tuple[tuple[str, ...], Callable[[PoolSums], Amounts]]]] = {
    "tickets": ("Requests that asked for admission.", _one("tickets")),
    "tickets_ended": (
        "Tickets by their end: delivered, gave up, shed, refused, cancelled.",
        _by("end", lambda pool: pool.ends),
    ),
    "holds": ("Waits by the reason at their beginning.", _by("reason", lambda pool: pool.holds)),
    "admissions": ("Attempts that were let go upstream.", _one("admitted")),
    "attempts_ended": (
        "Attempts by their outcome.",
        _by("outcome", lambda pool: {kind.value: number for kind, number in pool.outcomes.items()}),
    ),
    "ambiguous_attempts": ("Attempts that ended without a status: possibly billed.", _one("ambiguous")),
    "ambiguous_resends": ("Re-sends after an attempt that may have been billed.", _one("ambiguous_resends")),
    "garbage_answers": ("Complete answers that were garbage, delivered or tried again.", _one("garbage")),
    "retries": ("Failed attempts that are tried again.", _counted("retries")),
    "retries_absorbed": ("Failed attempts of tickets that were delivered all the same.", _one("retries_absorbed")),
    "committed_failures": (
        "Streams that failed after a keep-alive had sent their head.",
        _counted("committed_failures"),
    ),
    "superseded": ("Attempts that were ended because their client came back.", _counted("superseded")),
    "provider_pauses": ("Times that the provider asked for a pause.", _counted("provider_pauses")),
    "contexts": ("Conversations that were kept, or could not be for the first time in a row.", _counted("contexts")),
    "waits_overruled": (
        "Tickets sent against what was learned, because nothing else had gone for long.",
        _counted("waits_overruled"),
    ),
    "account_blocks": ("Times that the provider refused the account for long.", _counted("account_blocks")),
    "breaker_changes": ("Changes of the breaker by its new state.", _by("state", lambda pool: pool.breaker_changes)),
    "tokens": (
        "Tokens used, by kind: input (uncached), cache_read, cache_write, output.",
        _by("kind", lambda pool: _tokens(pool.used)),
    ),
    "cost_dollars": (
        "What attempts cost by known prices, for some models by a guess; models without any price count nothing.",
        _one("used.micro_usd", MICRO),
    ),
    "wasted_dollars": (
        "Of the cost, what attempts took that failed or whose clients went.",
        _one("used.wasted_micro_usd", MICRO),
    ),
    "booked_tokens": (
        "Tokens as budgets and journal book them: where nothing was reported or counted, what was expected.",
        _one("used.tokens"),
    ),
    "full_contexts": (
        "Times that a conversation came to fill most of its model's context window.",
        _counted("full_contexts"),
    ),
    "compactions": ("Times that a conversation went on with much less than before.", _one("compactions")),
    "compacted_tokens": ("Tokens by which compactions made conversations shorter.", _one("compacted_tokens")),
    "compaction_tokens": (
        "Tokens of the calls that made compactions' summaries, where a profile knows them.",
        _one("compaction_tokens"),
    ),
    "compaction_dollars": ("What these calls cost.", _one("compaction_micro_usd", MICRO)),
    "wasted_tokens": (
        "Of the booked tokens, those of attempts that failed or whose clients went.",
        _one("used.wasted_tokens"),
    ),
}
"""Name, without its prefix → help, labels, and what a pool adds to it."""
_TOTALS = {
    "guard_trips": "Exceptions of the addon's own, in any place.",
    "oddities": "What could not be understood, and was defaulted.",
    "clock_jumps": "Times that the machine slept.",
}
"""The same of those that have no labels."""
_AGENT_COUNTERS: Mapping[str, tuple[str, tuple[str, ...], Callable[[Used], Mapping[tuple[str, ...], float]]]] = {
    "agent_attempts": (
        "Attempts of the agents that use most, and of all others as `other`; only with `hivemind_metrics_agents`.",
        ("agent",),
        lambda used: {(): used.attempts},
    ),
    "agent_tokens": (
        "Tokens that they used, by kind, as in `hivemind_tokens_total`.",
        ("agent", "kind"),
        lambda used: {(kind,): amount for kind, amount in _tokens(used).items()},
    ),
    "agent_cost_dollars": (
        "What their attempts cost by the profiles' prices.",
        ("agent",),
        lambda used: {(): used.micro_usd * MICRO},
    ),
}
"""The same of agents."""
_UNSAVED = ("hivemind_state_unsaved", "1 while the journal cannot be written to disk.")
_HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...], Callable[[PoolSums], Distribution]]] = {
    "hivemind_admission_wait_seconds": (
        "How long attempts waited for their admission, backoff counted.",
        WAITS_S,
        lambda pool: pool.waits,
    ),
    "hivemind_attempt_duration_seconds": (
        "From admission to the end of an attempt.",
        DURATIONS_S,
        lambda pool: pool.durations,
    ),
}


@dataclass(frozen=True, slots=True)
class Described:
    """One metric, for the documentation."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


class Metrics:
    """Expositions, from a registry of its own."""

    def __init__(self, sums: Sums, contexts: Contexts) -> None:
        self._sums = sums
        self._contexts = contexts
        self._labels: set[str] = set()
        """Of pools that have their own."""
        self._snapshot: Callable[[], Snapshot] | None = None
        self._cluster: ClusterView | None = None
        """Both while an exposition is made."""
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def described(self) -> list[Described]:
        """Every metric of ours; those of the process are prometheus_client's own."""
        counters = {name: (text, labels) for name, (text, (labels, _)) in _COUNTERS.items()}
        counters |= {name: (text, labels) for name, (text, labels, _) in _AGENT_COUNTERS.items()}
        counters |= {name: (text, ()) for name, text in _TOTALS.items()}
        return [
            *(
                Described(f"hivemind_{name}_total", "counter", labels, text)
                for name, (text, labels) in counters.items()
            ),
            Described(_UNSAVED[0], "gauge", (), _UNSAVED[1]),
            *(Described(name, "histogram", _OF_POOL, text) for name, (text, _, _) in _HISTOGRAMS.items()),
            *(Described(name, "gauge", labels, text) for name, (text, labels) in {**GAUGES, **CLUSTER_GAUGES}.items()),
        ]

    def exposition(self, snapshot: Callable[[], Snapshot], *, cluster: ClusterView | None = None) -> bytes:
        """Everything in Prometheus's text format. Counters are told even where `snapshot` raises."""
        self._snapshot, self._cluster = snapshot, cluster
        try:
            return generate_latest(self.registry)
        finally:
            self._snapshot = self._cluster = None

    def collect(self) -> Iterable[Metric]:
        """What prometheus_client asks a collector for: everything of this instant."""
        if self._snapshot is None:
            return
        pools = [(self._label(pool.key) or OTHER, pool) for pool in self._sums.pools()]
        yield from _counters(pools)
        yield from _agent_counters(self._sums.agents.view())
        counts = self._sums.counts()
        for name, text in _TOTALS.items():
            yield CounterMetricFamily(f"hivemind_{name}", text, value=counts[name])
        yield GaugeMetricFamily(*_UNSAVED, value=self._sums.is_unsaved())
        yield from _histograms(pools)
        yield from gauges_of(self._snapshot, self._label, self._contexts, self._sums.tokens_per_minute)
        if self._cluster is not None:
            yield from cluster_gauges_of(self._cluster)

    def _label(self, key: PoolKey) -> str | None:
        """The pool's name, as long as there is room for one more."""
        label = str(key)
        if label not in self._labels:
            if len(self._labels) >= MAX_POOLS:
                return None
            self._labels.add(label)
        return label


def _counters(pools: Iterable[tuple[str, PoolSums]]) -> Iterator[Metric]:
    for name, (text, (labels, amounts_of)) in _COUNTERS.items():
        family = CounterMetricFamily(f"hivemind_{name}", text, labels=labels)
        amounts: dict[tuple[str, ...], float] = {}
        for label, pool in pools:
            for more, amount in amounts_of(pool).items():
                amounts[label, *more] = amounts.get((label, *more), 0) + amount
        for key, amount in amounts.items():
            family.add_metric(key, amount)
        yield family


def _agent_counters(agents: Mapping[str, Used]) -> Iterator[Metric]:
    for name, (text, labels, amounts_of) in _AGENT_COUNTERS.items() if agents else ():
        family = CounterMetricFamily(f"hivemind_{name}", text, labels=labels)
        for agent, used in agents.items():
            for more, amount in amounts_of(used).items():
                family.add_metric((agent, *more), amount)
        yield family


def _histograms(pools: Iterable[tuple[str, PoolSums]]) -> Iterator[Metric]:
    for name, (text, bounds, distribution_of) in _HISTOGRAMS.items():
        family = HistogramMetricFamily(name, text, labels=_OF_POOL)
        sums: dict[str, Distribution] = {}
        for label, pool in pools:
            sums.setdefault(label, Distribution(bounds)).add_all(distribution_of(pool))
        for label, distribution in sums.items():
            named = zip((*map(floatToGoString, bounds), "+Inf"), accumulate(distribution.counts), strict=True)
            family.add_metric((label,), list(named), distribution.total)
        yield family
