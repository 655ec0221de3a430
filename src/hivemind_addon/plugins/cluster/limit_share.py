"""A part of every limit, for a process that schedules alone what several do together: `1 / n` of it for each of `n`.

Limits that are set, learned or told by headers are made smaller before they reach the scheduler, so that it decides as
ever; of budgets the scheduler itself knows the share (`Scheduler.share_budgets`), for accounts open and periods begin
meanwhile. All shares of a limit come to no more than the limit, but for this: each has one attempt at least, or it
could do nothing.
"""

from dataclasses import replace as replaced

from msgspec.structs import replace

from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.learned import LearnedPool, Saved, UnreadableError, read_saved
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.ticket import Hints, Reading

_LEAST = 1.0
"""No limit is smaller: who counts units has one at least."""


def scaled_settings(settings: PoolSettings, share: float) -> PoolSettings:
    """A profile's word on a pool, with a share (above 0, at most 1) of its concurrency limits."""
    concurrency = settings.concurrency
    scaled = replaced(
        concurrency,
        initial=max(1, int(concurrency.initial * share)),
        maximum=max(1, int(concurrency.maximum * share)),
    )
    stated = tuple(replaced(one, amount=_scaled(one.amount, share)) for one in settings.stated)
    return replaced(settings, concurrency=scaled, stated=stated)


def scaled_hints(hints: Hints, share: float) -> Hints:
    """What a response said, as if its limits were so much smaller; the long windows, which pace nobody, as they are."""
    if share == 1 or not hints.readings:
        return hints
    return replace(hints, readings=tuple(_scaled_reading(reading, share) for reading in hints.readings))


def _scaled_reading(reading: Reading, share: float) -> Reading:
    limit, remaining = reading.limit, reading.remaining
    return replace(
        reading,
        # What is no limit (-1, 0, NaN) stays that.
        limit=_scaled(limit, share) if limit is not None and limit >= _LEAST else limit,
        remaining=None if remaining is None else remaining * share,
        granularity=reading.granularity * share,
    )


def scaled_learned(saved: object, share: float) -> object:
    """What was learned (`Scheduler.export`, or a `Saved`) with a share of each limit, for `Scheduler.restore`.

    What cannot be read is answered as it came: `restore` says so.
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
