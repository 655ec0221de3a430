"""The tools: which of their files says what. Where that is known from is in docs/setup.md."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from hivemind_addon.proxy.system.engine_url import (
    CLUSTER_NAME_VARIABLE,
    CLUSTER_VARIABLE,
    PASSWORD_VARIABLE,
    USERNAME_VARIABLE,
)
from hivemind_addon.tools.launch.environment import changes, proxy_url
from hivemind_addon.tools.launch.port import AGENT_VARIABLE, DEFAULT_PORT, PORT_VARIABLE
from hivemind_addon.tools.launch.programs import ProgramTable
from hivemind_addon.tools.setup.model import FileEntry, FileFormat, FilePlan, SetupPlan, SetupTrouble, Value

_NAME = "hivemind"
_PASSED_ON = (
    *(AGENT_VARIABLE, PORT_VARIABLE, "HIVEMIND_TASK", "HIVEMIND_RUNNER", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"),
    *("HTTPS_PROXY", "https_proxy"),
    *(CLUSTER_VARIABLE, CLUSTER_NAME_VARIABLE, USERNAME_VARIABLE, PASSWORD_VARIABLE),
)
"""What `hivemind mcp` is told by its environment, for tools that start servers with next to none."""
_ONLY_TRUSTED = "it starts no MCP servers in folders that it does not trust, and without a terminal does not run there"
_NEEDS_PROXY = "it reaches its provider only while the proxy runs: `hivemind run`"
_NAMED_HERE = "all that start without `hivemind exec --agent NAME`, which outdoes this, share this one name"
_CA_OF_THE_SHELL = (
    "some versions read NODE_EXTRA_CA_CERTS only from the shell's environment: if it does not trust the proxy, export "
    "it there"
)


class ToolPlace(Struct, frozen=True):
    """Whose files, and what to say in them."""

    home: Path
    project: Path | None
    """Its folder; None: the user's own files."""
    environment: Mapping[str, str]
    command: str
    """What starts `hivemind`."""
    port: int
    table: ProgramTable
    bundle: Callable[[], Path]
    """Makes the CA bundle; asked only by tools that need one. Raises NoBundle, OSError."""
    agent: str = ""
    """The agent's name; empty: the tool's."""
    mcp_only: bool = False

    def folder(self, variable: str, name: str) -> Path:
        """A tool's own folder: where a variable says, else below the user's home."""
        return Path(self.environment.get(variable) or self.home / name)

    @property
    def server(self) -> dict[str, Value]:
        """How `hivemind mcp` is started."""
        command = _NAME if self.project else self.command
        return {"command": command, "args": ["mcp", *([] if self.port == DEFAULT_PORT else ["-p", str(self.port)])]}

    def variables(
        self, tool: str, program: str, *, ca: Sequence[str] | None = None, way: str = "HTTPS_PROXY"
    ) -> dict[str, str]:
        """What puts a program behind the proxy. `ca`: the variables of it that its file can say; `way`: of the proxy.

        Not HIVEMIND_AGENT: files outdo what `hivemind exec` and fleets set, and without it the proxy's user is taken.
        """
        found = self.table.programs[program]
        agent = self.agent or tool
        names = found.ca if ca is None else ca
        changed = changes(
            {},
            url=proxy_url(self.port, agent=agent, words=()),
            bundle=self.bundle() if names else Path(),
            hosts=(),
            table=self.table,
            patience=False,
        )
        chosen = {name: changed[name] for name in (way, "NO_PROXY", *names)}
        return chosen | dict(found.patience) | {PORT_VARIABLE: str(self.port)}


class SetupTool(Struct, frozen=True):
    """One that can be set up."""

    name: str
    commands: tuple[str, ...]
    folders: tuple[str, ...]
    """In the user's home; one of them, or a command, says that it is on this machine."""
    plan: Callable[[ToolPlace], tuple[list[FilePlan], list[str]]]

    def is_found(self, home: Path) -> bool:
        """Whether it is on this machine."""
        return any(shutil.which(command) for command in self.commands) or any(
            (home / folder).is_dir() for folder in self.folders
        )

    def plan_for(self, place: ToolPlace) -> SetupPlan:
        """Raises SetupTrouble, NoBundle, OSError."""
        files, notes = self.plan(place)
        return SetupPlan(self.name, tuple(files), tuple(notes))


