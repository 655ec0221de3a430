"""A small task that the simulated model leads an agent through, turn by turn. Pure: a request in, the next turn out.

    turn 1 … n     a tool call that appends one line to a file, with the agent's own shell tool
    turn n + 1     a closing text

How far a task is, is counted from the tool results in the conversation: nothing is kept here, so a request that is
sent again gets the same answer. Where a result says that it was not recorded, the model looks at the file first. A
request that quotes the task and brings no tools (a title, a summary) gets a short
plain answer, and one that brings a schema what fits it.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from hivemind_addon.plugins.contexts.reading.answer import UNKNOWN_RESULT
from hivemind_addon.sim.dialect.reply import SimDialect, TaskTurn, ToolCall

_MARK = b"Append one line at a time to the file "
_TASK = re.compile(rb"Append one line at a time to the file ([\w./-]+): (\d+) lines of ([\w-]+)\.")

_Arguments = Mapping[str, object]
_SHELLS: Mapping[str, Callable[[str], _Arguments]] = MappingProxyType(
    {
        "Bash": lambda command: {"command": command, "description": "Append a line"},
        "exec_command": lambda command: {"cmd": command},
        "shell_command": lambda command: {"command": command},
        "shell": lambda command: {"command": ["bash", "-c", command]},
        "run_shell_command": lambda command: {"command": command, "description": "Append a line"},
        "bash": lambda command: {"command": command, "description": "Append a line"},
    }
)
"""Name of an agent's shell tool (Claude Code; Codex, three of them; Gemini CLI; OpenCode) → its arguments."""
_SCRIPT = "exec"
"""Codex >= 0.16x with its newest models: a freeform tool that runs JavaScript, which has the shell as a function."""
_LISTING = b"*file listing*"
"""aider has no tools: told so, a model answers with whole files, and aider writes them."""
_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""mini-swe-agent ends when a command has said this."""


@dataclass(frozen=True, slots=True)
class SimTask:
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
        return self.beginning(self.lines)

    @property
    def last_line(self) -> str:
        """Of the file."""
        return self._line(self.lines)

    def beginning(self, lines: int) -> str:
        """The file after so many turns."""
        return "".join(f"{self._line(number)}\n" for number in range(1, lines + 1))

    def lines_in(self, body: bytes | bytearray) -> int:
        """How many of its lines a conversation knows."""
        numbers = range(1, self.lines + 1)
        return next((number - 1 for number in numbers if self._line(number).encode() not in body), self.lines)

    def command(self, number: int) -> str:
        """The shell command of one turn, counted from 1."""
        return f"echo '{self._line(number)}' >> {self.file}"

    @property
    def look(self) -> str:
        """The shell command that shows how far it is."""
        return f"cat {self.file} || true"

    def _line(self, number: int) -> str:
        return f"{self.name} line {number}"


class _Tool(msgspec.Struct):
    type: str = ""
    name: str = ""
    function: "_Tool | None" = None
    tools: "list[_Tool]" = []
    """Of a namespace."""
    declared: "list[_Tool]" = msgspec.field(name="functionDeclarations", default_factory=list)
    """Gemini's."""
    spec: "_Tool | None" = msgspec.field(name="toolSpec", default=None)
    """Converse's."""


class _ToolConfig(msgspec.Struct):
    tools: list[_Tool] = []


class _Item(msgspec.Struct):
    type: str = ""
    text: str = ""
    content: object = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="toolResult", default=msgspec.UNSET)
    """Converse's."""


class _Message(_Item):
    role: str = ""
    content: str | list[_Item] | None = None
    output: object = None
    """Of an item that is a result (Responses)."""
    tools: list[_Tool] = []
    """Of an item that announces them (Codex >= 0.16x)."""


class _Part(msgspec.Struct):
    result: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="functionResponse", default=msgspec.UNSET)


class _Schema(msgspec.Struct):
    """As much of a JSON schema as such calls have."""

    type: str = ""
    enum: list[str] = []
    minimum: int = 1
    properties: "dict[str, _Schema]" = {}

    def example(self) -> object:
        """What fits."""
        match self.type.lower():
            case "object":
                return {name: schema.example() for name, schema in self.properties.items()}
            case "array":
                return []
            case "integer" | "number":
                return self.minimum
            case "boolean":
                return False
            case _:
                return self.enum[0] if self.enum else "simulated"


class _GenerationConfig(msgspec.Struct, rename="camel"):
    response_json_schema: _Schema | None = None
    response_schema: _Schema | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] = []


