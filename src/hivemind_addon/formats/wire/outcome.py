"""How an attempt ended, judged from its status, body, stream error or transport trouble.

The profile's rules come first (the first that matches decides); then what HTTP and common sense say:

    2xx                         SUCCESS, unless the body says otherwise
    429                         THROTTLED, waiting cures it
    503, 529                    OVERLOADED, waiting cures it
    408, 409, any other 5xx     FAILED, trying again may cure it
    anything else               IGNORED, nothing cures it

An error object inside a good answer is judged by its name. `x-should-retry: false` ends all retrying. `true`
changes nothing: what it could add is either retried anyway, or a rule calls it hard, or the request itself is at
fault (400), which no waiting cures.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import Enum

from hivemind_addon.formats.base.json_values import is_json
from hivemind_addon.formats.base.memo import by_thing
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.format import ErrorPlaces, ResetFormat
from hivemind_addon.formats.profile.model import OutcomeRule, Profile
from hivemind_addon.formats.wire.error import (
    USUAL_PLACES,
    ErrorFacts,
    ToldTime,
    error_in_body,
    error_marks,
    error_members,
    failure,
    texts_at,
)
from hivemind_addon.formats.wire.hints import parse_reset, until_whole_s
from hivemind_addon.kernel.values.ticket import Hints, Outcome, OutcomeKind

# Longer bodies of status 200 are believed unread: checking must not stall the event loop.
_MAX_CHECKED_BYTES = 8 * 1024 * 1024
_MAX_MESSAGE_CHARS = 2000
_MAX_NAME_CHARS = 200
_MAX_RETRY_AFTER_S = 86_400.0
_SHORT_BYTES = 1000
"""A 200 that says no more than what went wrong is not longer."""
_HTML = re.compile(rb"<(?:!doctype|html|head|body)\b", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z][\w.-]{0,59}", re.ASCII)
# `Please try again in 6m0s.`, `Please retry after 10 seconds.`, `Please wait 52220 seconds before retrying.`
_DELAY = re.compile(
    r"(?:try again in|retry after|retry in|please wait)\s+"
    r"(?:((?:\d+(?:\.\d+)?(?:ms|[dhms]))+)\b|(\d+(?:\.\d+)?)\s?(ms|milli|s|min|hour)[a-z]*\b)",
    re.ASCII | re.IGNORECASE,
)
# `It will reset at 2026-11-28 03:59:59 +0800 CST`, `Your limit will reset at 2026-11-20 14:30:00`.
_RESET_AT = re.compile(
    r"\breset(?:s|ting)?\s(?:at|on)\s(\d{4}-\d\d-\d\d)[T ]+(\d\d:\d\d(?::\d\d)?)\s?(Z|UTC|[+-]\d\d:?\d\d)?",
    re.ASCII | re.IGNORECASE,
)
_ZONES = ("+00:00", "+08:00")
"""Of times without a zone: of who writes such messages, most are in China. The nearer end counts; it is looked at."""
_STATUS = re.compile(r"(?:.*\W)?([45]\d\d)", re.ASCII | re.DOTALL)
"""In a code: gateways put the status of what is behind them there: `429`, `ModelArts.81101.429`."""
_THROTTLED_NAME = re.compile("rate_?limit|throttl|too_?many_?requests", re.IGNORECASE)
_WORDS = (
    (re.compile(r"too many (?:\w+ )?requests|rate.?limit", re.IGNORECASE), OutcomeKind.THROTTLED),
    (re.compile(r"overloaded|at capacity|(?:server|service) is (?:too )?busy", re.IGNORECASE), OutcomeKind.OVERLOADED),
)
"""What an error says where its names say nothing, or call it the request's fault."""
_SPENT = "rejected"
_UNITS = {"ms": "ms", "milli": "ms", "s": "s", "min": "m", "hour": "h"}


class TransportTrouble(Enum):
    """What went wrong below HTTP."""

    CONNECT_FAILED = "cannot connect"
    NAME_NOT_FOUND = "name not found"
    CERTIFICATE = "bad certificate"
    """Of the provider; no waiting cures it."""
    CLOSED_BEFORE_HEAD = "closed before the answer"
    CUT = "cut in the middle of the answer"
    REFUSED_STREAM = "stream refused"
    """HTTP/2 REFUSED_STREAM, or GOAWAY with a lower last stream: the provider surely did not run it."""
    STALLED = "stalled"
    INVALID = "invalid answer"


