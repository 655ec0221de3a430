"""The options, read and checked, and what of it changes while the proxy runs: profiles and the agents file."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from hivemind_addon.formats.base.patterns import glob_matches, host_parts
from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.formats.profile.agents import load_agents
from hivemind_addon.formats.profile.grants import AgentRules
from hivemind_addon.formats.profile.load import UnknownTool, load_profiles
from hivemind_addon.formats.profile.upstreams import UpstreamKey, read_keys
from hivemind_addon.formats.wire.identity import ALONE, Machine
from hivemind_addon.plugins.contexts.store import FOLDER_NAME
from hivemind_addon.proxy.gate.addresses import is_in, is_loopback
from hivemind_addon.proxy.gate.followed_file import LOOK_EVERY_S, FollowedFile
from hivemind_addon.proxy.journal.retention import JournalKeep
from hivemind_addon.proxy.record.contexts import DEFAULT_WARNING
from hivemind_addon.proxy.system.descriptors import most_at_once, raise_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hivemind_addon.formats.profile.grants import Allowance
    from hivemind_addon.formats.profile.load import NamedTool, Profiles
    from hivemind_addon.kernel.pool import PoolSettings
    from hivemind_addon.kernel.values.ticket import PoolKey
    from hivemind_addon.plugins.contexts.policy import KeepPolicy
    from hivemind_addon.proxy.gate.addresses import Network, Upstream
    from hivemind_addon.proxy.gate.authentication import AgentSecrets
    from hivemind_addon.proxy.run.driver import Driver
    from hivemind_addon.proxy.run.notifier import Way
    from hivemind_addon.proxy.system.engine_url import ClusterSettings

logger = logging.getLogger("hivemind")

_HTTPS = 443


class BadOption(Exception):
    """One line that names the option, what is wrong with it, and the cure."""


class AgentsFile:
    """The rules of one file; without a file, none. Raises DocumentError when the file is bad at the start."""

    def __init__(self, file: Path | None, *, total: Allowance | None = None, each: Allowance | None = None) -> None:
        """`total` and `each`: budgets for this run, of everyone and of each agent, before the file's."""

        def read(file: Path) -> AgentRules:
            return load_agents(file).allot(total, each)

        self.file = file
        self._rules = AgentRules().allot(total, each)
        self._followed = FollowedFile(file, read, stays="the rules stay as they were") if file else None

    def rules(self, now: float, *, log: Callable[..., None] = logger.error) -> AgentRules:
        """The newest valid rules. A change that makes the file invalid is logged once."""
        return self._rules if self._followed is None else self._followed.current(now, log=log)


@dataclass(frozen=True, slots=True)
class Keep:
    """What may stay in the view; None: any number."""

    flows: int | None = None
    size_bytes: int | None = None
    """Of their bodies."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options, read and checked. The defaults keep, report and write nothing."""

    profiles: Profiles
    upstream: Upstream | None = None
    """The provider of requests that are sent straight to the proxy's own port; None: by their paths."""
    profiles_folder: Path | None = None
    """The user's; None: there are the packaged ones only."""
    tools: tuple[NamedTool, ...] = ()
    """The packaged profiles of other services whose calls are scheduled, too."""
    max_concurrency: int | None = None
    """What the profiles' own maximum is lowered to; None: it stays, as far as there are open files for it."""
    redirects: Mapping[str, tuple[str, int]] = MappingProxyType({})
    """Host (lower case) → address."""
    reverse_profile: str = ""
    """Name of a profile, or empty."""
    reverse_hosts: tuple[str, ...] = ()
    """Globs of names by which clients may call a reverse-mode proxy."""
    lan_ports: frozenset[int] = frozenset()
    """Of loopback, for clients elsewhere."""
    allow_clients: tuple[Network, ...] = ()
    """Where clients may be, beside this machine; none: wherever they reach the port from."""
    machine: Machine = ALONE
    """This one, among those of its cluster."""
    secrets: AgentSecrets | None = None
    """By which agents prove their names; None: names are believed."""
    agents: AgentsFile = field(default_factory=lambda: AgentsFile(None))
    refuses_unpriced: bool = False
    """Whether budgets in money refuse calls of models without a price of their own."""
    journal: Path | None = None
    """None: nothing is kept."""
    port: int = 0
    """Of the first listener, as it is asked for: orders and budgets per run belong to it; 0: nobody knows."""
    fresh: bool = False
    """Neither are taken over."""
    keep_policy: KeepPolicy | None = None
    """When conversations are kept; None: only when a spent budget stops one."""
    journal_keep: JournalKeep = field(default_factory=JournalKeep)
    control: Path | bool = False
    """The control socket's path; True: the usual one of the port; False: none."""
    event_log: Path | bool = False
    """Where events are appended as JSON; True: standard output; False: nowhere."""
    notify: Way | None = None
    """How to call for help; None: not at all."""
    context_warning: float = DEFAULT_WARNING
    """The share of a model's context window from which on a conversation is warned of; 0: never."""
    metrics_agents: int = 0
    """So many agents have counters of their own in the metrics."""
    keep: Keep | None = None
    """Of finished flows, in a view; None: all."""
    capture: Path | None = None
    """None: nothing is recorded."""
    capture_content: bool = True
    cluster: ClusterSettings | None = None
    """None: the proxy schedules for itself."""

    def may_look(self, host: str) -> bool:
        """Whether a client at an address may see the proxy's own pages: of this machine, or of an allowed network."""
        return is_loopback(host) or is_in(self.allow_clients, host)

    def is_called(self, host: str, port: int) -> bool:
        """Whether clients may call a reverse-mode proxy by this name: a user's word, or a provider's name."""
        return (
            any(glob_matches(glob, host) for glob in self.reverse_hosts)
            or self.profiles.match_host(host, port) is not None
        )

    @property
    def contexts(self) -> Path | None:
        """The folder of conversations; None: none are kept, as nothing is."""
        return self.journal.parent / FOLDER_NAME if self.journal is not None else None


