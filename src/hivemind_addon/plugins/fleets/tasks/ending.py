"""How a try of a task ended, in one line for people, and whether it may do better another time.

That is told by its exit status and its last words. Pure.
"""

import re
import signal

from hivemind_addon.plugins.fleets.tasks.model import TaskSpec
from hivemind_addon.plugins.fleets.tasks.process import ProcessEnd
from hivemind_addon.plugins.fleets.tasks.task_table import TryEnding
from hivemind_addon.proxy.api.words import span

_LINE_CHARS = 160
_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""What colours words in a terminal, or moves its cursor."""
_TEMPORARY = 75
"""`EX_TEMPFAIL` of sysexits.h."""
_NOT_OURS = {signal.SIGINT, signal.SIGPIPE, signal.SIGQUIT}
"""Signals of a wanted end, or of an output that is not read any more."""
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


def ending_of(ended: ProcessEnd, spec: TaskSpec) -> TryEnding:
    """What the task table is told of a process's end."""
    if ended.exit_status == 0 and not ended.timed_out:
        return TryEnding(0, "", result=ended.result)
    if ended.timed_out:
        return TryEnding(ended.exit_status, f"took longer than {span(spec.timeout_s or 0)}", result=ended.result)
    how = f"exit status {ended.exit_status}"
    passing = _sign(ended.exit_status, ended.last_words)
    if ended.exit_status > 128:
        how = f"killed by {_signal_name(ended.exit_status - 128)}"
    elif passing:
        how += f", {passing}"
    elif lines := [line for one in ended.last_words.splitlines() if (line := _bare(one))]:
        how += f": {lines[-1].removeprefix('hivemind: ')[:_LINE_CHARS]}"
    return TryEnding(ended.exit_status, how, is_transient=bool(passing) and not ended.was_ended, result=ended.result)


def _bare(line: str) -> str:
    """As words only: a reason is shown in tables and in other tasks' reasons."""
    return "".join(char for char in _CODES.sub("", line) if char.isprintable()).strip()


def _sign(exit_status: int, last_words: str) -> str:
    """What makes it look transient, in a few words; empty: nothing does. A plain failure has no such sign."""
    if exit_status > 128:
        number = exit_status - 128
        return "" if number in _NOT_OURS else f"killed by {_signal_name(number)}"
    if exit_status == _TEMPORARY:
        return "a temporary failure (75)"
    text = last_words[-_LAST_CHARS:]
    if _STAYS.search(text):
        return ""
    found = _PASSES.search(text)
    return f"it said “{' '.join(found.group().split())}”" if found else ""


def _signal_name(number: int) -> str:
    """`SIGKILL`, or the number of one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
