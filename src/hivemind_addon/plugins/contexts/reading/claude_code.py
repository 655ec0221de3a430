"""A Messages conversation as a session file of Claude Code, as its 2.1.330 writes and resumes them (2026-11).

A line of JSON for each message, linked by `parentUuid`, in a folder named after the project's path. What Claude Code
says of itself (system prompt, tools, its environment) is left out: it says that anew when it resumes.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from hivemind_addon.formats.base.json_values import read_list, read_object, read_value
from hivemind_addon.kernel.values.ticket import CallKind
from hivemind_addon.plugins.contexts.reading.answer import UNKNOWN_RESULT, answer_blocks
from hivemind_addon.plugins.contexts.store import Context

_LONGEST_NAME = 200
_VERSION = "2.1.330"
_USER_AGENT = re.compile(r"claude-cli/(\d+\.\d+\.\d+)")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_STEP = timedelta(milliseconds=1)
"""Between messages, so that they keep their order when they are sorted."""
_Message = dict[str, object]


def place(project: Path, session: str, environment: Mapping[str, str]) -> Path:
    """Where Claude Code looks for the session when it is started in the project's folder."""
    home = environment.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude"
    return Path(home) / "projects" / folder_name(str(project)) / f"{session}.jsonl"


def folder_name(path: str) -> str:
    """A project's, as Claude Code makes it of its path."""
    units = path.encode("utf-16-le", "surrogatepass")  # JavaScript counts these, not characters
    codes = [int.from_bytes(units[at : at + 2], "little") for at in range(0, len(units), 2)]
    name = "".join(chr(code) if code < 128 and chr(code).isalnum() else "-" for code in codes)
    if len(name) <= _LONGEST_NAME:
        return name
    hashed = 0
    for code in codes:
        hashed = (hashed * 31 + code) & 0xFFFFFFFF
    return f"{name[:_LONGEST_NAME]}-{_base36(abs(hashed - (1 << 32) if hashed >> 31 else hashed))}"


def session_file(context: Context, *, project: Path, session: str) -> bytes:
    """The file's content."""
    head = context.head
    version = _USER_AGENT.match(context.headers.get("user-agent", ""))
    messages = [*_messages(context), *_answered(context)]
    at = datetime.fromtimestamp(head.kept_wall, UTC) - len(messages) * _STEP
    lines: list[bytes] = []
    parent: str | None = None
    for number, message in enumerate(messages):
        name = str(uuid.uuid5(uuid.UUID(session), str(number)))
        line = {
            "parentUuid": parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": str(project),
            "sessionId": session,
            "version": version[1] if version else _VERSION,
            "gitBranch": "",
            "type": message["role"],
            "message": _answer(message, head.model, name) if message["role"] == "assistant" else message,
            "uuid": name,
            "timestamp": (at + number * _STEP).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        lines.append(msgspec.json.encode(line) + b"\n")
        parent = name
    return b"".join(lines)


def _messages(context: Context) -> Iterator[_Message]:
    """The conversation's, of users and the model alone."""
    raws = read_list((read_object(context.body) or {}).get("messages", b"")) or []
    if context.head.kind == CallKind.COMPACTION.value:
        raws = raws[:-1]  # the last one asks for a summary, and is no part of the conversation
    answered = False
    for raw in raws:
        message = read_value(raw)
        if not isinstance(message, dict):
            continue
        role, content = message.get("role"), _without_cache_marks(message.get("content"))
        answered = answered or role == "assistant"
        if role in ("user", "assistant"):
            yield {"role": role, "content": content}
        elif answered:  # a word of the program's on the way; what came before all answers it says anew
            yield {"role": "user", "content": _reminder(content)}


def _answered(context: Context) -> Iterator[_Message]:
    """The newest answer, and what stands for the results of its calls: without any the program forgets the answer."""
    if context.head.kind == CallKind.COMPACTION.value or not (blocks := answer_blocks(context)):
        return
    yield {"role": "assistant", "content": blocks}
    calls = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": call, "content": UNKNOWN_RESULT, "is_error": True} for call in calls
    ]
    if results:
        yield {"role": "user", "content": results}


def _answer(message: _Message, model: str, name: str) -> _Message:
    content = message["content"]
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    calls = any(isinstance(block, dict) and block.get("type") == "tool_use" for block in blocks)
    usage = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    return {
        "id": f"msg_{name.replace('-', '')}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": dict.fromkeys(usage, 0),
    }


def _reminder(content: object) -> str:
    blocks = content if isinstance(content, list) else [{"text": content}]
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return "\n".join(("<system-reminder>", *(text for text in texts if isinstance(text, str)), "</system-reminder>"))


def _without_cache_marks(content: object) -> object:
    """Claude Code sets its own; a request may have four of them at most."""
    if not isinstance(content, list):
        return content
    blocks = [_unmarked(block) for block in content]
    for block in blocks:  # marks may stand in what a tool gave, and no deeper
        if isinstance(block, dict) and isinstance(inner := block.get("content"), list):
            block["content"] = [_unmarked(one) for one in inner]
    return blocks


def _unmarked(block: object) -> object:
    if not isinstance(block, dict):
        return block
    return {name: value for name, value in block.items() if name != "cache_control"}


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits
