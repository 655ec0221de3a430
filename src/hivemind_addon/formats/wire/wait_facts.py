"""The facts of a refusal about time: when to come back, whether hours must pass, and whose limit refused.

The sources are names, message and members of the error, headers, and spent windows. Providers write many sentences, so
single words count here.
"""

import re
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from hivemind_addon.formats.wire.error import ErrorFacts
from hivemind_addon.formats.wire.waits import parse_reset, read_amount, scaled, wait_in
from hivemind_addon.kernel.values.ticket import Hints, WindowReading

_LONG_S = 600.0
"""The windows of rate limits are shorter."""
_MOST_CHARS = 4000
_SPENT = re.compile("rejected|blocked|payment_required")
"""The status of a window."""
_RESET = re.compile(r"reset|renew|refresh", re.IGNORECASE)
_RETRY = re.compile(r"retry.?(?:after|in|delay)|wait|back.?off|cool.?down", re.IGNORECASE)
"""Members that hold a time."""
_INSTANT = re.compile(r"(?:at|stamp|reset)$", re.IGNORECASE)
_SCOPE_HEADER = re.compile(r"ratelimit.*(?:exceeded|type|scope|claim)$")
"""`x-ratelimit-exceeded`, `anthropic-ratelimit-unified-representative-claim`."""
_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])|_")
"""The joints of words in names such as `AccountQuotaExceeded` or `user_weekly_rate_limited`."""
_WINDOW = re.compile(
    r"""\b(?:daily|weekly|monthly|yearly|today|[RT]PD|86,?400\ ?s\w*)\b
    |\b(?:per|by|a|this|each|every|next|current|billing)[\s-](?:billing\s)?(?:day|week|month|cycle|period)\b
    |\b(?!1\b)\d+[\s-]?(?:hours?|hrs?|h|days?|weeks?|months?)\b
    |\b(?:spend(?:ing)?|usage|session|plan|subscription|billing|credits?)(?:'s)?\s(?:hard\s)?(?:limits?|caps?|quotas?)\b
    |\bout\sof\s(?:\w+\s)?(?:usage|credits?)\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""A window of hours or more, or something that was bought."""
_MINUTE = re.compile(r"\bper[\s-]?(?:min|sec)|\b[RT]P[MS]\b|concurren", re.IGNORECASE)
_ADVICE = re.compile(
    r"https?://\S+|\b(?:upgrad|check|manag|visit|contact|see|chang|switch)\w*\b(?:[^.;]|\.\S)*", re.IGNORECASE
)
"""Advice may name an account, and says nothing about the limit."""
_ACCOUNT = re.compile(
    r"\b(?:account|organi[sz]ation|org|team|workspace|plan|subscription|membership|project)s?\b", re.IGNORECASE
)
_PART = re.compile(
    r"(?<!all )(?<!any )(?<!every )\bmodels?\b|\b(?:opus|sonnet|haiku|fable|fast mode|end[ -]?users?)\b"
    r"|overage included|\b(?:gpt|claude|codex|gemini|glm|kimi|qwen|deepseek|grok|llama|mistral)[\d.]*-\w",
    re.IGNORECASE,
)


class LimitOf(Enum):
    """Whose limit refused."""

    ACCOUNT = "account"
    """The account's, or that of something as large: a plan, an organization."""
    PART = "part"
    """That of a model, a speed, or one of the account's users."""
    UNKNOWN = "unknown"


class WaitFacts(Struct, frozen=True, gc=False):
    """The facts of a refusal about time."""

    header_s: float | None
    """The delay in the headers."""
    delay_s: float | None
    """The delay in the headers, else the longest in the error."""
    end_s: float | None
    """Seconds until a long wait ends, by the surest source."""
    is_long: bool
    """Whether hours must pass, by the words or by a delay."""
    is_window: bool
    """Whether the words name such a window, or something that was bought."""
    limit_of: LimitOf


def read_wait_facts(error: ErrorFacts | None, headers: Mapping[str, str], hints: Hints, wall_now: float) -> WaitFacts:
    """The facts of a refusal. `headers` has lower-case names; `wall_now` is in epoch seconds."""
    error = error or ErrorFacts()
    texts = tuple(error.texts())
    times = [(name, wait_s) for name, text in texts if (wait_s := _time_s(name, text, wall_now)) is not None]
    # A delay needs no clock, so it is surer than an instant.
    resets = sorted((bool(_INSTANT.search(name)), wait_s) for name, wait_s in times if wait_s and _RESET.search(name))
    reset_s = resets[0][1] if resets else None
    in_words = (
        wait_in(error.message[: _MOST_CHARS // 4], wall_now),
        *(wait_s for name, wait_s in times if not _RESET.search(name)),
    )
    own_s = max((wait_s for wait_s in in_words if wait_s is not None), default=reset_s)
    longest_s = max(own_s or 0.0, hints.retry_after_s or 0.0)
    end_s = reset_s or _spent_s(hints.windows) or longest_s or _reset_in(headers, wall_now)

    scopes = (value for name, value in headers.items() if _SCOPE_HEADER.search(name))
    words = " ".join(dict.fromkeys((*error.names, *scopes, error.message, *(text for _, text in texts))))[:_MOST_CHARS]
    said, advised = _JOINT.sub(" ", _ADVICE.sub(" ", words)), _JOINT.sub(" ", words)
    is_named = _WINDOW.search(said) is not None and _MINUTE.search(said) is None
    is_spent = any(_SPENT.fullmatch(one.status) for one in hints.windows)
    is_window = is_spent or (is_named and (end_s is None or end_s > _LONG_S))
    is_part, is_account = _PART.search(advised) is not None, is_spent or _ACCOUNT.search(said) is not None
    return WaitFacts(
        header_s=hints.retry_after_s,
        delay_s=own_s if hints.retry_after_s is None else hints.retry_after_s,
        end_s=end_s,
        is_long=is_window or longest_s > _LONG_S,
        is_window=is_window,
        limit_of=LimitOf.PART if is_part and is_window else LimitOf.ACCOUNT if is_account else LimitOf.UNKNOWN,
    )


def _time_s(name: str, value: str, wall_now: float) -> float | None:
    """The seconds in a member of an error; None: the member holds no time."""
    if not (_RESET.search(name) or _RETRY.search(name)):
        return None
    if name.lower().endswith("ms"):
        return scaled(read_amount(value), 1e-3)
    return parse_reset(value.removesuffix(".0"), wall_now)


def _spent_s(windows: tuple[WindowReading, ...]) -> float | None:
    """Seconds until all spent windows begin anew; None: nothing says that a window is spent."""
    ends = [(one, one.resets_in_s) for one in windows if one.resets_in_s]
    spent = [end_s for one, end_s in ends if _SPENT.fullmatch(one.status)]
    return max(spent or [end_s for one, end_s in ends if (one.used or 0) >= 1], default=None)


def _reset_in(headers: Mapping[str, str], wall_now: float) -> float | None:
    """The nearest reset that a minute's limit cannot have, of any header."""
    read = (parse_reset(value, wall_now) for name, value in headers.items() if _RESET.search(name))
    return min((reset_s for reset_s in read if reset_s and reset_s > _LONG_S), default=None)