_NO_HINTS = Hints()
_AMBIGUOUS = frozenset(
    {TransportTrouble.CLOSED_BEFORE_HEAD, TransportTrouble.CUT, TransportTrouble.STALLED, TransportTrouble.INVALID}
)
_CAUSES: Mapping[TransportTrouble, tuple[tuple[re.Pattern[str], str], ...]] = {
    trouble: tuple((re.compile(pattern, re.IGNORECASE), word) for pattern, word in causes.items())
    for trouble, causes in {
        TransportTrouble.CONNECT_FAILED: {
            "refused|connect call failed": "refused",
            "timed? ?out": "timed out",
            "unreachable|no route": "unreachable",
            "reset|broken pipe|peer closed|eof": "closed",
            "tls|ssl|certificate": "no TLS",
        },
        TransportTrouble.CERTIFICATE: {
            "expired": "expired",
            "hostname mismatch|ip address mismatch|not valid for": "another name's",
            "self.signed|unable to get": "signed by an authority that is not trusted",
        },
        TransportTrouble.INVALID: {"body_size_limit": "larger than body_size_limit", "headers?": "its headers"},
    }.items()
}
"""What is worth telling apart, and how it is recognised in a library's words; the first that is found counts."""
_UNREACHED = frozenset({TransportTrouble.CONNECT_FAILED, TransportTrouble.NAME_NOT_FOUND})


def judge_answer(
    profile: Profile,
    status: int,
    headers: Mapping[str, str],
    body: bytes | None,
    hints: Hints,
    wall_now: float = 0.0,
    *,
    is_object: bool = False,
    places: ErrorPlaces = USUAL_PLACES,
) -> Outcome:
    """Judge a complete answer. `headers` is asked for lower-case names; `wall_now` in epoch seconds.

    `body` is decoded; None when it could not be, or is too long to look at: then the head alone decides.
    `is_object`: it was read already, and is a JSON object. `places`: its format's.
    """
    error = None if body is None else _error_in(status, body, places)
    if places.name_headers and not 200 <= status < 300:
        error = _named_in_headers(error, headers, places.name_headers)
    rules = _rules_without_error(profile) if error is None and status == 200 else profile.outcomes
    rule = _first_match(rules, status, error, headers, hints) if rules else None
    if rule is not None:
        kind, retryable = rule.kind, rule.retry
        reason = _reason(str(status), error)
    elif 200 <= status < 300:
        kind, retryable, reason = _judge_success(status, headers, body, error, is_object=is_object)
        if kind is OutcomeKind.SUCCESS:
            return Outcome(kind, reason, status, retry_after_s=hints.retry_after_s)
    else:
        kind, retryable = _by_status(status)
        reason = _reason(str(status), error)
    return Outcome(
        kind=kind,
        reason=reason,
        status=status,
        retryable=retryable and hints.should_retry is not False,
        retry_after_s=_retry_after(kind, error, hints, wall_now),
        account_block_s=_account_block_s(rule, error, hints, wall_now),
        of_account=rule is not None and rule.of_account,
    )


def never_run(outcome: Outcome) -> bool:
    """Whether a service surely did nothing of what failed: a limit refused it, or it never got there."""
    return outcome.kind is OutcomeKind.THROTTLED or (outcome.status is None and not outcome.ambiguous)


def judge_stream_error(profile: Profile, error: ErrorFacts, hints: Hints = _NO_HINTS, wall_now: float = 0.0) -> Outcome:
    """Judge an error event inside a stream whose status was 200; `hints` are the head's, `wall_now` epoch seconds."""
    rule = _first_match(profile.outcomes, 200, error, {}, _NO_HINTS)
    kind, retryable = (rule.kind, rule.retry) if rule is not None else _by_name(error)
    return Outcome(
        kind=kind,
        reason=_reason("stream", error, "error"),
        status=200,
        retryable=retryable,
        retry_after_s=_retry_after(kind, error, _NO_HINTS, wall_now),
        account_block_s=_account_block_s(rule, error, hints, wall_now),
        of_account=rule is not None and rule.of_account,
    )


def judge_transport(trouble: TransportTrouble, said: str = "") -> Outcome:
    """Judge an attempt that ended without a complete answer. `said`: what some library says of it, in whatever words.

    The reason is ours: one for a cause, so that equal troubles are counted together.
    """
    hard = trouble is TransportTrouble.CERTIFICATE
    cause = next((word for pattern, word in _CAUSES.get(trouble, ()) if pattern.search(said)), "")
    return Outcome(
        kind=OutcomeKind.IGNORED if hard else OutcomeKind.FAILED,
        reason=f"{trouble.value}: {cause}" if cause else trouble.value,
        retryable=not hard,
        ambiguous=trouble in _AMBIGUOUS,
        unreached=trouble in _UNREACHED,
    )