def _json(path: Path, *entries: tuple[tuple[str, ...], Value]) -> FilePlan:
    return FilePlan(path, FileFormat.JSON, tuple(FileEntry(keys, value) for keys, value in entries))


def _dotenv(path: Path, variables: Mapping[str, str]) -> FilePlan:
    return FilePlan(path, FileFormat.DOTENV, tuple(FileEntry((name,), value) for name, value in variables.items()))


def _claude_code(place: ToolPlace) -> tuple[list[FilePlan], list[str]]:
    if place.project:
        settings, servers = place.project / ".claude" / "settings.local.json", place.project / ".mcp.json"
    else:
        settings = place.folder("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"
        servers = place.folder("CLAUDE_CONFIG_DIR", "") / ".claude.json"
    files = [_json(servers, (("mcpServers", _NAME), {"type": "stdio", **place.server}))]
    if place.mcp_only:
        return files, []
    variables = place.variables("claude-code", "claude")
    files.insert(0, _json(settings, *((("env", name), value) for name, value in variables.items())))
    return files, [_NEEDS_PROXY, _NAMED_HERE, _CA_OF_THE_SHELL]


def _codex(place: ToolPlace) -> tuple[list[FilePlan], list[str]]:
    folder = place.project / ".codex" if place.project else place.folder("CODEX_HOME", ".codex")
    server = {**place.server, "env_vars": list(_PASSED_ON)}
    files = [FilePlan(folder / "config.toml", FileFormat.TOML, (FileEntry(("mcp_servers", _NAME), server),))]
    if place.mcp_only:
        return files, []
    if place.project:
        return files, [
            "a project's files cannot put it behind the proxy: use `hivemind exec -- codex`, or this without --project"
        ]
    # Codex takes no variable of its own name from that file. What it takes outdoes the environment, where it asks for
    # HTTPS_PROXY first: so spelt, each `hivemind exec` and each task of a fleet would have this name and no budget.
    variables = place.variables("codex", "codex", ca=("SSL_CERT_FILE",), way="https_proxy")
    return [_dotenv(folder / ".env", variables), *files], [
        _NEEDS_PROXY,
        _NAMED_HERE,
        f"an HTTPS_PROXY in the shell outdoes it (use `hivemind exec -- codex`), one in {folder / '.env'} outdoes both",
        "what makes it wait for long answers is said on its command line only: `hivemind exec -- codex exec …` does",
        "`codex exec` does not wait for MCP servers: `required = true` in their table makes it",
    ]


def _gemini(place: ToolPlace) -> tuple[list[FilePlan], list[str]]:
    folder = (place.project or place.home) / ".gemini"
    files = [_json(folder / "settings.json", (("mcpServers", _NAME), place.server))]
    if place.mcp_only:
        return files, []
    file = folder / ".env"
    if hidden := _hidden_by(file, place):
        return files, [
            f"it reads one .env file only, now {hidden}, which a new {file} would hide: use `hivemind exec -- gemini`",
            _ONLY_TRUSTED,
        ]
    # Node reads NODE_EXTRA_CA_CERTS before the program reads its file, which outdoes nothing that is set already.
    # It keeps addresses with a password from its servers: they would not know who asks.
    variables = place.variables("gemini", "gemini", ca=()) | {AGENT_VARIABLE: place.agent or "gemini"}
    files.insert(0, _dotenv(file, variables))
    return files, [
        _NEEDS_PROXY,
        f"it reads one .env file only: in a project that has one, it does not read {file}",
        _ONLY_TRUSTED,
        "export NODE_EXTRA_CA_CERTS in the shell (`hivemind setup env` says it): no file of its own can",
    ]


def _hidden_by(file: Path, place: ToolPlace) -> Path | None:
    """The one file of variables that Gemini reads now, if it would no longer be read beside a new one."""
    above = (place.project, *place.project.parents) if place.project else ()
    folders = [*above, place.home]
    candidates = [one for folder in folders for one in (folder / ".gemini" / ".env", folder / ".env")]
    read = next((one for one in candidates if one.is_file()), None)
    return None if read == file else read


def _cursor(place: ToolPlace) -> tuple[list[FilePlan], list[str]]:
    folder = (place.project or place.home) / ".cursor"
    return [_json(folder / "mcp.json", (("mcpServers", _NAME), place.server))], [_own_servers("Cursor")]


def _windsurf(place: ToolPlace) -> tuple[list[FilePlan], list[str]]:
    if place.project:
        raise SetupTrouble("Windsurf has no MCP file for a project; leave out --project")
    file = place.home / ".codeium" / "windsurf" / "mcp_config.json"
    return [_json(file, (("mcpServers", _NAME), place.server))], [_own_servers("Windsurf")]


def _copilot(place: ToolPlace) -> tuple[list[FilePlan], list[str]]:
    if place.project:  # VS Code's
        file = _json(place.project / ".vscode" / "mcp.json", (("servers", _NAME), {"type": "stdio", **place.server}))
    else:  # Copilot CLI's
        folder = place.folder("COPILOT_HOME", ".copilot")
        server = {"type": "local", **place.server, "tools": ["*"]}
        file = _json(folder / "mcp-config.json", (("mcpServers", _NAME), server))
    return [file], [
        "its model calls go to GitHub's servers: nothing to schedule, only MCP",
        "Copilot CLI on a key of yours (COPILOT_PROVIDER_BASE_URL) is scheduled: `hivemind exec -- copilot`",
        "without --project this is for Copilot CLI, with it for VS Code",
    ]


def _opencode(place: ToolPlace) -> tuple[list[FilePlan], list[str]]:
    base = Path(place.environment.get("XDG_CONFIG_HOME") or place.home / ".config")
    folder = place.project or base / "opencode"
    file = next((one for one in (folder / "opencode.json", folder / "opencode.jsonc") if one.exists()), None)
    command = [place.server["command"], *_words(place.server["args"])]
    server: Value = {"type": "local", "command": command, "enabled": True}
    return [_json(file or folder / "opencode.json", (("mcp", _NAME), server))], [
        "its files cannot name a proxy: start it with `hivemind exec -- opencode`",
        "this is for version 1; version 2 has its servers one level deeper, in mcp.servers",
    ]


def _aider(place: ToolPlace) -> tuple[list[FilePlan], list[str]]:
    if place.mcp_only:
        return [], ["it speaks no MCP"]
    file = (place.project or place.home) / ".env"
    return [_dotenv(file, place.variables("aider", "aider"))], [
        _NEEDS_PROXY,
        f"{file} may be read by other programs, too; `hivemind exec -- aider` needs no file",
        "it speaks no MCP",
    ]


def _own_servers(whose: str) -> str:
    return f"its model calls go to {whose}'s servers, on keys that are not yours: nothing to schedule, only MCP"


def _words(value: Value) -> list[Value]:
    return value if isinstance(value, list) else [value]


TOOLS = {
    tool.name: tool
    for tool in (
        SetupTool("claude-code", ("claude",), (".claude",), _claude_code),
        SetupTool("codex", ("codex",), (".codex",), _codex),
        SetupTool("gemini", ("gemini",), (".gemini",), _gemini),
        SetupTool("cursor", ("cursor", "cursor-agent"), (".cursor",), _cursor),
        SetupTool("windsurf", ("windsurf",), (".codeium/windsurf",), _windsurf),
        SetupTool("copilot", ("copilot",), (".copilot",), _copilot),
        SetupTool("opencode", ("opencode",), (".config/opencode",), _opencode),
        SetupTool("aider", ("aider",), (), _aider),
    )
}
