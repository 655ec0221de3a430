"""What a task has to be before anybody takes it: the same rules for a fleet file, a command and an agent's call."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.plugins.fleets.tasks.model import TaskSpec
from hivemind_addon.tools.launch.programs import ProgramTable

MAX_WORD_BYTES = 128 * 1024 - 1
"""Of one argument; Linux takes no longer ones."""
MAX_RETRIES = 100
NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


class SpecProblem(NamedTuple):
    """What is wrong with a spec, and where."""

    key: str
    text: str
    cure: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}; {self.cure}"


def problem(spec: TaskSpec, table: ProgramTable) -> SpecProblem | None:
    """The first one; None: it is fine by itself (what it depends on is others' business)."""
    return _what_to_run(spec, table) or _words(spec) or _numbers(spec)


def command_line(spec: TaskSpec, table: ProgramTable) -> Sequence[str]:
    """What is run for a spec without a problem."""
    if spec.command:
        return spec.command
    return [word.replace("{prompt}", spec.prompt) for word in table.kinds[spec.agent].headless]


def _what_to_run(spec: TaskSpec, table: ProgramTable) -> SpecProblem | None:
    kinds = ", ".join(table.kinds)
    if spec.command and (spec.agent or spec.prompt):
        return SpecProblem("command", "it has an agent or a prompt, too", "keep either command, or agent and prompt")
    if not spec.command and not spec.agent:
        return SpecProblem("command", "there is nothing to run", f"add command, or agent ({kinds}) and prompt")
    if spec.agent and spec.agent not in table.kinds:
        return SpecProblem("agent", f"{spec.agent!r} is not known here", f"write one of {kinds}, or a command")
    if spec.agent and not spec.prompt.strip():
        return SpecProblem("prompt", "it is empty", "say what the agent is to do")
    if spec.command and not spec.command[0]:
        return SpecProblem("command", "its first word is empty", "name a program")
    return None


def _words(spec: TaskSpec) -> SpecProblem | None:
    if spec.name and not NAME.fullmatch(spec.name):
        return SpecProblem("name", f"{spec.name!r} is no name", "use at most 60 letters, digits, - and _")
    if spec.group and not NAME.fullmatch(spec.group):
        return SpecProblem("group", f"{spec.group!r} is no group's name", "use at most 60 letters, digits, - and _")
    if spec.priority.upper() not in Priority.__members__:
        known = ", ".join(one.name.lower() for one in Priority)
        return SpecProblem("priority", f"{spec.priority!r} is not known here", f"write one of {known}")
    for key, words in (("command", spec.command), ("prompt", (spec.prompt,)), ("directory", (spec.directory,))):
        if any("\0" in word for word in words):
            return SpecProblem(key, "there is a NUL in it", "remove it")
        if any(len(word.encode(errors="replace")) > MAX_WORD_BYTES for word in words):
            return SpecProblem(key, f"longer than {MAX_WORD_BYTES:,} bytes", "put it into a file and name that")
    for name, value in spec.environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            return SpecProblem(f"environment.{name}", "this is no variable", "use letters, digits and _ for its name")
    return None


def _numbers(spec: TaskSpec) -> SpecProblem | None:
    for key in ("estimated_tokens", "budget_tokens", "budget_usd", "timeout_s"):
        value = getattr(spec, key)
        if value is not None and not 0 < value < 1e15:  # NaN is neither
            return SpecProblem(key, f"{value} is not above zero", "write a positive number, or leave it out")
    if not 0 <= spec.retries <= MAX_RETRIES:
        return SpecProblem("retries", f"{spec.retries} is too many or too few", f"write 0 to {MAX_RETRIES}")
    return None
