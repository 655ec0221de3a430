"""What the provider's prompt cache holds, as far as the attempts tell: which prefix is warm, and until when.

Two things are held: prefixes that conversations share (model, tools, system prompt), and whole conversations. A
conversation that goes on reads its own entry; a new one reads its prefix.

An entry can be read once the first answer to its prefix has begun, and lives for a while from the *start* of the last
request that wrote or read it. So of many tickets that share a cold prefix one leads: the first that is sent. The
others follow when its answer begins, or a few seconds after it was sent, whichever comes first. A leader that ends
without an answer hands over: whoever is sent next leads.

    cold ── sent ──► led ── began ──► warm ── time to live is over ──► cold
                      └── ended without an answer ──► cold
"""

from dataclasses import dataclass

from hivemind_addon.kernel.heap import KeyedHeap
from hivemind_addon.kernel.values.ticket import Ticket

_COLD = float("-inf")


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What a provider's prompt cache does."""

    ttl_s: float = 300.0
    """How long an entry lives, from the start of the last request that used it."""
    follow_after_s: float = 5.0
    """Followers of a cold prefix wait for their leader no longer than this, from when it was sent."""
    least_tokens: int = 1024
    """Smaller prefixes are not cached, so nobody waits for them."""


@dataclass(slots=True, eq=False)
class _Lead:
    ticket_id: str
    opens_at: float


class PromptCache:
    """One pool's picture of its provider's cache."""

    def __init__(self, settings: CacheSettings) -> None:
        self._settings = settings
        self._warm: KeyedHeap[str] = KeyedHeap()
        self._leads: dict[str, _Lead] = {}
        self._began: dict[str, dict[str, float]] = {}
        """Attempts in flight whose answer has begun, by ticket; and until when their entries were warm before."""

    def configure(self, settings: CacheSettings) -> None:
        """Go on with other settings; what is warm stays so as long as it was said to."""
        self._settings = settings

    def __repr__(self) -> str:
        return f"<PromptCache {len(self._warm)} warm, {len(self._leads)} led>"

    @staticmethod
    def entry(ticket: Ticket) -> str:
        """What a ticket's input is read from: its conversation, or where that is new its prefix."""
        return _conversation(ticket) if ticket.cached_tokens or not ticket.prefix else ticket.prefix

    @staticmethod
    def entries(ticket: Ticket) -> tuple[str, ...]:
        """What an answer to a ticket leaves warm."""
        return (_conversation(ticket), ticket.prefix) if ticket.prefix else (_conversation(ticket),)

    def warm_until(self, ticket: Ticket, now: float) -> float:
        """When the ticket's entry lapses unless it is used again; minus infinity when it is cold."""
        return self.lapses_at(self.entry(ticket), now)

    def lapses_at(self, entry: str, now: float) -> float:
        """The same of an entry."""
        until = self._warm.key_of(entry)
        return _COLD if until is None or until <= now else until

    def opens_at(self, ticket: Ticket, now: float) -> float:
        """From when on the ticket may go as far as its leader is concerned; minus infinity when it has none."""
        if not self._leads or ticket.prefix_tokens < self._settings.least_tokens:
            return _COLD
        lead = self._leads.get(ticket.prefix)
        return _COLD if lead is None or lead.opens_at <= now else lead.opens_at

    def sent(self, ticket: Ticket, now: float) -> None:
        """An attempt of the ticket goes: it leads when its prefix is cold and nobody leads yet."""
        prefix = ticket.prefix
        if not prefix or prefix in self._leads or ticket.prefix_tokens < self._settings.least_tokens:
            return
        if self.lapses_at(prefix, now) == _COLD:
            self._leads[prefix] = _Lead(ticket.id, now + self._settings.follow_after_s)

    def began(self, ticket: Ticket, *, sent_at: float, now: float) -> list[str]:
        """The answer to an attempt began: its entries are warm, and nobody waits for a leader.

        Answers the entries that were cold before.
        """
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
        """The ticket's conversation goes on elsewhere: what is kept of it here is not what it will send."""
        self._warm.drop(_conversation(ticket))

    def ended(self, ticket: Ticket, *, answered: bool) -> bool:
        """An attempt ended. `answered`: what began was an answer, and no refusal. True when a leader hands over."""
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
