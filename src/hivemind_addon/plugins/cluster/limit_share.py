"""Share of every limit for a process that schedules alone while others use the same limits: `1 / n` for each of `n`.

Configured, learned and reported limits are scaled before they reach the scheduler, so that decisions need no special
case. The scheduler itself shares budgets (`Scheduler.share_budgets`), because accounts open and periods begin
meanwhile. The shares of a limit add up to at most the limit, except that each allows an attempt, or the process could
do nothing.
"""

from dataclasses import replace as replaced

from msgspec.structs import replace

from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.learned import LearnedPool, Saved, UnreadableError, read_saved
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.ticket import Hints, Reading

_LEAST = 1.0
"""Every share keeps at least one unit."""


def scaled_settings(settings: PoolSettings, share: float) -> PoolSettings:
    """Pool settings with concurrency and stated limits multiplied by `share` (0 < share ≤ 1)."""
    concurrency = settings.concurrency
    scaled = replaced(
        concurrency,
        initial=max(1, int(concurrency.initial * share)),
        maximum=max(1, int(concurrency.maximum * share)),
    )
    stated = tuple(replaced(limit, amount=_scaled(limit.amount, share)) for limit in settings.stated)
    return replaced(settings, concurrency=scaled, stated=stated)


def scaled_hints(hints: Hints, share: float) -> Hints:
    """Hints with the readings multiplied by `share`; long windows, which pace nobody, stay as they are."""
    if share == 1 or not hints.readings:
        return hints
    return replace(hints, readings=tuple(_scaled_reading(reading, share) for reading in hints.readings))


def _scaled_reading(reading: Reading, share: float) -> Reading:
    limit, remaining = reading.limit, reading.remaining
    return replace(
        reading,
        # Values that are no limit (-1, 0, NaN) stay the same.
        limit=_scaled(limit, share) if limit is not None and limit >= _LEAST else limit,
        remaining=None if remaining is None else remaining * share,
        granularity=reading.granularity * share,
    )


def scaled_learned(saved: object, share: float) -> object:
    """Learned limits (`Scheduler.export`, or a `Saved`) multiplied by `share`, for `Scheduler.restore`.

    Unreadable values are returned unchanged: `restore` reports them.
    """
    try:
        read = saved if isinstance(saved, Saved) else read_saved(saved)
    except UnreadableError:
        return saved
    return replace(read, pools=tuple(_scaled_pool(pool, share) for pool in read.pools)).to_json()


def _scaled_pool(pool: LearnedPool, share: float) -> LearnedPool:
    return replace(
        pool,
        meters=tuple(replaced(meter, limit=_scaled(meter.limit, share)) for meter in pool.meters),
        throttles=_scaled_hidden(pool.throttles, share),
        overloads=_scaled_hidden(pool.overloads, share),
    )


def _scaled_hidden(limit: HiddenLimit | None, share: float) -> HiddenLimit | None:
    return None if limit is None else replaced(limit, amount=_scaled(limit.amount, share))


def _scaled(limit: float, share: float) -> float:
    return max(_LEAST, limit * share)
