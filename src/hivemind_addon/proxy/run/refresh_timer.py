"""What is done a few times a second while there is something to do, and never otherwise."""

import asyncio
import logging
from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

REFRESHES_PER_S = 10


class RefreshTimer:
    """Calls each of its parts ten times a second, until none of them has anything left to do."""

    def __init__(self, parts: Sequence[Callable[[], bool]]) -> None:
        """A part answers whether it has more to do. One that raises is not called again."""
        self._parts = list(parts)
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<RefreshTimer of {len(self._parts)} parts, {'running' if self._timer else 'at rest'}>"

    def wake(self) -> None:
        """There is something to do."""
        if self._timer is None and self._parts:
            self._timer = asyncio.get_running_loop().call_later(1 / REFRESHES_PER_S, self.refresh)

    def stop(self) -> None:
        """Nothing more is called, until the next `wake`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def refresh(self) -> None:
        """Call the parts once. The timer does it; so does a test."""
        self._timer = None
        unfinished = [part for part in list(self._parts) if self._call(part)]
        if unfinished:
            self.wake()

    def _call(self, part: Callable[[], bool]) -> bool:
        try:
            return part()
        except Exception:
            logger.exception("hivemind: %r failed and is not called again", part)
            self._parts.remove(part)
            return False
