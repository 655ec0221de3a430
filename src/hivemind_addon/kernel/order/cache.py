"""Infers from attempts which entries of the provider's prompt cache are warm, and until when.

There are two kinds of entries: prefixes that conversations share (model, tools, system prompt), and whole
conversations. A new conversation reads the prefix's entry; a continued conversation reads the conversation's entry.

An entry is readable when the first answer to its prefix has begun, and lives for some time from the *start* of the last
request that wrote or read the entry. So if many tickets share a cold prefix, the first ticket that is sent leads. The
others follow when the leader's answer begins, or a few seconds after the leader was sent, whichever is sooner. If the
leader ends without an answer, the next ticket that is sent leads.

    cold ── sent ──► led ── began ──► warm ── time to live is over ──► cold
                      └── ended without an answer ──► cold

The time to live is learned from the usage of answers (`Lifetime`); the stated time counts where no answer shows more.
"""

from bisect import bisect_left
from dataclasses import dataclass

from hivemind_addon.kernel.heap import KeyedHeap
from hivemind_addon.kernel.values.ticket import Ticket, Usage

_COLD = float("-inf")
_AGES = tuple(2.0 ** (step / 3) for step in range(-21, 13))
"""Ages of entries, as parts of the stated time to live: from a hundredth to the sixteenfold."""
_STATED = 0.05
"""Weight of the stated time at each age, in answers."""
_KEPT = 0.875
"""Part of the weight of earlier answers that remains after an answer at the same age."""
_FORGET_S = 7200.0
"""Entries that were unused for so long are forgotten."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """How a provider's prompt cache works."""

    ttl_s: float = 300.0
    """How long an entry lives, from the start of the last request that used it, until answers show another time."""
    follow_after_s: float = 5.0
    """Followers of a cold prefix wait at most this long after their leader was sent."""
    least_tokens: int = 1024
    """Smaller prefixes are not cached, so no ticket waits for them."""


class Lifetime:
    """Learns from answers which share of an entry is read at which age. An age is a part of the stated time to live.

    No entry gets warmer with age, so the shares are the best decreasing fit to the answers (pool adjacent violators;
    Ayer et al. 1955). A cold answer thus counts only at ages at which no more answers were warm, and the stated time
    only where there is no answer. Answers at other ages never fade: few conversations reach the ages that decide.
    """

    def __init__(self) -> None:
        self._seen = [(_STATED, _STATED * (age <= 1)) for age in (*_AGES, 2 * _AGES[-1])]
        """By age, the last for all above: the weight of the answers, and the sum of the shares that they read."""
        self._fit()

    def share(self, age: float) -> float:
        """The share of an entry that is probably read at an age."""
        return self._shares[bisect_left(_AGES, age)]

    def learn(self, age: float, share: float) -> bool:
        """Learn from an answer that read this share. Returns whether `proven` or `ends` changed."""
        place, before = bisect_left(_AGES, age), (self.proven, self.ends)
        weight, read = self._seen[place]
        self._seen[place] = 1 + _KEPT * weight, share + _KEPT * read
        self._fit()
        return before != (self.proven, self.ends)

    def _fit(self) -> None:
        pooled: list[tuple[float, float, int]] = []
        for weight, read in self._seen:
            pool = (weight, read, 1)
            while pooled and pooled[-1][1] * pool[0] < pool[1] * pooled[-1][0]:
                last = pooled.pop()
                pool = (pool[0] + last[0], pool[1] + last[1], pool[2] + last[2])
            pooled.append(pool)
        self._shares = [read / weight for weight, read, ages in pooled for _ in range(ages)]
        warm = [place for place, share in enumerate(self._shares[:-1]) if 2 * share >= self._shares[0]]
        self.ends = _AGES[warm[-1]]
        """The age at which an entry lapses: from there on less than half of what a fresh entry gives is read."""
        self.proven = max((_AGES[place] for place in warm if self._seen[place][0] >= 1), default=0.0)
        """The greatest age at which answers have read entries."""


