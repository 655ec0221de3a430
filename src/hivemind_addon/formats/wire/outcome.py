"""How an attempt ended, judged from its status, body, stream error or transport trouble.

The profile's rules come first (the first that matches decides); then what HTTP and common sense say:

    2xx                         SUCCESS, unless the body says otherwise
    429                         THROTTLED, waiting cures it
    503, 529                    OVERLOADED, waiting cures it
    408, 409, 499, other 5xx    FAILED, trying again may cure it
    a refusal of the edge       OVERLOADED, waiting cures it: a page of HTML, or a header
    anything else               IGNORED, nothing cures it

A long wait (`wait_facts.py`) of the account is IGNORED, and `account_block_s` is the end; of a part of the account,
such as a model, or without a stated end IGNORED: other requests go on; else THROTTLED, and `retry_after_s` is the end.

An error object inside a good answer is judged by its name. `x-should-retry: false` ends all retrying. `true`
changes nothing: such a failure is retried anyway, or a rule calls the failure hard, or the request itself is at fault
(400), which no waiting cures.
"""

import re
from collections.abc import Mapping
from dataclasses import replace as with_fields
from enum import Enum

from msgspec.structs import replace

from hivemind_addon.formats.base.json_values import is_json
from hivemind_addon.formats.base.memo import by_thing
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.format import ErrorPlaces
from hivemind_addon.formats.profile.model import OutcomeRule, Profile
from hivemind_addon.formats.wire.error import (
    USUAL_PLACES,
    ErrorFacts,
    error_in_body,
    error_marks,
    error_members,
    failure,
    texts_at,
)
from hivemind_addon.formats.wire.wait_facts import LimitOf, WaitFacts, read_wait_facts
from hivemind_addon.kernel.values.ticket import Hints, Outcome, OutcomeKind

# Longer bodies of status 200 are believed unread: checking must not stall the event loop.
_MAX_CHECKED_BYTES = 8 * 1024 * 1024
_MAX_MESSAGE_CHARS = 2000
_MAX_NAME_CHARS = 200
_MAX_PAGE_BYTES = 16 * 1024
_SHORT_BYTES = 1000
"""A 200 with an error alone is not longer."""
_HTML = re.compile(rb"<(?:!doctype|html|head|body)\b", re.IGNORECASE)
_TITLE = re.compile(rb"<title[^>]*>\s*([ -~]{1,40}?)\s*<", re.IGNORECASE)
_EDGE_HEADERS = ("cf-mitigated", "x-vercel-mitigated", "x-amzn-waf-action")
_EDGE_PAGE = re.compile(
    rb"just a moment|attention required|checking your browser|challenge|captcha|access denied|request (?:was )?blocked"
    rb"|been blocked|security check|rate limited|unusual traffic|incident id|are (?:a )?human|reference #\d|firewall",
    re.IGNORECASE,
)
_EDGE_TEXT = re.compile(rb"\s*error code: 1\d{3}\b|.{0,400}\"cloudflare_error\": ?true", re.IGNORECASE | re.DOTALL)
_BANNED = re.compile(rb"error (?:code:? )?(?:100[5-9]|101[02]|1020)\b|been blocked", re.IGNORECASE)
"""A ban of the address, the country or the client: no waiting cures it."""
_EDGE_STATUSES = (403, 405, 429, 503)
"""The edge refuses with these. Its pages for 502, 504 and 520 to 530 report that the server behind it fails."""
_WORD = re.compile(r"[A-Za-z][\w.-]{0,59}", re.ASCII)
_STATUS = re.compile(r"(?:.*\W)?([45]\d\d)", re.ASCII | re.DOTALL)
"""In a code: gateways put the status of the server behind them there: `429`, `ModelArts.81101.429`."""
_NAMES = tuple(
    (re.compile(names, re.IGNORECASE), kind)
    for kind, names in {
        OutcomeKind.IGNORED: "authenticat|permission|not_found|too_large|invalid|validation|unsupported|precondition"
        "|out_of_range|billing|insufficient_(?:quota|funds)|context_length|content_filter|policy|image_",
        OutcomeKind.OVERLOADED: "overloaded|slow_down|unavailable",
        OutcomeKind.THROTTLED: "rate_?limit|throttl|too_?many_?requests|resource_exhausted|quota_exceeded",
    }.items()
)
"""Parts of the names of errors without an own status: in a stream, or in a good answer."""
_WORDS = (
    (re.compile(r"too many (?:\w+ )?requests|rate.?limit", re.IGNORECASE), OutcomeKind.THROTTLED),
    (re.compile(r"overloaded|at capacity|(?:server|service) is (?:too )?busy", re.IGNORECASE), OutcomeKind.OVERLOADED),
)
"""Words of errors without a telling name, or with a name that blames the request."""


