"""What the scheduler answers. Values; nothing here acts."""

from msgspec import Struct

from hivemind_addon.api.command import Cancel
from hivemind_addon.api.spend import Shortage
from hivemind_addon.api.ticket import Reason, Reservation, Ticket
from hivemind_addon.proxy.core.wall import Closure


class Admitted(Struct, frozen=True):
    """The ticket goes upstream now."""

    reservation: Reservation


class Shed(Struct, frozen=True):
    """The ticket ends here: the client gets a refusal that makes it come back."""

    ticket: Ticket
    reason: Reason
    come_back_s: float
    """When there is likely to be room, in seconds from now."""


class Refused(Struct, frozen=True):
    """The ticket ends here: a budget or the account is spent, or a person cancelled it.

    The client gets a refusal that it does not retry.
    """

    ticket: Ticket
    cause: Shortage | Closure | Cancel


class Finished(Struct, frozen=True):
    """The ticket is over; its answer is (or was) the client's."""


class Backoff(Struct, frozen=True):
    """The ticket is queued again, at its old place, and not before an instant."""

    until: float
    reason: str


class GiveUp(Struct, frozen=True):
    """The ticket is over: the provider's last answer goes to the client as it came."""

    reason: Reason


Verdict = Finished | Backoff | GiveUp
"""What `Scheduler.settle` answers."""
