"""What is read of a journal and is no row of its own table. Instants are epoch seconds."""

from msgspec import Struct

from hivemind_addon.proxy.journal.tables import TicketRow

LOST = "lost"
"""The end of a request, and the outcome of an attempt, whose proxy died before it could tell."""


class RunRecord(Struct, frozen=True):
    """One start of the proxy."""

    id: int
    began: float
    seen: float
    """When it last wrote."""
    ended: float | None
    """None: it runs, or it died."""
    pid: int
    version: str
    port: int = 0
    """Where it listened; 0: that is not known."""
    listened: bool = True
    """Whether it ever did: one that was killed while it started has served nobody."""


class Listed(TicketRow, kw_only=True):
    """One request with what it has used so far."""

    tokens_in: int
    """All input, cached or not."""
    tokens_cached: int
    """Of these, what was read from the provider's cache."""
    tokens_out: int
    tokens: int
    """What its attempts were booked with: what was not reported was counted or expected."""
    micro_usd: int
