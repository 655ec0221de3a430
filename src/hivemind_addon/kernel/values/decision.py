"""The scheduler's answers: decisions of a poll, and the verdict on an ended attempt."""

from msgspec import Struct

from hivemind_addon.kernel.values.command import Cancel
from hivemind_addon.kernel.values.spend import Shortage
from hivemind_addon.kernel.values.ticket import Attempt, Reason, Ticket


class ActiveBlock(Struct, frozen=True, tag="account-block"):
    """The provider refuses the account: the reason, and the end."""

    reason: str
    until: float
    """Monotonic instant of the end; of the next check if the provider did not state the end."""
    is_end_told: bool = True
    of_account: bool = True
    """Whether a refusal named the account; else two requests of the model were refused."""

    @property
    def why(self) -> Reason:
        """The limit that is spent, as far as is known."""
        return Reason.ACCOUNT_BLOCK if self.of_account else Reason.MODEL_BLOCK


class Admitted(Struct, frozen=True, tag=True):
    """The ticket goes upstream now."""

    attempt: Attempt


class Shed(Struct, frozen=True, tag=True):
    """The ticket ends: the client gets a refusal that makes the client come back."""

    ticket: Ticket
    reason: Reason
    come_back_s: float
    """Seconds from now until there is probably room."""


class Refused(Struct, frozen=True, tag=True):
    """The ticket ends because a budget or the account is spent, or a person cancelled the ticket.

    The client gets a refusal that clients do not retry.
    """

    ticket: Ticket
    cause: Shortage | ActiveBlock | Cancel


class Finished(Struct, frozen=True, tag=True):
    """The ticket is over: the client gets, or has, the answer."""


class Backoff(Struct, frozen=True, tag=True):
    """The ticket keeps its place in the queue, and waits until an instant."""

    until: float
    reason: str


class GiveUp(Struct, frozen=True, tag=True):
    """The ticket is over: the client gets the provider's last answer unchanged."""

    reason: Reason


Verdict = Finished | Backoff | GiveUp
"""The result of `Scheduler.settle`."""
