"""Events → how full each conversation's context is, how fast it grows, and what its compactions cost and lost. Pure.

One look at each attempt that was answered; no body is read. What a request carried is what its provider counted, all
input and the output; the next request carries at least as much.

    compaction   a turn carries less than 90 % of the last one, after a call that made a summary (CallKind.COMPACTION);
                 less than all of it, where the proxy has taken something out; else less than 60 %, and so does the
                 turn after it: a title that an agent asks for between two turns is small, too
    lost         tokens of the last turn before it, less the input of the first after it
    cost         of the calls that made the summary, where a profile knows them
    full         told once where a share of the context window is passed, and again only after it was a tenth below it

Of a bounded size: the conversations that were seen last.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hivemind_addon.kernel.values.events import (
    AttemptEnded,
    ContextCompacted,
    ContextFull,
    ContextShrank,
    Event,
    Submitted,
    TicketEnded,
)
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import CallKind, OutcomeKind, PoolKey, Ticket
from hivemind_addon.proxy.api.report import ContextPressure

CONTEXTS = 1_000
TOLD = 500
"""Of these, what a report has: it is made once a second, on the event loop."""
DEFAULT_WARNING = 0.8
"""The share of a context window from which on it counts as full."""
_BACK = 0.9
"""Of that share, below which it is full no more."""
_SHRUNK = 0.6
"""A turn that carries less than this part of the last one, without a summary, may begin a shorter context."""
_LEAST_TOKENS = 2_000
"""What shrinks from less was no conversation yet."""
_NEWEST = 0.3
"""Weight of the newest turn in the growth per turn."""
_GOES_ON = 0.9
"""A turn that carries this part of what was carried before a small one shows that the small one was no compaction."""
_NEVER = float("-inf")
_TURNS = (CallKind.TURN, CallKind.SUBAGENT)


@dataclass(slots=True, eq=False)
class _Context:
    """One conversation's."""

    agent: str
    session: str
    pool: PoolKey
    """Of its newest turn."""
    model: str = ""
    tokens: int = 0
    window_tokens: int | None = None
    outgrown: str = ""
    """A model whose context window proved to be larger than its profile says."""
    turns: int = 0
    growth: float | None = None
    """Tokens per turn; None: there was one turn only."""
    lapses_at: float = _NEVER
    seen_at: float = 0.0
    is_full: bool = False
    summary: Spend | None = None
    """Of calls that made summaries since the last turn; None: there was none."""
    is_cut: bool = False
    """The proxy has taken something out since the last turn."""
    before: int = 0
    """What the last large turn carried, while it is open whether the small one after it begins a shorter context."""
    after: int = 0
    """And the input of that small one."""
    compactions: int = 0
    cost: Spend = field(default_factory=Spend)
    lost_tokens: int = 0
    newest_before: int = 0
    newest_after: int = 0

    @property
    def share(self) -> float | None:
        """Of the context window; None: that is not known."""
        return min(1.0, self.tokens / self.window_tokens) if self.window_tokens else None


