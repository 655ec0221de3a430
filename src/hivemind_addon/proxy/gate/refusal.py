"""Shed and Refused → an answer in the provider's own error shape.

A held request that is shed gets the status and headers that make its client come back; one whose budget or account
is spent, or that a person cancelled, gets those that make it stop. So does a WebSocket that is to become plain
requests.
"""

import math
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

from mitmproxy import http

from hivemind_addon.formats.profile.model import Profile
from hivemind_addon.formats.wire.dialect import Dialect
from hivemind_addon.formats.wire.hints import DELAY_HEADERS
from hivemind_addon.kernel.values.command import Cancel
from hivemind_addon.kernel.values.decision import ActiveBlock, Refused, Shed
from hivemind_addon.kernel.values.spend import Scope, Shortage
from hivemind_addon.kernel.values.ticket import CallKind, Outcome, Reason
from hivemind_addon.proxy.api.account import words_of
from hivemind_addon.proxy.api.words import PRICE_CURE, amount, lasting
from hivemind_addon.proxy.system.clock import Clock

_DOLLAR = 1_000_000
_CENT = _DOLLAR // 100
_CALLED_OFF_STATUS = 400
"""Neither 408, 409, 429 nor 5xx, which clients retry."""
_CALLED_OFF_TEXT = "hivemind: a person cancelled this request at the proxy; it is not to be sent again."


MOST_SLEPT_S = 300.0
"""The longest delay of a provider that clients see unchanged, because SDKs obey any (2026-11)."""
_USUAL_PORT = 8080
"""The port of mitmproxy, where commands look for a proxy."""


def refusal_text(shed: Shed) -> str:
    """The message of the refusal."""
    if shed.reason is Reason.STOPPING:
        return "hivemind: the proxy is stopping; please retry."
    if shed.ticket.kind is CallKind.TOOL:
        return f"hivemind: still waiting for the service's limit ({shed.reason.value}); please retry then."
    return f"hivemind: still waiting ({shed.reason.value}); please retry, the request keeps its turn."


def come_back_s(profile: Profile, shed: Shed) -> int:
    """The retry-after, in whole seconds, bounded by what the provider's SDKs obey."""
    return max(1, min(math.ceil(shed.come_back_s), profile.refusal.retry_after_max_s))


def make_refusal(profile: Profile, dialect: Dialect, shed: Shed) -> http.Response:
    """The come-back refusal for a held request."""
    refusal, retry_after_s = profile.refusal, come_back_s(profile, shed)
    return _answer(
        dialect,
        refusal.status,
        refusal.error,
        refusal_text(shed),
        {"retry-after": str(retry_after_s), "x-should-retry": "true"},
        retry_after_s=retry_after_s,
    )


def soften(headers: http.Headers, profile: Profile, outcome: Outcome) -> None:
    """Let clients survive a refusal by the provider that they cannot wait out: no long sleep, no retry at once."""
    told_s = outcome.account_block_s or outcome.retry_after_s or 0.0
    is_long = told_s > MOST_SLEPT_S
    if profile.is_plain or not (is_long or (outcome.status == 429 and not outcome.retryable)):
        return
    headers["x-should-retry"] = "false"
    if is_long and (told := DELAY_HEADERS.intersection(map(str.lower, headers))):
        for name in told:
            del headers[name]
        headers["retry-after"] = str(profile.refusal.retry_after_max_s)


def refused_text(
    refused: Refused, agents_file: Path | None, clock: Clock, kept_as: str = "", *, port: int = _USUAL_PORT
) -> str:
    """The message: the spent budget or account and the end, or the person's command.

    `kept_as`: the context of the conversation. `port`: the proxy's, for the named commands; 0: unknown.
    """
    at = f" -p {port}" if port not in (0, _USUAL_PORT) else ""
    match refused.cause:
        case Cancel():
            return _CALLED_OFF_TEXT
        case Shortage() as short:
            return _budget_text(short, agents_file, at) + _kept_text(kept_as, at)
        case ActiveBlock() as closure:
            return _wall_text(closure, clock)


def refused_error(profile: Profile, dialect: Dialect, refused: Refused) -> str:
    """The `type` (and `code`) of the error object."""
    match refused.cause:
        case Cancel():
            return dialect.usual_error(_CALLED_OFF_STATUS)
        case Shortage():
            return profile.budget_refusal.error
        case ActiveBlock():
            return profile.account_block_refusal.error


