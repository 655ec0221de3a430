"""Leases: who may use a named thing now. Advisory: it holds among those who ask.

A name has `capacity` places (1: a lock; more: "at most N of this group in this phase"). Several names are taken all
at once or not at all, so that nobody holds one while waiting for another. Each grant of a name has a fencing token
that is greater than all before it: what is guarded refuses a smaller one than it has seen. A leader is the holder
of a lock of one place; its `value` says to others who and where it is.

A lease ends when it is released, when its time is over, or when its holder (a process) is gone.

They are in a store: a file, for all processes of a machine (sqlite_store.py), or a cluster's engine, for many machines
(engine_store.py).
"""

from collections.abc import Sequence
from typing import Protocol, Self

from msgspec import Struct

from hivemind_addon.proxy.system.clock import Clock


class Holder(Struct, frozen=True):
    """A process that a lease ends with."""

    agent: str
    """For people."""
    pid: int
    """0: none is watched; only the time ends it."""
    started: str
    """What tells a process from a later one with the same id (its start, the boot, the namespace of its id)."""
    host: str = ""
    """The name of its machine; empty: it is this one, or unknown."""


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
    """What is asked for."""

    names: tuple[str, ...]
    holder: Holder
    ttl_s: float
    capacity: int = 1
    """Places that each name has; a request with another capacity than the present holders' is an error."""
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
    """The names that are taken, or that an earlier request waits for."""
    holders: tuple[Holder, ...]
    retry_in_s: float
    """When it may be worth asking again; the first expiry that could let it through, at most a second."""


class LeaseError(Exception):
    """It cannot be done; one line for people."""


class StoreGone(LeaseError):
    """The store cannot be reached now, and may come back. What was asked for may have been done all the same."""


class LeaseOver(LeaseError):
    """The lease is not held any more: its time has passed, its holder is gone, or it was released."""


class LeaseStore(Protocol):
    """Where leases are. Each call is atomic among all who share the store; it blocks, and may be made by any thread."""

    @property
    def patience_s(self) -> float:
        """How long a call may take, at the most, where the store does not answer; 0: it is a file, which does."""
        ...

    def instant(self, clock: Clock) -> float:
        """The `now` of the calls below, in seconds that nobody can set: that of the clock by which leases end here."""
        ...

    def acquire(self, request: Request, now: float, *, waiter: str = "") -> Lease | NotGranted:
        """All names or none. Raises LeaseError.

        `waiter`: a secret of one who asks again and again, which keeps its place in the line as long as it asks at
        least every few seconds and its holder lives; empty: it does not wait.
        """
        ...

    def leave(self, waiter: str) -> None:
        """Wait no more. Raises LeaseError."""
        ...

    def renew(self, lease_id: str, ttl_s: float, now: float) -> Lease:
        """Its time begins again. Raises LeaseOver: it may be another holder's by now; LeaseError."""
        ...

    def release(self, lease_id: str, now: float) -> None:
        """Raises LeaseOver, LeaseError."""
        ...

    def standings(self, now: float, names: Sequence[str] = ()) -> list[LeaseState]:
        """Of these names, or of all that are held or waited for. Raises LeaseError."""
        ...

    def close(self) -> None:
        """Let go of the store, as is needed before a fork; leases stay. It is opened again at the next call."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


# What may be asked for: sizes and counts, so that a slip fills no disk.

MAX_TTL_S = 30 * 86_400.0
MAX_NAMES = 64
MAX_NAME_CHARS = 200
MAX_VALUE_CHARS = 4096
MAX_PLACES = 1_000_000
MAX_LEASES = 10_000
"""In one store."""


def checked_names(request: Request) -> tuple[str, ...]:
    """A request's names, once each, in canonical order. Raises LeaseError for whatever is wrong with the request."""
    names = tuple(sorted(set(request.names)))
    if not names:
        raise LeaseError("a lease needs a name")
    if len(names) > MAX_NAMES:
        raise LeaseError(f"{len(names)} names at once; at most {MAX_NAMES} can be had")
    for name in names:
        check_name(name)
    check_ttl(request.ttl_s)
    if not 1 <= request.capacity <= MAX_PLACES:
        raise LeaseError(f"at most {request.capacity} holders: it takes 1 to {MAX_PLACES:,}")
    if len(request.value) > MAX_VALUE_CHARS:
        raise LeaseError(f"a value of {len(request.value):,} characters; at most {MAX_VALUE_CHARS:,} can be kept")
    for text in (request.value, request.holder.agent):
        if not _is_text(text):
            raise LeaseError(f"{text[:40]!r} is no text")
    return names


def check_name(name: str) -> None:
    """Raises LeaseError: a name is one line of text that can be printed."""
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
        raise LeaseError(f"{name[:40]!r} is no name: it takes 1 to {MAX_NAME_CHARS} printable characters")


def check_ttl(ttl_s: float) -> None:
    """Raises LeaseError."""
    if not 0 < ttl_s <= MAX_TTL_S:
        raise LeaseError(f"a lease for {ttl_s:g} s: it takes more than 0 and at most {MAX_TTL_S:,.0f} s")


def _is_text(text: str) -> bool:
    """Whether it can be written; an argument may hold bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
