"""The `hivemind_*` options: WHICH, WHERE, WHETHER. How much is said by profiles.

mitmproxy reports a bad value of a script's option silently or with a traceback; here it is one line that stops the
start. Live (in mitmweb) it is an OptionsError: the value is rolled back.
"""

import difflib
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mitmproxy import optmanager
from mitmproxy.addonmanager import Loader
from mitmproxy.proxy.mode_specs import ProxyMode

from hivemind_addon.proxy.checkpoint.folder_store import FOLDER_NAME
from hivemind_addon.proxy.journal.file import default_journal
from hivemind_addon.proxy.journal.retention import DEFAULT_KEEP as JOURNAL_KEEP
from hivemind_addon.proxy.journal.retention import JournalKeep, parse_journal_keep
from hivemind_addon.proxy.mitm.agents_file import AgentsFile
from hivemind_addon.proxy.mitm.retention import DEFAULT_KEEP, Keep, parse_keep
from hivemind_addon.proxy.mitm.upstream import Upstream, parse_upstream
from hivemind_addon.proxy.profile.grants import Allowance, parse_allowance
from hivemind_addon.proxy.profile.load import Profiles, load_profiles
from hivemind_addon.system.folders import LONGEST_SOCKET_PATH
from hivemind_addon.system.glob import glob_matches
from hivemind_addon.system.hosts import normal_host
from hivemind_addon.system.typed import DocumentError

PREFIX = "hivemind_"


class BadOption(Exception):
    """One line that names the option, what is wrong with it, and the cure."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option as mitmproxy knows it."""

    name: str
    type: Any
    default: object
    help: str
    is_path: bool = False
    """Given while the proxy runs it has to be absolute: whoever asks is in another folder than the proxy."""
    settable: bool = True
    """Whether a person may set it while the proxy runs, with `hivemind config set`."""
    may_hold_secrets: bool = False
    """Of a command line only the program is shown: what follows may be a key or an address with one."""
    reaches_out: bool = False
    """It runs a program, or says where keys go, who may use them, and how much."""

    @property
    def is_guarded(self) -> bool:
        """Whether an agent that may set options still may not set this one."""
        return self.is_path or self.reaches_out


OPTIONS = (
    Option(
        "hivemind_profiles",
        str,
        "",
        "Folder of your own provider profiles (*.yaml), beside or instead of the packaged ones; read again when one "
        "changes.",
        is_path=True,
    ),
    Option(
        "hivemind_agents",
        str,
        "",
        "File (YAML) with budgets, priorities and weights of agents and groups; read again when it changes.",
        is_path=True,
    ),
    Option(
        "hivemind_upstream",
        str,
        "",
        "URL of the provider that requests straight to the proxy's own port go to, as with a base URL that names it. "
        "Default: by their path, to the host of the profile that knows it.",
        reaches_out=True,
    ),
    Option(
        "hivemind_max_concurrency",
        str,
        "",
        "At most so many requests at once, in each pool of limits; empty: as many as the profiles allow.",
        reaches_out=True,
    ),
    Option(
        "hivemind_total_budget",
        str,
        "",
        "What all agents together may spend in this run: tokens (`500k`, `20M`) or dollars (`$5`). Empty: what the "
        "agents file says.",
        reaches_out=True,
    ),
    Option(
        "hivemind_agent_budget",
        str,
        "",
        "What each agent may spend in this run, tokens or dollars. Empty: what the agents file says.",
        reaches_out=True,
    ),
    Option(
        "hivemind_journal",
        str,
        "",
        "File (SQLite) that remembers every request, what was spent and what was learned, over restarts "
        "(docs/journal.md); `off` for none. Default: journal.db in your state folder.",
        is_path=True,
    ),
    Option(
        "hivemind_fresh",
        bool,
        False,
        "Start without the orders (pauses, caps, priorities, budgets) and the budgets per run of earlier runs on this "
        "port; what was learned stays.",
        settable=False,
        reaches_out=True,
    ),
    Option(
        "hivemind_journal_keep",
        str,
        JOURNAL_KEEP,
        "How much of the past the journal keeps, for example `7 days` or `90 days, 2 GB`; the oldest goes first.",
    ),
    Option(
        "hivemind_control",
        str,
        "",
        "Unix socket that tells `hivemind status` and its like what goes on; `off` for none. "
        "Default: PORT.sock in your runtime folder.",
        settable=False,  # the answer to that would come by the socket that it closes
        reaches_out=True,
    ),
    Option(
        "hivemind_log",
        str,
        "",
        "File to which every event is appended as a line of JSON (docs/events.md); `-` for standard output.",
        is_path=True,
    ),
    Option(
        "hivemind_notify",
        str,
        "",
        "Command that is run when something stops all agents (a wall, a budget, an outage of 5 minutes, a full disk); "
        "it reads JSON on its standard input. No shell.",
        may_hold_secrets=True,
        reaches_out=True,
    ),
    Option(
        "hivemind_capture",
        str,
        "",
        "File that every call is recorded into as it ends, without credentials: a flow file, for `mitmweb -r`, "
        "`hivemind capture show` and `hivemind replay`. It only grows. May be set and unset while the proxy runs.",
        is_path=True,
    ),
    Option(
        "hivemind_capture_content",
        bool,
        True,
        "Whether the words of requests and answers are recorded, too; false: only sizes, times and structure.",
    ),
    Option(
        "hivemind_redirect",
        Sequence[str],
        [],
        "Send a profile's host to another address: HOST=ADDRESS:PORT. SNI, certificate check and Host stay HOST's. "
        "May be given several times.",
        reaches_out=True,
    ),
    Option(
        "hivemind_reverse_profile",
        str,
        "",
        "Profile of the upstream in reverse mode, where its host names none and its paths would choose another.",
    ),
    Option(
        "hivemind_reverse_hosts",
        Sequence[str],
        [],
        "Name by which clients may call a reverse-mode proxy, or another one as their base URL, beside addresses, "
        "localhost, names of the local network, the upstream's and those of profiles. `*` stands for anything. May be "
        "given several times.",
        reaches_out=True,
    ),
    Option(
        "hivemind_lan_ports",
        Sequence[str],
        [],
        "Port of this machine's loopback that clients elsewhere may reach, where the proxy listens beyond loopback; "
        "those that profiles name may be reached anyway. May be given several times.",
        reaches_out=True,
    ),
    Option(
        "hivemind_keep",
        str,
        DEFAULT_KEEP,
        "How many finished flows, and how much of their bodies, stay in mitmweb and the console, for example "
        "`200 flows` or `500 flows, 1 GB`; `off` for all. What you marked or commented stays anyway.",
    ),
    Option(
        "hivemind_allow_lan",
        bool,
        False,
        "Listen beyond loopback without `proxyauth`: whoever reaches the port can spend your key.",
        reaches_out=True,
    ),
)

