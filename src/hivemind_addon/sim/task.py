"""A small task that the simulated model leads an agent through, turn by turn. Pure: a request in, the next turn out.

    turn 1 … n     a tool call that appends one line to a file, with the agent's own shell tool
    turn n + 1     a closing text

How far a task is, is counted from the tool results in the conversation: nothing is kept here, so a request that is
sent again gets the same answer. A request that quotes the task and brings no tools (a title, a summary) gets a short
plain answer.
"""

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from hivemind_addon.sim.dialect.reply import Dialect, ToolCall, Turn

_MARK = b"Append one line at a time to the file "
_TASK = re.compile(rb"Append one line at a time to the file ([\w./-]+): (\d+) lines of ([\w-]+)\.")

_SHELLS: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {
        "Bash": lambda command: {"command": command, "description": "Append a line"},
        "exec_command": lambda command: {"cmd": command},
        "shell_command": lambda command: {"command": command},
        "shell": lambda command: {"command": ["bash", "-c", command]},
        "run_shell_command": lambda command: {"command": command, "description": "Append a line"},
        "bash": lambda command: {"command": command, "description": "Append a line"},
    }
)
"""Name of an agent's shell tool (Claude Code; Codex old and new; Gemini CLI; OpenCode) → its arguments."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one agent is asked to do."""

    name: str
    """Of letters, digits, `_` and `-`; it is in every line."""
    lines: int
    """And so many tool calls."""
    file: str
    """Path, as the agent's shell sees it; no blanks."""

    @property
    def prompt(self) -> str:
        """What the agent is told. Without a character that JSON would escape, so that it is found in any body."""
        return f"{_MARK.decode()}{self.file}: {self.lines} lines of {self.name}."

    @property
    def content(self) -> str:
        """The file when the task is done, each call having run once."""
        return "".join(f"{self._line(number)}\n" for number in range(1, self.lines + 1))

    def command(self, number: int) -> str:
        """The shell command of one turn, counted from 1."""
        return f"echo '{self._line(number)}' >> {self.file}"

    def _line(self, number: int) -> str:
        return f"{self.name} line {number}"


class _Tool(msgspec.Struct):
    name: str = ""
    function: "_Tool | None" = None


class _Item(msgspec.Struct):
    type: str = ""


class _Message(_Item):
    role: str = ""
    content: str | list[_Item] | None = None


class _Conversation(msgspec.Struct):
    messages: list[_Message] = []
    input: str | list[_Message] = ""
    tools: list[_Tool] = []


_decode = msgspec.json.Decoder(_Conversation).decode


def next_turn(dialect: Dialect, body: bytes | bytearray) -> Turn | None:
    """What the model says to this request; None: it is about no task. Raises MsgspecError."""
    if _MARK not in body or (found := _TASK.search(body)) is None:
        return None
    file, lines, name = (group.decode() for group in found.groups())
    task = Task(name, int(lines), file)
    conversation = _decode(body)
    if not conversation.tools:
        return Turn('{"title": "A file, line by line"}' if b"title" in body else "A file, line by line.")
    done = _tool_results(dialect, conversation)
    if done >= task.lines:
        return Turn(f"The file {task.file} has its {task.lines} lines.")
    names = [(tool.function or tool).name for tool in conversation.tools]
    shell = next((name for name in names if name in _SHELLS), None)
    if shell is None:
        return Turn(f"None of these tools can write a file: {', '.join(filter(None, names))}.")
    number = done + 1
    arguments = msgspec.json.encode(_SHELLS[shell](task.command(number))).decode()
    id_ = f"call_{zlib.crc32(f'{task.name} {number}'.encode()):08x}"
    return Turn(f"Now comes line {number} of {task.lines}, then I look again.", ToolCall(id_, shell, arguments))


def _tool_results(dialect: Dialect, conversation: _Conversation) -> int:
    match dialect:
        case Dialect.MESSAGES:
            contents = (message.content for message in conversation.messages)
            return sum(item.type == "tool_result" for items in contents if isinstance(items, list) for item in items)
        case Dialect.RESPONSES:
            items = conversation.input if isinstance(conversation.input, list) else []
            return sum(item.type.endswith("_call_output") for item in items)
        case Dialect.CHAT | Dialect.OLLAMA:
            return sum(message.role == "tool" for message in conversation.messages)
