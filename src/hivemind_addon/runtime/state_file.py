"""What was learned survives a restart: one JSON file, written off the event loop and replaced in one step.

    {"version": 1, "saved_at": <epoch seconds>, "state": <what Driver.export gave>}

The file holds limits, counts and hashes of credentials; only its owner may read it. A file that cannot be used (cut,
damaged, of a newer version) costs one log line and a fresh start.
"""

import asyncio
import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from hivemind_addon.core.events import StateUnsaved
from hivemind_addon.runtime.clock import Clock
from hivemind_addon.runtime.folders import state_folder
from hivemind_addon.words import failing

logger = logging.getLogger("hivemind")

VERSION = 1
SAVE_EVERY_S = 30.0
_MAX_BYTES = 16 * 1024 * 1024


def default_state_file() -> Path:
    """`state.json` in the user's state folder."""
    return state_folder() / "state.json"


class Keeper(Protocol):
    """Whose state it is; the driver."""

    def export(self) -> dict[str, Any]:
        """Plain JSON values."""

    def restore(self, state: Mapping[str, Any], *, age_s: float) -> None:
        """Take over what was exported `age_s` ago, as far as it can be understood."""


class StateFile:
    """One file and who is kept in it. All but `_write` runs on the event loop."""

    def __init__(self, path: Path, *, keeper: Keeper, clock: Clock, note: Callable[[StateUnsaved], None]) -> None:
        """`note` hears when a write fails, and when one succeeds again."""
        self.path = path
        self._note = note
        self._keeper = keeper
        self._clock = clock
        self._written: str | None = None
        """The state that the file holds, as JSON."""
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._failing = False

    def __repr__(self) -> str:
        return f"<StateFile {self.path}>"

    def load(self) -> None:
        """Restore what an earlier run has left. Never raises for what the file holds."""
        try:
            state, saved_at = _read(self.path)
            self._keeper.restore(state, age_s=max(0.0, self._clock.wall() - saved_at))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            logger.warning("hivemind: %s cannot be used (%s); starting fresh", self.path, failing(error))

    def start(self) -> None:
        """Save every 30 s from now on, when something has changed."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SAVE_EVERY_S, self._on_timer)

    def stop(self) -> None:
        """Save no more by the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def save(self) -> None:
        """Write the file now, off the event loop, if something has changed. Never raises for the disk's sake."""
        if self._saving is not None and self._saving is not asyncio.current_task():
            await asyncio.wait([self._saving])
        state = json.dumps(self._keeper.export(), sort_keys=True, allow_nan=False)
        if state == self._written:
            return
        text = f'{{"version": {VERSION}, "saved_at": {self._clock.wall()}, "state": {state}}}\n'
        try:
            await asyncio.to_thread(_write, self.path, text)
        except OSError as error:
            if not self._failing:
                self._failing = True
                self._note(StateUnsaved(at=self._clock.monotonic(), reason=failing(error)))
        else:
            self._written = state
            if self._failing:
                self._failing = False
                self._note(StateUnsaved(at=self._clock.monotonic(), reason=""))

    def _on_timer(self) -> None:
        self._timer = None
        self._saving = asyncio.get_running_loop().create_task(self._save_and_go_on())

    async def _save_and_go_on(self) -> None:
        try:
            await self.save()
        except Exception:
            logger.exception("hivemind: saving what was learned failed")
        finally:
            self._saving = None
            self.start()


def _read(path: Path) -> tuple[Mapping[str, Any], float]:
    """State and when it was saved. Raises OSError, ValueError, KeyError or TypeError where the file holds none."""
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError("too large")
    saved = json.loads(path.read_bytes())
    if saved["version"] != VERSION:
        raise ValueError(f"version {saved['version']!r}, not {VERSION}")
    saved_at, state = float(saved["saved_at"]), saved["state"]
    if not isinstance(state, dict) or not math.isfinite(saved_at):
        raise TypeError("no state in it")
    return state, saved_at


def _write(path: Path, text: str) -> None:
    """Replace the file in one step; 0600 from its first byte."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
