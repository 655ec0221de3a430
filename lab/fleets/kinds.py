"""The kinds of agents: how each gets a task, which provider each asks, and which settings keep each quiet.

Each is as users have it; the settings here switch off updates and statistics, permit the shell, and name a
model of the simulated provider where the usual choice would need a login.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.faults import KeepAlive
from hivemind_addon.sim.task import SimTask
from lab.fleets.programs import AIDER, CLAUDE_CODE, CODEX, GEMINI_CLI, MINI_SWE_AGENT, OPENCODE, QWEN_CODE, Package

ANTHROPIC_HOST = "api.anthropic.com"
OPENAI_HOST = "api.openai.com"
GOOGLE_HOST = "generativelanguage.googleapis.com"
_CLAUDE = "claude-opus-5-5"
_GPT = "gpt-6.1-sol"
"""What Claude Code and Codex take by themselves; the others of their providers take it, too, so that they compete."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of agent."""

    title: str
    word: str
    """The beginning of the agents' names; the name for `hivemind exec`."""
    package: Package
    host: str
    """Where the model is."""
    format: SimDialect
    """What it speaks with it."""
    arguments: Callable[[SimTask], tuple[str, ...]]
    """Behind the executable's name."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """`{home}` and `{key}` stand for the agent's home and its API key."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path below its home → content."""
    first: tuple[str, ...] = ()
    """More arguments, with which the first call is a turn, and no question about the model to take."""
    manners: tuple[KeepAlive, ...] = (KeepAlive.NOTHING, KeepAlive.BLANK_LINES, KeepAlive.COMMENTS)
    """The signs of life in the answers."""


_CODEX = CODEX  # among the kinds this name is one's own
_CODEX_QUIET = ("-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false")
_CODEX_SOCKETS = (
    "-c",
    'model_provider="sockets"',
    "-c",
    (
        'model_providers.sockets={name="OpenAI", wire_api="responses", requires_openai_auth=true, '
        "supports_websockets=true}"
    ),
)


_CODEX_ENVIRONMENT = {"CODEX_HOME": "{home}/.codex", "CODEX_API_KEY": "{key}"}


def _codex(*more: str) -> Callable[[SimTask], tuple[str, ...]]:
    first = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", *_CODEX_QUIET, *more)
    return lambda task: (*first, task.prompt)


def _aider(task: SimTask) -> tuple[str, ...]:
    # It has no tools: what makes it take several turns is a test that fails until the last line is there.
    test = f"grep -q '{task.last_line}' {task.file} || {{ echo 'lines are missing'; false; }}"
    quiet = ("--no-git", "--analytics-disable", "--no-check-update", "--no-show-model-warnings", "--no-pretty")
    model = ("--model", f"openai/{_GPT}", "--edit-format", "whole")
    checked = ("--auto-test", "--test-cmd", test)
    return ("--yes-always", *quiet, *model, *checked, "--message", task.prompt, task.file)


class Program(Enum):
    """Which agent."""

    CLAUDE = Kind(
        "Claude Code",
        "claude",
        CLAUDE_CODE,
        ANTHROPIC_HOST,
        SimDialect.MESSAGES,
        lambda task: ("-p", task.prompt, "--dangerously-skip-permissions"),
        {
            "CLAUDE_CONFIG_DIR": "{home}/.claude",
            "ANTHROPIC_API_KEY": "{key}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",  # as root it skips no permissions otherwise
        },
        manners=tuple(KeepAlive),
    )
    CODEX = Kind("Codex", "codex", _CODEX, OPENAI_HOST, SimDialect.RESPONSES, _codex(), _CODEX_ENVIRONMENT)
    CODEX_SOCKETS = Kind(
        "Codex by WebSocket",
        "codex-ws",
        _CODEX,
        OPENAI_HOST,
        SimDialect.RESPONSES,
        _codex(*_CODEX_SOCKETS),
        _CODEX_ENVIRONMENT,
        manners=(KeepAlive.NOTHING,),  # of what keeps it waiting the proxy's own tests know
    )
    GEMINI = Kind(
        "Gemini CLI",
        "gemini",
        GEMINI_CLI,
        GOOGLE_HOST,
        SimDialect.GEMINI,
        lambda task: ("--yolo", "--skip-trust", "--prompt", task.prompt),
        {"GEMINI_API_KEY": "{key}", "GEMINI_CLI_NO_RELAUNCH": "true"},
        {
            ".gemini/settings.json": '{"security": {"auth": {"selectedType": "gemini-api-key"}}, '
            '"privacy": {"usageStatisticsEnabled": false}, "general": {"enableAutoUpdate": false}}'
        },
        first=("--model", "gemini-3.1-pro-preview"),
    )
    OPENCODE = Kind(
        "OpenCode",
        "opencode",
        OPENCODE,
        ANTHROPIC_HOST,
        SimDialect.MESSAGES,
        lambda task: ("run", "--auto", "--model", f"anthropic/{_CLAUDE}", task.prompt),
        {
            "ANTHROPIC_API_KEY": "{key}",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
        {".config/opencode/opencode.json": f'{{"provider": {{"anthropic": {{"models": {{"{_CLAUDE}": {{}}}}}}}}}}'},
    )
    QWEN = Kind(
        "Qwen Code",
        "qwen",
        QWEN_CODE,
        OPENAI_HOST,
        SimDialect.CHAT,
        lambda task: ("--yolo", "--auth-type", "openai", "--prompt", task.prompt),
        {
            "OPENAI_API_KEY": "{key}",
            "OPENAI_BASE_URL": f"https://{OPENAI_HOST}/v1",
            "OPENAI_MODEL": _GPT,
        },
        {
            ".qwen/settings.json": '{"privacy": {"usageStatisticsEnabled": false}, '
            '"general": {"enableAutoUpdate": false}}'
        },
    )
    AIDER = Kind("aider", "aider", AIDER, OPENAI_HOST, SimDialect.CHAT, _aider, {"OPENAI_API_KEY": "{key}"})
    MINI = Kind(
        "mini-swe-agent",
        "mini",
        MINI_SWE_AGENT,
        OPENAI_HOST,
        SimDialect.RESPONSES,
        lambda task: ("--yolo", "--exit-immediately", "--model", f"openai/{_GPT}", "--task", task.prompt),
        {
            "OPENAI_API_KEY": "{key}",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": "{home}/.mini",
        },
        manners=(KeepAlive.NOTHING,),  # it does not stream
    )


QUIET: Mapping[str, str] = MappingProxyType(
    {
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NODE_USE_ENV_PROXY": "1",
        "NO_PROXY": "localhost,127.0.0.1",  # OpenCode talks to a server of its own
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
)
"""For every agent."""
