"""Events → OpenTelemetry spans: one a ticket, from its arrival to its end, and below it one for each attempt.

Names are those of OpenTelemetry's conventions for generative AI (https://github.com/open-telemetry/semantic-conventions-genai,
2026-11) where these have one, else `hivemind.*`. Tokens stand on attempts only, so that no sum counts them twice.
Spans hold no prompts and no answers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from hivemind_addon.kernel.values.events import (
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    CommittedStreamFailed,
    Event,
    GuardTripped,
    Held,
    Moved,
    Submitted,
    Superseded,
    TicketEnded,
)
from hivemind_addon.kernel.values.ticket import OutcomeKind, PoolKey, Ticket, Usage
from hivemind_addon.proxy.api.words import plain

LIVE = 10_000
"""Tickets that are traced at the same time; those that come then are not."""

_PROVIDERS = {
    "anthropic.com": "anthropic",
    "openai.com": "openai",
    "chatgpt.com": "openai",
    "deepseek.com": "deepseek",
    "groq.com": "groq",
    "mistral.ai": "mistral_ai",
    "x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
}
"""The conventions' own words for `gen_ai.provider.name`, by the end of the host; any other is named by its host."""

Value = str | int | float | bool


@dataclass(slots=True)
class _Live:
    """A ticket that has not ended."""

    ticket: Ticket
    span: Span
    ahead_s: float
    """From a monotonic instant to epoch seconds, as it was when the ticket came: a clock that is set bends no span."""
    attempt: Span | None = None

    def ns(self, at: float) -> int:
        return int((at + self.ahead_s) * 1e9)


