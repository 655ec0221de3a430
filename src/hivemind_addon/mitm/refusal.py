"""Shed → an answer in the provider's own error shape, with the status and headers that make its clients come back."""

import math

from mitmproxy import http

from hivemind_addon.core.decision import Reason, Shed
from hivemind_addon.profile.model import Profile
from hivemind_addon.wire.dialect import Dialect


def refusal_text(shed: Shed) -> str:
    """What a person who sees the refusal reads."""
    if shed.reason is Reason.STOPPING:
        return "hivemind: the proxy is stopping; please retry."
    return f"hivemind: still waiting ({shed.reason.value}); please retry, the request keeps its turn."


def come_back_s(profile: Profile, shed: Shed) -> int:
    """The retry-after, in whole seconds, bounded by what the provider's SDKs obey."""
    return max(1, min(math.ceil(shed.come_back_s), profile.refusal.retry_after_max_s))


def make_refusal(profile: Profile, dialect: Dialect, shed: Shed) -> http.Response:
    """The come-back refusal for a held request."""
    refusal = profile.refusal
    return http.Response.make(
        refusal.status,
        dialect.error_body(refusal.status, refusal.error, refusal_text(shed)),
        {
            "content-type": "application/json",
            "retry-after": str(come_back_s(profile, shed)),
            "x-should-retry": "true",
        },
    )
