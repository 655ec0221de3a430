"""Sums → what a dashboard shows beside the snapshot: what came of each agent, how each pool moved."""

from math import ceil

from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.proxy.api.report import LimitMove, LogLine, PoolStats, Sample, SessionStats, StatsView
from hivemind_addon.proxy.record.attempt_usage import Used
from hivemind_addon.proxy.record.sums import SAMPLE_S, PoolSums, SessionSums, Sums

SESSIONS_TOLD = 500
"""The sessions that a view has: it is made once a second, on the event loop."""
WAITS_S = 600.0
"""Waits that are older count no more."""


class Stats:
    """Views of the sums."""

    def __init__(self, sums: Sums) -> None:
        self._sums = sums

    def view(self, now: float, log: tuple[LogLine, ...] = ()) -> StatsView:
        """What has been counted until now, beside the newest lines of the log."""
        sessions = self._sums.sessions()
        return StatsView(
            pools=tuple(_pool_view(pool, now) for pool in self._sums.present_pools(now)),
            sessions=tuple(_session_view(session, now) for session in sessions[-SESSIONS_TOLD:]),
            more_sessions=max(0, len(sessions) - SESSIONS_TOLD),
            log=log,
        )


def _pool_view(pool: PoolSums, now: float) -> PoolStats:
    waits = sorted(waited_s for at, waited_s in pool.newest_waits if now - at <= WAITS_S)
    all_of_it = (pool, *pool.merged)
    used = Used()
    for one in all_of_it:
        used.add(one.used)
    tokens_in, tokens_out = pool.tokens_per_minute(now)
    return PoolStats(
        key=pool.key,
        admitted=sum(one.admitted for one in all_of_it),
        delivered=sum(one.ends["delivered"] for one in all_of_it),
        retries_absorbed=sum(one.retries_absorbed for one in all_of_it),
        throttled=sum(one.outcomes[OutcomeKind.THROTTLED] for one in all_of_it),
        failed=sum(one.outcomes[kind] for one in all_of_it for kind in (OutcomeKind.FAILED, OutcomeKind.OVERLOADED)),
        usage=used.usage,
        micro_usd=used.micro_usd,
        tokens=used.tokens,
        wasted_tokens=used.wasted_tokens,
        wasted_micro_usd=used.wasted_micro_usd,
        garbage=sum(one.garbage for one in all_of_it),
        input_tokens_per_minute=tokens_in,
        output_tokens_per_minute=tokens_out,
        wait_p50_s=quantile(waits, 0.5),
        wait_p95_s=quantile(waits, 0.95),
        history=tuple(
            Sample(
                ago_s=now - (number + 1) * SAMPLE_S,
                queued=int(queued),
                in_flight=int(in_flight),
                limit=None if limit < 0 else int(limit),
            )
            for number, queued, in_flight, limit, *_ in pool.samples
        ),
        moves=tuple(
            LimitMove(ago_s=max(0.0, now - at), limit=limit, reason=reason) for at, limit, reason in pool.moves
        ),
    )


def quantile(ordered: list[float], share: float) -> float | None:
    """The value that `share` of the ordered ones do not exceed; None of none."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def _session_view(session: SessionSums, now: float) -> SessionStats:
    used = session.used
    return SessionStats(
        agent=session.agent,
        session=session.session,
        parent_session=session.parent_session,
        model=session.model,
        tickets=session.tickets,
        delivered=session.ends["delivered"],
        lost=session.ends["gave up"],
        refused=session.ends["refused"],
        shed=session.ends["shed"],
        cancelled=session.ends["cancelled"],
        retries_absorbed=session.retries_absorbed,
        waited_s=session.waited_s,
        usage=used.usage,
        micro_usd=used.micro_usd,
        tokens=used.tokens,
        wasted_tokens=used.wasted_tokens,
        wasted_micro_usd=used.wasted_micro_usd,
        is_priced=session.is_priced,
        seen_ago_s=max(0.0, now - session.seen_at),
        live=session.live,
    )