class Traces:
    """An observer. Whoever made the tracer exports and flushes."""

    hears = frozenset(
        {
            Submitted,
            Held,
            AttemptStarted,
            AttemptEnded,
            BackedOff,
            Moved,
            Superseded,
            CommittedStreamFailed,
            GuardTripped,
            TicketEnded,
        }
    )
    """What spans tell."""

    def __init__(self, tracer: Tracer, *, wall: Callable[[float], float]) -> None:
        """`wall` makes epoch seconds of a monotonic instant."""
        self._tracer = tracer
        self._wall = wall
        self._live: dict[str, _Live] = {}

    def __call__(self, event: Event) -> None:
        """Hear of one event."""
        if isinstance(event, Submitted):
            self._submitted(event)
            return
        live = self._live.get(getattr(event, "ticket_id", None) or "")
        if live is None:
            return
        match event:
            case Held():
                self._note(
                    live, event, "held", {"hivemind.reason": event.reason.value, "hivemind.place": event.position}
                )
            case AttemptStarted():
                self._started(live, event)
            case AttemptEnded():
                self._ended(live, event)
            case BackedOff():
                wait_s = event.until - event.at
                self._note(live, event, "backed off", {"hivemind.reason": event.reason, "hivemind.wait_s": wait_s})
            case Moved():
                self._note(live, event, "moved", {"hivemind.pool": plain(str(event.pool))})
            case Superseded():
                self._note(live, event, "superseded", {"hivemind.by_ticket": event.by_ticket_id})
            case CommittedStreamFailed():
                self._note(live, event, "committed, then failed", {"hivemind.reason": event.reason})
            case GuardTripped():
                self._note(live, event, "guard trip", {"hivemind.reason": f"{event.where}: {event.error}"})
            case TicketEnded():
                self._ticket_ended(live, event)
            case _:
                pass

    def close(self, now: float) -> None:
        """End the spans of what still lives."""
        for live in self._live.values():
            for span in (live.attempt, live.span):
                if span is not None:
                    span.set_status(Status(StatusCode.ERROR, "the proxy has ended"))
                    span.end(live.ns(now))
        self._live.clear()

    def _submitted(self, event: Submitted) -> None:
        ticket = event.ticket
        if len(self._live) >= LIVE:
            return
        ahead_s = self._wall(event.at) - event.at
        arrived_at = min(ticket.arrived_at, event.at)
        model = plain(ticket.model)
        attributes = {
            "gen_ai.request.model": model,
            "gen_ai.agent.name": plain(ticket.agent),
            "gen_ai.conversation.id": plain(ticket.session),
            "hivemind.ticket": ticket.id,
            "hivemind.agent": plain(ticket.agent),
            "hivemind.session": plain(ticket.session),
            "hivemind.pool": plain(str(ticket.pool)),
            "hivemind.priority": ticket.priority.name.lower(),
            "hivemind.kind": ticket.kind.value,
        }
        if ticket.parent_session:
            attributes["hivemind.parent_session"] = plain(ticket.parent_session)
        span = self._tracer.start_span(
            f"ticket {model}",
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=int((arrived_at + ahead_s) * 1e9),
        )
        self._live[ticket.id] = _Live(ticket, span, ahead_s)

    def _started(self, live: _Live, event: AttemptStarted) -> None:
        ticket = live.ticket
        model = plain(ticket.model)
        live.attempt = self._tracer.start_span(
            f"chat {model}",
            context=set_span_in_context(live.span),
            kind=SpanKind.CLIENT,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": model,
                "gen_ai.request.stream": ticket.streamed,
                "hivemind.ticket": ticket.id,
                "hivemind.attempt": event.attempt,
                "hivemind.wait_s": event.waited_s,
                "hivemind.in_flight": event.in_flight,
                **_server(event.pool),
            },
            start_time=live.ns(event.at),
        )

    def _ended(self, live: _Live, event: AttemptEnded) -> None:
        span, live.attempt = live.attempt, None
        if span is None:
            return
        outcome = event.outcome
        span.set_attributes({"hivemind.outcome": outcome.kind.value, "hivemind.reason": plain(outcome.reason)})
        if outcome.status is not None:
            span.set_attribute("http.response.status_code", outcome.status)
        if event.usage is not None:
            span.set_attributes(_tokens(event.usage))
        if outcome.kind not in (OutcomeKind.SUCCESS, OutcomeKind.CANCELLED):
            # A low-cardinality word, as the convention asks for: the status, else our own kind.
            span.set_attribute("error.type", str(outcome.status or outcome.kind.value))
            span.set_status(Status(StatusCode.ERROR, plain(outcome.reason)))
        span.end(live.ns(event.at))

    def _ticket_ended(self, live: _Live, event: TicketEnded) -> None:
        del self._live[event.ticket_id]
        if live.attempt is not None:  # it went past the scheduler to its end
            live.attempt.end(live.ns(event.at))
        live.span.set_attributes(
            {
                "hivemind.end": event.end,
                "hivemind.reason": plain(event.last_outcome or event.reason),
                "hivemind.attempts": event.attempts,
                "hivemind.wait_s": event.waited_s,
            }
        )
        if event.end not in ("delivered", "cancelled"):
            live.span.set_attribute("error.type", event.end)
            live.span.set_status(Status(StatusCode.ERROR, plain(event.reason)))
        live.span.end(live.ns(event.at))

    def _note(self, live: _Live, event: Event, name: str, attributes: Mapping[str, Value]) -> None:
        told = {key: plain(value) if isinstance(value, str) else value for key, value in attributes.items()}
        live.span.add_event(name, told, live.ns(event.at))


def _server(pool: PoolKey) -> dict[str, Value]:
    host, _, port = pool.host.partition(":")
    name = next((name for end, name in _PROVIDERS.items() if host == end or host.endswith(f".{end}")), host)
    server: dict[str, Value] = {"gen_ai.provider.name": name, "server.address": host}
    return server | {"server.port": int(port)} if port.isdecimal() else server


def _tokens(usage: Usage) -> dict[str, Value]:
    return {
        "gen_ai.usage.input_tokens": usage.total_input_tokens,  # the convention counts cached ones in
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "hivemind.usage.reported": usage.reported,
    }