GONE = {
    "hivemind_state": "what was learned is in the journal now; say hivemind_journal=FILE, or hivemind_journal=off",
}
"""Options that are no more, and what to say instead."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options, read and checked. By itself: nothing is kept, told or written."""

    profiles: Profiles
    upstream: Upstream | None = None
    """The provider of requests that are sent straight to the proxy's own port; None: by their paths."""
    profiles_folder: Path | None = None
    """The user's; None: there are the packaged ones only."""
    max_concurrency: int | None = None
    """What the profiles' own maximum is lowered to; None: it stays."""
    redirects: Mapping[str, tuple[str, int]] = MappingProxyType({})
    """Host (lower case) → address."""
    reverse_profile: str = ""
    """Name of a profile, or empty."""
    reverse_hosts: tuple[str, ...] = ()
    """Globs of names by which clients may call a reverse-mode proxy."""
    lan_ports: frozenset[int] = frozenset()
    """Of loopback, for clients elsewhere."""
    agents: AgentsFile = field(default_factory=lambda: AgentsFile(None))
    journal: Path | None = None
    """None: nothing is kept."""
    port: int = 0
    """Of the first listener, as it is asked for: orders and budgets per run belong to it; 0: nobody knows."""
    fresh: bool = False
    """Neither are taken over."""
    journal_keep: JournalKeep = field(default_factory=JournalKeep)
    control: Path | bool = False
    """The control socket's path; True: the usual one of the port; False: none."""
    event_log: Path | bool = False
    """Where events are appended as JSON; True: standard output; False: nowhere."""
    notify: tuple[str, ...] = ()
    """The program to call for help with, and its arguments; empty: none."""
    keep: Keep | None = None
    """Of finished flows, in a view; None: all."""
    capture: Path | None = None
    """None: nothing is recorded."""
    capture_content: bool = True

    def is_called(self, host: str, port: int) -> bool:
        """Whether clients may call a reverse-mode proxy by this name: a user's word, or a provider's name."""
        return (
            any(glob_matches(glob, host) for glob in self.reverse_hosts)
            or self.profiles.match_host(host, port) is not None
        )

    @property
    def checkpoints(self) -> Path | None:
        """The folder of conversations that a spent budget has stopped; None: none are kept, as nothing is."""
        return self.journal.parent / FOLDER_NAME if self.journal is not None else None


