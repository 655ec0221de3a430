"""The `hivemind_*` options: WHICH, WHERE, WHETHER. How much is said by profiles.

mitmproxy reports a bad value of a script's option silently or with a traceback; here it is one line that stops the
start. Live (in mitmweb) it is an OptionsError: the value is rolled back.
"""

import difflib
import os
import re
import shlex
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from mitmproxy import optmanager
from mitmproxy.addonmanager import Loader
from mitmproxy.proxy.mode_specs import ProxyMode, RegularMode, ReverseMode, UpstreamMode

from hivemind_addon.formats.base.patterns import normal_host
from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.formats.profile.grants import parse_allowance
from hivemind_addon.formats.profile.load import UnknownTool, parse_tools
from hivemind_addon.formats.wire.identity import ALONE, Machine
from hivemind_addon.formats.wire.proxy_user import short_hash
from hivemind_addon.plugins.contexts.policy import FORMS, parse_policy
from hivemind_addon.proxy.api.config_file import ALERTS_VARIABLE, PREFIX, check_keys, option_values, read_config
from hivemind_addon.proxy.gate.addresses import Network, is_loopback, parse_networks, parse_upstream
from hivemind_addon.proxy.gate.authentication import AgentSecrets
from hivemind_addon.proxy.gate.settings import AgentsFile, BadOption, Keep, Settings, read_profiles
from hivemind_addon.proxy.journal.file import default_journal
from hivemind_addon.proxy.journal.retention import parse_journal_keep
from hivemind_addon.proxy.record.agent_use import MOST_AGENTS
from hivemind_addon.proxy.run.alerts import Alerts, BadAddresses, read_addresses
from hivemind_addon.proxy.run.notifier import Command, Way
from hivemind_addon.proxy.run.option_table import APART, JOINED, JOURNAL_KEEP, KEEP_CONTEXTS, OPTIONS, VIEW_KEEP, Option
from hivemind_addon.proxy.system.engine_url import (
    CLUSTER_NAME_VARIABLE,
    CLUSTER_VARIABLE,
    DEFAULT_CLUSTER,
    OFF,
    SECRET_VARIABLE,
    BadEngineUrl,
    ClusterSettings,
    read_cluster,
)
from hivemind_addon.proxy.system.folders import LONGEST_SOCKET_PATH

