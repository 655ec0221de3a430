"""A model call's bodies as a person reads them: who said what, what was thought, which tools were called.

Answers are assembled from their streams, as far as these came: broken and cut ones too.
"""

from collections.abc import Iterable

from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire.dialect import Dialect
from hivemind_addon.proxy.wire.dialects.registry import DIALECTS
from hivemind_addon.proxy.wire.parts import (
    Assembly,
    Part,
    Transcript,
    error_text,
    message_parts,
    objects_in,
    text_of,
    word_of,
)
from hivemind_addon.proxy.wire.sse import SseEvent
from hivemind_addon.system.json_values import read_value

__all__ = ["Part", "Transcript", "answer_of", "answer_of_events", "request_of"]


def answer_of(dialect_name: DialectName, body: bytes, plain: object = None) -> Transcript:
    """An answer, streamed or plain, complete or not. `plain`: its members, where they were read already."""
    dialect = DIALECTS[dialect_name]
    if plain is None and body.lstrip()[:1] == b"{":
        plain = read_value(body)
    if not isinstance(plain, dict):
        parser = dialect.parser()
        return _streamed(dialect, [*parser.feed(body), *parser.finish()])
    answer = Assembly()
    answer.out.error = error_text(plain)
    answer.out.model = word_of(plain.get("model"))
    dialect.read_answer(plain, answer)
    return answer.close()


def answer_of_events(dialect_name: DialectName, events: Iterable[SseEvent]) -> Transcript:
    """A streamed answer that was cut into events already."""
    return _streamed(DIALECTS[dialect_name], events)


def _streamed(dialect: Dialect, events: Iterable[SseEvent]) -> Transcript:
    answer = Assembly()
    for event in events:
        top = read_value(event.data)
        if isinstance(top, dict):
            answer.out.error = error_text(top) or answer.out.error
            dialect.read_event(event.event or word_of(top.get("type")), top, answer)
    return answer.close()


def request_of(dialect_name: DialectName, body: bytes) -> Transcript:
    """A request: its instructions, then its messages."""
    top = read_value(body)
    if not isinstance(top, dict):
        return Transcript()
    parts: list[Part] = []
    for name in ("system", "instructions"):
        parts += [Part("system", text) for text in (text_of(top.get(name)),) if text]
    conversation = top.get(DIALECTS[dialect_name].conversation)
    if isinstance(conversation, str):
        parts.append(Part("user", conversation))
    for message in objects_in(conversation):
        parts += message_parts(message)
    if isinstance(prompt := top.get("prompt"), str):
        parts.append(Part("user", prompt))
    return Transcript(parts=parts, model=word_of(top.get("model")))
