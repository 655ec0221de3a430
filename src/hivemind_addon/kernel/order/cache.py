"""Infers from attempts which entries of the provider's prompt cache are warm, and until when.

There are two kinds of entries: prefixes that conversations share (model, tools, system prompt), and whole
conversations. A new conversation reads the prefix's entry; a continued conversation reads the conversation's entry.

An entry is readable when the first answer to its prefix has begun, and lives for some time from the *start* of the last
request that wrote or read the entry. So if many tickets share a cold prefix, the first ticket that is sent leads. The
others follow when the leader's answer begins, or a few seconds after the leader was sent, whichever is sooner. If the
leader ends without an answer, the next ticket that is sent leads.

    cold ── sent ──► led ── began ──► warm ── time to live is over ──► cold
                      └── ended without an answer ──► cold
"""

from dataclasses import dataclass

from hivemind_addon.kernel.heap import KeyedHeap
from hivemind_addon.kernel.values.ticket import Ticket

_COLD = float("-inf")


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """How a provider's prompt cache works."""

    ttl_s: float = 300.0
    """How long an entry lives, from the start of the last request that used it."""
    follow_after_s: float = 5.0
    """Followers of a cold prefix wait at most this long after their leader was sent."""
    least_tokens: int = 1024
    """Smaller prefixes are not cached, so no ticket waits for them."""


@dataclass(slots=True, eq=False)
class _Lead:
    ticket_id: str
    opens_at: float


class PromptCache:
    """The warm entries and the leaders of one pool."""

    def __init__(self, settings: CacheSettings) -> None:
        self._settings = settings
        self._warm: KeyedHeap[str] = KeyedHeap()
        self._leads: dict[str, _Lead] = {}
        self._began: dict[str, dict[str, float]] = {}
        """Ticket with a begun answer in flight → entry → until when the entry was warm before."""

    def configure(self, settings: CacheSettings) -> None:
        """Change the settings; warm entries keep their ends."""
        self._settings = settings

    @staticmethod
    def entry(ticket: Ticket) -> str:
        """The entry that a ticket reads: the conversation, or the prefix of a new conversation."""
        return _conversation(ticket) if ticket.cached_tokens or not ticket.prefix else ticket.prefix

    @staticmethod
    def entries(ticket: Ticket) -> tuple[str, ...]:
        """The entries that an answer to a ticket makes warm."""
        return (_conversation(ticket), ticket.prefix) if ticket.prefix else (_conversation(ticket),)

    def warm_until(self, ticket: Ticket, now: float) -> float:
        """When a ticket's entry lapses unless used again; minus infinity if cold."""
        return self.lapses_at(self.entry(ticket), now)

    def lapses_at(self, entry: str, now: float) -> float:
        """When an entry lapses unless used again; minus infinity if cold."""
        until = self._warm.key_of(entry)
        return _COLD if until is None or until <= now else until

    def opens_at(self, ticket: Ticket, now: float) -> float:
        """The instant until which a ticket waits for a leader; minus infinity without a leader."""
        if not self._leads or ticket.prefix_tokens < self._settings.least_tokens:
            return _COLD
        lead = self._leads.get(ticket.prefix)
        return _COLD if lead is None or lead.opens_at <= now else lead.opens_at

    def sent(self, ticket: Ticket, now: float) -> None:
        """Make a sent ticket the leader of a cold prefix without a leader."""
        prefix = ticket.prefix
        if not prefix or prefix in self._leads or ticket.prefix_tokens < self._settings.least_tokens:
            return
        if self.lapses_at(prefix, now) == _COLD:
            self._leads[prefix] = _Lead(ticket.id, now + self._settings.follow_after_s)

    def began(self, ticket: Ticket, *, sent_at: float, now: float) -> list[str]:
        """Make a ticket's entries warm, because its answer begins. Returns the entries that were cold."""
        least = self._settings.least_tokens
        if ticket.prefix_tokens < least and ticket.cached_tokens < least and ticket.demand.input_tokens < least:
            return []
        before = {entry: self.lapses_at(entry, now) for entry in self.entries(ticket)}
        self._began.setdefault(ticket.id, before)
        for entry, until in before.items():
            self._warm.put(entry, max(until, sent_at + self._settings.ttl_s))
        self._leads.pop(ticket.prefix, None)
        while self._warm.first_key <= now and (lapsed := self._warm.first) is not None:
            self._warm.drop(lapsed)
        return [entry for entry, until in before.items() if until == _COLD]

    def forget(self, ticket: Ticket) -> None:
        """Drop the entry of a conversation that continues elsewhere, with other content."""
        self._warm.drop(_conversation(ticket))

    def ended(self, ticket: Ticket, *, answered: bool) -> bool:
        """Record the end of an attempt. `answered`: an answer began, not a refusal. Returns whether the ticket led."""
        before = self._began.pop(ticket.id, None)
        if before is not None and not answered:
            for entry, until in before.items():
                self._warm.put(entry, until)
        lead = self._leads.get(ticket.prefix) if self._leads else None
        if lead is None or lead.ticket_id != ticket.id:
            return False
        del self._leads[ticket.prefix]
        return True


def _conversation(ticket: Ticket) -> str:
    return f"session {ticket.session}"
