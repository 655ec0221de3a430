"""Open files: as many as the system gives, and which connections wait when they are nearly spent.

A client's connection takes a descriptor, and the request another upstream. When accept fails for lack of descriptors,
asyncio tries again without end, and everybody stands still; so connections wait before that, and some are refused.
"""

import asyncio
import resource
from collections.abc import Container

ENOUGH = 1024
"""With fewer a fleet may have to wait for connections."""
_WANTED = (65_536, 10_240, 4096)
"""The first that the system grants; macOS grants less than the hard limit says."""
_RESERVE = 160
"""For files and other descriptors, and for the hundred connections that asyncio accepts at a time."""
_TINY = 12
"""Where the reserve leaves nothing, a client is served for each so many descriptors."""
_LONGEST_WAIT_S = 60.0


def raise_limit() -> int | None:
    """Raise this process's limit of open files, as far as allowed; the new limit (None: there is no limit)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in _WANTED:
        new = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft == resource.RLIM_INFINITY or soft >= new:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (new, hard))
        except (ValueError, OSError):
            continue
        break
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def most_at_once(limit: int | None) -> int | None:
    """For how many clients at a time so many open files are enough: each may have a descriptor upstream, and as many
    may wait. None: for any number.
    """
    return None if limit is None else max(1, limit // _TINY, (limit - _RESERVE) // 3)


class ConnectionPlaces:
    """Clients' connections: so many are served, as many wait, others are refused. On one event loop."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        """Of open files; None: there is none."""
        self._taken: set[str] = set()
        self._waiting: dict[str, asyncio.Future[None]] = {}
        """In order of arrival."""

    @property
    def most(self) -> int | None:
        """How many are served at a time."""
        return most_at_once(self.limit)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def are_full(self) -> bool:
        """Whether a new connection has to wait."""
        return self.most is not None and len(self._taken) >= self.most

    def give(self, client_id: str) -> None:
        """A place that is free."""
        self._taken.add(client_id)

    async def wait(self, client_id: str) -> bool:
        """Wait for a free place. False: too many wait, or no place was given back within a minute."""
        if len(self._waiting) >= len(self._taken):
            return False
        turn = self._waiting[client_id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_LONGEST_WAIT_S):
                await turn
        except TimeoutError:
            return client_id in self._taken  # its turn came as its time was over
        finally:
            self._waiting.pop(client_id, None)
        return True

    def keep(self, open_ids: Container[str]) -> None:
        """Take back the places of connections that have ended and said nothing."""
        for client_id in [one for one in self._taken if one not in open_ids]:
            self.give_back(client_id)

    def give_back(self, client_id: str) -> None:
        """The connection is closed: the next gets the place. A connection without a place changes nothing."""
        if client_id not in self._taken:
            return
        self._taken.remove(client_id)
        for next_id, turn in self._waiting.items():
            if not turn.done():  # else it has just given up
                self._taken.add(next_id)
                turn.set_result(None)
                break
