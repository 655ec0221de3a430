"""Tools for leases. The leases end with this server's process, and so with the agent that started the server.

Leases in a cluster's engine end by time if the whole machine of their agent is gone.
"""

from typing import Annotated

from msgspec import Meta, Struct

from hivemind_addon.plugins.fleets.leases.holder import holder_of
from hivemind_addon.plugins.fleets.leases.model import Grant, Holder, Lease, LeaseOver, LeaseState, NotGranted, Request
from hivemind_addon.plugins.fleets.leases.waiting import wait_for_lease
from hivemind_addon.proxy.api.words import span
from hivemind_addon.tools.mcp.session import Session, ToolFailed
from hivemind_addon.tools.mcp.tool import MAX_ROWS, ActionResult, Call, Effect, ToolCancelled, tool

_NOBODY = "agent"

Word = Annotated[str, Meta(min_length=1, max_length=200)]
Ttl = Annotated[float, Meta(ge=1, le=86_400, description="Seconds until it ends by itself, unless it is renewed")]


class LeaseAnswer(Struct, frozen=True):
    """The lease, or why there is none."""

    granted: bool
    text: str
    lease: Annotated[str, Meta(description="Its id, to renew and to release it; empty: not granted")] = ""
    names: Annotated[tuple[Grant, ...], Meta(description="Each with a fencing token, greater than all before")] = ()
    ends_in_s: float = 0
    taken: Annotated[tuple[str, ...], Meta(description="Names that stand in the way")] = ()
    holders: Annotated[tuple[str, ...], Meta(description="Who has them")] = ()


class NameHolder(Struct, frozen=True):
    """A holder of a name."""

    agent: str
    value: str
    ends_in_s: float
    lease: Annotated[str, Meta(description="Its id if it is yours; else empty")]


class NameView(Struct, frozen=True):
    """A name and the holders."""

    name: str
    at_most: int
    holders: tuple[NameHolder, ...]
    waiting: Annotated[tuple[str, ...], Meta(description="Agents that wait for it, in their order")]
    last_token: int


class LeaseList(Struct, frozen=True):
    """Names that are held or waited for."""

    names: tuple[NameView, ...]


@tool("Take a lock that agents share", effect=Effect.CHANGES)
def lease_acquire(
    call: Call,
    names: Annotated[
        tuple[Word, ...],
        Meta(min_length=1, max_length=32, description="All of them are taken at once, or none: a deadlock cannot be"),
    ],
    ttl_s: Ttl = 600,
    wait_s: Annotated[
        float, Meta(ge=0, le=600, description="How long to wait for them; keep it below your tool calls' time limit")
    ] = 30,
    at_most: Annotated[
        int, Meta(ge=1, le=10_000, description="How many may hold each name at once; 1: a lock. The same for all")
    ] = 1,
    value: Annotated[str, Meta(max_length=1000, description="A word to the others, such as what you do with it")] = "",
) -> LeaseAnswer:
    """Take named leases that all agents on this machine (in a cluster: on all machines) respect, before touching a
    thing that must not be touched by two at once (a migration, a file that everybody edits, a port), or to be one of at
    most N in a phase. Several names are taken all at once or not at all. Waits up to wait_s seconds. granted false:
    somebody else has it; do not go on as if you had it. It ends after ttl_s seconds, when you release it, or with you.
    """
    session = call.session
    holder = holder_of(session.caller.agent or _NOBODY, session.pid)
    got = wait_for_lease(
        session.leases,
        Request(names, holder, ttl_s, at_most, value),
        clock=session.clock,
        wait_s=wait_s,
        pause=call.pause,
        tell=lambda first: call.progress(0, wait_s, f"waiting for {', '.join(first.ahead)}"),
    )
    if isinstance(got, NotGranted):
        return _refused(got)
    if call.is_stopped:  # the client does not learn of the lease
        session.leases.release(got.id, session.leases.instant(session.clock))
        raise ToolCancelled
    return _acquired(session, got, "yours: release it as soon as you are done")


def _acquired(session: Session, lease: Lease, text: str) -> LeaseAnswer:
    if not session.hold(lease):
        raise ToolCancelled
    return LeaseAnswer(granted=True, text=text, lease=lease.id, names=lease.grants, ends_in_s=_left(lease))


def _refused(got: NotGranted) -> LeaseAnswer:
    holders = tuple(dict.fromkeys(_who(one) for one in got.holders))
    has = f", held by {', '.join(holders)}" if holders else ""
    text = f"not yours: {', '.join(got.ahead)} taken{has}; ask again, or do something else first"
    return LeaseAnswer(granted=False, text=text, taken=got.ahead, holders=holders)


@tool("Keep a lease for longer", effect=Effect.CHANGES, idempotent=True)
def lease_renew(call: Call, lease: Word, ttl_s: Ttl = 600) -> LeaseAnswer:
    """Let a lease that you hold end later. An error: it is over, and may be somebody else's by now."""
    session = call.session
    _own(session, lease)
    try:
        renewed = session.leases.renew(lease, ttl_s, session.leases.instant(session.clock))
    except LeaseOver:
        session.let_go(lease)
        raise
    return _acquired(session, renewed, f"yours for {span(ttl_s)} from now on")


@tool("Give a lease back", effect=Effect.CHANGES)
def lease_release(call: Call, lease: Word) -> ActionResult:
    """Release a lease that you hold, so that the next one gets it at once."""
    session = call.session
    released = _own(session, lease)
    session.let_go(lease)
    session.leases.release(lease, session.leases.instant(session.clock))
    return ActionResult(done=True, text=f"free again: {', '.join(grant.name for grant in released.grants)}")


def _own(session: Session, lease_id: str) -> Lease:
    lease = session.held.get(lease_id)
    if lease is None:
        raise ToolFailed("this lease is not yours (any more); lease_list tells which ones are")
    return lease


@tool("Who holds which lease")
def lease_list(
    call: Call,
    names: Annotated[tuple[Word, ...], Meta(max_length=100, description="None: all that are held or waited for")] = (),
) -> LeaseList:
    """See which names are held, the holders, until when, and who waits for them. Changes nothing."""
    session = call.session
    found = session.leases.standings(session.leases.instant(session.clock), names)[:MAX_ROWS]
    held = session.held
    return LeaseList(tuple(_name_view(state, held) for state in found))


def _name_view(state: LeaseState, held: dict[str, Lease]) -> NameView:
    return NameView(
        name=state.name,
        at_most=state.capacity,
        holders=tuple(
            NameHolder(_who(lease.holder), lease.value, _left(lease), lease.id if lease.id in held else "")
            for lease in state.leases[:MAX_ROWS]
        ),
        waiting=tuple(map(_who, state.waiting[:MAX_ROWS])),
        last_token=state.last_token,
    )


def _who(holder: Holder) -> str:
    agent = holder.agent or f"process {holder.pid}"
    return f"{agent} on {holder.host}" if holder.host else agent


def _left(lease: Lease) -> float:
    return max(0.0, lease.left_s)
