"""Tools for an agent about itself: how requests, budgets and contexts stand, and how to let others go first."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct, convert

from hivemind_addon.kernel.values.command import ForeseeWait, SetPriority, names_agent
from hivemind_addon.kernel.values.snapshot import PoolView, PriorityView, RequestState, Snapshot, TicketView
from hivemind_addon.kernel.values.spend import Budget
from hivemind_addon.kernel.values.spend import Scope as Holder
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.api.account import account_view
from hivemind_addon.proxy.api.command import AccountView, WaitView
from hivemind_addon.proxy.api.pool_words import maximum_words, troubles, waiting_line
from hivemind_addon.proxy.api.report import ACTIVE_S, ContextPressure, Report, SessionStats
from hivemind_addon.proxy.api.words import several, span
from hivemind_addon.tools.history.filters import RequestFilter, Span
from hivemind_addon.tools.history.reader import JournalReader, NoJournal
from hivemind_addon.tools.history.sums import GroupBy, costs, total
from hivemind_addon.tools.mcp.session import Session
from hivemind_addon.tools.mcp.tool import MAX_ROWS, ActionResult, Call, Effect, picked, tool

_AT_ONCE_S = 0.001

CallTokens = Annotated[int, Meta(ge=0, le=10**8, description="0: as many as in your last call")]


class OwnRequest(Struct, frozen=True):
    """A request of yours that has not ended."""

    ticket: str
    model: str
    pool: str
    state: RequestState
    reason: Annotated[str, Meta(description="Why it waits; empty in flight")]
    position: Annotated[int, Meta(description="Place among those of the pool that wait, 1 goes next; 0 in flight")]
    attempts: int
    waited_s: float
    starts_in_s: Annotated[float | None, Meta(description="When it will probably go; null: unknown")]


class OtherAgent(Struct, frozen=True):
    """Another agent that has requests now."""

    agent: str
    running: int
    waiting: int


class OwnPool(Struct, frozen=True):
    """A limit domain of a provider: host / account / model group."""

    pool: str
    running: int
    limit: Annotated[int, Meta(description="How many may run at once, as learned")]
    waiting: int
    paused: Annotated[bool, Meta(description="By a person")]
    blocked_for_s: Annotated[float, Meta(description="Seconds that the provider asked everybody to wait; 0: none")]
    trouble: Annotated[str, Meta(description="Empty: none")]


class OwnContext(Struct, frozen=True):
    """A conversation of yours: the contents of the last request."""

    session: str
    model: str
    tokens: Annotated[int, Meta(description="All input, cached or not, and the output")]
    window_tokens: Annotated[int | None, Meta(description="The model's context window; null: unknown")]
    full: Annotated[float | None, Meta(description="The used part of the context window, 0 to 1; null: unknown")]
    growth_per_turn: Annotated[int, Meta(description="Tokens that a turn adds; 0: unknown")]
    turns_left: Annotated[int | None, Meta(description="How many more such turns fit; null: unknown")]
    cache_lapses_in_s: Annotated[
        float | None,
        Meta(description="When the provider's cache ends, and all is read anew; 0: it has ended; null: unknown"),
    ]
    compactions: Annotated[int, Meta(description="Times that the conversation went on much shorter")]
    lost_tokens: Annotated[int, Meta(description="By these")]
    compaction_micro_usd: Annotated[int, Meta(description="Cost of the summaries for these, as far as known")]


class OwnStatus(Struct, frozen=True):
    """Where you stand."""

    agent: str
    summary: str
    requests: Annotated[tuple[OwnRequest, ...], Meta(description="Yours that wait or run")]
    priority: Annotated[str, Meta(description="That a person (or you) set for you; empty: as your requests ask")]
    budgets: Annotated[tuple[AccountView, ...], Meta(description="That your requests count against")]
    others: tuple[OtherAgent, ...]
    pools: tuple[OwnPool, ...]
    contexts: Annotated[tuple[OwnContext, ...], Meta(description="Of your newest conversations, the newest first")]


class OwnMetrics(Struct, frozen=True):
    """The sums of your requests."""

    agent: str
    since: Annotated[str, Meta(description="When the figures begin")]
    requests: int
    delivered: int
    running_or_waiting: int
    lost: Annotated[int, Meta(description="Given up, refused for good, or cut off by the death of their proxy")]
    retries: Annotated[int, Meta(description="Repeated attempts, which you did not notice")]
    input_tokens: Annotated[int, Meta(description="All input, cached or not")]
    cached_input_tokens: int
    output_tokens: int
    tokens: Annotated[int, Meta(description="As budgets book them")]
    micro_usd: Annotated[int, Meta(description="As far as prices are known")]
    wasted_tokens: Annotated[int, Meta(description="Of the tokens, those of attempts without a result")]
    wasted_micro_usd: Annotated[int, Meta(description="Of the money, that of attempts without a result")]
    waited_s: Annotated[float, Meta(description="In the queue, all requests together")]


class WaitEstimate(Struct, frozen=True):
    """When your next call would be sent."""

    summary: str
    starts_in_s: Annotated[float | None, Meta(description="In the pool that you used last; 0: at once; null: unknown")]
    pools: tuple[WaitView, ...]


@tool("Where you stand in the queue")
def status(call: Call) -> OwnStatus:
    """See how the scheduler in front of the model provider treats your requests: which of them wait and why, who
    else runs, how full the provider's limits and your contexts are, and the rest of your budget. Use it when calls are
    slow, before starting many sub-agents, when a conversation grows long, or when an error mentions hivemind. Changes
    nothing.
    """
    agent, report = call.session.agent, call.session.report()
    snapshot = report.snapshot
    tickets = [(pool, ticket) for pool in snapshot.pools for ticket in pool.tickets]
    mine = [(pool, view) for pool, view in tickets if view.ticket.agent == agent]
    ordered = _order(snapshot, agent)
    groups = {view.ticket.group for _, view in mine}
    contexts = [context for context in reversed(report.contexts) if context.agent == agent]
    return OwnStatus(
        agent=agent,
        summary=_summary([view for _, view in mine]) + _fullest(contexts),
        requests=tuple(_request(pool, view) for pool, view in mine[:MAX_ROWS]),
        priority="" if ordered is None else ordered.priority.name.lower(),
        budgets=tuple(account_view(budget) for budget in snapshot.budgets if _binds(budget.budget, agent, groups)),
        others=_others((view for _, view in tickets), agent),
        pools=tuple(_pool(pool) for pool in snapshot.pools[:MAX_ROWS]),
        contexts=tuple(_context(context) for context in contexts[:MAX_ROWS]),
    )


def _summary(mine: list[TicketView]) -> str:
    if not mine:
        return "None of your requests waits or runs."
    waiting = sorted((one for one in mine if one.state is not RequestState.IN_FLIGHT), key=lambda one: one.position)
    running = len(mine) - len(waiting)
    text = f"{several(running, 'request')} of yours {'runs' if running == 1 else 'run'}, {len(waiting)} wait"
    if not waiting:
        return f"{text}."
    first = waiting[0]
    return f"{text}; the first of these: {waiting_line(first.position, first.why, first.starts_in_s)}."


def _fullest(contexts: Iterable[ContextPressure]) -> str:
    """Of conversations that are likely to go on, the fullest of those that are nearly full."""
    full = [context for context in contexts if context.is_full and context.seen_ago_s <= ACTIVE_S]
    if not full:
        return ""
    fullest = max(full, key=lambda context: context.share or 0.0)
    return f" Your conversation {fullest.session} fills {fullest.share or 0:.0%} of its model's context window."


def _context(context: ContextPressure) -> OwnContext:
    return picked(
        OwnContext,
        context,
        full=None if context.share is None else round(context.share, 3),
        growth_per_turn=round(context.growth_per_turn),
        turns_left=None if context.turns_left is None else int(context.turns_left),
        compaction_micro_usd=context.compaction_cost.micro_usd,
    )


def _request(pool: PoolView, view: TicketView) -> OwnRequest:
    return picked(OwnRequest, view, view.ticket, ticket=view.ticket.id, pool=str(pool.key), reason=view.why)


def _others(tickets: Iterable[TicketView], agent: str) -> tuple[OtherAgent, ...]:
    counted: dict[str, list[int]] = {}
    for one in tickets:
        if one.ticket.agent != agent:
            counted.setdefault(one.ticket.agent, [0, 0])[one.state is not RequestState.IN_FLIGHT] += 1
    return tuple(OtherAgent(name, running, waiting) for name, (running, waiting) in list(counted.items())[:MAX_ROWS])


def _pool(pool: PoolView) -> OwnPool:
    trouble = "; ".join(filter(None, (*troubles(pool).values(), maximum_words(pool.maximum_from))))
    return picked(OwnPool, pool, pool=str(pool.key), running=pool.in_flight, waiting=pool.queued, trouble=trouble)


def _binds(budget: Budget, agent: str, groups: set[str]) -> bool:
    return budget.scope is Holder.EVERYONE or budget.name in ({agent} if budget.scope is Holder.AGENT else groups)


@tool("What you have used")
def metrics(call: Call) -> OwnMetrics:
    """Your own requests, tokens (all input, cached input, output), cost in US dollars, seconds waited, and failures
    that were retried for you: today's, or since the proxy's start where no journal is kept. Use it to report or to
    limit your own spending. Changes nothing.
    """
    agent = call.session.agent
    try:
        return _of_today(agent, call.session)
    except NoJournal:
        return _of_this_run(agent, call.session.report())


def _of_today(agent: str, session: Session) -> OwnMetrics:
    """Raises NoJournal."""
    now = datetime.fromtimestamp(session.clock.wall()).astimezone()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    with JournalReader(session.journal()) as journal:
        asked = RequestFilter(span=Span(since=midnight.timestamp()), agent=session.caller.glob)
        cost = total(costs(journal, asked, GroupBy.AGENT))
    sums = {
        "agent": agent,
        "since": f"midnight ({midnight.isoformat(timespec='minutes')})",
        "running_or_waiting": cost["unfinished"],
        "lost": cost["gave_up"] + cost["refused"] + cost["lost"],
        "input_tokens": cost["tokens_in"],
        "cached_input_tokens": cost["tokens_cached"],
        "output_tokens": cost["tokens_out"],
    }
    return convert({**cost, **sums}, OwnMetrics)


def _of_this_run(agent: str, report: Report) -> OwnMetrics:
    mine = sum((one for one in report.stats.sessions if one.agent == agent), SessionStats(agent, ""))
    return picked(
        OwnMetrics,
        mine,
        since=f"the proxy's start, {span(max(0.0, report.told_wall - report.proxy.began_wall))} ago",
        requests=mine.tickets,
        running_or_waiting=mine.live,
        lost=mine.lost + mine.refused,
        retries=mine.retries_absorbed,
        input_tokens=mine.usage.total_input_tokens,
        cached_input_tokens=mine.usage.cache_read_tokens,
        output_tokens=mine.usage.output_tokens,
    )


@tool("When would my next call run?")
def wait_estimate(
    call: Call,
    input_tokens: CallTokens = 0,
    output_tokens: CallTokens = 0,
    pool: Annotated[str, Meta(max_length=500, description="Pool name, host, or a glob of either")] = "*",
) -> WaitEstimate:
    """Foresee how many seconds a model call that you made now would wait before it is sent to the provider, and for
    what. Use it to choose between more work now and later, or how many sub-agents are worth it. Changes nothing and
    reserves nothing.
    """
    said = call.session.tell(
        ForeseeWait(call.session.agent, pool=pool or "*", input_tokens=input_tokens, output_tokens=output_tokens)
    )
    pools = convert(said.value or (), tuple[WaitView, ...])[:MAX_ROWS]
    return WaitEstimate(summary=said.text, starts_in_s=pools[0].starts_in_s if pools else 0.0, pools=pools)


@tool("Let others go first for a while", effect=Effect.CHANGES, idempotent=True)
def yield_turn(
    call: Call, seconds: Annotated[float, Meta(ge=1, le=3600, description="It ends by itself")] = 60
) -> ActionResult:
    """Give your requests the lowest priority for some seconds, so that other agents' requests go first. Use it when
    your work is not urgent and others wait. It ends by itself; your requests are never lost.
    """
    return _lower(call, seconds)


@tool("Lower your own priority", effect=Effect.CHANGES, idempotent=True)
def lower_priority(
    call: Call,
    seconds: Annotated[float, Meta(ge=1, le=7 * 86_400, description="It ends by itself")] = 3600,
    restore: Annotated[
        bool, Meta(description="True: take back what you lowered here before; seconds mean nothing then")
    ] = False,
) -> ActionResult:
    """Have your own requests served after everybody else's for a long while, as background work. It ends by itself, or
    with restore true. You cannot raise yourself, nor undo a person's order.
    """
    session = call.session
    if not restore:
        return _lower(call, seconds)
    if not session.lowered:
        return ActionResult(done=True, text="There is nothing to take back: you have not lowered your priority.")
    # Not for good: that would take back what a person has set, too.
    call.session.tell(SetPriority(session.caller.glob, None, for_s=_AT_ONCE_S, by=session.agent))
    session.lowered = False
    return ActionResult(done=True, text="Your requests are served as before.")


def _lower(call: Call, for_s: float) -> ActionResult:
    """Give an order that ends by itself: a person's order, which it covers, counts again afterwards."""
    session = call.session
    standing = _order(session.report().snapshot, session.agent)
    if standing is not None and standing.priority is Priority.LOW and not session.lowered:
        return ActionResult(done=True, text="You have priority low already: others go first.")
    if standing is not None and standing.ends_in_s is not None and not session.lowered:
        for_s = max(for_s, standing.ends_in_s)  # it takes that one's place, and must not end before it
    call.session.tell(SetPriority(session.caller.glob, Priority.LOW, for_s=for_s, by=session.agent))
    session.lowered = True
    return ActionResult(done=True, text=f"Others go first for {span(for_s)}.")


def _order(snapshot: Snapshot, agent: str) -> PriorityView | None:
    """The newest order for an agent; None: the agent's own wishes count."""
    return next((view for view in snapshot.priorities if names_agent(view.agent, agent)), None)
