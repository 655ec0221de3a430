"""Leases for agents: they end with this server's process, and so with the agent that started it.

Of an agent whose whole machine is gone those in a cluster's engine end by their time.
"""

from typing import Annotated

from msgspec import Meta, Struct

from hivemind_addon.plugins.fleets.leases.holder import holder_of
from hivemind_addon.plugins.fleets.leases.model import Holder, Lease, LeaseOver, LeaseState, NotGranted, Request
from hivemind_addon.plugins.fleets.leases.waiting import wait_for_lease
from hivemind_addon.proxy.api.words import span
from hivemind_addon.tools.mcp.session import Session
from hivemind_addon.tools.mcp.tool import MAX_ROWS, Call, Effect, ToolCancelled, ToolFailed, tool

_MAX_TTL_S = 86_400
_MAX_WAIT_S = 600
_NOBODY = "agent"

Name = Annotated[str, Meta(min_length=1, max_length=200)]
LeaseId = Annotated[str, Meta(min_length=1, max_length=200)]
Ttl = Annotated[float, Meta(ge=1, le=_MAX_TTL_S, description="Seconds until it ends by itself, unless it is renewed")]


class LeaseRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be taken."""

    names: Annotated[
        tuple[Name, ...],
        Meta(min_length=1, max_length=32, description="All of them are taken at once, or none: a deadlock cannot be"),
    ]
    ttl_s: Ttl = 600
    wait_s: Annotated[
        float,
        Meta(ge=0, le=_MAX_WAIT_S, description="How long to wait for them; keep it below your tool calls' time limit"),
    ] = 30
    at_most: Annotated[
        int, Meta(ge=1, le=10_000, description="How many may hold each name at once; 1: a lock. The same for all")
    ] = 1
    value: Annotated[str, Meta(max_length=1000, description="A word to the others, such as what you do with it")] = ""


class GrantedName(Struct, frozen=True):
    """One name that is held."""

    name: str
    token: Annotated[int, Meta(description="Fencing token: greater than all that were given for this name before")]


class LeaseAnswer(Struct, frozen=True):
    """What came of it."""

    granted: bool
    text: str
    lease: Annotated[str, Meta(description="Its id, to renew and to release it; empty: not granted")] = ""
    names: tuple[GrantedName, ...] = ()
    ends_in_s: float = 0
    taken: Annotated[tuple[str, ...], Meta(description="Names that stand in the way")] = ()
    holders: Annotated[tuple[str, ...], Meta(description="Who has them")] = ()


class LeaseRenewal(Struct, frozen=True, forbid_unknown_fields=True):
    """Which lease, and for how long."""

    lease: LeaseId
    ttl_s: Ttl = 600


class LeaseRelease(Struct, frozen=True, forbid_unknown_fields=True):
    """Which lease."""

    lease: LeaseId


class ReleasedNames(Struct, frozen=True):
    """It is free."""

    names: tuple[str, ...]


class LeaseNames(Struct, frozen=True, forbid_unknown_fields=True):
    """Which names."""

    names: Annotated[tuple[Name, ...], Meta(max_length=100, description="None: all that are held or waited for")] = ()


class NameHolder(Struct, frozen=True):
    """One holder of a name."""

    agent: str
    value: str
    ends_in_s: float
    lease: Annotated[str, Meta(description="Its id if it is yours; else empty")]


class NameView(Struct, frozen=True):
    """One name as it is now."""

    name: str
    at_most: int
    holders: tuple[NameHolder, ...]
    waiting: Annotated[tuple[str, ...], Meta(description="Agents that wait for it, in their order")]
    last_token: int


class LeaseList(Struct, frozen=True):
    """Names that are held or waited for."""

    names: tuple[NameView, ...]


@tool("Take a lock that agents share", effect=Effect.CHANGES)
def lease_acquire(call: Call, wanted: LeaseRequest) -> LeaseAnswer:
    """Take named leases that all agents on this machine (in a cluster: on all its machines) respect, before touching
    what must not be touched by two at once (a migration, a file that everybody edits, a port), or to be one of at most
    N in a phase. Several names are taken all at once or not at all. Waits up to wait_s seconds. granted false: somebody
    else has it; do not go on as if you had it. It ends after ttl_s seconds, when you release it, or with you.
    """
    session = call.session
    request = Request(
        names=wanted.names,
        holder=holder_of(session.caller.agent or _NOBODY, session.pid),
        ttl_s=wanted.ttl_s,
        capacity=wanted.at_most,
        value=wanted.value,
    )
    got = wait_for_lease(
        session.leases,
        request,
        clock=session.clock,
        wait_s=wanted.wait_s,
        pause=call.pause,
        tell=lambda first: call.progress(0, wanted.wait_s, f"waiting for {', '.join(first.ahead)}"),
    )
    if isinstance(got, NotGranted):
        return _refused(got)
    if call.is_stopped:  # whoever asked does not learn of it
        session.leases.release(got.id, session.leases.instant(session.clock))
        raise ToolCancelled
    if not session.hold(got):
        raise ToolCancelled
    return _acquired(got, "yours: release it as soon as you are done")


def _acquired(lease: Lease, text: str) -> LeaseAnswer:
    return LeaseAnswer(
        granted=True,
        text=text,
        lease=lease.id,
        names=tuple(GrantedName(one.name, one.token) for one in lease.grants),
        ends_in_s=_left(lease),
    )


def _refused(got: NotGranted) -> LeaseAnswer:
    holders = tuple(dict.fromkeys(_who(one) for one in got.holders))
    has = f", held by {', '.join(holders)}" if holders else ""
    return LeaseAnswer(
        granted=False,
        text=f"not yours: {', '.join(got.ahead)} taken{has}; ask again, or do something else first",
        taken=got.ahead,
        holders=holders,
    )


@tool("Keep a lease for longer", effect=Effect.CHANGES, idempotent=True)
def lease_renew(call: Call, asked: LeaseRenewal) -> LeaseAnswer:
    """Let a lease that you hold end later. An error: it is over, and may be somebody else's by now."""
    session = call.session
    _own(session, asked.lease)
    try:
        lease = session.leases.renew(asked.lease, asked.ttl_s, session.leases.instant(session.clock))
    except LeaseOver:
        session.let_go(asked.lease)
        raise
    if not session.hold(lease):
        raise ToolCancelled
    return _acquired(lease, f"yours for {span(asked.ttl_s)} from now on")


