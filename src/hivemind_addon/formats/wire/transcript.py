"""A model call's bodies as a person reads them: who said what, what was thought, which tools were called.

Answers are assembled from their streams, as far as these came: broken and cut ones too.
"""

from collections.abc import Iterable

from hivemind_addon.formats.base.json_values import read_value
from hivemind_addon.formats.wire.conversation_parts import Assembly, Part, Transcript, error_text, objects_in, word_of
from hivemind_addon.formats.wire.dialect import Dialect, dialect_named
from hivemind_addon.formats.wire.sse import BOM, SseEvent
from hivemind_addon.formats.wire.wordings.places import system_text

__all__ = ["Part", "Transcript", "answer_of", "answer_of_events", "dialect_named", "request_of"]


def answer_of(dialect: Dialect, body: bytes, plain: object = None, media_type: str = "") -> Transcript:
    """An answer, streamed or plain, complete or not. `plain`: its members, where they were read already."""
    if plain is None and (one := one_object(body)).startswith(b"{"):
        plain = read_value(one)
    if not isinstance(plain, dict):
        parser = dialect.parser(media_type or dialect.media_type_in(body) or "")
        events = [*parser.feed(body), *parser.finish()]
        if dialect.unwrapper is not None:
            events = list(map(dialect.unwrapper.unwrap, events))
        return _streamed(dialect, events)
    members = dialect.inner(plain)
    answer = Assembly()
    answer.out.error = error_text(members)
    answer.out.model = word_of(members.get("model"))
    dialect.wording.read_answer(members, answer)
    return answer.close()


def one_object(body: bytes) -> bytes:
    """An answer without what stands around its object: some gateways send `data: [DONE]` behind it (2026-11)."""
    body = body.removeprefix(BOM).lstrip()
    return body.partition(b"\ndata:")[0] if body.startswith(b"{") else body


def answer_of_events(dialect: Dialect, events: Iterable[SseEvent]) -> Transcript:
    """A streamed answer that was cut into events already."""
    return _streamed(dialect, events)


def _streamed(dialect: Dialect, events: Iterable[SseEvent]) -> Transcript:
    answer, read_event = Assembly(), dialect.wording.read_event
    whole = Assembly()
    for event in events:
        top = read_value(event.data)
        if isinstance(top, dict):
            kind = top.get("type")
            if "error" in top or "response" in top or kind == "error":
                answer.out.error = error_text(top) or answer.out.error
            read_event(event.event or word_of(kind), top, answer)
            if not answer.out.parts and not whole.out.parts:  # some gateways send a whole answer as an event (2026-11)
                dialect.wording.read_answer(dialect.inner(top), whole)
    return (answer if answer.out.parts or not whole.out.parts else whole).close()


def request_of(dialect: Dialect, body: bytes) -> Transcript:
    """A request: its instructions, then its messages."""
    top = read_value(body)
    if not isinstance(top, dict):
        return Transcript()
    plan = dialect.plan
    instructions = (system_text(_at(top, way)) for way in plan.preamble.ways if way not in plan.tools.ways)
    parts = [Part("system", text) for text in instructions if text]
    for way in plan.messages.ways:
        conversation = _at(top, way)
        if isinstance(conversation, str):
            parts.append(Part("user", conversation))
        for message in objects_in(conversation):
            parts += dialect.message_parts(message)
    model = next((word for way in plan.model.ways if (word := word_of(_at(top, way)))), "")
    return Transcript(parts=parts, model=model)


def _at(top: object, way: tuple[str, ...]) -> object:
    for name in way:
        top = top.get(name) if isinstance(top, dict) else None
    return top
