"""What the simulated provider reads from a request. Pure: headers and body in, facts out.

Any request may steer its own answer: `x-sim-chunks`, `x-sim-interval-ms`, `x-sim-latency-ms`,
`x-sim-cached-tokens`; name what it marks for the prompt cache, shortest first (`x-sim-prefixes: shared=24000,
mine=25100`, each a key and the tokens up to its mark); and name who the truth counts it for: `x-sim-agent`, else the
name in its task.
"""

import zlib
from collections.abc import Mapping

import msgspec

from hivemind_addon.sim.call import SimRequestFacts
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.faults import ErrorStatus
from hivemind_addon.sim.limits import Prefix
from hivemind_addon.sim.route import SimTarget
from hivemind_addon.sim.sigv4 import key_id
from hivemind_addon.sim.task import next_turn, task_in

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Of a model call; a larger one is a 413."""
BYTES_PER_TOKEN = 4
"""As the simulated provider counts."""
_LOCAL = "sk-sim-local"


class _Options(msgspec.Struct):
    """What the formats say in an object of its own."""

    include_usage: bool = False
    num_predict: int | None = None
    max_tokens: int | None = msgspec.field(name="maxTokens", default=None)
    max_output_tokens: int | None = msgspec.field(name="maxOutputTokens", default=None)


class _Call(msgspec.Struct):
    """A model call's body, in any format; fields that do not matter here are skipped unread."""

    model: str | None = None
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    contents: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    stream_options: _Options | None = None
    options: _Options | None = None
    generation: _Options | None = msgspec.field(name="generationConfig", default=None)
    inference: _Options | None = msgspec.field(name="inferenceConfig", default=None)
    request: "_Call | None" = None
    """In Code Assist's envelope."""

    def maximum(self, dialect: SimDialect) -> int | None:
        """Output tokens that are wanted at most."""
        match dialect:
            case SimDialect.CHAT:
                return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
            case SimDialect.RESPONSES:
                return self.max_output_tokens
            case SimDialect.OLLAMA:
                return self.options.num_predict if self.options else None
            case SimDialect.CONVERSE:
                return self.inference.max_tokens if self.inference else None
            case SimDialect.GEMINI | SimDialect.GEMINI_ARRAY | SimDialect.CODE_ASSIST:
                return self.generation.max_output_tokens if self.generation else None
            case _:
                return self.max_tokens


_decode = msgspec.json.Decoder(_Call).decode
_PROMPTS = {
    SimDialect.RESPONSES: "input",
    SimDialect.GEMINI: "contents",
    SimDialect.GEMINI_ARRAY: "contents",
    SimDialect.CODE_ASSIST: "contents",
}
"""The member that holds the prompt; in other dialects `messages`."""


def input_tokens(body: bytes | bytearray) -> int:
    """The simulator's own count: one for four bytes, and at least one."""
    return max(1, len(body) // BYTES_PER_TOKEN)


def credential(headers: Mapping[str, str]) -> str:
    """The API key, of whichever header; empty when there is none."""
    for name in ("x-api-key", "x-goog-api-key", "api-key"):
        if key := headers.get(name):
            return key
    authorization = headers.get("authorization", "")
    return key_id(authorization) or authorization.removeprefix("Bearer ").strip()


def facts(target: SimTarget, headers: Mapping[str, str], body: bytes | bytearray, size: int) -> SimRequestFacts:
    """The request as the provider's model sees it; what is wrong with it becomes `unfit`.

    `headers`: lower-case names. `size`: bytes that arrived, of which `body` holds MAX_BODY_BYTES at most.
    """
    dialect = target.dialect
    key = credential(headers) or target.key or ""
    if not key and dialect is SimDialect.OLLAMA:
        key = _LOCAL  # a local server asks for none
    task = task_in(body)
    agent = headers.get("x-sim-agent") or (task.name if task else None)

    def unfit(status: int, message: str) -> SimRequestFacts:
        return SimRequestFacts(dialect, key, agent=agent, unfit=ErrorStatus(status, message=message))

    if not key:
        return unfit(401, "no API key")
    if size > MAX_BODY_BYTES:
        return unfit(413, f"the request is larger than {MAX_BODY_BYTES} bytes")
    try:
        outer = _decode(body)
        call = (outer.request or outer) if dialect is SimDialect.CODE_ASSIST else outer
        if getattr(call, prompt := _PROMPTS.get(dialect, "messages")) is msgspec.UNSET:
            return unfit(400, f"{prompt} is missing")
        if (model := target.model or outer.model) is None:
            return unfit(400, "model is missing")
        stream = call.stream if target.stream is None else target.stream
        chunks = headers.get("x-sim-chunks")
        interval_ms = headers.get("x-sim-interval-ms")
        latency_ms = headers.get("x-sim-latency-ms")
        tokens = input_tokens(body)
        return SimRequestFacts(
            dialect=dialect,
            credential=key,
            model=model,
            stream=stream is not False if dialect is SimDialect.OLLAMA else stream is True,
            input_tokens=tokens,
            cached_tokens=min(tokens, max(0, int(headers.get("x-sim-cached-tokens", "0")))),
            max_tokens=call.maximum(dialect),
            include_usage=call.stream_options is not None and call.stream_options.include_usage,
            digest=f"{zlib.crc32(body):08x}",
            agent=agent,
            chunks=None if chunks is None else int(chunks),
            interval_s=None if interval_ms is None else float(interval_ms) / 1000,
            latency_s=None if latency_ms is None else float(latency_ms) / 1000,
            prefixes=tuple(
                Prefix(key.strip(), int(tokens_to_mark))
                for key, _, tokens_to_mark in (
                    one.rpartition("=") for one in headers.get("x-sim-prefixes", "").split(",") if one
                )
            ),
            turn=next_turn(task, dialect, body) if task else None,
        )
    except (msgspec.MsgspecError, ValueError) as error:
        return unfit(400, str(error))