def add_options(loader: Loader) -> None:
    """Declare the options."""
    for option in OPTIONS:
        loader.add_option(option.name, option.type, option.default, option.help)


def check_deferred(deferred: dict[str, object]) -> None:
    """Check the values that were given before the script was loaded.

    Raises BadOption for an unknown name and for a value of the wrong type, and takes it out of `deferred`, which
    mitmproxy would stumble over with a traceback.
    """
    known = {option.name: option for option in OPTIONS}
    for name in [name for name in deferred if name.startswith(PREFIX)]:
        value = getattr(deferred[name], "val", deferred[name])  # a list of strings from --set, a value from YAML
        if name in GONE:
            del deferred[name]
            raise BadOption(f"{name}: {GONE[name]}")
        if name not in known:
            del deferred[name]
            raise BadOption(f"{name}: no such option; {_suggestion(name, known)}")
        if problem := _type_problem(known[name], value):
            del deferred[name]
            raise BadOption(f"{name}: {problem}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    # Without the prefix, which makes all of them look alike.
    close = difflib.get_close_matches(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known], n=1)
    return f"did you mean {PREFIX}{close[0]}?" if close else f"the options are {', '.join(known)}"


def _type_problem(option: Option, value: object) -> str | None:
    from_set = isinstance(value, list) and all(isinstance(part, str) for part in value)
    if option.type is bool:
        if isinstance(value, bool) or (from_set and value in (["true"], ["false"], ["toggle"], [])):
            return None
        return f"{_shown(value)} is neither true nor false"
    if option.type is str:
        if isinstance(value, str) or (from_set and isinstance(value, list) and len(value) == 1):
            return None
        return f"{_shown(value)} is not one text"
    return None if from_set else f"{_shown(value)} is not a list of texts"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(repr(part) for part in value) or "nothing"
    return repr(value)


def read_settings(options: optmanager.OptManager) -> Settings:
    """Read and check the options' values. Raises BadOption."""
    folder = Path(options.hivemind_profiles).expanduser() if options.hivemind_profiles else None
    name = options.hivemind_reverse_profile
    most = _max_concurrency(options.hivemind_max_concurrency)
    profiles = read_profiles(folder, name, most)
    agents_file = Path(options.hivemind_agents).expanduser() if options.hivemind_agents else None
    total = _budget("hivemind_total_budget", options.hivemind_total_budget)
    each = _budget("hivemind_agent_budget", options.hivemind_agent_budget)
    try:
        agents = AgentsFile(agents_file, total=total, each=each)
    except DocumentError as error:
        raise BadOption(f"hivemind_agents: {error}") from error
    redirects = dict(_redirect(spec) for spec in options.hivemind_redirect)
    return Settings(
        profiles=profiles,
        profiles_folder=folder,
        max_concurrency=most,
        upstream=_upstream(options.hivemind_upstream),
        redirects=MappingProxyType(redirects),
        reverse_profile=name,
        reverse_hosts=tuple(normal_host(host) for host in options.hivemind_reverse_hosts),
        lan_ports=frozenset(_port(text) for text in options.hivemind_lan_ports),
        agents=agents,
        journal=_journal(options.hivemind_journal),
        port=_listen_port(options),
        fresh=options.hivemind_fresh,
        journal_keep=_journal_keep(options.hivemind_journal_keep),
        control=_control(options.hivemind_control),
        event_log=_event_log(options.hivemind_log),
        notify=_notify(options.hivemind_notify),
        keep=_keep(options.hivemind_keep),
        capture=_capture(options.hivemind_capture),
        capture_content=options.hivemind_capture_content,
    )


def read_profiles(folder: Path | None, reverse_profile: str, max_concurrency: int | None) -> Profiles:
    """The packaged profiles and a user's, as options bound them. Raises BadOption."""
    if folder is not None and not folder.is_dir():
        raise BadOption(f"hivemind_profiles: {folder} is not a folder; name the one that holds your *.yaml profiles")
    try:
        profiles = load_profiles(folder)
    except DocumentError as error:
        raise BadOption(str(error)) from error
    if reverse_profile and reverse_profile not in profiles.by_name:
        known = ", ".join(sorted(profiles.by_name))
        raise BadOption(f"hivemind_reverse_profile: there is no profile {reverse_profile!r}; choose one of {known}")
    return profiles if max_concurrency is None else profiles.capped(max_concurrency)


def _upstream(value: str) -> Upstream | None:
    if not value:
        return None
    try:
        return parse_upstream(value)
    except ValueError:
        raise BadOption(
            f"hivemind_upstream: {value!r} is no address of a provider; write http://HOST:PORT or https://HOST"
        ) from None


