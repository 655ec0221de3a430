"""Shed and Refused → an answer in the provider's own error shape.

A held request that is shed gets the status and headers that make its client come back; one whose budget is spent
gets those that make it stop.
"""

import math
from pathlib import Path

from mitmproxy import http

from hivemind_addon.core.decision import Reason, Refused, Shed
from hivemind_addon.core.spend import Period, amount
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


def budget_text(refused: Refused, agents_file: Path | None) -> str:
    """Who has spent how much, until when, and how to raise it."""
    short = refused.shortage
    budget = short.budget
    spent, limit = amount(short.unit, short.spent), amount(short.unit, short.limit)
    share = {Period.RUN: "for this run", Period.HOUR: "per hour", Period.DAY: "per day"}[budget.per]
    key = f"{budget.scope.value}s: {budget.name}" if budget.name else budget.scope.value
    if short.spent >= short.limit:
        what = f"the budget of {budget.holder} is spent: {spent} of {limit} {share}"
    else:
        needed = amount(short.unit, short.needed)
        what = f"the budget of {budget.holder} has too little left: {spent} of {limit} {share} is spent"
        what += f", and this request needs about {needed}"
    again = f" A new one begins in {_duration(short.renews_in_s)}." if short.renews_in_s is not None else ""
    return f"hivemind: {what}.{again} To go on now, raise {key}: budgets in {agents_file or 'the agents file'}."


def make_budget_refusal(
    profile: Profile, dialect: Dialect, refused: Refused, agents_file: Path | None
) -> http.Response:
    """The refusal of a request whose budget is spent; clients show it and do not retry."""
    refusal = profile.budget_refusal
    return http.Response.make(
        refusal.status,
        dialect.error_body(refusal.status, refusal.error, budget_text(refused, agents_file)),
        {"content-type": "application/json", "x-should-retry": "false"},
    )


def _duration(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
