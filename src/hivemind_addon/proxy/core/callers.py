"""Who called a pool, and what for: what the next call of an agent will look like, as far as the last one tells."""

from msgspec.structs import replace

from hivemind_addon.api.command import ForeseeWait
from hivemind_addon.api.ticket import CallKind, Demand, PoolKey, Ticket

_MOST = 500
"""Sessions that are remembered, of each pool: the newest."""
_NEVER = float("inf")


class Callers:
    """The last ticket of each session, the newest last. Calls for which nobody waits (titles) are not told of."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], Ticket] = {}
        self._going_on: Ticket | None = None
        """Anybody's last call whose conversation the provider is expected to have in its cache."""

    def __repr__(self) -> str:
        return f"<Callers: {len(self._last)} sessions>"

    def called(self, ticket: Ticket) -> None:
        """A ticket has come."""
        if ticket.kind is CallKind.AUXILIARY:
            return
        session = (ticket.agent, ticket.session)
        self._last.pop(session, None)
        self._last[session] = ticket
        if ticket.cached_tokens:
            self._going_on = ticket
        if len(self._last) > _MOST:
            del self._last[next(iter(self._last))]

    def absorb(self, other: "Callers") -> None:
        """Remember what another pool did, which proved to be this one."""
        merged = sorted([*self._last.items(), *other._last.items()], key=lambda one: one[1].arrived_at)  # noqa: SLF001
        self._last = dict(merged[-_MOST:])
        self._going_on = self._going_on or other._going_on  # noqa: SLF001

    @property
    def agents(self) -> dict[str, str]:
        """Who has called, as far as that is remembered, with the group of each."""
        return {ticket.agent: ticket.group for ticket in self._last.values()}

    def called_at(self, agent: str) -> float | None:
        """When an agent's last call came; None: none that is remembered."""
        last = self._last_of(agent, "")
        return None if last is None else last.arrived_at

    def next_call(self, asked: ForeseeWait, pool: PoolKey, now: float) -> Ticket:
        """What an agent would submit now: the turn after its session's last, else like its own, or anybody's last."""
        agent, session = asked.agent, asked.session
        if last := self._last_of(agent, session):
            made = self._next_turn(last)
        elif last := self._last_of(agent, ""):
            # A new session: nothing of its conversation is cached, nobody has started it.
            made = replace(last, session=session, cached_tokens=0, cold_tokens=0, kind=CallKind.TURN, parent_session="")
        else:
            made = self._strangers_call(agent, session, pool)
        demand = _wanted(asked, made.demand)
        return replace(made, id="", arrived_at=now, deadline_at=_NEVER, shed_at=_NEVER, request_hash="", demand=demand)

    def _last_of(self, agent: str, session: str) -> Ticket | None:
        if session:
            return self._last.get((agent, session))
        return next((one for (name, _), one in reversed(self._last.items()) if name == agent), None)

    def _next_turn(self, last: Ticket) -> Ticket:
        """What was sent is read from the cache where this provider has one, and may count no more."""
        if self._going_on is None:
            return last
        if not self._going_on.cold_tokens:  # what is cached counts like all else
            return replace(last, cached_tokens=max(last.cached_tokens, last.demand.input_tokens))
        cached = last.cached_tokens + last.demand.input_tokens
        demand = last.demand if last.cached_tokens else self._going_on.demand
        return replace(last, cached_tokens=cached, cold_tokens=cached, demand=demand)

    def _strangers_call(self, agent: str, session: str, pool: PoolKey) -> Ticket:
        """As large as the last one that anybody sent; nothing else is known."""
        last = next(reversed(self._last.values()), None)
        return Ticket(
            id="",
            pool=pool,
            agent=agent,
            session=session or agent,
            model=last.model if last else "",
            demand=last.demand if last else Demand(),
            arrived_at=0.0,
            deadline_at=_NEVER,
            shed_at=_NEVER,
        )


def _wanted(asked: ForeseeWait, usual: Demand) -> Demand:
    if not asked.input_tokens and not asked.output_tokens:
        return usual
    into = asked.input_tokens or usual.input_tokens
    out = asked.output_tokens or usual.output_tokens
    return Demand(requests=usual.requests, input_tokens=into, output_tokens=out, total_tokens=into + out)
