"""The command line of mitmdump or mitmweb with the addon: the options, and the proxy's own upstream proxy.

A proxy that the environment already names (a company's) becomes the upstream of our proxy.
"""

import difflib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hivemind_addon.formats.base.resources import script_path
from hivemind_addon.tools.launch.environment import LOOPBACK
from hivemind_addon.tools.launch.port import PORT_VARIABLE

_NAMES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
_PORTS = {"http": 80, "https": 443}


class UpstreamUnusable(Exception):
    """Mitmproxy cannot use the environment's proxy; a line with the cure."""


@dataclass(frozen=True, slots=True)
class CompanyProxy:
    """An HTTP proxy, used as upstream."""

    url: str
    """`http://host:port` or `https://host:port`, the format of mitmproxy's mode."""
    auth: str
    """`user:password`, or empty."""

    @property
    def mode(self) -> str:
        """The mode of mitmproxy."""
        return f"upstream:{self.url}"

    @property
    def options(self) -> list[str]:
        """The other options of mitmproxy for the upstream."""
        return ["--upstream-auth", self.auth] if self.auth else []


def upstream_of(environment: Mapping[str, str], own_port: int) -> CompanyProxy | None:
    """The proxy that the environment names, except our own. Raises UpstreamUnusable."""
    name = next((name for name in _NAMES if environment.get(name)), None)
    if name is None:
        return None
    value = environment[name]
    url = urlsplit(value if "://" in value else f"http://{value}")
    try:
        port = url.port or _PORTS.get(url.scheme)
    except ValueError as error:
        raise UpstreamUnusable(f"{name}: {error}; write http://host:port, or unset it") from error
    host = url.hostname
    if host in ("localhost", "127.0.0.1", "::1") and port == own_port:
        return None
    if url.scheme not in _PORTS or not host:
        raise UpstreamUnusable(
            f"{name}: mitmproxy cannot go through a proxy of the kind {url.scheme!r}; "
            "name one with http:// or https://, or unset it"
        )
    address = f"[{host}]" if ":" in host else host
    auth = f"{unquote(url.username)}:{unquote(url.password or '')}" if url.username else ""
    return CompanyProxy(url=f"{url.scheme}://{address}:{port}", auth=auth)


def is_proxy_of_exec(proxy: CompanyProxy, environment: Mapping[str, str]) -> bool:
    """Whether the proxy is that of the `hivemind exec` around this process."""
    url = urlsplit(proxy.url)
    return url.hostname in LOOPBACK and str(url.port) == environment.get(PORT_VARIABLE)


_PROGRAM = "hivemind_addon.proxy.run.program"
"""The module that runs mitmdump or mitmweb on an event loop, in the proxy's process."""
AUTO, ASYNCIO, UVLOOP = LOOPS = "auto", "asyncio", "uvloop"
"""AUTO: uvloop if installed, else asyncio."""
OLLAMA_PORT = 11435
"""The next port after Ollama's own."""
_OLLAMA = "http://127.0.0.1:11434"
_OLLAMA_PROFILE = "ollama"
_VERBOSITY = ("-v", "--verbose", "-q", "--quiet", "--flow-detail", "--termlog-verbosity")
PATIENCE_S = 3600
"""How long programs wait for an answer, as the table of programs sets them up."""
_MARGIN_S = 60
"""Mitmproxy's idle time-out is this much longer than any client's patience."""


class NoLoop(Exception):
    """The chosen event loop is missing; a line with the cure."""


class NoMitmproxy(Exception):
    """The program is missing; a line with the cure."""


@dataclass(frozen=True, slots=True)
class ProxyCommand:
    """The command lines of a proxy."""

    port: int
    first: tuple[str, ...]
    """The command line of the first start."""
    again: tuple[str, ...]
    """The command line of every later start."""


def proxy_command(
    *,
    port: int,
    host: str = "127.0.0.1",
    web: bool = False,
    loop: str = AUTO,
    ollama: bool = False,
    fresh: bool = False,
    upstream: CompanyProxy | None = None,
    options: Sequence[str] = (),
) -> ProxyCommand:
    """Build the command; `options` go to mitmproxy unchanged, and win over ours. Raises NoMitmproxy."""
    program = mitmproxy_program(web=web).name
    command = [sys.executable, "-P", "-m", _PROGRAM, loop, program, "--listen-port", str(port)]
    if "--listen-host" not in options and not _sets(options, "listen_host"):
        # Set here and not by the addon: mitmproxy binds the ports before loading scripts.
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
    # Nor does a restart forget the orders since.
    first = [*command, "--set", "hivemind_fresh=true"] if fresh else command
    return ProxyCommand(port=port, first=tuple(first), again=tuple(again))


def check_loop(loop: str) -> None:
    """Raises NoLoop if the loop was chosen by name and is missing."""
    if loop == UVLOOP:
        try:
            import_module(UVLOOP)
        except ModuleNotFoundError as error:
            cure = "leave --loop out, or pip install uvloop"
            raise NoLoop(f"--loop uvloop: uvloop is not installed; {cure}") from error
        except ImportError as error:
            raise NoLoop(f"--loop uvloop: uvloop does not load ({error}); leave --loop out") from error


