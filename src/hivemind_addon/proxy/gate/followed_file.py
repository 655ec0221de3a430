"""A file of a user's that is read again when it changes: raising a budget, or adding an agent, needs no restart."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hivemind_addon.formats.base.typed import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger("hivemind")

LOOK_EVERY_S = 2.0
"""How often it is looked at."""


class FollowedFile[T]:
    """What a file holds. Raises DocumentError when it is bad at the start."""

    def __init__(self, file: Path, read: Callable[[Path], T], *, stays: str) -> None:
        """`read` raises DocumentError; `stays`: what is said to stay when a change for the worse is told of."""
        self.file = file
        self._read = read
        self._stays = stays
        self._held = read(file)
        self._stamp = self._read_stamp()
        self._looked_at = float("-inf")

    def current(self, now: float, *, log: Callable[..., None] = logger.error) -> T:
        """What it held when it was good last: a file that was changed for the worse is told of, once."""
        if now >= self._looked_at + LOOK_EVERY_S:
            self._looked_at = now
            stamp = self._read_stamp()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._held = self._read(self.file)
                except DocumentError as error:
                    log("hivemind: %s (%s)", error, self._stays)
        return self._held

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            state = self.file.stat()
        except OSError:
            return None
        return state.st_mtime_ns, state.st_size, state.st_ino