def _error_in(status: int, body: bytes, places: ErrorPlaces) -> ErrorFacts | None:
    """The error of an answer. Plain text of a failure is its message; a page of HTML says nothing."""
    if len(body) > _MAX_CHECKED_BYTES:
        return None
    if 200 <= status < 300:
        # A good answer has no such key or has it null; most are recognised without reading them.
        is_read = len(body) <= _SHORT_BYTES or any(mark in body for mark in error_marks(places))
        return error_in_body(body, places) if is_read else None
    members = error_members(body)
    if members is not None:
        return failure(members, places)
    start = body[: _MAX_MESSAGE_CHARS * 4].lstrip()
    if not start or start[0] in b"<{[":
        return None
    return ErrorFacts(message=start.decode("utf-8", "replace")[:_MAX_MESSAGE_CHARS])


def _named_in_headers(
    error: ErrorFacts | None, headers: Mapping[str, str], names: tuple[str, ...]
) -> ErrorFacts | None:
    """The error with the names that headers tell: `ThrottlingException`, or with a `:` and a URL behind it."""
    told = (headers.get(name, "").partition(":")[0].strip()[:_MAX_NAME_CHARS] for name in names)
    own = tuple(filter(None, told))
    if not own:
        return error
    error = error or ErrorFacts()
    return replace(error, own_names=(*own, *error.own_names))


def _judge_success(
    status: int, headers: Mapping[str, str], body: bytes | None, error: ErrorFacts | None, *, is_object: bool
) -> tuple[OutcomeKind, bool, str]:
    """Kind, whether to retry, and reason of an answer with a good status."""
    if error is not None:
        return *_by_name(error), _reason(f"{status} with", error, "error")
    trouble = _unlike_an_answer(headers, body, is_object) if status == 200 and body is not None else None
    if trouble is not None:
        return OutcomeKind.FAILED, True, trouble
    return OutcomeKind.SUCCESS, False, str(status)


def _unlike_an_answer(headers: Mapping[str, str], body: bytes, is_object: bool) -> str | None:
    """What is wrong with the body of a 200."""
    if is_object:
        return None
    start = body[:_SHORT_BYTES].lstrip()
    if not start and not body.strip():
        return "200 with an empty body"
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    looks_json, looks_html = start.startswith((b"{", b"[")), start.startswith(b"<")
    declared_json = media_type == "application/json" or media_type.endswith("+json")
    if looks_html and (declared_json or media_type == "text/html" or _HTML.match(start)):
        return "200 with HTML"
    is_read = (looks_json or declared_json) and len(body) <= _MAX_CHECKED_BYTES
    first, newline, _ = body.partition(b"\n")
    if not is_read or is_json(body) or (newline and is_json(first)):
        return "200 with HTML" if media_type == "text/html" and not looks_json else None
    return "200 with broken JSON"


@by_thing
def _rules_without_error(profile: Profile) -> tuple[OutcomeRule, ...]:
    """Those that may match a 200 without an error: hardly any, and most answers are asked for them."""
    return tuple(
        rule
        for rule in profile.outcomes
        if (not rule.status or 200 in rule.status)
        and not rule.error
        and not rule.body
        and (not rule.message or re.search(rule.message, "", re.IGNORECASE))
    )


def _first_match(
    rules: tuple[OutcomeRule, ...],
    status: int,
    error: ErrorFacts | None,
    headers: Mapping[str, str],
    hints: Hints,
) -> OutcomeRule | None:
    names, message = ((), "") if error is None else (error.names, error.message)
    for rule in rules:
        if (
            (not rule.status or status in rule.status)
            and (not rule.error or any(name in rule.error for name in names))
            and (not rule.message or re.search(rule.message, message, re.IGNORECASE))
            and (rule.retry_after is None or rule.retry_after == (hints.retry_after_s is not None))
            and all(_header_matches(headers, name, pattern) for name, pattern in rule.headers.items())
            and (not rule.body or _body_matches(rule, error))
        ):
            return rule
    return None


def _body_matches(rule: OutcomeRule, error: ErrorFacts | None) -> bool:
    return error is not None and all(
        any(pattern.search(text) for text in texts_at(pointer, error.top)) for pointer, pattern in _conditions(rule)
    )


@by_thing
def _conditions(rule: OutcomeRule) -> tuple[tuple[Pointer, re.Pattern[str]], ...]:
    return tuple((Pointer.parse(at), re.compile(match, re.IGNORECASE)) for at, match in rule.body.items())


def _header_matches(headers: Mapping[str, str], name: str, pattern: str) -> bool:
    value = headers.get(name.lower())
    return value is not None and re.search(pattern, value[:_MAX_MESSAGE_CHARS], re.IGNORECASE) is not None


