"""A context in a form that can be continued, and what to do with it then."""

import shlex
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from msgspec import Struct

from hivemind_addon.formats.wire.transcript import dialect_named
from hivemind_addon.plugins.contexts.reading import claude_code, codex
from hivemind_addon.plugins.contexts.reading.prompt import prompt_of
from hivemind_addon.plugins.contexts.store import Context

_SENT = ("content-type", "anthropic-version", "anthropic-beta", "openai-beta", "x-openai-internal-codex-responses-lite")
"""Headers that say how the body is meant."""
_KEYS = {
    "anthropic": "x-api-key: ${ANTHROPIC_API_KEY}",
    "openai-responses": "authorization: Bearer ${OPENAI_API_KEY}",
    "openai-chat": "authorization: Bearer ${OPENAI_API_KEY}",
}
_LOGIN_BETA = "oauth-"
"""Of Claude Code's with a subscription: it does not go with a key."""


def curl_command(context: Context) -> str:
    """A shell's line; the key is the reader's own, in the variable that it names."""
    words = ["curl", "-sSN", shlex.quote(context.url)]
    for name in _SENT:
        if value := context.headers.get(name, "application/json" if name == "content-type" else ""):
            betas = [beta for beta in value.split(",") if not beta.strip().startswith(_LOGIN_BETA)]
            words += ["-H", shlex.quote(f"{name}: {','.join(betas)}")]
    if key := _KEYS.get(dialect_named(context.head.dialect).name):
        words += ["-H", f'"{key}"']
    return " ".join([*words, "--data-binary", "@FILE"])


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
_SENDERS = {ExportForm.CLAUDE_CODE: ("claude-cli/",), ExportForm.CODEX: ("codex",)}
"""How the user agents of the two begin."""
_PROGRAMS = {ExportForm.CLAUDE_CODE: "Claude Code", ExportForm.CODEX: "Codex"}
_APIS = {
    "anthropic": "Messages",
    "openai-responses": "Responses",
    "openai-chat": "Chat Completions",
    "ollama": "Ollama",
}


def form_of(context: Context) -> ExportForm:
    """What the program that a conversation comes from resumes. Raises CannotExport where it resumes nothing."""
    spoken, program = dialect_named(context.head.dialect).name, context.headers.get("user-agent", "").casefold()
    for form, words in _SENDERS.items():
        if spoken == _TAKES[form] and program.startswith(words):
            return form
    raise CannotExport(
        f"{context.head.id} comes from neither Claude Code nor Codex; name what goes on with it: "
        "`--as text -- PROGRAM` gives any program a prompt, `--as api -- PROGRAM` the request's JSON, and "
        "`--as claude-code`, `--as codex` are for conversations of their APIs"
    )


def resume_command(exported: Export, form: ExportForm, *, say: str | None, words: Sequence[str]) -> list[str]:
    """The program's command line. Raises CannotExport.

    `say`: what it is told, headless; None: a person will talk to it. `words`: options of its own, or the program.
    """
    told = [] if say is None else ["--", say]
    match form:
        case ExportForm.CLAUDE_CODE:
            return ["claude", *(["-p"] if told else ()), "--resume", exported.session, *words, *told]
        case ExportForm.CODEX if told:
            return ["codex", "exec", "--skip-git-repo-check", *words, "resume", exported.session, *told]
        case ExportForm.CODEX:
            return ["codex", "resume", *words, exported.session]
    if say is not None:
        raise CannotExport(f"--say is for claude-code and codex; a program that reads {form.value} has all of it there")
    if not words:
        raise CannotExport(f"name the program that is to go on: `--as {form.value} -- PROGRAM`")
    return list(words)


def export(
    context: Context, form: ExportForm, *, project: Path, environment: Mapping[str, str], session: str = ""
) -> Export:
    """Make it. Raises CannotExport.

    `project`: the folder in which an agent is to go on. `environment`: tells where agents keep their sessions.
    `session`: the new one's name, a UUID; empty: a random one.
    """
    spoken = dialect_named(context.head.dialect).name
    if form in _TAKES and spoken != _TAKES[form]:
        raise CannotExport(
            f"{context.head.id} is a conversation of the {_APIS.get(spoken, spoken)} API, and "
            f"{_PROGRAMS[form]} speaks the {_APIS[_TAKES[form]]} API; `--as text` gives it as a prompt for any agent"
        )
    session = session or str(uuid.uuid4())
    enter = f"cd {shlex.quote(str(project))} && "
    match form:
        case ExportForm.CLAUDE_CODE:
            return Export(
                content=claude_code.session_file(context, project=project, session=session),
                session=session,
                place=claude_code.place(project, session, environment),
                command=f"{enter}claude --resume {session}",
            )
        case ExportForm.CODEX:
            kept_at = datetime.fromtimestamp(context.head.kept_wall, UTC)
            return Export(
                content=codex.rollout(context, project=project, session=session),
                session=session,
                place=codex.place(kept_at, session, environment),
                command=f"{enter}codex resume {session}",
            )
        case ExportForm.API:
            return Export(content=bytes(context.body), command=curl_command(context))
        case ExportForm.TEXT:
            return Export(content=prompt_of(context).encode(errors="replace"))
