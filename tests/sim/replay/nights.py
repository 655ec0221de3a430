"""Captures made by hand: sessions with think times and sizes, and what went wrong in them."""

import random
from dataclasses import replace

from hivemind_addon.kernel.values.ticket import Demand, Dimension, OutcomeKind, PoolKey, Usage
from hivemind_addon.plugins.captures.model import Capture, CapturedAttempt, CapturedCall, LimitSeen

POOL = PoolKey("api.anthropic.com", "key-1", "claude-sonnet")
REQUESTS = LimitSeen(0.0, POOL, "requests", "bucket", 60, 60.0, Dimension.REQUESTS)


def attempt(at_s, *, took_s=2.0, kind=OutcomeKind.SUCCESS, status=200, number=1, **more):
    usage = Usage(input_tokens=1000, output_tokens=100, reported=True) if kind is OutcomeKind.SUCCESS else None
    return CapturedAttempt(
        number=number,
        at_s=at_s,
        waited_s=0.0,
        kind=kind,
        reason=more.pop("reason", "200" if kind is OutcomeKind.SUCCESS else f"{status} error"),
        ended_after_s=took_s,
        status=status,
        head_after_s=more.pop("head_after_s", None if status is None else took_s / 4),
        usage=more.pop("usage", usage),
        **more,
    )


def call(name, at_s, *, took_s=2.0, agent="a", attempts=None, **more):
    attempts = (attempt(at_s, took_s=took_s),) if attempts is None else attempts
    last = attempts[-1] if attempts else None
    is_delivered = last is not None and last.kind is OutcomeKind.SUCCESS
    return CapturedCall(
        id=name,
        at_s=at_s,
        ended_s=more.pop("ended_s", last.at_s + last.ended_after_s if last else at_s + took_s),
        agent=agent,
        session=more.pop("session", agent),
        pool=more.pop("pool", POOL),
        model="claude-sonnet-4-5",
        end=more.pop("end", "delivered" if is_delivered else "gave up"),
        attempts=attempts,
        dialect=more.pop("dialect", "anthropic"),
        profile=more.pop("profile", "anthropic"),
        streamed=True,
        demand=Demand(input_tokens=1000, output_tokens=150, total_tokens=1150),
        request_hash=more.pop("request_hash", f"hash of {name}"),
        **more,
    )


def capture(*calls, limits=(REQUESTS,), **more):
    return Capture(calls=tuple(calls), limits=tuple(limits), ended_s=max(c.ended_s for c in calls), **more)


def fleet(agents, turns, *, seed=0, requests_per_min=60):
    """A night of sessions that got on without much trouble: now and then an overload, retried."""
    rng = random.Random(seed)
    calls = []
    for number in range(agents):
        name, at_s = f"agent-{number + 1}", rng.uniform(0, 5)
        for turn in range(turns):
            tries = []
            if rng.random() < 0.05:
                tries.append(attempt(at_s, took_s=0.2, kind=OutcomeKind.OVERLOADED, status=529))
            took_s = rng.uniform(1, 6)
            begun_s = at_s + 0.7 * len(tries)
            usage = Usage(
                input_tokens=rng.randint(200, 3000), output_tokens=rng.randint(20, 400), cache_read_tokens=2000 * turn,
                cache_write_tokens=2000, reported=True,
            )  # fmt: skip
            tries.append(attempt(begun_s, took_s=took_s, number=len(tries) + 1, usage=usage))
            made = call(f"{number + 1}.{turn + 1}", at_s, agent=name, attempts=tuple(tries))
            made = replace(
                made, cached_tokens=2000 * turn, cold_tokens=2000 * turn, prefix="shared", prefix_tokens=2000
            )
            calls.append(made)
            at_s = made.ended_s + rng.uniform(0.5, 8)
    calls.sort(key=lambda made: made.at_s)
    return capture(*calls, limits=(replace(REQUESTS, limit=requests_per_min),))
