"""Events → mitmproxy's log."""

import logging

from hivemind_addon.core.events import Event
from hivemind_addon.observe.news import News

logger = logging.getLogger("hivemind")


class LogObserver:
    """Writes what is news as log lines."""

    def __init__(self) -> None:
        self._news = News()

    def __call__(self, event: Event) -> None:
        """Write the event's lines."""
        for line in self._news.lines(event, least=logger.getEffectiveLevel()):
            logger.log(line.level, "hivemind: %s", line.text)
