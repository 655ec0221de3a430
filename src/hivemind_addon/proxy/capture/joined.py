"""The calls of a file and what stands beside them → one capture."""

from collections.abc import Iterable
from dataclasses import replace

from hivemind_addon.api.ticket import PoolKey
from hivemind_addon.proxy.capture.model import Capture, CapturedAttempt, CapturedCall, ConcurrencyMove, LimitSeen
from hivemind_addon.proxy.capture.recording import Circumstances


def join(records: Iterable[tuple[CapturedCall, Circumstances]], damage: Iterable[str] = ()) -> Capture:
    """One capture, whose begin is that of its first recording; recordings that follow it in the file come later.

    Calls of foreign flows bring circumstances that say nothing but their begin.
    """
    records = list(records)
    began_wall = min((beside.began_wall for _, beside in records), default=0.0)
    into: dict[PoolKey, PoolKey] = {}
    for _, beside in records:
        into |= {merge.merged: merge.pool for merge in beside.merges}

    def present(pool: PoolKey) -> PoolKey:
        seen = {pool}
        while (pool := into.get(pool, pool)) not in seen:
            seen.add(pool)
        return pool

    calls: list[CapturedCall] = []
    limits: list[LimitSeen] = []
    moves: list[ConcurrencyMove] = []
    for call, beside in records:
        later_s = beside.began_wall - began_wall
        calls.append(_later(replace(call, pool=present(call.pool)), later_s))
        limits += [replace(one, at_s=one.at_s + later_s, pool=present(one.pool)) for one in beside.limits]
        moves += [replace(one, at_s=one.at_s + later_s, pool=present(one.pool)) for one in beside.moves]
    return Capture(
        calls=tuple(sorted(calls, key=lambda call: (call.at_s, call.id))),
        limits=tuple(sorted(limits, key=lambda one: one.at_s)),
        moves=tuple(sorted(moves, key=lambda one: one.at_s)),
        began_wall=began_wall,
        ended_s=max((call.ended_s for call in calls), default=0.0),
        profiles=tuple(sorted({name for _, beside in records for name in beside.profiles})),
        proxy_version=next((beside.proxy_version for _, beside in records if beside.proxy_version), ""),
        content=any(beside.content for _, beside in records),
        damage=tuple(damage),
    )


def _later(call: CapturedCall, later_s: float) -> CapturedCall:
    if not later_s:
        return call

    def moved(attempt: CapturedAttempt) -> CapturedAttempt:
        return replace(attempt, at_s=attempt.at_s + later_s)

    return replace(
        call,
        at_s=call.at_s + later_s,
        ended_s=call.ended_s + later_s,
        attempts=tuple(moved(attempt) for attempt in call.attempts),
    )