def read_profiles(
    folder: Path | None, reverse_profile: str, max_concurrency: int | None, tools: Sequence[NamedTool] = ()
) -> Profiles:
    """The packaged profiles, a user's and those of named tools, as options bound them. Raises BadOption."""
    if folder is not None and not folder.is_dir():
        raise BadOption(f"hivemind_profiles: {folder} is not a folder; name the one that holds your *.yaml profiles")
    try:
        profiles = load_profiles(folder, tools)
        if folder is not None:
            profiles = _with_keys(profiles, folder)
    except DocumentError as error:
        raise BadOption(str(error)) from error
    except UnknownTool as error:
        raise BadOption(f"hivemind_tools: {error}") from error
    if reverse_profile and reverse_profile not in profiles.by_name:
        known = ", ".join(sorted(profiles.by_name))
        raise BadOption(f"hivemind_reverse_profile: there is no profile {reverse_profile!r}; choose one of {known}")
    if max_concurrency is not None:
        profiles = profiles.capped(max_concurrency)
    files = raise_limit()
    most = most_at_once(files)
    return profiles if most is None else profiles.capped(most, f"ulimit -n, now {files}")


def _with_keys(profiles: Profiles, folder: Path) -> Profiles:
    """With what their endpoints need. Raises DocumentError."""
    keys: dict[tuple[str, str], UpstreamKey] = {}
    for profile in profiles.with_upstreams():
        files = (folder / f"{profile.name}{suffix}" for suffix in (".yml", ".yaml"))
        file = next((one for one in files if one.exists()), folder)
        keys |= read_keys(profile.name, profile.upstreams, file)
    return replace(profiles, keys=keys)


class LiveSettings:
    """The present settings. On the event loop; a thread reads the files of profiles.

    A pool keeps the learned limits when the profile changes. An invalid change is logged once, and the earlier settings
    stay.
    """

    def __init__(self, settings: Settings, driver: Driver) -> None:
        self.current = settings
        """Replaced when an option or a profile changes."""
        self._driver = driver
        self._folder: Path | None = None
        self._stamp: object = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None

    def follow(self, settings: Settings) -> None:
        """Go on with these settings: pools feel their profiles at once, and their folder is looked at from now on."""
        before, self.current = self.current, settings
        self._folder, self._stamp = settings.profiles_folder, _stamp_of(settings.profiles_folder)
        if settings.profiles != before.profiles:
            self._configure(before, settings)
        if self._timer is not None:
            self._timer.cancel()
        self._look_again()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()

    def _look_again(self) -> None:
        if self._folder is not None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        stamp = _stamp_of(self._folder)
        if stamp == self._stamp:
            self._look_again()
        else:
            self._stamp = stamp
            self._reading = asyncio.ensure_future(self._read(self.current))

    async def _read(self, settings: Settings) -> None:
        try:
            profiles = await asyncio.to_thread(
                read_profiles,
                settings.profiles_folder,
                settings.reverse_profile,
                settings.max_concurrency,
                settings.tools,
            )
        except BadOption as error:
            logger.warning("hivemind: %s (the profiles stay as they were)", error)
        else:
            if self.current is settings:  # else somebody has set an option meanwhile, and all was read anew
                self.current = replace(settings, profiles=profiles)
                self._configure(settings, self.current)
                logger.warning(
                    "hivemind: the profiles in %s were changed, and are read again", settings.profiles_folder
                )
        self._look_again()

    def _configure(self, before: Settings, after: Settings) -> None:
        def settings_of(key: PoolKey, name: str) -> PoolSettings | None:
            address = _address(key.host)
            was, now = before.profiles.match_host(*address), after.profiles.match_host(*address)
            is_of_host = was is not None and was.name == name
            profile = (now if is_of_host else None) or after.profiles.by_name.get(name)
            return profile.pool_settings if profile else None

        self._driver.configure(settings_of)


def _address(host: str) -> tuple[str, int]:
    """Of a pool's host, which has its port only where that is not the scheme's own."""
    try:
        name, port = host_parts(host)
    except ValueError:  # what a client called it
        return host, _HTTPS
    return name, port or _HTTPS


def _stamp_of(folder: Path | None) -> object:
    """What changes with any file of the folder; None: it cannot be looked at."""
    if folder is None:
        return None
    try:
        states = [(file.name, file.stat()) for file in sorted(folder.glob("*.y*ml"))]
    except OSError:
        return None
    return [(name, state.st_mtime_ns, state.st_size) for name, state in states]