def make_refused(
    profile: Profile,
    dialect: Dialect,
    refused: Refused,
    agents_file: Path | None,
    clock: Clock,
    *,
    kept_as: str = "",
    port: int = _USUAL_PORT,
) -> http.Response:
    """A refusal that clients show and do not retry."""
    text = refused_text(refused, agents_file, clock, kept_as, port=port)
    error = refused_error(profile, dialect, refused)
    headers = {"x-should-retry": "false"}
    match refused.cause:
        case Cancel():
            return _answer(dialect, _CALLED_OFF_STATUS, error, text, headers)
        case Shortage():
            return _answer(dialect, profile.budget_refusal.status, error, text, headers)
        case ActiveBlock() as closure:
            blocked = profile.account_block_refusal
            left_s = max(1, math.ceil(closure.until - clock.monotonic()))
            reset = math.ceil(clock.wall() + left_s)
            headers |= {"retry-after": str(min(left_s, profile.refusal.retry_after_max_s))}
            headers |= {name: value.replace("{reset}", str(reset)) for name, value in blocked.headers.items()}
            return _answer(dialect, blocked.status, error, text, headers, resets_at=reset, retry_after_s=left_s)


def make_misdirected(dialect: Dialect, why: str) -> http.Response:
    """The refusal of a request that no endpoint's key may go with."""
    error = dialect.usual_error(_CALLED_OFF_STATUS)
    return _answer(dialect, _CALLED_OFF_STATUS, error, f"hivemind: {why}.", {"x-should-retry": "false"})


def make_upgrade_refusal(dialect: Dialect) -> http.Response:
    """The answer to a WebSocket upgrade: use plain requests, which can be scheduled."""
    return _answer(dialect, 426, "", "hivemind: WebSockets are not scheduled; please send plain requests.", {})


def _answer(
    dialect: Dialect,
    status: int,
    error: str,
    text: str,
    headers: dict[str, str],
    *,
    resets_at: int | None = None,
    retry_after_s: int | None = None,
) -> http.Response:
    own = dialect.error_headers(status, error, resets_at, retry_after_s)
    body = dialect.error_body(status, error, text, resets_at, retry_after_s)
    return http.Response.make(status, body, {"content-type": "application/json", **headers, **own})


def _wall_text(closure: ActiveBlock, clock: Clock) -> str:
    left_s = max(0.0, closure.until - clock.monotonic())
    end = datetime.fromtimestamp(clock.wall() + left_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    what = "this account" if closure.of_account else "this model"
    if not closure.is_end_told:
        return (
            f"hivemind: the provider refuses {what}, and does not say until when: {closure.reason}. "
            f"It is asked again at {end} (in {lasting(left_s)})."
        )
    return (
        f"hivemind: the provider refuses {what} until {end} (in {lasting(left_s)}): {closure.reason}. "
        "`hivemind resume` tries it at once."
    )


def _kept_text(kept_as: str, at: str) -> str:
    return f" Its conversation is kept: hivemind context show {kept_as}{at}." if kept_as else ""


def _budget_text(short: Shortage, agents_file: Path | None, at: str) -> str:
    """The holder, the amounts, the end, and the command that lets the work go on."""
    budget = short.budget
    spent, limit = amount(short.unit, short.spent), amount(short.unit, short.limit)
    share = words_of(budget.per)
    if short.unpriced:
        what = f"the price of {short.unpriced} is not known, and the budget of {budget.holder} is {limit} {share}"
        return f"hivemind: {what} (hivemind_refuse_unpriced). To go on, a person can {PRICE_CURE.split(',')[0]}."
    if short.spent >= short.limit:
        what = f"the budget of {budget.holder} is spent: {spent} of {limit} {share}"
    else:
        needed = amount(short.unit, short.needed)
        what = f"the budget of {budget.holder} has too little left: {spent} of {limit} {share} is spent"
        what += f", and this request needs about {needed}"
    again = f" A new one begins in {lasting(short.renews_in_s)}." if short.renews_in_s is not None else ""
    text = f"hivemind: {what}.{again} To go on now, a person runs: hivemind budget add {_more(short)}{at}"
    if agents_file is None:
        return text + "."
    key = f"{budget.scope.value}s: {budget.name}" if budget.name else budget.scope.value
    return f"{text}; to raise it for good: {key}: budgets in {agents_file}."


def _more(short: Shortage) -> str:
    """Arguments that add a quarter of the limit, or what this request needs: `agent-7 --per day --tokens 500000`."""
    budget = short.budget
    match budget.scope:
        case Scope.AGENT:
            who = shlex.quote(budget.name)
        case Scope.GROUP:
            who = f"--group {shlex.quote(budget.name)}"
        case Scope.EVERYONE:
            who = "--everyone"
        case _:
            assert_never(budget.scope)
    needed = short.spent + short.reserved + short.needed - short.limit
    least = _CENT if short.unit == "micro_usd" else 1
    wanted = max(needed, short.limit // 4, least)
    step = max(least, 10 ** (len(str(wanted)) - 1))
    wanted = -(-wanted // step) * step
    more = f"--usd {wanted / _DOLLAR:.2f}" if short.unit == "micro_usd" else f"--{short.unit} {wanted}"
    return f"{who} --per {budget.per.value} {more}"
