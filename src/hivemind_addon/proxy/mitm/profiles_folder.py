"""The user's profiles while the proxy runs: read again when a file has changed, and told to the pools that there are.

What a pool has learned stays. A change for the worse is told of, once, and what was set before stays.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from hivemind_addon.proxy.mitm.options import BadOption, read_profiles
from hivemind_addon.system.hosts import host_parts

if TYPE_CHECKING:
    from pathlib import Path

    from hivemind_addon.api.ticket import PoolKey
    from hivemind_addon.proxy.core.pool import PoolSettings
    from hivemind_addon.proxy.mitm.intake import Intake
    from hivemind_addon.proxy.mitm.options import Settings

logger = logging.getLogger("hivemind")

LOOK_EVERY_S = 2.0
_HTTPS = 443


class ProfilesFolder:
    """Of one intake. On the event loop; the files are read in a thread."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._folder: Path | None = None
        self._stamp: object = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ProfilesFolder {self._folder}>"

    def follow(self, settings: Settings) -> None:
        """Go on with these settings: pools feel their profiles at once, and their folder is looked at from now on."""
        before, self._intake.settings = self._intake.settings, settings
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
            self._reading = asyncio.ensure_future(self._read(self._intake.settings))

    async def _read(self, settings: Settings) -> None:
        try:
            profiles = await asyncio.to_thread(
                read_profiles, settings.profiles_folder, settings.reverse_profile, settings.max_concurrency
            )
        except BadOption as error:
            logger.warning("hivemind: %s (the profiles stay as they were)", error)
        else:
            if self._intake.settings is settings:  # else somebody has set an option meanwhile, and all was read anew
                self._intake.settings = replace(settings, profiles=profiles)
                self._configure(settings, self._intake.settings)
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

        self._intake.driver.configure(settings_of)


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
