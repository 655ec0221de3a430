"""Events → mitmproxy's log, each line about a ticket with its agent's name."""

import logging

from hivemind_addon.api.events import Event, Submitted, TicketEnded
from hivemind_addon.api.words import plain
from hivemind_addon.proxy.observe.news import News

logger = logging.getLogger("hivemind")

NOTICE = logging.INFO + 1
"""What a calm log (`hivemind run`) shows and mitmproxy's own INFO is below: its level `alert`."""


class LogObserver:
    """Writes what is news as log lines."""

    def __init__(self) -> None:
        self._news = News()
        self._agents: dict[str, str] = {}
        """Of tickets that have not ended."""

    def __call__(self, event: Event) -> None:
        """Write the event's lines."""
        if isinstance(event, Submitted):
            self._agents[event.ticket.id] = event.ticket.agent
        for line in self._news.lines(event, least=logger.getEffectiveLevel()):
            level = NOTICE if line.level == logging.INFO else line.level
            agent = self._agents.get(line.ticket_id or "", "")
            logger.log(level, "hivemind: %s", f"{plain(agent)}: {line.text}" if agent else line.text)
        if isinstance(event, TicketEnded):
            self._agents.pop(event.ticket_id, None)
