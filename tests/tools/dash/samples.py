"""Reports with everything filled in that a test does not care for."""

from msgspec import structs
from msgspec.structs import replace

from hivemind_addon.kernel.values.snapshot import SCHEMA_VERSION, Counters, PoolView, RequestState, Snapshot, TicketView
from hivemind_addon.kernel.values.ticket import PoolKey, Usage
from hivemind_addon.proxy.api.report import ContextPressure, PoolStats, ProxyView, Report, SessionStats, StatsView
from tests.kernel import samples

KEY = PoolKey("api.test", "key-1", "large")
PROXY = ProxyView(
    pid=7,
    port=8080,
    listens=("127.0.0.1:8080",),
    confdir="",
    hosts=(),
    version="1.2.3",
    began_wall=1_800_000_000.0,
    web="http://127.0.0.1:8081/",
)


def pool(key=KEY, **changes):
    """An idle pool."""
    usual = PoolView(
        key=key,
        account_name=None,
        in_flight=0,
        bypassing=0,
        limit=4,
        queued=0,
        breaker="closed",
        blocked_for_s=0,
        meters=(),
        tickets=(),
    )
    return replace(usual, **changes)


def pool_tally(key=KEY, **changes):
    usual = PoolStats(
        key=key,
        admitted=0,
        delivered=0,
        retries_absorbed=0,
        throttled=0,
        failed=0,
        usage=Usage(),
        micro_usd=0,
        wait_p50_s=None,
        wait_p95_s=None,
        history=(),
        moves=(),
    )
    return replace(usual, **changes)


def session(agent="a", name="s", **changes):
    usual = SessionStats(
        agent=agent,
        session=name,
        parent_session="",
        model="m",
        tickets=1,
        delivered=1,
        lost=0,
        shed=0,
        cancelled=0,
        retries_absorbed=0,
        waited_s=0,
        usage=Usage(),
        micro_usd=0,
        is_priced=True,
        seen_ago_s=5,
    )
    return replace(usual, **changes)


def waiting(ticket_id="t", *, agent="a", name="s", position=1, waited_s=3.0, reason="rate limit", **changes):
    """A ticket that is queued."""
    ticket = structs.replace(samples.ticket(ticket_id, session=name), agent=agent, pool=KEY)
    view = TicketView(
        ticket=ticket,
        state=RequestState.QUEUED,
        reason=reason,
        position=position,
        attempts=0,
        waited_s=waited_s,
        why=reason,
    )
    return replace(view, **changes)


def flying(ticket_id="t", *, agent="a", name="s", attempts=1):
    """A ticket that is upstream."""
    return waiting(
        ticket_id, agent=agent, name=name, position=0, reason="", state=RequestState.IN_FLIGHT, attempts=attempts
    )


def context(agent="a", name="s", **changes):
    """A conversation that fills 83 % of its model's context window."""
    usual = ContextPressure(
        agent=agent,
        session=name,
        model="m",
        tokens=166_000,
        window_tokens=200_000,
        growth_per_turn=4_250.0,
        turns=30,
        seen_ago_s=5.0,
        cache_lapses_in_s=250.0,
        is_full=True,
    )
    return replace(usual, **changes)


def report(*pools, sessions=(), stats_by_key=(), log=(), contexts=(), **changes):
    """Of these pools and sessions."""
    snapshot = replace(Snapshot(at=100.0, stopping=False, pools=pools, counters=Counters()), **changes)
    return Report(
        version=SCHEMA_VERSION,
        proxy=PROXY,
        snapshot=snapshot,
        stats=StatsView(pools=tuple(stats_by_key), sessions=tuple(sessions), log=tuple(log)),
        told_wall=1_800_003_600.0,
        contexts=tuple(contexts),
    )