class TransportTrouble(Enum):
    """A trouble below HTTP."""

    CONNECT_FAILED = "cannot connect"
    NAME_NOT_FOUND = "name not found"
    CERTIFICATE = "bad certificate"
    """Of the provider; no waiting cures it."""
    CLOSED_BEFORE_HEAD = "closed before the answer"
    CUT = "cut in the middle of the answer"
    REFUSED_STREAM = "stream refused"
    """HTTP/2 REFUSED_STREAM, or GOAWAY with a lower last stream: the provider surely did not run the request."""
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
"""The causes worth a distinction, each with the words of libraries; the first match counts."""
_MOST_WORDS = 300
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
    edge = _edge_words(status, headers, b"" if body is None or profile.is_plain else body[:_MAX_PAGE_BYTES])
    error = None if body is None else _error_in(status, body, places)
    if places.name_headers and not 200 <= status < 300:
        error = _named_in_headers(error, headers, places.name_headers)
    rules = _rules_without_error(profile) if error is None and status == 200 else profile.outcomes
    rule = _first_match(rules, status, error, headers, hints) if rules else None
    if rule is not None:
        kind, retryable = rule.kind, rule.retry
        reason = _reason(str(status), error)
    elif edge is not None:
        kind, retryable = OutcomeKind.OVERLOADED, not _BANNED.search((body or b"")[:_MAX_PAGE_BYTES])
        reason = f"{status} from the edge{edge}"
    elif 200 <= status < 300:
        kind, retryable, reason = _judge_success(status, headers, body, error, is_object=is_object)
        if kind is OutcomeKind.SUCCESS:
            return Outcome(kind, reason, status, retry_after_s=hints.retry_after_s)
    else:
        kind, retryable = _by_status(status)
        reason = _reason(str(status), error)
    is_retryable = retryable and hints.should_retry is not False
    outcome = Outcome(kind, reason, status, retryable=is_retryable, of_edge=edge is not None)
    return _with_wait(outcome, rule, read_wait_facts(error, headers, hints, wall_now), error)


def never_run(outcome: Outcome) -> bool:
    """Whether a service surely ran nothing: a limit refused the request, or the request never arrived."""
    return outcome.kind is OutcomeKind.THROTTLED or (outcome.status is None and not outcome.ambiguous)


def judge_stream_error(profile: Profile, error: ErrorFacts, hints: Hints = _NO_HINTS, wall_now: float = 0.0) -> Outcome:
    """Judge an error event inside a stream whose status was 200; `hints` are the head's, `wall_now` epoch seconds."""
    rule = _first_match(profile.outcomes, 200, error, {}, _NO_HINTS)
    kind, retryable = (rule.kind, rule.retry) if rule is not None else _by_name(error)
    outcome = Outcome(kind, _reason("stream", error, "error"), 200, retryable=retryable)
    return _with_wait(outcome, rule, read_wait_facts(error, {}, replace(hints, retry_after_s=None), wall_now), error)


def judge_transport(trouble: TransportTrouble, said: str = "") -> Outcome:
    """Judge an attempt that ended without a complete answer. `said`: the words of some library about the trouble.

    The reason is ours, the same for each cause, so that equal troubles are counted together.
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


def _edge_words(status: int, headers: Mapping[str, str], page: bytes) -> str | None:
    """Words for a refusal by something in front of the provider; None: the answer is the provider's."""
    for name in _EDGE_HEADERS:
        if headers.get(name):
            return f": {name}"
    if status not in _EDGE_STATUSES:
        return None
    # A model's API speaks no HTML. With 429 and 503 a server itself may be full (nginx), so the page has to say more.
    is_page = _HTML.match(page.lstrip()) is not None and (status == 403 or _EDGE_PAGE.search(page) is not None)
    if not is_page and not _EDGE_TEXT.match(page):
        return None
    title = _TITLE.search(page)
    return f": {title[1].decode()}" if title else ""