def _max_concurrency(value: str) -> int | None:
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and int(value) > 0):
        raise BadOption(
            f"hivemind_max_concurrency: {value!r} is no number from 1 on; leave it empty for what is learned"
        )
    return int(value)


def _budget(name: str, value: str) -> Allowance | None:
    if not value:
        return None
    try:
        return parse_allowance(value)
    except ValueError:
        raise BadOption(f"{name}: {value!r} is no amount; say tokens or dollars: 500k, 20M, $5, 12.50usd") from None


def _keep(value: str) -> Keep | None:
    try:
        return parse_keep(value)
    except ValueError:
        raise BadOption(
            f"hivemind_keep: {value!r} is no amount of flows; say a number, a size, or both: `{DEFAULT_KEEP}`, or `off`"
        ) from None


def _journal(value: str) -> Path | None:
    if value == "off":
        return None
    path = Path(value).expanduser().absolute() if value else default_journal()
    if path.is_dir():
        raise BadOption(f"hivemind_journal: {path} is a folder; name a file in it, such as {path / 'journal.db'}")
    return path


def _listen_port(options: optmanager.OptManager) -> int:
    mode = next(iter(options.mode), None)
    return 0 if mode is None else ProxyMode.parse(mode).listen_port(options.listen_port) or 0


def _journal_keep(value: str) -> JournalKeep:
    try:
        return parse_journal_keep(value)
    except ValueError:
        raise BadOption(
            f"hivemind_journal_keep: {value!r} is no span or size; say days, a size of at least 1 MB, or both: "
            f"`{JOURNAL_KEEP}`"
        ) from None


def _control(value: str) -> Path | bool:
    if value in ("", "off"):
        return not value
    path = Path(value).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise BadOption(f"hivemind_control: {path} is no place for a socket; name a new file in a folder of yours")
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise BadOption(f"hivemind_control: {path} is longer than {LONGEST_SOCKET_PATH} bytes; name a shorter path")
    return path


def _event_log(value: str) -> Path | bool:
    if value in ("", "-"):
        return bool(value)
    path = Path(value).expanduser().absolute()
    place = path if path.exists() else path.parent
    if path.is_dir() or not place.exists():
        raise BadOption(f"hivemind_log: {path} is no place for a file; name one in a folder that is there")
    if not os.access(place, os.W_OK):
        raise BadOption(f"hivemind_log: {path} cannot be written by you; name a file in a folder of yours")
    return path


def _notify(value: str) -> tuple[str, ...]:
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise BadOption(f"hivemind_notify: {value!r} cannot be split into words ({error}); close its quotes") from error
    if not words:
        return ()
    program = shutil.which(Path(words[0]).expanduser())
    if program is None:
        raise BadOption(f"hivemind_notify: {words[0]!r} is no program here; give its full path, or make it executable")
    return (str(Path(program).absolute()), *words[1:])


def _capture(value: str) -> Path | None:
    if not value:
        return None
    path = Path(value).expanduser().absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise BadOption(f"hivemind_capture: {path} is no place for a file; name a new file in a folder that is there")
    return path


def _redirect(spec: str) -> tuple[str, tuple[str, int]]:
    host, _, address = spec.partition("=")
    target, _, port = address.rpartition(":")
    if not (host and target and port.isdecimal() and 0 < int(port) < 65536):
        raise BadOption(
            f"hivemind_redirect: {spec!r} is not HOST=ADDRESS:PORT, for example api.anthropic.com=127.0.0.1:9000"
        )
    return host.lower().rstrip("."), (target.strip("[]"), int(port))


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65536):
        raise BadOption(f"hivemind_lan_ports: {text!r} is no port; say a number, for example 8000")
    return int(text)


def open_listeners(options: optmanager.OptManager) -> list[str]:
    """The listen addresses beyond loopback."""
    hosts = (ProxyMode.parse(mode).listen_host(options.listen_host) for mode in options.mode)
    return [host or "every interface" for host in hosts if not is_loopback(host)]


def is_loopback(host: str) -> bool:
    """Whether a listen or peer address is this machine's own."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def check_listeners(options: optmanager.OptManager) -> None:
    """Refuse to offer a key to the whole network. Raises BadOption."""
    wide = open_listeners(options)
    if wide and not options.proxyauth and not options.hivemind_allow_lan:
        raise BadOption(
            f"listen_host: listening on {', '.join(wide)} lets anyone who reaches the port spend your key; "
            "set proxyauth=USER:PASSWORD, or hivemind_allow_lan=true if that is what you want"
        )
