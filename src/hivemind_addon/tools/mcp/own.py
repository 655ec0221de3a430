"""What an agent may always ask about itself, and that it lets others go first: the scheduler seen from one agent."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct, convert

from hivemind_addon.kernel.values.command import ForeseeWait, SetPriority, WaitView, names_agent
from hivemind_addon.kernel.values.snapshot import BudgetView, PoolView, PriorityView, RequestState, Snapshot, TicketView
from hivemind_addon.kernel.values.spend import Scope as Holder
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.api.account import account_view
from hivemind_addon.proxy.api.pool_words import maximum_words, troubles, waiting_line
from hivemind_addon.proxy.api.report import ACTIVE_S, ContextPressure, Report, SessionStats
from hivemind_addon.proxy.api.words import several, span
from hivemind_addon.tools.history.filters import RequestFilter, Span
from hivemind_addon.tools.history.reader import JournalReader, NoJournal
from hivemind_addon.tools.history.sums import GroupBy, costs, total
from hivemind_addon.tools.mcp.session import Session
from hivemind_addon.tools.mcp.tool import MAX_ROWS, Call, Effect, NoArguments, ToolFailed, tool

_MAX_YIELD_S = 3600
_MAX_LOWERED_S = 7 * 86_400
_AT_ONCE_S = 0.001


class OwnRequest(Struct, frozen=True):
    """One request of yours that has not ended."""

    ticket: str
    model: str
    pool: str
    state: Annotated[str, Meta(description="`queued`, `backing off` or `in flight`")]
    reason: Annotated[str, Meta(description="Why it waits; empty in flight")]
    position: Annotated[int, Meta(description="Its place among those of its pool that wait, 1 goes next; 0 in flight")]
    attempts: int
    waited_s: float
    starts_in_s: Annotated[float | None, Meta(description="When it is likely to go; null: nothing tells")]


class OtherAgent(Struct, frozen=True):
    """Another agent that has requests now."""

    agent: str
    running: int
    waiting: int


class OwnPool(Struct, frozen=True):
    """One limit domain of a provider: host / account / model group."""

    pool: str
    running: int
    limit: Annotated[int, Meta(description="How many may run at once, as learned")]
    waiting: int
    paused: Annotated[bool, Meta(description="By a person")]
    blocked_for_s: Annotated[float, Meta(description="Seconds that the provider asked everybody to wait; 0: none")]
    trouble: Annotated[str, Meta(description="What is wrong with it; empty: nothing")]


class OwnBudget(Struct, frozen=True):
    """A budget that your requests count against."""

    holder: Annotated[str, Meta(description="Whose: yours, your group's, everyone's")]
    per: str
    tokens_left: Annotated[int | None, Meta(description="Null: tokens are not limited")]
    usd_left: Annotated[float | None, Meta(description="Null: money is not limited")]
    calls_left: Annotated[int | None, Meta(description="Null: calls are not limited")]
    renews_in_s: Annotated[float | None, Meta(description="Null: not by itself")]


class OwnContext(Struct, frozen=True):
    """One conversation of yours: what its last request carried."""

    session: str
    model: str
    tokens: Annotated[int, Meta(description="All input, cached or not, and the output")]
    window_tokens: Annotated[int | None, Meta(description="The model's context window; null: not known")]
    full: Annotated[float | None, Meta(description="Its part of the context window, 0 to 1; null: not known")]
    growth_per_turn: Annotated[int, Meta(description="Tokens that a turn adds; 0: not known yet")]
    turns_left: Annotated[int | None, Meta(description="How many more such turns fit; null: not known")]
    cache_lapses_in_s: Annotated[
        float | None,
        Meta(description="When the provider forgets it, so that all of it is read anew; 0: it has; null: not known"),
    ]
    compactions: Annotated[int, Meta(description="Times that it went on much shorter")]
    lost_tokens: Annotated[int, Meta(description="By these")]
    compaction_usd: Annotated[float, Meta(description="What the summaries for these cost, as far as known")]


class OwnStatus(Struct, frozen=True):
    """Where you stand."""

    agent: str
    summary: str
    requests: Annotated[tuple[OwnRequest, ...], Meta(description="Yours that wait or run")]
    priority: Annotated[str, Meta(description="That a person (or you) set for you; empty: what your requests ask for")]
    budgets: tuple[OwnBudget, ...]
    others: tuple[OtherAgent, ...]
    pools: tuple[OwnPool, ...]
    contexts: Annotated[tuple[OwnContext, ...], Meta(description="Of your newest conversations, the newest first")] = ()


class OwnMetrics(Struct, frozen=True):
    """What came of your requests."""

    agent: str
    since: Annotated[str, Meta(description="What the figures count from")]
    requests: int
    delivered: int
    running_or_waiting: int
    lost: Annotated[int, Meta(description="Given up, refused for good, or cut off by the death of their proxy")]
    retries: Annotated[int, Meta(description="Attempts that were made again without your noticing")]
    input_tokens: Annotated[int, Meta(description="All input, cached or not")]
    cached_input_tokens: int
    output_tokens: int
    tokens: Annotated[int, Meta(description="As budgets book them")]
    cost_usd: Annotated[float, Meta(description="As far as prices are known")]
    wasted_tokens: Annotated[int, Meta(description="Of the tokens, those of attempts that came to nothing")]
    wasted_usd: Annotated[float, Meta(description="Of the cost, that of attempts that came to nothing")]
    waited_s: Annotated[float, Meta(description="In the queue, all requests together")]


class PlannedCall(Struct, frozen=True, forbid_unknown_fields=True):
    """The call that is thought of."""

    input_tokens: Annotated[int, Meta(ge=0, le=10**8, description="0: as large as your last call")] = 0
    output_tokens: Annotated[int, Meta(ge=0, le=10**8, description="0: as your last call")] = 0
    pool: Annotated[str, Meta(max_length=500, description="Pool name, host, or a glob of either")] = "*"


class PoolWait(Struct, frozen=True):
    """When one more call would be sent, in one pool."""

    pool: str
    starts_in_s: Annotated[float | None, Meta(description="0: at once; null: nothing tells")]
    before: Annotated[int, Meta(description="Requests that would go first")]
    reason: Annotated[str, Meta(description="What it would wait for; empty: nothing")]


class WaitEstimate(Struct, frozen=True):
    """When your next call would be sent."""

    summary: str
    starts_in_s: Annotated[
        float | None, Meta(description="In the pool that you used last; 0: at once; null: nothing tells")
    ]
    pools: tuple[PoolWait, ...]


class YieldTime(Struct, frozen=True, forbid_unknown_fields=True):
    """For how long."""

    seconds: Annotated[float, Meta(ge=1, le=_MAX_YIELD_S, description="It ends by itself")] = 60


class LowerTime(Struct, frozen=True, forbid_unknown_fields=True):
    """For how long, or no more."""

    seconds: Annotated[float, Meta(ge=1, le=_MAX_LOWERED_S, description="It ends by itself")] = 3600
    restore: Annotated[
        bool, Meta(description="True: take back what you lowered here before; seconds mean nothing then")
    ] = False


class ActionResult(Struct, frozen=True):
    """What became of it."""

    done: bool
    text: str


@tool("Where you stand in the queue")
def status(call: Call, _: NoArguments) -> OwnStatus:
    """See what the scheduler in front of the model provider does with your requests: which of them wait and why, who
    else runs, how full the provider's limits and your contexts are, what is left of your budget. Use it when calls are
    slow, before starting many sub-agents, when a conversation grows long, or when an error mentions hivemind. Changes
    nothing.
    """
    session = call.session
    agent, report = session.agent, session.report()
    snapshot = report.snapshot
    tickets = [(pool, one) for pool in snapshot.pools for one in pool.tickets]
    mine = [(pool, one) for pool, one in tickets if one.ticket.agent == agent]
    ordered = _order(snapshot, agent)
    groups = {one.ticket.group for _, one in mine}
    contexts = [one for one in reversed(report.contexts) if one.agent == agent]
    return OwnStatus(
        agent=agent,
        summary=_summary([one for _, one in mine]) + _fullest(contexts),
        requests=tuple(_request(pool, one) for pool, one in mine[:MAX_ROWS]),
        priority="" if ordered is None else ordered.priority.name.lower(),
        budgets=tuple(_budget(one) for one in snapshot.budgets if _binds(one, agent, groups)),
        others=_others((one for _, one in tickets), agent),
        pools=tuple(_pool(one) for one in snapshot.pools[:MAX_ROWS]),
        contexts=tuple(_context(one) for one in contexts[:MAX_ROWS]),
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
    """Of conversations that are likely to go on, where one is nearly full."""
    full = [one for one in contexts if one.is_full and one.seen_ago_s <= ACTIVE_S]
    if not full:
        return ""
    one = max(full, key=lambda context: context.share or 0.0)
    return f" Your conversation {one.session} fills {one.share or 0:.0%} of its model's context window."


def _context(one: ContextPressure) -> OwnContext:
    left = one.turns_left
    return OwnContext(
        session=one.session,
        model=one.model,
        tokens=one.tokens,
        window_tokens=one.window_tokens,
        full=None if one.share is None else round(one.share, 3),
        growth_per_turn=round(one.growth_per_turn),
        turns_left=None if left is None else int(left),
        cache_lapses_in_s=None if one.cache_lapses_in_s is None else _rounded(one.cache_lapses_in_s),
        compactions=one.compactions,
        lost_tokens=one.lost_tokens,
        compaction_usd=one.compaction_cost.micro_usd / 1e6,
    )


def _request(pool: PoolView, one: TicketView) -> OwnRequest:
    return OwnRequest(
        ticket=one.ticket.id,
        model=one.ticket.model,
        pool=str(pool.key),
        state=one.state,
        reason=one.why,
        position=one.position,
        attempts=one.attempts,
        waited_s=_rounded(one.waited_s),
        starts_in_s=None if one.starts_in_s is None else _rounded(one.starts_in_s),
    )


def _others(tickets: Iterable[TicketView], agent: str) -> tuple[OtherAgent, ...]:
    counted: dict[str, list[int]] = {}
    for one in tickets:
        if one.ticket.agent != agent:
            counted.setdefault(one.ticket.agent, [0, 0])[one.state is not RequestState.IN_FLIGHT] += 1
    return tuple(OtherAgent(name, running, waiting) for name, (running, waiting) in list(counted.items())[:MAX_ROWS])


def _pool(pool: PoolView) -> OwnPool:
    return OwnPool(
        pool=str(pool.key),
        running=pool.in_flight,
        limit=pool.limit,
        waiting=pool.queued,
        paused=pool.paused,
        blocked_for_s=_rounded(pool.blocked_for_s),
        trouble="; ".join(filter(None, (*troubles(pool).values(), maximum_words(pool.maximum_from)))),
    )


def _binds(view: BudgetView, agent: str, groups: set[str]) -> bool:
    match view.budget.scope:
        case Holder.AGENT:
            return view.budget.name == agent
        case Holder.GROUP:
            return view.budget.name in groups
        case Holder.EVERYONE:
            return True


def _budget(view: BudgetView) -> OwnBudget:
    account = account_view(view)
    money = account.left_micro_usd
    return OwnBudget(
        holder=account.holder,
        per=account.per.value,
        tokens_left=account.left_tokens,
        usd_left=None if money is None else money / 1e6,
        calls_left=account.left_calls,
        renews_in_s=None if account.renews_in_s is None else _rounded(account.renews_in_s),
    )


@tool("What you have used")
def metrics(call: Call, _: NoArguments) -> OwnMetrics:
    """Your own requests, tokens (all input, cached input, output), cost in US dollars, seconds waited, and failures
    that were retried for you: today's, or since the proxy's start where no journal is kept. Use it to report or to
    limit your own spending. Changes nothing.
    """
    session = call.session
    agent = session.agent
    try:
        return _of_today(agent, session)
    except NoJournal:
        return _of_this_run(agent, session.report())


def _of_today(agent: str, session: Session) -> OwnMetrics:
    """Raises NoJournal."""
    now = datetime.fromtimestamp(session.clock.wall()).astimezone()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    with JournalReader(session.journal()) as journal:
        asked = RequestFilter(span=Span(since=midnight.timestamp()), agent=session.caller.glob)
        cost = total(costs(journal, asked, GroupBy.AGENT))
    return OwnMetrics(
        agent=agent,
        since=f"midnight ({midnight.isoformat(timespec='minutes')})",
        requests=cost["requests"],
        delivered=cost["delivered"],
        running_or_waiting=cost["unfinished"],
        lost=cost["gave_up"] + cost["refused"] + cost["lost"],
        retries=cost["retries"],
        input_tokens=cost["tokens_in"],
        cached_input_tokens=cost["tokens_cached"],
        output_tokens=cost["tokens_out"],
        tokens=cost["tokens"],
        cost_usd=cost["micro_usd"] / 1e6,
        wasted_tokens=cost["wasted_tokens"],
        wasted_usd=cost["wasted_micro_usd"] / 1e6,
        waited_s=_rounded(cost["waited_s"]),
    )


def _of_this_run(agent: str, report: Report) -> OwnMetrics:
    mine = sum((one for one in report.stats.sessions if one.agent == agent), SessionStats(agent, ""))
    return OwnMetrics(
        agent=agent,
        since=f"the proxy's start, {span(max(0.0, report.told_wall - report.proxy.began_wall))} ago",
        requests=mine.tickets,
        delivered=mine.delivered,
        running_or_waiting=mine.live,
        lost=mine.lost + mine.refused,
        retries=mine.retries_absorbed,
        input_tokens=mine.usage.total_input_tokens,
        cached_input_tokens=mine.usage.cache_read_tokens,
        output_tokens=mine.usage.output_tokens,
        tokens=mine.tokens,
        cost_usd=mine.micro_usd / 1e6,
        wasted_tokens=mine.wasted_tokens,
        wasted_usd=mine.wasted_micro_usd / 1e6,
        waited_s=_rounded(mine.waited_s),
    )


@tool("When would my next call run?")
def wait_estimate(call: Call, planned: PlannedCall) -> WaitEstimate:
    """Foresee how many seconds a model call that you made now would wait before it is sent to the provider, and for
    what. Use it to choose between more work now and later, or how many sub-agents are worth it. Changes nothing and
    reserves nothing.
    """
    session = call.session
    said = session.tell(
        ForeseeWait(
            agent=session.agent,
            pool=planned.pool or "*",
            input_tokens=planned.input_tokens,
            output_tokens=planned.output_tokens,
        )
    )
    if not said.done:
        raise ToolFailed(said.text)
    pools = tuple(
        PoolWait(one.pool, one.starts_in_s, one.before, one.why)
        for one in convert(said.value or (), tuple[WaitView, ...])[:MAX_ROWS]
    )
    return WaitEstimate(summary=said.text, starts_in_s=pools[0].starts_in_s if pools else 0.0, pools=pools)


@tool("Let others go first for a while", effect=Effect.CHANGES, idempotent=True)
def yield_turn(call: Call, asked: YieldTime) -> ActionResult:
    """Give your requests the lowest priority for some seconds, so that other agents' requests go first. Use it when
    your work is not urgent and others wait. It ends by itself; your requests are never lost.
    """
    return _lower(call.session, asked.seconds)


@tool("Lower your own priority", effect=Effect.CHANGES, idempotent=True)
def lower_priority(call: Call, asked: LowerTime) -> ActionResult:
    """Have your own requests served after everybody else's for a long while, as background work. It ends by itself, or
    with restore true. You cannot raise yourself, nor undo what a person has set.
    """
    session = call.session
    if not asked.restore:
        return _lower(session, asked.seconds)
    if not session.lowered:
        return ActionResult(done=True, text="There is nothing to take back: you have not lowered your priority.")
    # Not for good: that would take back what a person has set, too.
    said = session.tell(SetPriority(session.caller.glob, None, for_s=_AT_ONCE_S, by=session.agent))
    session.lowered = not said.done
    return ActionResult(done=said.done, text="Your requests are served as before." if said.done else said.text)


def _lower(session: Session, for_s: float) -> ActionResult:
    """An order that ends by itself lies on those that a person has given, and these count again after it."""
    standing = _order(session.report().snapshot, session.agent)
    if standing is not None and standing.priority is Priority.LOW and not session.lowered:
        return ActionResult(done=True, text="You have priority low already: others go first.")
    if standing is not None and standing.ends_in_s is not None and not session.lowered:
        for_s = max(for_s, standing.ends_in_s)  # it takes that one's place, and must not end before it
    said = session.tell(SetPriority(session.caller.glob, Priority.LOW, for_s=for_s, by=session.agent))
    session.lowered = session.lowered or said.done
    return ActionResult(done=said.done, text=f"Others go first for {span(for_s)}." if said.done else said.text)


def _order(snapshot: Snapshot, agent: str) -> PriorityView | None:
    """The newest that was given for an agent; None: what it asks for counts."""
    return next((one for one in snapshot.priorities if names_agent(one.agent, agent)), None)


def _rounded(seconds: float) -> float:
    return round(seconds, 1)


TOOLS = (
    status,
    metrics,
    wait_estimate,
    yield_turn,
    lower_priority,
)