class _Conversation(msgspec.Struct):
    messages: list[_Message] = []
    input: str | list[_Message] = ""
    contents: list[_Content] = []
    """Gemini's, as is the next."""
    config: _GenerationConfig = msgspec.field(name="generationConfig", default_factory=_GenerationConfig)
    tools: list[_Tool] = []
    tool_config: _ToolConfig = msgspec.field(name="toolConfig", default_factory=_ToolConfig)
    """Converse's. Gemini's holds no tools."""
    request: "_Conversation | None" = None
    """In Code Assist's envelope."""

    @property
    def items(self) -> list[_Message]:
        return self.input if isinstance(self.input, list) else []

    def blocks(self) -> Iterator[_Item]:
        """What messages are made of, where they are more than a text."""
        for message in self.messages:
            if isinstance(message.content, list):
                yield from message.content

    def announced(self) -> Iterator[tuple[str, _Tool]]:
        """Every tool, with its namespace or an empty text."""
        for tool in (*self.tools, *self.tool_config.tools, *(tool for item in self.items for tool in item.tools)):
            if tool.tools:
                yield from ((tool.name, inner) for inner in tool.tools)
            elif tool.declared:
                yield from (("", inner) for inner in tool.declared)
            else:
                yield "", tool.function or tool.spec or tool


_decode = msgspec.json.Decoder(_Conversation).decode


def task_in(body: bytes | bytearray) -> SimTask | None:
    """The task that a request is about."""
    if _MARK not in body or (found := _TASK.search(body)) is None:
        return None
    file, lines, name = (group.decode() for group in found.groups())
    return SimTask(name, int(lines), file)


def next_turn(task: SimTask, dialect: SimDialect, body: bytes | bytearray) -> TaskTurn:
    """What the model says to this request. Raises MsgspecError."""
    conversation = _decode(body)
    conversation = conversation.request or conversation
    tools = list(conversation.announced())
    if schema := conversation.config.response_json_schema or conversation.config.response_schema:
        return TaskTurn(_json(schema.example()))
    if not tools and _LISTING in body:
        return _listing(task, body)
    if not tools:
        return TaskTurn('{"title": "A file, line by line"}' if b"title" in body else "A file, line by line.")
    results = list(_tool_results(dialect, conversation))
    done = _lines_done(task, results)
    if done is None:
        look = _call(tools, task.look, f"call_{zlib.crc32(f'{task.name} look {len(results)}'.encode()):08x}")
        return TaskTurn("I look how far it is.", look)
    number = done + 1
    if done < task.lines:
        command = task.command(number)
    elif _SUBMIT.encode() in body:
        command = f"echo {_SUBMIT}"
    else:
        return TaskTurn(f"The file {task.file} has its {task.lines} lines.")
    call = _call(tools, command, f"call_{zlib.crc32(f'{task.name} {number}'.encode()):08x}")
    if call is None:
        return TaskTurn(
            f"None of these tools can write a file: {', '.join(tool.name or tool.type for _, tool in tools)}."
        )
    if done >= task.lines:
        return TaskTurn("That was the last line.", call)
    return TaskTurn(f"Now comes line {number} of {task.lines}, then I look again.", call)


def _listing(task: SimTask, body: bytes | bytearray) -> TaskTurn:
    """The file with one more line, as aider wants to be told."""
    # Its test names the last line from the start on.
    number = min(task.lines_in(body) + 1, task.lines)
    return TaskTurn(f"Now comes line {number} of {task.lines}.\n\n{task.file}\n```\n{task.beginning(number)}```\n")


def _call(tools: Iterable[tuple[str, _Tool]], command: str, id_: str) -> ToolCall | None:
    """The call that runs a command; None: there is no tool for it."""
    for namespace, tool in tools:
        if arguments := _SHELLS.get(tool.name):
            return ToolCall(id_, tool.name, _json(arguments(command)), namespace)
        if tool.name == _SCRIPT and tool.type == "custom":
            script = f"const ran = await tools.exec_command({_json({'cmd': command})});\ntext(ran.output);\n"
            return ToolCall(id_, tool.name, script, namespace, freeform=True)
    return None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _lines_done(task: SimTask, results: Iterable[bytes]) -> int | None:
    """How many lines are there, as far as the results of tools tell; None: that has to be looked up."""
    done: int | None = 0
    for result in results:
        if UNKNOWN_RESULT.encode() in result:
            done = None
        elif done is None:
            done = task.lines_in(result)  # it looked
        else:
            done += 1
    return done


def _tool_results(dialect: SimDialect, conversation: _Conversation) -> Iterator[bytes]:
    """What each tool gave, as JSON, oldest first."""
    match dialect:
        case SimDialect.CONVERSE:
            found = (item.result for item in conversation.blocks() if item.result is not msgspec.UNSET)
            yield from map(bytes, found)
        case SimDialect.MESSAGES | SimDialect.VERTEX_MESSAGES | SimDialect.INVOKE:
            results = (item.content for item in conversation.blocks() if item.type == "tool_result")
            yield from map(msgspec.json.encode, results)
        case SimDialect.RESPONSES:
            outputs = (item.output for item in conversation.items if item.type.endswith("_call_output"))
            yield from map(msgspec.json.encode, outputs)
        case SimDialect.CHAT | SimDialect.OLLAMA | SimDialect.COHERE:
            told = (message.content for message in conversation.messages if message.role == "tool")
            yield from map(msgspec.json.encode, told)
        case SimDialect.GEMINI | SimDialect.GEMINI_ARRAY | SimDialect.CODE_ASSIST:
            parts = (part for content in conversation.contents for part in content.parts)
            yield from (bytes(part.result) for part in parts if part.result is not msgspec.UNSET)
