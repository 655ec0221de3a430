"""The command line of mitmdump or mitmweb with the addon, and where it will listen."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hivemind_addon.resources import script_path
from hivemind_addon.tools.launch.programs import PATIENCE_S
from hivemind_addon.tools.launch.upstream import CompanyProxy

OLLAMA_PORT = 11435
"""One above Ollama's own."""
_OLLAMA = "http://127.0.0.1:11434"
_OLLAMA_PROFILE = "ollama"
_VERBOSITY = ("-v", "--verbose", "-q", "--quiet", "--flow-detail", "--termlog-verbosity")
_MARGIN_S = 60
"""Mitmproxy's idle time-out is this much longer than any client's patience."""


class NoMitmproxy(Exception):
    """The program is not there; one line with the cure."""


@dataclass(frozen=True, slots=True)
class ProxyCommand:
    """What to start."""

    port: int
    first: tuple[str, ...]
    """The command line of the first start."""
    again: tuple[str, ...]
    """The one of every later start."""


def proxy_command(
    *,
    port: int,
    host: str = "127.0.0.1",
    web: bool = False,
    ollama: bool = False,
    fresh: bool = False,
    upstream: CompanyProxy | None = None,
    options: Sequence[str] = (),
) -> ProxyCommand:
    """Build it; `options` go to mitmproxy as they are, and win over ours. Raises NoMitmproxy."""
    executable = mitmproxy_program(web=web)
    command = [str(executable), "--listen-port", str(port)]
    if "--listen-host" not in options and not _sets(options, "listen_host"):
        # Said here and not left to the addon: mitmproxy binds its ports before it loads scripts.
        command += ["--listen-host", host]
    if not _sets(options, "tcp_timeout"):
        command += ["--set", f"tcp_timeout={PATIENCE_S + _MARGIN_S}"]
    command += _calm(options, web=web)
    modes = []
    if not has_mode(options):
        modes = [upstream.mode if upstream else "regular"]
        command += upstream.options if upstream else []
    if ollama:
        modes = [*(modes or []), f"reverse:{_OLLAMA}@{OLLAMA_PORT}"]
        if not _sets(options, "hivemind_reverse_profile"):
            command += ["--set", f"hivemind_reverse_profile={_OLLAMA_PROFILE}"]
    command += [argument for mode in modes for argument in ("--mode", mode)]
    command += ["-s", str(script_path()), *options]
    # A restart opens no second browser window.
    again = [*command, "--no-web-open-browser"] if web else command
    # Nor does it forget what was ordered since.
    first = [*command, "--set", "hivemind_fresh=true"] if fresh else command
    return ProxyCommand(port=port, first=tuple(first), again=tuple(again))


def mitmproxy_program(*, web: bool) -> Path:
    """Mitmdump or mitmweb, of our own installation. Raises NoMitmproxy."""
    executable = Path(sys.executable).parent / ("mitmweb" if web else "mitmdump")
    if not executable.is_file():
        raise NoMitmproxy(f"there is no {executable.name} beside {sys.executable}: install hivemind-addon there")
    return executable


def _calm(options: Sequence[str], *, web: bool) -> list[str]:
    """A line only for what a person should know, unless the options say how much is told."""
    if any(one in _VERBOSITY for one in options) or _sets(options, "termlog_verbosity"):
        return []
    calm = ["--set", "termlog_verbosity=alert"]
    return calm if web or _sets(options, "flow_detail") else [*calm, "--set", "flow_detail=0"]


def has_mode(options: Sequence[str]) -> bool:
    """Whether mitmproxy's own options say which kind of proxy it is."""
    return any(one in ("--mode", "-m") or one.startswith("--mode=") for one in options) or _sets(options, "mode")


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables for the proxy's process: it is the proxy, and goes through none but its upstream."""
    return {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}


def _sets(options: Sequence[str], name: str) -> bool:
    return any(one.removeprefix("--set=").partition("=")[0] == name for one in options)