def mitmproxy_program(*, web: bool) -> Path:
    """Mitmdump or mitmweb, of our own installation. Raises NoMitmproxy."""
    executable = Path(sys.executable).parent / ("mitmweb" if web else "mitmdump")
    if not executable.is_file():
        raise NoMitmproxy(f"there is no {executable.name} beside {sys.executable}: install hivemind-addon there")
    return executable


def _calm(options: Sequence[str], *, web: bool) -> list[str]:
    """Options to log only lines that a person should read, unless `options` set the verbosity."""
    if any(one in _VERBOSITY for one in options) or _sets(options, "termlog_verbosity"):
        return []
    calm = ["--set", "termlog_verbosity=alert"]
    return calm if web or _sets(options, "flow_detail") else [*calm, "--set", "flow_detail=0"]


def has_mode(options: Sequence[str]) -> bool:
    """Whether mitmproxy's own options set the mode."""
    return any(one in ("--mode", "-m") or one.startswith("--mode=") for one in options) or _sets(options, "mode")


def served_port(options: Sequence[str], port: int) -> int:
    """The port of the first listener: `port`, or another port from mitmproxy's own options."""
    said = dict(_values(options))
    of_mode = re.search(r"@(?:.*:)?(\d+)$", said.get("mode", ""))
    listen = said.get("listen_port", "")
    return int(of_mode[1]) if of_mode else int(listen) if listen.isdecimal() else port


def _values(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and values of the options, in reverse: the first of several modes counts, so that mode comes last."""
    names = {"--mode": "mode", "-m": "mode", "--listen-port": "listen_port"}
    for word, following in reversed(list(zip_longest(options, options[1:], fillvalue=""))):
        name, _, value = word.partition("=")
        if name in names:
            yield names[name], value or following
        elif name == "--set":
            setting, _, said = (value or following).partition("=")
            yield setting, said


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the proxy's process, without proxy variables: the process uses only the upstream."""
    return {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}


def _sets(options: Sequence[str], name: str) -> bool:
    return any(one.removeprefix("--set=").partition("=")[0] == name for one in options)


_USUAL = frozenset({"--set", "--mode", "-m", "-s", "--scripts", "--listen-host", "--listen-port", "-q", "-v"})
"""Words known without asking mitmproxy, which takes as long as a start."""
_USUAL_NAMES = frozenset(
    {
        *("allow_hosts", "block_global", "body_size_limit", "confdir", "connection_strategy", "http2", "http3"),
        *("ignore_hosts", "listen_host", "listen_port", "mode", "proxyauth", "save_stream_file", "ssl_insecure"),
        *("ssl_verify_upstream_trusted_ca", "tcp_timeout", "termlog_verbosity", "upstream_auth"),
    }
)
"""The same for names after `--set`: mitmdump and mitmweb have all of them."""
_PREFIX = "hivemind_"
"""The addon checks the options with this prefix."""
_PATIENCE_S = 60.0


class UnknownOption(Exception):
    """Mitmproxy has no such option; a line that offers the nearest option."""


def check_options(options: Sequence[str], program: Path, ours: Sequence[str] = ()) -> None:
    """`program`: mitmdump or mitmweb; `ours`: options of our own command, offered as the nearest option, too.

    Raises UnknownOption for the first option unknown to the program; nothing if the program gives no answer.
    """
    words = [word for word in _words(options) if word not in _USUAL]
    if words and (known := re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", _output_of(program, "--help"))):
        for word in words:
            if not _is_known(word, known):
                raise UnknownOption(f"no such option: {word}{_meant(word, [*ours, *known])}")
    names = [name for name in _set_names(options) if not name.startswith(_PREFIX) and name not in _USUAL_NAMES]
    # A script of the user's may have options of its own, unknown until mitmproxy loads the script.
    if names and "scripts" not in _set_names(options) and not {"-s", "--scripts"}.intersection(_words(options)):
        known = re.findall(r"^(\w+):", _output_of(program, "--options"), re.MULTILINE)
        for name in names if known else ():
            if name not in known:
                raise UnknownOption(f"--set {name}: no such option{_meant(name, known)}")


def _words(options: Sequence[str]) -> Iterator[str]:
    """The options themselves, without their values."""
    return (one.partition("=")[0] for one in options if one.startswith("-") and one != "-")


def _set_names(options: Sequence[str]) -> Iterator[str]:
    for word, value in zip_longest(options, options[1:], fillvalue=""):
        if word == "--set" or word.startswith("--set="):
            yield (value if word == "--set" else word.removeprefix("--set=")).partition("=")[0]


def _is_known(word: str, known: Sequence[str]) -> bool:
    """As argparse does: users may cut long options short, and run short options together."""
    return word[:2] in known if word[1] != "-" else any(one.startswith(word) for one in known)


def _meant(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, dict.fromkeys(known), n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""


def _output_of(program: Path, word: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the program that is going to be started
            [program, word], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout  # whatever the exit status: that of `--help` is 1