_KEEP_PART = re.compile(r"(\d+)\s*(flows?|[KMG]B|)", re.IGNORECASE)
_FACTORS = {"kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000}
_LEAST_SECRET_CHARS = 16
_LONGEST_NAME = 63
_HOST_NAME = re.compile(rf"[\w.-]{{1,{_LONGEST_NAME}}}", re.ASCII)
_HTTP = ("http", "https", "http3")
_TYPES = {option.name: option.type for option in OPTIONS}

LISTENER_OPTIONS = frozenset(
    {"listen_host", "mode", "proxyauth", "hivemind_allow_lan", "hivemind_allow_clients", "hivemind_agent_secrets"}
)
"""What says who may use the proxy."""


def add_configured(options: optmanager.OptManager, environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Set options from the environment and `hivemind.yaml`, unless they are set already; before their declaration.

    Returns option → origin, for messages on bad values. mitmproxy's own config.yaml has precedence. Raises BadOption.
    """
    known = [option.name.removeprefix(PREFIX) for option in OPTIONS]
    try:
        files = read_config(environment, folder)
        check_keys(files, known)
    except DocumentError as error:
        raise BadOption(str(error)) from error
    said = {}
    for key, setting in option_values(known, environment, files).items():
        name = PREFIX + key
        # A script that is loaded again keeps what was set since.
        if name in options.deferred or name in options.keys():  # noqa: SIM118 - it is no mapping
            continue
        if setting.origin == name.upper():
            options.set(f"{name}={setting.value}", defer=True)
            said[name] = setting.origin
        else:
            options.deferred[name] = _as_option(setting.value, is_list=_TYPES[name] == Sequence[str])
            said[name] = f"{setting.origin}: {key}"
    return said


def _as_option(value: object, *, is_list: bool) -> object:
    """YAML's value as the option's type, where it is one: `4` for the text that a number may be in."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    return [value] if is_list and isinstance(value, str) else value


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
    most = options.hivemind_max_concurrency
    most = _parsed("hivemind_max_concurrency", most, partial(_number, most=None)) if most else None
    try:
        tools = parse_tools(options.hivemind_tools)
    except UnknownTool as error:
        raise BadOption(f"hivemind_tools: {error}") from error
    profiles = read_profiles(folder, name, most, tools)
    agents_file = Path(options.hivemind_agents).expanduser() if options.hivemind_agents else None
    total, each = (
        _parsed(name, value, parse_allowance) if (value := getattr(options, name)) else None
        for name in ("hivemind_total_budget", "hivemind_agent_budget")
    )
    try:
        agents = AgentsFile(agents_file, total=total, each=each)
    except DocumentError as error:
        raise BadOption(f"hivemind_agents: {error}") from error
    redirects = dict(_parsed("hivemind_redirect", spec, _redirect) for spec in options.hivemind_redirect)
    upstream = options.hivemind_upstream
    cluster = _cluster(options)
    machine = _machine(options, has_cluster=cluster is not None)
    return Settings(
        profiles=profiles,
        profiles_folder=folder,
        tools=tools,
        max_concurrency=most,
        upstream=_parsed("hivemind_upstream", upstream, parse_upstream) if upstream else None,
        redirects=MappingProxyType(redirects),
        reverse_profile=name,
        reverse_hosts=tuple(normal_host(host) for host in options.hivemind_reverse_hosts),
        lan_ports=frozenset(_parsed("hivemind_lan_ports", text, _number) for text in options.hivemind_lan_ports),
        allow_clients=_networks(options.hivemind_allow_clients),
        agents=agents,
        refuses_unpriced=options.hivemind_refuse_unpriced,
        secrets=_secrets(options.hivemind_agent_secrets),
        journal=_journal(options.hivemind_journal),
        port=_listen_port(options),
        fresh=options.hivemind_fresh,
        journal_keep=_parsed("hivemind_journal_keep", options.hivemind_journal_keep, parse_journal_keep),
        keep_policy=_parsed("hivemind_contexts", options.hivemind_contexts or KEEP_CONTEXTS, parse_policy),
        control=_control(options.hivemind_control),
        event_log=_event_log(options.hivemind_log),
        notify=_notify(options.hivemind_notify),
        context_warning=_parsed("hivemind_context_warning", options.hivemind_context_warning, _share),
        metrics_agents=_parsed("hivemind_metrics_agents", options.hivemind_metrics_agents, _agents),
        keep=_parsed("hivemind_keep", options.hivemind_keep, parse_keep),
        capture=_capture(options.hivemind_capture),
        capture_content=options.hivemind_capture_content,
        cluster=replace(cluster, identity=_identity(machine)) if cluster is not None else None,
        machine=machine,
    )


def cluster_url(options: optmanager.OptManager) -> str:
    """What the option says, else the environment; empty: nothing."""
    url = str(options.hivemind_cluster or os.environ.get(CLUSTER_VARIABLE, ""))
    return "" if url == OFF else url


def _cluster(options: optmanager.OptManager) -> ClusterSettings | None:
    url = cluster_url(options)
    if not url:
        if options.hivemind_cluster_name:
            raise BadOption("hivemind_cluster_name: there is no cluster; say hivemind_cluster=URL, too")
        return None
    name = options.hivemind_cluster_name or os.environ.get(CLUSTER_NAME_VARIABLE) or DEFAULT_CLUSTER
    try:
        return read_cluster(url, name, os.environ)
    except BadEngineUrl as error:
        raise BadOption(str(error)) from None


def _machine(options: optmanager.OptManager, *, has_cluster: bool) -> Machine:
    """How members of a cluster know this machine; ALONE: there is no cluster."""
    agents, host = options.hivemind_cluster_agents, options.hivemind_cluster_host
    if agents not in (JOINED, APART):
        raise BadOption(f"hivemind_cluster_agents: {agents!r} is neither {JOINED} nor {APART}")
    if host and not _HOST_NAME.fullmatch(host):
        raise BadOption(f"hivemind_cluster_host: {host!r} is no name; use letters, digits, `-` and `.`, at most 63")
    if not has_cluster:
        for name, is_said in (("agents", agents != JOINED), ("host", bool(host))):
            if is_said:
                raise BadOption(f"hivemind_cluster_{name}: there is no cluster; say hivemind_cluster=URL, too")
        return ALONE
    secret = os.environ.get(SECRET_VARIABLE, "")
    if 0 < len(secret) < _LEAST_SECRET_CHARS:
        raise BadOption(f"{SECRET_VARIABLE}: it is shorter than 16 characters; `openssl rand -hex 32` makes one")
    own = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII)[:_LONGEST_NAME]
    return Machine(has_own_agents=agents == APART, name=host or own or "host", account_key=secret.encode())


def _identity(machine: Machine) -> str:
    """Compared by the members of a cluster, so that a person hears where they differ; without the secret."""
    key = machine.account_key
    return f"{APART if machine.has_own_agents else JOINED} {short_hash('hivemind', key=key) if key else ''}"


_CURES = {
    "hivemind_upstream": "is no address of a provider; write http://HOST:PORT or https://HOST",
    "hivemind_max_concurrency": "is no number from 1 on; leave it empty for what is learned",
    "hivemind_total_budget": "is no amount; say tokens or dollars: 500k, 20M, $5, 12.50usd",
    "hivemind_agent_budget": "is no amount; say tokens or dollars: 500k, 20M, $5, 12.50usd",
    "hivemind_keep": f"is no amount of flows; say a number, a size, or both: `{VIEW_KEEP}`, or `off`",
    "hivemind_metrics_agents": f"is no number of agents from 0 to {MOST_AGENTS}",
    "hivemind_contexts": f"is none of {FORMS}",
    "hivemind_context_warning": "is no share of a whole; say 0.8, or 80%, or 0 for never",
    "hivemind_journal_keep": f"is no span or size; say days, a size of at least 1 MB, or both: `{JOURNAL_KEEP}`",
    "hivemind_redirect": "is not HOST=ADDRESS:PORT, for example api.anthropic.com=127.0.0.1:9000",
    "hivemind_lan_ports": "is no port; say a number, for example 8000",
}
"""Option → the words that follow a bad value."""


def _parsed[T](name: str, value: str, parse: Callable[[str], T]) -> T:
    """The parsed value of an option. Raises BadOption where `parse` raises ValueError."""
    try:
        return parse(value)
    except ValueError:
        raise BadOption(f"{name}: {value!r} {_CURES[name]}") from None


def parse_keep(text: str) -> Keep | None:
    """`500 flows, 256 MB`, one of the two, or `off`: None. ValueError: it is none of these."""
    if text.strip().lower() == "off":
        return None
    flows = size_bytes = None
    for part in text.split(","):
        match = _KEEP_PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(part)
        factor = _FACTORS.get(match[2].lower())
        if factor is None and flows is None:
            flows = int(match[1])
        elif factor is not None and size_bytes is None:
            size_bytes = int(match[1]) * factor
        else:
            raise ValueError(part)
    return Keep(flows, size_bytes)


def _agents(text: str) -> int:
    number = int(text.strip() or 0)
    if not 0 <= number <= MOST_AGENTS:
        raise ValueError(text)
    return number


def _share(text: str) -> float:
    """From 0 to 1. Raises ValueError."""
    number, percent, rest = text.strip().partition("%")
    share = float(number) / (100 if percent else 1)
    if rest or not 0 <= share <= 1:  # NaN is neither
        raise ValueError(text)
    return share


def _redirect(spec: str) -> tuple[str, tuple[str, int]]:
    host, _, address = spec.partition("=")
    target, _, port = address.rpartition(":")
    if not (host and target):
        raise ValueError(spec)
    return host.lower().rstrip("."), (target.strip("[]"), _number(port))


def _secrets(value: str) -> AgentSecrets | None:
    if not value:
        return None
    try:
        return AgentSecrets(Path(value).expanduser().absolute())
    except DocumentError as error:
        raise BadOption(f"hivemind_agent_secrets: {error}") from error


def _networks(texts: Iterable[str]) -> tuple[Network, ...]:
    try:
        return tuple(network for text in texts for network in parse_networks(text))
    except ValueError as error:
        raise BadOption(f"hivemind_allow_clients: {error}") from None


def _number(text: str, *, most: int | None = 65535) -> int:
    """From 1 on. Raises ValueError."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
    if number < 1 or (most is not None and number > most):
        raise ValueError(text)
    return number


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


def _notify(value: str) -> Way | None:
    if "://" in value.partition(" ")[0]:
        raise BadOption(
            "hivemind_notify: an address holds secrets, which others see on a command line; put it into "
            f"{ALERTS_VARIABLE}, or into a file that only you may read (chmod 600), and name that file"
        )
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise BadOption(f"hivemind_notify: {value!r} cannot be split into words ({error}); close its quotes") from error
    if not words:
        return _alerts(ALERTS_VARIABLE, os.environ.get(ALERTS_VARIABLE, "").split())
    file = Path(words[0]).expanduser()
    if len(words) == 1 and file.is_file() and not os.access(file, os.X_OK):
        try:
            if not (urls := read_addresses(file)):
                raise BadOption(
                    f"hivemind_notify: {file} has no address; write one a line: https://appriseit.com/services/"
                )
            return _alerts(f"hivemind_notify: {file}", urls)
        except BadAddresses as error:
            raise BadOption(f"hivemind_notify: {error}") from error
    program = shutil.which(file)
    if program is None:
        raise BadOption(
            f"hivemind_notify: {words[0]!r} is no program here, and no file; give its full path, or make it executable"
        )
    return Command((str(Path(program).absolute()), *words[1:]))


def _alerts(where: str, urls: Sequence[str]) -> Way | None:
    try:
        return Alerts(urls) if urls else None
    except BadAddresses as error:
        raise BadOption(f"{where}: {error}") from error


def _capture(value: str) -> Path | None:
    if not value:
        return None
    path = Path(value).expanduser().absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise BadOption(f"hivemind_capture: {path} is no place for a file; name a new file in a folder that is there")
    return path


def open_listeners(options: optmanager.OptManager) -> list[str]:
    """The listen addresses beyond loopback."""
    hosts = (ProxyMode.parse(mode).listen_host(options.listen_host) for mode in options.mode)
    return [host or "every interface" for host in hosts if not is_loopback(host)]


def is_asking(options: optmanager.OptManager) -> bool:
    """Whether a client has to prove who it is."""
    return bool(options.proxyauth or options.hivemind_agent_secrets)


def _check_secrets(options: optmanager.OptManager) -> None:
    if options.proxyauth:
        raise BadOption(
            "hivemind_agent_secrets: proxyauth asks for the same header; leave proxyauth out, the names and secrets of "
            "the file take its place"
        )
    for mode in map(ProxyMode.parse, options.mode):
        is_http = isinstance(mode, ReverseMode) and mode.scheme in _HTTP
        if not is_http and not isinstance(mode, (RegularMode, UpstreamMode)):
            raise BadOption(
                f"hivemind_agent_secrets: a client cannot say who it is in the mode {mode.full_spec}; leave that mode "
                "out, or listen for it in another proxy"
            )


def check_listeners(options: optmanager.OptManager) -> None:
    """Refuse to offer a key to the whole network, and to ask where nobody can answer. Raises BadOption."""
    if options.hivemind_agent_secrets:
        _check_secrets(options)
    wide = open_listeners(options)
    networks = _networks(options.hivemind_allow_clients)
    is_bounded = bool(networks) and all(network.prefixlen for network in networks)
    if wide and not is_asking(options) and not is_bounded and not options.hivemind_allow_lan:
        raise BadOption(
            f"listen_host: listening on {', '.join(wide)} lets anyone who reaches the port spend your key; "
            "set proxyauth=USER:PASSWORD, or hivemind_agent_secrets=FILE, or hivemind_allow_clients=NETWORK; or "
            "hivemind_allow_lan=true if that is what you want"
        )