class PromptCache:
    """The warm entries and the leaders of one pool."""

    def __init__(self, settings: CacheSettings) -> None:
        self._settings = settings
        self.lifetime = Lifetime()
        self._used: KeyedHeap[str] = KeyedHeap()
        """Entries by the start of the last request that used them."""
        self._leads: dict[str, tuple[str, float]] = {}
        """By prefix: the leader's ticket, and when the followers go at the latest."""
        self._began: dict[str, tuple[float, dict[str, float]]] = {}
        """Ticket with a begun answer in flight → the start, and by entry, when the entry was used before."""

    def configure(self, settings: CacheSettings) -> None:
        """Change the settings."""
        self._settings = settings

    @staticmethod
    def entry(ticket: Ticket) -> str:
        """The entry that a ticket reads: the conversation, or the prefix of a new conversation."""
        return _conversation(ticket) if ticket.cached_tokens or not ticket.prefix else ticket.prefix

    @staticmethod
    def entries(ticket: Ticket) -> tuple[str, ...]:
        """The entries that an answer to a ticket makes warm."""
        return (_conversation(ticket), ticket.prefix) if ticket.prefix else (_conversation(ticket),)

    def used_at(self, entry: str) -> float:
        """The start of the last request that used an entry; minus infinity without one."""
        used_at = self._used.key_of(entry)
        return _COLD if used_at is None else used_at

    def lasts_s(self, ticket: Ticket) -> tuple[float, float]:
        """The greatest age at which answers have read entries like a ticket's, and the age at which an entry lapses."""
        stated_s = self._stated_s(ticket)
        return self.lifetime.proven * stated_s, self.lifetime.ends * stated_s

    def _stated_s(self, ticket: Ticket) -> float:
        return ticket.cache_s or self._settings.ttl_s

    def lapses_at(self, ticket: Ticket, entry: str, now: float) -> float:
        """When an entry lapses that a ticket reads or writes, unless used again; minus infinity if cold."""
        until = self.used_at(entry) + self.lifetime.ends * self._stated_s(ticket)
        return until if until > now else _COLD

    def warm_share(self, ticket: Ticket, now: float) -> float:
        """The share of a ticket's entry that the provider probably still has."""
        return self.lifetime.share((now - self.used_at(self.entry(ticket))) / self._stated_s(ticket))

    def warm_tokens(self, ticket: Ticket, now: float) -> int:
        """The tokens of a ticket's input that the provider probably still has."""
        return round(max(ticket.cached_tokens, ticket.prefix_tokens) * self.warm_share(ticket, now))

    def opens_at(self, ticket: Ticket, now: float) -> float:
        """The instant until which a ticket waits for a leader; minus infinity without a leader."""
        _, opens_at = self._leads.get(ticket.prefix, ("", _COLD))
        return _COLD if opens_at <= now or ticket.prefix_tokens < self._settings.least_tokens else opens_at

    def sent(self, ticket: Ticket, now: float) -> None:
        """Make a sent ticket the leader of a cold prefix without a leader, if fresh entries are read at all."""
        prefix = ticket.prefix
        if not prefix or prefix in self._leads or ticket.prefix_tokens < self._settings.least_tokens:
            return
        if self.lapses_at(ticket, prefix, now) == _COLD and 2 * self.lifetime.share(0) >= 1:
            self._leads[prefix] = ticket.id, now + self._settings.follow_after_s

    def began(self, ticket: Ticket, *, sent_at: float, now: float) -> list[str]:
        """Make a ticket's entries warm, because its answer begins. Returns the entries that were cold."""
        tokens = max(ticket.prefix_tokens, ticket.cached_tokens, ticket.demand.input_tokens)
        if tokens < self._settings.least_tokens:
            return []
        before = {entry: self.used_at(entry) for entry in self.entries(ticket)}
        self._began.setdefault(ticket.id, (sent_at, before))
        cold = [entry for entry in before if self.lapses_at(ticket, entry, now) == _COLD]
        for entry, used_at in before.items():
            self._used.put(entry, max(used_at, sent_at))
        self._leads.pop(ticket.prefix, None)
        while self._used.first_key <= now - _FORGET_S and (lapsed := self._used.first) is not None:
            self._used.drop(lapsed)
        return cold

    def learn(self, ticket: Ticket, usage: Usage) -> bool:
        """Learn the lifetime from the usage of a continued conversation, before `ended`. Returns whether it changed.

        What a new conversation reads shows little: the prefix alone may not be marked.
        """
        sent_at, before = self._began.get(ticket.id, (_COLD, {}))
        used_at = before.get(_conversation(ticket), _COLD)
        if not usage.reported or ticket.cached_tokens < self._settings.least_tokens or not _COLD < used_at < sent_at:
            return False
        share = min(1.0, usage.cache_read_tokens / ticket.cached_tokens)
        return self.lifetime.learn((sent_at - used_at) / self._stated_s(ticket), share)

    def forget(self, ticket: Ticket) -> None:
        """Drop the entry of a conversation that continues elsewhere, with other content."""
        self._used.drop(_conversation(ticket))

    def ended(self, ticket: Ticket, *, answered: bool) -> bool:
        """Record the end of an attempt. `answered`: an answer began, not a refusal. Returns whether the ticket led."""
        _, before = self._began.pop(ticket.id, (_COLD, {}))
        if not answered:
            for entry, used_at in before.items():
                self._used.put(entry, used_at)
        leader, _ = self._leads.get(ticket.prefix, ("", _COLD))
        return leader == ticket.id and self._leads.pop(ticket.prefix) is not None


def _conversation(ticket: Ticket) -> str:
    return f"session {ticket.session}"