def _by_status(status: int) -> tuple[OutcomeKind, bool]:
    match status:
        case 429:
            return OutcomeKind.THROTTLED, True
        case 503 | 529:
            return OutcomeKind.OVERLOADED, True
        case 408 | 409:
            return OutcomeKind.FAILED, True
        case _ if 500 <= status < 600:
            return OutcomeKind.FAILED, True
    return OutcomeKind.IGNORED, False


_HARD_ERRORS = frozenset(
    {
        "authentication_error",
        "billing_error",
        "context_length_exceeded",
        "insufficient_quota",
        "invalid_prompt",
        "invalid_request_error",
        "not_found_error",
        "permission_error",
        "request_too_large",
    }
)


def _by_name(error: ErrorFacts) -> tuple[OutcomeKind, bool]:
    """Judge an error that has no status of its own by what it is called, else by what it says."""
    said = next((kind for words, kind in _WORDS if words.search(error.message)), None)
    for name in error.names:
        if name == "invalid_request_error" and said is not None:
            break
        if name in _HARD_ERRORS:
            return OutcomeKind.IGNORED, False
        if "overloaded" in name or name == "slow_down":
            return OutcomeKind.OVERLOADED, True
        if _THROTTLED_NAME.search(name):
            return OutcomeKind.THROTTLED, True
        if status := _STATUS.fullmatch(name):
            return _by_status(int(status[1]))
    return said or OutcomeKind.FAILED, True


def _reason(start: str, error: ErrorFacts | None, otherwise: str = "") -> str:
    """`start` and the error's most specific name, where it has one that is a word."""
    names = error.names if error is not None else ()
    name = next((name for name in names if _WORD.fullmatch(name)), otherwise)
    return f"{start} {name}" if name else start


def _retry_after(kind: OutcomeKind, error: ErrorFacts | None, hints: Hints, wall_now: float) -> float | None:
    """The header's delay, else the one that a refusal itself tells."""
    if hints.retry_after_s is not None:
        return hints.retry_after_s
    if error is None or kind in {OutcomeKind.SUCCESS, OutcomeKind.IGNORED}:
        return None
    return _told_delay_s(error, wall_now)


def _account_block_s(rule: OutcomeRule | None, error: ErrorFacts | None, hints: Hints, wall_now: float) -> float | None:
    """How long the account is refused, by the surest source: the error, the spent windows, any delay; 0: none tells."""
    if rule is None or not rule.account_block:
        return None
    if error is not None and error.resets_in_s is not None and error.resets_in_s > 0:
        return error.resets_in_s
    if error is not None and error.resets_at is not None and error.resets_at > wall_now > 0:
        return until_whole_s(error.resets_at, wall_now)
    if error is not None and (left_s := _first_time_s(error.resets, wall_now)):
        return left_s
    told = [window for window in hints.windows if window.resets_in_s]
    spent = [one for one in told if one.status == _SPENT] or [one for one in told if (one.used or 0) >= 1]
    if spent:
        return max(window.resets_in_s or 0 for window in spent)
    delay_s = hints.retry_after_s
    if delay_s is None and error is not None:
        delay_s = _told_delay_s(error, wall_now)
    if delay_s is None and error is not None:
        delay_s = _told_end_s(error.message, wall_now)
    return delay_s or 0.0


def _told_end_s(message: str, wall_now: float) -> float | None:
    """The seconds until the instant that a message names; None: it names none that is to come."""
    found = _RESET_AT.search(message)
    if found is None:
        return None
    day, clock, zone = found.groups()
    zones = _ZONES if zone is None else ("+00:00",) if zone.upper() in ("Z", "UTC") else (zone,)
    try:
        ends_at = [datetime.fromisoformat(f"{day}T{clock}{one}").timestamp() for one in zones]
    except ValueError:
        return None  # the 31st of a month that has 30
    return min((until_whole_s(at, wall_now) for at in ends_at if at > wall_now > 0), default=None)


def _told_delay_s(error: ErrorFacts, wall_now: float) -> float | None:
    """The delay that stands where the format has it, else the one that an error's message names."""
    delay_s = _first_time_s(error.delays, wall_now)
    if delay_s is None:
        found = _DELAY.search(error.message)
        if found is None:
            return None
        duration, amount, unit = found.groups()
        value = duration or amount + _UNITS[unit.lower()]
        delay_s = parse_reset(value.lower(), ResetFormat.DURATION, 0)
    return None if delay_s is None else min(delay_s, _MAX_RETRY_AFTER_S)


def _first_time_s(times: tuple[ToldTime, ...], wall_now: float) -> float | None:
    """Seconds until the first of these that can be read."""
    read = (parse_reset(time.value, time.format, wall_now) for time in times)
    return next((seconds for seconds in read if seconds is not None), None)
