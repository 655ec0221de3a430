"""What the scheduler answers. Values; nothing here acts."""

from enum import Enum

from msgspec import Struct

from hivemind_addon.core.command import Cancel
from hivemind_addon.core.spend import Shortage
from hivemind_addon.core.ticket import Reservation, Ticket
from hivemind_addon.core.wall import Closure


class Reason(Enum):
    """Why a ticket waits, or why it was refused. The words that logs and dashboards show."""

    CONCURRENCY = "concurrency limit"
    METER = "rate limit"
    BLOCKED = "told to wait"
    """A refusal's retry-after, or a throttled answer without one."""
    BREAKER = "provider down"
    BACKOFF = "backing off"
    ORDER = "behind others"
    LEADER = "its prompt cache is being written"
    FAN_OUT = "enough sub-agents running"
    DEADLINE = "client about to give up"
    STOPPING = "scheduler stopping"
    SPENT_ATTEMPTS = "attempts spent"
    SPENT_AMBIGUOUS = "may have been billed too often"
    NOT_RETRYABLE = "waiting cannot cure it"
    DELIVERED_BYTES = "client has seen part of it"
    BUDGET = "budget spent"
    FUNDS = "its budget is reserved by running requests"
    PAUSED = "paused by a person"
    WALL = "the account's limit is spent"
    """A subscription's window, a day's quota: after its end one request goes first, the others wait for its answer."""


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
