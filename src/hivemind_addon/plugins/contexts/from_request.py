"""A request becomes a context. Pure: a request's parts in, a value out; call it off the event loop."""

import hashlib
import json

from msgspec import Raw, Struct

from hivemind_addon.formats.base.json_values import read_object, read_value, readable
from hivemind_addon.formats.wire.decoding import DecodeError, decode
from hivemind_addon.formats.wire.dialect import Dialect
from hivemind_addon.formats.wire.request import MAX_BODY_BYTES, read_request, text_of
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import CallKind, Ticket
from hivemind_addon.plugins.contexts.values import Context, ContextHead, NotKept
from hivemind_addon.proxy.run.append_file import breathe_after

ELSEWHERE = "the earlier part of it is with the provider (previous_response_id), not here"
"""Said of a request that names an earlier answer instead of repeating what was said before."""

_ID_CHARS = 10
"""Hex digits of a context's id."""
_NOT_A_CONVERSATION = frozenset((CallKind.AUXILIARY, CallKind.CLASSIFIER, CallKind.PREWARM, CallKind.TOOL))


class SentRequest(Struct, frozen=True):
    """A request as the client meant to send it."""

    dialect: Dialect
    method: str
    url: str
    headers: dict[str, str]
    """Lower-case names; no credential among them."""
    body: bytes
    encoding: str
    """The body's content coding; empty: none."""


class _ReadBody(Struct, frozen=True):
    """The facts that a body states about the conversation."""

    body: bytes
    """As others can read it."""
    messages: int
    thread: str
    """The first thing that was asked."""
    continues: bool
    """The body names an earlier answer."""


def is_conversation(ticket: Ticket) -> bool:
    """Whether anybody would go on with the request: titles, checks of tool calls and cache warmers are none."""
    return ticket.kind not in _NOT_A_CONVERSATION


def take(
    ticket: Ticket,
    request: SentRequest,
    *,
    reason: str,
    now_wall: float,
    arrived_wall: float = 0.0,
    tokens: int = 0,
    spent: Spend = Spend(),  # noqa: B008 - it is frozen
    answer: bytes = b"",
    answer_id: str = "",
) -> Context:
    """Make a context of a request. Raises NotKept.

    `arrived_wall`: when the request came, in epoch seconds. `tokens`: of the input. `spent`: since the version before.
    `answer`: a whole answer, decoded; empty: there is none. `answer_id`: the provider's name for the answer.
    """
    read = _read(plain_body(request), request.dialect)
    head = ContextHead(
        id=_id(ticket, read.thread),
        version=0,
        kept_wall=now_wall,
        agent=ticket.agent,
        session=ticket.session,
        parent_session=ticket.parent_session,
        task=ticket.task,
        model=ticket.model,
        dialect=request.dialect.name,
        host=ticket.pool.host,
        path="/" + request.url.partition("://")[2].partition("/")[2].partition("?")[0],
        reason=f"{reason}; {ELSEWHERE}" if read.continues else reason,
        messages=read.messages,
        tokens=tokens,
        body_bytes=len(read.body),
        kind=ticket.kind.value,
        spent=spent,
        arrived_wall=arrived_wall,
        request_hash=ticket.request_hash,
        ticket_id=ticket.id,
    )
    return Context(
        head=head,
        method=request.method,
        url=request.url,
        headers=request.headers,
        body=Raw(read.body),
        answer=answer,
        answer_id=answer_id,
    )


def plain_body(request: SentRequest) -> bytes:
    """The body without content coding. Raises NotKept."""
    if not request.encoding:
        return request.body
    try:
        return decode(request.body, request.encoding, MAX_BODY_BYTES)
    except DecodeError as error:
        raise NotKept(f"its body cannot be decoded: {error}") from error


def _read(body: bytes, dialect: Dialect) -> _ReadBody:
    facts = read_request(body, dialect.plan)
    if not facts.messages:
        raise NotKept("there is no conversation in it")
    breathe_after(len(body))
    if (same := readable(body)) is None:
        raise NotKept("its body is no JSON object")
    if same is not body:
        facts = read_request(same, dialect.plan)
    breathe_after(len(body))
    return _ReadBody(same, len(facts.messages), _thread(dialect, facts.messages), facts.continues)


def _thread(dialect: Dialect, messages: tuple[Raw, ...]) -> str:
    """The first thing that was asked, which stays while a conversation grows; marks of a prompt cache do not."""
    first = next((raw for raw in messages if read_value((read_object(raw) or {}).get("role")) == "user"), messages[0])
    message = read_value(first)
    parts = dialect.message_parts(message) if isinstance(message, dict) else []
    return "\n".join(part.text for part in parts) or text_of(first)


def _id(ticket: Ticket, thread: str) -> str:
    """The same for all requests of a conversation."""
    whose = json.dumps((ticket.agent, ticket.session, thread))
    return hashlib.sha256(whose.encode()).hexdigest()[:_ID_CHARS]
