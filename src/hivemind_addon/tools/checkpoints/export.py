"""A checkpoint in a form that can be continued, and what to do with it then."""

import shlex
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from msgspec import Struct

from hivemind_addon.proxy.checkpoint.store import Checkpoint
from hivemind_addon.proxy.wire.transcript import dialect_named
from hivemind_addon.tools.checkpoints import claude_code, codex
from hivemind_addon.tools.checkpoints.prompt import prompt_of

_SENT = ("content-type", "anthropic-version", "anthropic-beta", "openai-beta", "x-openai-internal-codex-responses-lite")
"""Headers that say how the body is meant."""
_KEYS = {
    "anthropic": "x-api-key: ${ANTHROPIC_API_KEY}",
    "openai-responses": "authorization: Bearer ${OPENAI_API_KEY}",
    "openai-chat": "authorization: Bearer ${OPENAI_API_KEY}",
}
_LOGIN_BETA = "oauth-"
"""Of Claude Code's with a subscription: it does not go with a key."""


def curl_command(checkpoint: Checkpoint, file: str = "FILE") -> str:
    """A shell's line; the key is the reader's own, in the variable that it names."""
    words = ["curl", "-sSN", shlex.quote(checkpoint.url)]
    for name in _SENT:
        if value := checkpoint.headers.get(name, "application/json" if name == "content-type" else ""):
            betas = [beta for beta in value.split(",") if not beta.strip().startswith(_LOGIN_BETA)]
            words += ["-H", shlex.quote(f"{name}: {','.join(betas)}")]
    if key := _KEYS.get(dialect_named(checkpoint.head.dialect).name):
        words += ["-H", f'"{key}"']
    return " ".join([*words, "--data-binary", f"@{file}"])


class ExportForm(Enum):
    """What a conversation can be given back as."""

    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    API = "api"
    TEXT = "text"


class CannotExport(Exception):
    """A conversation cannot be put into a form; one line that names another one."""


class Export(Struct, frozen=True):
    """One of these."""

    content: bytes
    """Of the file."""
    session: str = ""
    """What its agent will know it by; empty: nothing."""
    place: Path | None = None
    """Where its agent looks for it; None: nowhere."""
    command: str = ""
    """What continues it, once the file is there; a shell's line. `FILE`: wherever the file is."""


_TAKES = {ExportForm.CLAUDE_CODE: "anthropic", ExportForm.CODEX: "openai-responses"}
_PROGRAMS = {ExportForm.CLAUDE_CODE: "Claude Code", ExportForm.CODEX: "Codex"}
_APIS = {
    "anthropic": "Messages",
    "openai-responses": "Responses",
    "openai-chat": "Chat Completions",
    "ollama": "Ollama",
}


def export(
    checkpoint: Checkpoint, form: ExportForm, *, project: Path, environment: Mapping[str, str], session: str = ""
) -> Export:
    """Make it. Raises CannotExport.

    `project`: the folder in which an agent is to go on. `environment`: tells where agents keep their sessions.
    `session`: the new one's name, a UUID; empty: a random one.
    """
    spoken = dialect_named(checkpoint.head.dialect).name
    if form in _TAKES and spoken != _TAKES[form]:
        raise CannotExport(
            f"{checkpoint.head.id} is a conversation of the {_APIS.get(spoken, spoken)} API, and "
            f"{_PROGRAMS[form]} speaks the {_APIS[_TAKES[form]]} API; `--as text` gives it as a prompt for any agent"
        )
    session = session or str(uuid.uuid4())
    enter = f"cd {shlex.quote(str(project))} && "
    match form:
        case ExportForm.CLAUDE_CODE:
            return Export(
                content=claude_code.session_file(checkpoint, project=project, session=session),
                session=session,
                place=claude_code.place(project, session, environment),
                command=f"{enter}claude --resume {session}",
            )
        case ExportForm.CODEX:
            kept_at = datetime.fromtimestamp(checkpoint.head.kept_wall, UTC)
            return Export(
                content=codex.rollout(checkpoint, project=project, session=session),
                session=session,
                place=codex.place(kept_at, session, environment),
                command=f"{enter}codex resume {session}",
            )
        case ExportForm.API:
            return Export(content=bytes(checkpoint.body), command=curl_command(checkpoint))
        case ExportForm.TEXT:
            return Export(content=prompt_of(checkpoint).encode(errors="replace"))