class Contexts:
    """An observer. Decides nothing."""

    def __init__(self, catch_up: Callable[[], None] = lambda: None) -> None:
        """`catch_up` hands over the events that have been kept back."""
        self._catch_up = catch_up
        self.tell: Callable[[Event], None] = lambda _: None
        """Gets what is worth an event: a context that is full, and one that has shrunk."""
        self.warn_at = DEFAULT_WARNING
        """The share of a context window from which on it counts as full; 0: none does."""
        self._contexts: dict[tuple[str, str], _Context] = {}
        """By agent and session; the one that was seen last is at the end."""
        self._live: dict[str, Ticket] = {}
        """Tickets of conversations that have not ended."""

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if type(event) is AttemptEnded:
            if event.outcome.kind is OutcomeKind.SUCCESS and event.usage is not None:
                ticket = self._live.get(event.ticket_id)
                if ticket is not None:
                    self._answered(ticket, event, event.usage.total_input_tokens, event.usage.output_tokens)
        elif type(event) is Submitted:
            ticket = event.ticket
            if ticket.kind in _TURNS or ticket.kind is CallKind.COMPACTION:
                self._live[ticket.id] = ticket
        elif type(event) is TicketEnded:
            self._live.pop(event.ticket_id, None)
        elif type(event) is ContextCompacted and (context := self._contexts.get((event.agent, event.session))):
            context.is_cut = True

    def view(self, now: float) -> tuple[ContextPressure, ...]:
        """The newest, the one that was seen last at the end."""
        self._catch_up()
        newest = list(self._contexts.values())[-TOLD:]
        return tuple(_view(context, now) for context in newest if context.turns)

    def __len__(self) -> int:
        return len(self._contexts)

    def _answered(self, ticket: Ticket, event: AttemptEnded, input_tokens: int, output_tokens: int) -> None:
        key = ticket.agent, ticket.session
        context = self._contexts.pop(key, None) or _Context(*key, event.pool)
        self._contexts[key] = context
        if len(self._contexts) > CONTEXTS:
            del self._contexts[next(iter(self._contexts))]
        context.seen_at = event.at
        if ticket.cache_s:
            context.lapses_at = event.at - event.duration_s + ticket.cache_s
        if ticket.kind is CallKind.COMPACTION:
            context.summary = (context.summary or Spend()) + event.spend
            if not context.turns:
                context.tokens = input_tokens  # it began before this process
            return
        context.model, context.pool, context.window_tokens = ticket.model, event.pool, ticket.window_tokens
        if context.window_tokens and input_tokens > context.window_tokens:
            context.outgrown = ticket.model
        if context.outgrown == ticket.model:
            context.window_tokens = None
        self._turn(context, event.at, input_tokens, input_tokens + output_tokens)
        self._judge(context, event.at)

    def _turn(self, context: _Context, at: float, input_tokens: int, tokens: int) -> None:
        last, is_cut = context.tokens, context.is_cut
        context.turns += 1
        context.tokens, context.is_cut = tokens, False
        if context.before:
            before, after, context.before = context.before, context.after, 0
            if input_tokens >= _GOES_ON * before:
                last = before  # the small one was none of its turns
            else:
                self._shrank(context, at, before, after)
        if is_cut and input_tokens < last:
            self._shrank(context, at, last, input_tokens, by_proxy=True)
        elif context.summary is not None and input_tokens < _GOES_ON * last:
            self._shrank(context, at, last, input_tokens)
        elif not last:
            pass  # its first turn
        elif input_tokens >= _SHRUNK * last or last < _LEAST_TOKENS:
            # A summary that has changed nothing yet may be for later: its cost waits for the turn that is smaller.
            grown = max(0, tokens - last)
            context.growth = grown if context.growth is None else context.growth + _NEWEST * (grown - context.growth)
        else:
            context.before, context.after = last, input_tokens

    def _shrank(self, context: _Context, at: float, before: int, after: int, *, by_proxy: bool = False) -> None:
        spend, context.summary = context.summary or Spend(), None
        context.compactions += 1
        context.cost += spend
        context.lost_tokens += before - after
        context.newest_before, context.newest_after = before, after
        self.tell(
            ContextShrank(
                at=at,
                pool=context.pool,
                agent=context.agent,
                session=context.session,
                model=context.model,
                before_tokens=before,
                after_tokens=after,
                spend=spend,
                by_proxy=by_proxy,
            )
        )

    def _judge(self, context: _Context, at: float) -> None:
        share, warn_at = context.share, self.warn_at
        if share is None or not warn_at or share < _BACK * warn_at:
            context.is_full = False
        elif share >= warn_at and not context.is_full:
            context.is_full = True
            self.tell(
                ContextFull(
                    at=at,
                    pool=context.pool,
                    agent=context.agent,
                    session=context.session,
                    model=context.model,
                    tokens=context.tokens,
                    window_tokens=context.window_tokens or 0,
                    growth_per_turn=context.growth or 0.0,
                )
            )


def _view(context: _Context, now: float) -> ContextPressure:
    return ContextPressure(
        agent=context.agent,
        session=context.session,
        model=context.model,
        tokens=context.tokens,
        window_tokens=context.window_tokens,
        growth_per_turn=context.growth or 0.0,
        turns=context.turns,
        seen_ago_s=max(0.0, now - context.seen_at),
        cache_lapses_in_s=None if context.lapses_at == _NEVER else max(0.0, context.lapses_at - now),
        is_full=context.is_full,
        compactions=context.compactions,
        compaction_cost=context.cost,
        lost_tokens=context.lost_tokens,
        newest_before_tokens=context.newest_before,
        newest_after_tokens=context.newest_after,
    )
