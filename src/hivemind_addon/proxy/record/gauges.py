"""The snapshot → Prometheus's gauges."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily

from hivemind_addon.kernel.values.snapshot import BudgetView, PoolView, Snapshot
from hivemind_addon.kernel.values.ticket import PoolKey
from hivemind_addon.proxy.api.report import ACTIVE_S, ClusterView, ContextPressure
from hivemind_addon.proxy.record.contexts import Contexts

MAX_BUDGETS = 100
MICRO = 1e-6
_BREAKER_STATES = ("closed", "open", "half-open")

GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "hivemind_scheduler_up": ("1 while the scheduler can tell its state, 0 when it fails.", ()),
    "hivemind_stopping": ("1 while the proxy drains: it admits nothing more.", ()),
    "hivemind_queued": ("Tickets that wait for admission.", ("pool",)),
    "hivemind_longest_wait_seconds": ("How long the ticket that waits longest has waited.", ("pool",)),
    "hivemind_in_flight": ("Attempts upstream, bypassing ones counted.", ("pool",)),
    "hivemind_bypassing": ("Attempts that go past the scheduler after a guard trip.", ("pool",)),
    "hivemind_tokens_per_minute": (
        "Tokens of the attempts that ended in the last minute, by direction: in (cached ones, too), out.",
        ("pool", "direction"),
    ),
    "hivemind_concurrency_limit": ("The adaptive limit of attempts in flight.", ("pool",)),
    "hivemind_concurrency_cap": ("What a person lets the concurrency limit be at most.", ("pool",)),
    "hivemind_concurrency_maximum": (
        "Attempts in flight, while our own maximum keeps more from going; the label says what to raise.",
        ("pool", "setting"),
    ),
    "hivemind_paused": ("1 while a person has paused the pool.", ("pool",)),
    "hivemind_blocked_seconds": ("Seconds that the provider's retry-after still asks for.", ("pool",)),
    "hivemind_breaker_state": ("1 for the state that the breaker is in, 0 for the others.", ("pool", "state")),
    "hivemind_account_block": ("1 while the provider refuses the account for long.", ("pool",)),
    "hivemind_account_block_seconds": ("Seconds until the account is tried again.", ("pool",)),
    "hivemind_meter_level": ("What may still be taken of a rate limit now.", ("pool", "meter")),
    "hivemind_meter_limit": ("A rate limit, as the provider tells it.", ("pool", "meter")),
    "hivemind_meter_full_seconds": (
        "Seconds until the meter is full again if nothing more is taken.",
        ("pool", "meter"),
    ),
    "hivemind_window_used_ratio": ("Used part of a subscription's window.", ("pool", "window")),
    "hivemind_window_reset_seconds": ("Seconds until the window begins anew.", ("pool", "window")),
    "hivemind_contexts": ("Conversations with an answer in the last ten minutes; at most 500 are watched.", ()),
    "hivemind_contexts_full": ("Of these, the ones that fill most of their models' context windows.", ()),
    "hivemind_context_fullest_ratio": ("The largest part of a context window that any of them fills.", ()),
    "hivemind_budget_spent_tokens": ("Tokens spent of a budget.", ("holder", "per")),
    "hivemind_budget_reserved_tokens": ("Tokens set aside for attempts in flight.", ("holder", "per")),
    "hivemind_budget_limit_tokens": ("Tokens that a budget allows.", ("holder", "per")),
    "hivemind_budget_spent_dollars": ("Dollars spent of a budget.", ("holder", "per")),
    "hivemind_budget_reserved_dollars": ("Dollars set aside for attempts in flight.", ("holder", "per")),
    "hivemind_budget_limit_dollars": ("Dollars that a budget allows.", ("holder", "per")),
    "hivemind_budget_spent_calls": ("Calls counted in a budget.", ("holder", "per")),
    "hivemind_budget_reserved_calls": ("Calls of a budget that are in flight.", ("holder", "per")),
    "hivemind_budget_limit_calls": ("Calls that a budget allows.", ("holder", "per")),
}
"""Name → help and labels."""
_ROLES = ("joining", "member", "coordinator", "alone")
CLUSTER_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "hivemind_cluster_role": ("1 for what this proxy is in its cluster, 0 for what else it could be.", ("role",)),
    "hivemind_cluster_members": ("Proxies of the cluster, as far as this one knows.", ()),
    "hivemind_cluster_epoch": ("The newest epoch that is known: it grows with each coordinator.", ()),
    "hivemind_cluster_share": ("The part of the limits that this proxy uses: below 1 while it is alone.", ()),
}
"""The same of a proxy in a cluster."""


def cluster_gauges_of(view: ClusterView) -> Iterator[GaugeMetricFamily]:
    """What a proxy is in its cluster."""
    gauges = {name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in CLUSTER_GAUGES.items()}
    for role in _ROLES:
        _add(gauges["hivemind_cluster_role"], (role,), view.role == role)
    _add(gauges["hivemind_cluster_members"], (), view.known_members)
    _add(gauges["hivemind_cluster_epoch"], (), view.epoch)
    _add(gauges["hivemind_cluster_share"], (), view.share)
    yield from gauges.values()


def gauges_of(
    snapshot: Callable[[], Snapshot],
    label: Callable[[PoolKey], str | None],
    contexts: Contexts,
    tokens_per_minute: Callable[[PoolKey, float], tuple[float, float]],
) -> Iterator[GaugeMetricFamily]:
    """The gauges of this instant. `label` names a pool; None: there is no room for it.

    Where `snapshot` raises there is one gauge that says so.
    """
    gauges = {name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in GAUGES.items()}
    try:
        told = snapshot()
    except Exception:  # noqa: BLE001 - the scheduler fails: that is what is to be told, beside all that was counted
        _add(gauges["hivemind_scheduler_up"], (), 0)
        yield gauges["hivemind_scheduler_up"]
        return
    _add(gauges["hivemind_scheduler_up"], (), 1)
    _add(gauges["hivemind_stopping"], (), told.stopping)
    for view in told.pools:
        # Levels and limits of different pools have no sum, so there are none of `other`.
        if (name := label(view.key)) is not None:
            _add_pool(gauges, name, view)
            for direction, tokens in zip(("in", "out"), tokens_per_minute(view.key, told.at), strict=True):
                _add(gauges["hivemind_tokens_per_minute"], (name, direction), tokens)
    _add_budgets(gauges, told.budgets)
    _add_contexts(gauges, [one for one in contexts.view(told.at) if one.seen_ago_s <= ACTIVE_S])
    yield from gauges.values()


def _add_pool(gauges: Mapping[str, GaugeMetricFamily], label: str, view: PoolView) -> None:
    amounts: dict[str, float | None] = {
        "hivemind_queued": view.queued,
        "hivemind_longest_wait_seconds": view.longest_wait_s,
        "hivemind_in_flight": view.in_flight,
        "hivemind_bypassing": view.bypassing,
        "hivemind_concurrency_limit": view.limit,
        "hivemind_concurrency_cap": view.cap,
        "hivemind_paused": view.paused,
        "hivemind_blocked_seconds": view.blocked_for_s,
        "hivemind_account_block": view.account_block is not None,
        "hivemind_account_block_seconds": view.account_block.ends_in_s if view.account_block else 0,
    }
    for name, value in amounts.items():
        _add(gauges[name], (label,), value)
    if view.maximum_from:
        _add(gauges["hivemind_concurrency_maximum"], (label, view.maximum_from), view.limit)
    for state in _BREAKER_STATES:
        _add(gauges["hivemind_breaker_state"], (label, state), view.breaker == state)
    for meter in view.meters:
        _add(gauges["hivemind_meter_level"], (label, meter.name), meter.level)
        _add(gauges["hivemind_meter_limit"], (label, meter.name), meter.limit)
        _add(gauges["hivemind_meter_full_seconds"], (label, meter.name), meter.full_in_s)
    for window in view.windows:
        _add(gauges["hivemind_window_used_ratio"], (label, window.name), window.used)
        _add(gauges["hivemind_window_reset_seconds"], (label, window.name), window.resets_in_s)


def _add(gauge: GaugeMetricFamily, labels: Iterable[str], value: float | None) -> None:
    if value is not None:
        gauge.add_metric(list(labels), float(value))


def _add_budgets(gauges: dict[str, GaugeMetricFamily], views: Iterable[BudgetView]) -> None:
    """The budgets of which the largest share is spent; the others have no sum."""
    for view in sorted(views, key=lambda view: view.spent_share, reverse=True)[:MAX_BUDGETS]:
        budget = view.budget
        labels = (budget.holder, budget.per.value)
        for unit, name, scale in (("tokens", "tokens", 1), ("calls", "calls", 1), ("micro_usd", "dollars", MICRO)):
            if (limit := getattr(budget, unit)) is not None:
                _add(gauges[f"hivemind_budget_spent_{name}"], labels, getattr(view.spent, unit) * scale)
                _add(gauges[f"hivemind_budget_reserved_{name}"], labels, getattr(view.reserved, unit) * scale)
                _add(gauges[f"hivemind_budget_limit_{name}"], labels, limit * scale)


def _add_contexts(gauges: Mapping[str, GaugeMetricFamily], active: Sequence[ContextPressure]) -> None:
    """All together: there is no label of agents or sessions."""
    shares = [one.share for one in active if one.share is not None]
    _add(gauges["hivemind_contexts"], (), len(active))
    _add(gauges["hivemind_contexts_full"], (), sum(one.is_full for one in active))
    _add(gauges["hivemind_context_fullest_ratio"], (), max(shares, default=None))
