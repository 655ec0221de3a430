"""A Responses conversation as a rollout file of Codex, as its 0.169.0 writes and resumes them (2026-11).

A line of JSON that names the session, then one for each item. What Codex says of itself before the first question
(tools, instructions, its environment) is left out: it says that anew when it resumes.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import dropwhile
from pathlib import Path

import msgspec
from msgspec import Raw

from hivemind_addon.formats.base.json_values import read_object, read_value
from hivemind_addon.plugins.contexts.reading.answer import UNKNOWN_RESULT, answer_items
from hivemind_addon.plugins.contexts.store import Context

_VERSION = "0.169.0"
_ITS_OWN_WORDS = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions")
"""How messages in the user's name begin that Codex writes."""
_INSTRUCTIONS = ("system", "developer")
_RESULT_TYPES = {
    "function_call": "function_call_output",
    "local_shell_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}
"""Of a call that Codex makes itself → what its result is."""


def place(kept_at: datetime, session: str, environment: Mapping[str, str]) -> Path:
    """Where Codex looks for the session."""
    home = Path(environment.get("CODEX_HOME") or Path.home() / ".codex")
    return home / "sessions" / f"{kept_at:%Y/%m/%d}" / f"rollout-{kept_at:%Y-%m-%dT%H-%M-%S}-{session}.jsonl"


def rollout(context: Context, *, project: Path, session: str) -> bytes:
    """The file's content."""
    kept_at = datetime.fromtimestamp(context.head.kept_wall, UTC)
    stamp = kept_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    about = {
        "id": session,
        "timestamp": stamp,
        "cwd": str(project),
        "originator": "codex_exec",
        "cli_version": _VERSION,
        "source": "cli",
    }
    lines: list[dict[str, object]] = [{"timestamp": stamp, "type": "session_meta", "payload": about}]
    items = [*dropwhile(_is_introduction, _items(context)), *_answered(context)]
    lines += [{"timestamp": stamp, "type": "response_item", "payload": item} for item in items]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _items(context: Context) -> list[Raw]:
    given = read_value((read_object(context.body) or {}).get("input"))
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    items = given if isinstance(given, list) else []
    return [Raw(msgspec.json.encode(_typed(item))) for item in items if isinstance(item, dict)]


def _answered(context: Context) -> Iterator[dict[str, object]]:
    """The newest answer, and what stands for the results of its calls."""
    items = answer_items(context)
    yield from items
    for item in items:
        if (result := _RESULT_TYPES.get(str(item.get("type")))) and "call_id" in item:
            yield {"type": result, "call_id": item["call_id"], "output": UNKNOWN_RESULT}


def _typed(item: dict[str, object]) -> dict[str, object]:
    """An item as Codex writes it: the API takes messages without a type, and with a plain text."""
    if "type" in item and item["type"] != "message":
        return item
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text" if item.get("role") == "assistant" else "input_text", "text": content}]
    return item | {"type": "message", "content": content}


def _is_introduction(raw: Raw) -> bool:
    """Whether an item is what Codex begins every conversation with."""
    item = read_object(raw) or {}
    if read_value(item.get("type")) == "additional_tools" or read_value(item.get("role")) in _INSTRUCTIONS:
        return True
    content = read_value(item.get("content"))
    texts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return bool(texts) and all(isinstance(text, str) and text.lstrip().startswith(_ITS_OWN_WORDS) for text in texts)