@tool("Give a lease back", effect=Effect.CHANGES)
def lease_release(call: Call, asked: LeaseRelease) -> ReleasedNames:
    """Release a lease that you hold, so that the next one gets it at once."""
    session = call.session
    lease = _own(session, asked.lease)
    session.let_go(asked.lease)
    session.leases.release(asked.lease, session.leases.instant(session.clock))
    return ReleasedNames(tuple(one.name for one in lease.grants))


def _own(session: Session, lease_id: str) -> Lease:
    lease = session.held.get(lease_id)
    if lease is None:
        raise ToolFailed("this lease is not yours (any more); lease_list tells which ones are")
    return lease


@tool("Who holds which lease")
def lease_list(call: Call, asked: LeaseNames) -> LeaseList:
    """See which names are held, by whom, until when, and who waits for them. Changes nothing."""
    session = call.session
    found = session.leases.standings(session.leases.instant(session.clock), asked.names)[:MAX_ROWS]
    held = session.held
    return LeaseList(tuple(_name_view(one, held) for one in found))


def _name_view(one: LeaseState, held: dict[str, Lease]) -> NameView:
    return NameView(
        name=one.name,
        at_most=one.capacity,
        holders=tuple(
            NameHolder(_who(lease.holder), lease.value, _left(lease), lease.id if lease.id in held else "")
            for lease in one.leases[:MAX_ROWS]
        ),
        waiting=tuple(_who(holder) for holder in one.waiting[:MAX_ROWS]),
        last_token=one.last_token,
    )


def _who(holder: Holder) -> str:
    agent = holder.agent or f"process {holder.pid}"
    return f"{agent} on {holder.host}" if holder.host else agent


def _left(lease: Lease) -> float:
    return round(max(0.0, lease.left_s), 1)


TOOLS = (
    lease_acquire,
    lease_renew,
    lease_release,
    lease_list,
)
