"""Captured calls, with what a test does not say filled in."""

from hivemind_addon.kernel.values.ticket import Demand, Dimension, OutcomeKind, PoolKey, Usage
from hivemind_addon.plugins.captures.model import Capture, CapturedAttempt, CapturedCall, CapturedChunk, LimitSeen

POOL = PoolKey(host="api.anthropic.com", account="key-1", model_group="sonnet")


def make_attempt(number=1, **changes):
    return CapturedAttempt(
        **{
            "number": number,
            "at_s": 0.0,
            "waited_s": 0.0,
            "kind": OutcomeKind.SUCCESS,
            "reason": "200",
            "status": 200,
            "head_after_s": 0.5,
            "ended_after_s": 4.0,
            "chunks": (CapturedChunk(0.5, 100), CapturedChunk(4.0, 900)),
            "usage": Usage(input_tokens=900, output_tokens=80, reported=True),
        }
        | changes
    )


def make_call(call_id="call-1", **changes):
    return CapturedCall(
        **{
            "id": call_id,
            "at_s": 0.0,
            "ended_s": 4.0,
            "agent": "ann",
            "session": "s-1",
            "pool": POOL,
            "model": "claude-sonnet-4-5",
            "end": "delivered",
            "attempts": (make_attempt(),),
            "streamed": True,
            "demand": Demand(input_tokens=900, output_tokens=80),
            "request_hash": "h-1",
            "request_bytes": 3600,
        }
        | changes
    )


def make_limit(**changes):
    return LimitSeen(
        **{
            "at_s": 0.5,
            "pool": POOL,
            "meter": "requests",
            "kind": "window",
            "limit": 50.0,
            "window_s": 60.0,
            "dimension": Dimension.REQUESTS,
        }
        | changes
    )


def make_capture(*calls, **changes):
    return Capture(
        **{"calls": calls, "ended_s": max((call.ended_s for call in calls), default=0.0), "began_wall": 1.7e9} | changes
    )
