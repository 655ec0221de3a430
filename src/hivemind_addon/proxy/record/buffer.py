"""Keeps events until somebody looks, or there are many: then those that sum and show them get all of them, in order.

A request's events cost one append each, and nothing is summed, worded or drawn while it is under way; but at most once
in two seconds they are handed on when an attempt has ended, since what these say may be worth a warning.
"""

import logging
from collections.abc import Callable

from hivemind_addon.kernel.values.events import AttemptEnded, Event

logger = logging.getLogger("hivemind")

MOST = 256
"""Events that are kept; to hand on so many takes less than a millisecond."""


EVERY_S = 2.0
"""Between two times that it is handed on unasked."""


class EventBuffer:
    """An observer before others."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._readers: list[Callable[[Event], None]] = []
        self._next_at = float("-inf")
        """From when on the end of an attempt has them handed on."""

    def __call__(self, event: Event) -> None:
        """Keep one event."""
        events = self._events
        events.append(event)
        if len(events) >= MOST:
            self.flush()
        elif type(event) is AttemptEnded and event.at >= self._next_at:
            self._next_at = event.at + EVERY_S
            self.flush()

    def feed(self, reader: Callable[[Event], None]) -> None:
        """Let it have every event from now on, some of them late: what it tells begins with `flush`."""
        self._readers.append(reader)

    def flush(self) -> None:
        """Hand on what is kept, and what readers have to say to it."""
        while self._events:
            events, self._events = self._events, []
            for reader in list(self._readers):
                try:
                    for event in events:
                        reader(event)
                except Exception:
                    logger.exception("hivemind: %r failed and is not called again", reader)
                    self._readers.remove(reader)
