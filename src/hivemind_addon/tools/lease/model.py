"""Leases: who may use a named thing now. Advisory: it holds among those who ask.

A name has `capacity` places (1: a lock; more: "at most N of this group in this phase"). Several names are taken all
at once or not at all, so that nobody holds one while waiting for another. Each grant of a name has a fencing token
that is greater than all before it: what is guarded refuses a smaller one than it has seen. A leader is whoever holds
a lock of one place; `value` tells the others who and where.

A lease ends when it is released, when its time is over, or when its holder (a process) is gone.

`now` is `Clock.monotonic()`: seconds that nobody can set, the same for all processes of a machine. It stands still
while the machine sleeps, and so do all who could take a lease from its holder meanwhile.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Holder(Struct, frozen=True):
    """A process that a lease ends with."""

    agent: str
    """For people."""
    pid: int
    """0: none is watched; only the time ends it."""
    started: str
    """What tells a process from a later one with the same id (its start, the boot, the namespace of its id)."""


class Grant(Struct, frozen=True):
    """One name of a lease."""

    name: str
    token: int
    """Fencing token; one lease has the same for all its names."""


class Lease(Struct, frozen=True):
    """A grant of all names that were asked for."""

    id: str
    """Secret enough to release and renew it."""
    grants: tuple[Grant, ...]
    """In canonical order."""
    holder: Holder
    left_s: float
    """Its time, from the `now` that the store was asked at."""
    value: str = ""
    """The holder's own word to others, such as its address."""


class Request(Struct, frozen=True):
    """What somebody asks for."""

    names: tuple[str, ...]
    holder: Holder
    ttl_s: float
    capacity: int = 1
    """Places that each name has; who asks with another capacity than the present holders is told so."""
    value: str = ""


class LeaseState(Struct, frozen=True):
    """One name as it is now."""

    name: str
    capacity: int
    leases: tuple[Lease, ...]
    """The holders."""
    waiting: tuple[Holder, ...]
    """In their order."""
    last_token: int
    """No token that was given so far, of any name, is greater."""


class NotGranted(Struct, frozen=True):
    """The request waits; ask again."""

    ahead: tuple[str, ...]
    """The names that are taken, or that somebody who came before waits for."""
    holders: tuple[Holder, ...]
    retry_in_s: float
    """When it may be worth asking again; the first expiry that could let it through, at most a second."""


class LeaseError(Exception):
    """It cannot be done; one line for people."""


class LeaseOver(LeaseError):
    """The lease is not held any more: its time has passed, its holder is gone, or it was released."""


class LeaseStore(Protocol):
    """Each call is atomic among all processes. They block: call them off an event loop."""

    def acquire(self, request: Request, now: float, *, waiter: str = "") -> Lease | NotGranted:
        """All names or none. `waiter`: a secret of one who asks again and again, which keeps its place in the line
        as long as it asks at least every few seconds and its holder lives; empty: it does not wait.
        """

    def leave(self, waiter: str) -> None:
        """Wait no more."""

    def renew(self, lease_id: str, ttl_s: float, now: float) -> Lease:
        """Its time begins again. Raises LeaseOver: it may be somebody else's by now."""

    def release(self, lease_id: str, now: float) -> None:
        """Raises LeaseOver."""

    def standings(self, now: float, names: Sequence[str] = ()) -> list[LeaseState]:
        """Of these names, or of all that are held or waited for."""
