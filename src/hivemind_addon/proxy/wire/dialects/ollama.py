"""Ollama's own format: `/api/chat` and `/api/generate`."""

import msgspec

from hivemind_addon.api.ticket import Usage
from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire.dialect import ROLE_ONLY_DELTA, Dialect, EventClass, Members, tokens_at, with_delay
from hivemind_addon.proxy.wire.error import ErrorFacts, explicit_error
from hivemind_addon.proxy.wire.ndjson import NDJSON, NdjsonParser
from hivemind_addon.proxy.wire.parts import Assembly, Values, call_parts, members_of, word_of
from hivemind_addon.proxy.wire.request import NO_RAW, RequestBody
from hivemind_addon.proxy.wire.sse import SseEvent
from hivemind_addon.system.json_values import read_object, read_value


class _Options(msgspec.Struct):
    num_predict: msgspec.Raw = NO_RAW


_OPTIONS = msgspec.json.Decoder(_Options)


class _Ollama(Dialect):
    """One JSON object a line, a chat's or a completion's; the last one says `done`."""

    name = DialectName.OLLAMA
    media_type = NDJSON
    streams_unasked = True

    def parser(self) -> NdjsonParser:
        return NdjsonParser()

    def classify(self, event: SseEvent, bookkeeping: frozenset[str]) -> EventClass:
        top = read_object(event.data)
        if top is None:
            return EventClass.CONTENT
        if explicit_error(top) is not None:
            return EventClass.ERROR
        if read_value(top.get("done")) is True:
            return EventClass.TERMINAL
        if ROLE_ONLY_DELTA in bookkeeping and not any(_generated(top)):
            return EventClass.BOOKKEEPING
        return EventClass.CONTENT

    def classify_after_content(self, event: SseEvent) -> EventClass:
        # As in chat chunks: inside generated text the quotes are escaped.
        if b'"error"' in event.data or b'"done":true' in event.data or b'"done": true' in event.data:
            return self.classify(event, frozenset())
        return EventClass.CONTENT

    def is_only_content(self, event: SseEvent) -> bool:
        data = event.data
        return b'"done":false' in data and not any(mark in data for mark in (b"true", b'"error"', b'_count"'))

    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        return explicit_error(read_object(event.data) or {})

    def error_body(self, status: int, error: str, message: str, resets_at: int | None = None) -> bytes:  # noqa: ARG002
        return msgspec.json.encode({"error": message or error or "failed"})

    def error_event(self, error: str, message: str, retry_after_s: float | None) -> bytes:
        return msgspec.json.encode({"error": with_delay(message or error or "failed", retry_after_s)}) + b"\n"

    def max_output_tokens(self, body: RequestBody) -> int | None:
        options = body.read("options", _OPTIONS, body.outer.options)
        most = body.number("options.num_predict", options.num_predict) if options else None
        return most if most is not None and 0 < most < 1e9 else None  # -1 and -2: as much as there is room for

    def usage_of(self, top: Values, before: Usage | None = None) -> Usage | None:  # noqa: ARG002
        # `prompt_eval_count` is absent where the whole prompt came from the model's cache.
        input_tokens, output_tokens = tokens_at(top, "prompt_eval_count"), tokens_at(top, "eval_count")
        if input_tokens is None and output_tokens is None:
            return None
        return Usage(input_tokens=input_tokens or 0, output_tokens=output_tokens or 0, reported=True)

    def usage_of_event(self, event: SseEvent, before: Usage | None) -> tuple[Usage, bool] | None:  # noqa: ARG002
        top = read_object(event.data) if b'_count"' in event.data else None  # only the last line has them
        usage = self.usage_of(top) if top else None
        return None if usage is None else (usage, True)

    def had_input(self, usage: Usage) -> bool:
        return super().had_input(usage) or usage.output_tokens > 0  # it tells none of a prompt that its cache holds

    def read_answer(self, top: Values, answer: Assembly) -> None:
        self.read_event("", top, answer)

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:  # noqa: ARG002
        answer.out.model = answer.out.model or word_of(top.get("model"))
        message = members_of(top.get("message"))
        spoken = (
            (message.get("thinking") or top.get("thinking"), "thinking"),
            (message.get("content") or top.get("response"), "text"),
        )
        for piece, heading in spoken:
            if isinstance(piece, str) and piece:
                answer.part(heading, heading).text += piece
        answer.out.parts += call_parts(message)
        answer.out.stop = word_of(top.get("done_reason")) or answer.out.stop


def _generated(top: Members) -> list[object]:
    """What a line generates: text, thinking, tool calls; of `/api/chat` and of `/api/generate`."""
    message = read_value(top.get("message"))
    inner = message if isinstance(message, dict) else {}
    outer = [read_value(top.get(name)) for name in ("response", "thinking")]
    return [*(inner.get(name) for name in ("thinking", "content", "tool_calls")), *outer]


DIALECT = _Ollama()
