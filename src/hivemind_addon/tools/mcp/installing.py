"""`hivemind setup` for agents: run as a person runs it, since it is theirs to decide what it writes."""

import subprocess
import sys
from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from hivemind_addon.tools.mcp.scope import Permission
from hivemind_addon.tools.mcp.tool import Call, Effect, McpTool, ToolFailed

_MOST_S = 60
_MAX_CHARS = 20_000


class SetupProgram(Enum):
    """What can be set up."""

    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    GEMINI = "gemini"
    CURSOR = "cursor"
    WINDSURF = "windsurf"
    COPILOT = "copilot"
    OPENCODE = "opencode"
    AIDER = "aider"
    ALL = "all"


class What(Enum):
    """What is to be done."""

    PRINT = "print"
    WRITE = "write"
    REMOVE = "remove"


class SetupWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """For which program, and what."""

    program: Annotated[SetupProgram, Meta(description="`all`: every one that is found on this machine")]
    action: Annotated[
        What,
        Meta(description="`print` changes nothing; `write` merges it into its files; `remove` takes out what it wrote"),
    ] = What.PRINT
    project: Annotated[bool, Meta(description="The project's files (this server's folder), not the user's own")] = False
    mcp_only: Annotated[bool, Meta(description="Only the entry of this server, not the proxy")] = False


class SetUp(Struct, frozen=True):
    """What came of it."""

    done: Annotated[bool, Meta(description="False: something could not be done; the text says what")]
    text: str


def _setup(call: Call, wanted: SetupWanted) -> SetUp:
    command = [sys.executable, "-P", "-m", "hivemind_addon", "setup", wanted.program.value]
    command += ["--port", str(call.session.caller.port)]
    command += [f"--{wanted.action.value}"] if wanted.action is not What.PRINT else []
    command += [word for word, asked in (("--project", wanted.project), ("--mcp-only", wanted.mcp_only)) if asked]
    try:
        ran = subprocess.run(  # noqa: S603 - words of our own
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_MOST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"hivemind setup did not end within {_MOST_S} s") from error
    return SetUp(done=ran.returncode == 0, text=ran.stdout.decode(errors="replace")[-_MAX_CHARS:])


TOOLS = (
    McpTool(
        name="setup",
        title="Put an agent's program behind the proxy",
        description=(
            "Show what a program needs in its own files to go through the scheduler and to use this server, or write "
            "that: what is in the files stays, a diff is shown, a backup is kept. It counts from the program's next "
            "start."
        ),
        takes=SetupWanted,
        gives=SetUp,
        run=_setup,
        effect=Effect.DESTROYS,
        idempotent=True,
        needs=frozenset({Permission.SETUP}),
    ),
)