def _named_in_headers(
    error: ErrorFacts | None, headers: Mapping[str, str], names: tuple[str, ...]
) -> ErrorFacts | None:
    """The error with the names in headers: `ThrottlingException`, or with a `:` and a URL behind the name."""
    told = (headers.get(name, "").partition(":")[0].strip()[:_MAX_NAME_CHARS] for name in names)
    own = tuple(filter(None, told))
    if not own:
        return error
    error = error or ErrorFacts()
    return with_fields(error, own_names=(*own, *error.own_names))


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
    """The fault of the body of a 200; None: no fault."""
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
    rules: tuple[OutcomeRule, ...], status: int, error: ErrorFacts | None, headers: Mapping[str, str], hints: Hints
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
        case _ if status in (408, 409, 499) or 500 <= status < 600:
            return OutcomeKind.FAILED, True
    return OutcomeKind.IGNORED, False


def _by_name(error: ErrorFacts) -> tuple[OutcomeKind, bool]:
    """Judge an error without an own status by the names, else by the words."""
    said = next((kind for words, kind in _WORDS if words.search(error.message)), None)
    for name in error.names:
        if name == "invalid_request_error" and said is not None:
            break
        if kind := next((kind for names, kind in _NAMES if names.search(name)), None):
            return kind, kind is not OutcomeKind.IGNORED
        if status := _STATUS.fullmatch(name):
            return _by_status(int(status[1]))
    return said or OutcomeKind.FAILED, True


def _reason(start: str, error: ErrorFacts | None, otherwise: str = "") -> str:
    """`start`, and the most specific name of the error that is a word."""
    names = error.names if error is not None else ()
    name = next((name for name in names if _WORD.fullmatch(name)), otherwise)
    return f"{start} {name}" if name else start


def _with_wait(outcome: Outcome, rule: OutcomeRule | None, waits: WaitFacts, error: ErrorFacts | None) -> Outcome:
    """The outcome of a failure with the time to come back, and with the account's block in the provider's words."""
    kind, status = outcome.kind, outcome.status
    if error is not None and (waits.is_long or (rule is not None and rule.account_block)):
        message = " ".join(error.message.split())
        outcome = replace(outcome, words="".join(filter(str.isprintable, message))[:_MOST_WORDS])
    of_account = rule is not None and rule.of_account
    if rule is not None and rule.account_block:
        of_account |= waits.limit_of is LimitOf.ACCOUNT
        return replace(outcome, retry_after_s=waits.header_s, account_block_s=waits.end_s or 0.0, of_account=of_account)
    is_full = kind is OutcomeKind.OVERLOADED and status in (200, 429) and waits.is_window
    is_refused = kind is OutcomeKind.THROTTLED or is_full
    if not waits.is_long or outcome.of_edge or not (is_refused or (rule is None and status in (402, 403))):
        is_silent = kind in {OutcomeKind.SUCCESS, OutcomeKind.IGNORED}
        return replace(outcome, retry_after_s=waits.header_s if is_silent else waits.delay_s, of_account=of_account)
    match waits.limit_of:
        case LimitOf.ACCOUNT:
            final = replace(outcome, kind=OutcomeKind.IGNORED, retryable=False, of_account=True)
            return replace(final, retry_after_s=waits.header_s, account_block_s=waits.end_s or 0.0)
        case LimitOf.UNKNOWN if is_refused and waits.end_s is not None:
            return replace(outcome, kind=OutcomeKind.THROTTLED, retry_after_s=waits.end_s)
    # Others may be served, or nobody says when this one is.
    return replace(outcome, kind=OutcomeKind.IGNORED, retryable=False, retry_after_s=waits.end_s)
