"""Whether a task that died may do better another time. By its exit status and its last words; pure."""

import re
import signal

_TEMPORARY = 75
"""`EX_TEMPFAIL` of sysexits.h."""
_NOT_OURS = {signal.SIGINT, signal.SIGPIPE, signal.SIGQUIT}
"""Signals that say that somebody wanted its end, or that nobody reads it."""
_LAST_CHARS = 2000

_PASSES = re.compile(
    r"""
    rate[ _-]?limit | too\ many\ requests | overloaded | slow_down | at\ capacity
    | service\ unavailable | bad\ gateway | gateway\ time-?out | temporarily\ unavailable
    | connection\ (?:was\ )?(?:reset|refused|error|closed|aborted|timed\ out) | connect(?:ion)?error | socket\ hang\ up
    | fetch\ failed | network\ error | stream\ (?:disconnected|error) | unexpected\ eof | broken\ pipe
    | ECONN(?:RESET|REFUSED|ABORTED) | ETIMEDOUT | EAI_AGAIN | EPIPE | ENETUNREACH
    | (?:request|read|connect(?:ion)?|api|response)[ -]?time[d-]?[ -]?out
    | \b(?:http|status|error|code)\W{0,3}(?:code\W{0,3})?(?:408|429|502|503|504|529)\b
    | ^(?:curl:\ )?\((?:7|28|52|56)\)
    """,
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
_STAYS = re.compile(
    r"""
    budget\ .{0,80}(?:spent|used\ up|exceeded) | insufficient_quota | credit\ balance | billing
    | invalid[ _-]?(?:x-)?api[ _-]?key | unauthorized | authentication_error | permission_error | not\ logged\ in
    """,
    re.IGNORECASE | re.VERBOSE,
)


def sign(exit_status: int, last_words: str) -> str:
    """What makes it look transient, in a few words; empty: nothing does. A plain failure has no such sign."""
    if exit_status > 128:
        number = exit_status - 128
        return "" if number in _NOT_OURS else f"killed by {signal_name(number)}"
    if exit_status == _TEMPORARY:
        return "a temporary failure (75)"
    text = last_words[-_LAST_CHARS:]
    if _STAYS.search(text):
        return ""
    found = _PASSES.search(text)
    return f"it said “{' '.join(found.group().split())}”" if found else ""


def signal_name(number: int) -> str:
    """`SIGKILL`, or the number of one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
