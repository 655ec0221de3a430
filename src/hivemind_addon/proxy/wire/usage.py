"""Tokens as providers report them, in plain and in streamed answers.

`Usage.input_tokens` is uncached input. OpenAI's formats count cached tokens (read and written) inside
`prompt_tokens` / `input_tokens`, so these are taken out; Anthropic counts them beside it.

A usage that cannot be true counts as none, with all of its numbers: where one is negative, no whole number or larger
than any model takes, and where an answer is said to have had no input. It would be booked, and learned from.
"""

from collections.abc import Mapping

import msgspec

from hivemind_addon.api.ticket import Usage
from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire.sse import SseEvent
from hivemind_addon.system.json_values import read_object, read_value

_MAX_TOKENS = 20_000_000
"""Twice the longest context that any provider offers (10 million, 2026-08)."""
_Members = Mapping[str, msgspec.Raw]
_RESPONSES_ENDS = {"response.completed", "response.incomplete", "response.failed"}


class _Untrue(ValueError):
    """A number of tokens that no answer has."""


def usage_in_body(dialect_name: DialectName, body: bytes) -> Usage | None:
    """The usage of a whole answer; None when it reports none that can be read and be true."""
    top = read_object(body)
    try:
        usage = None if top is None else _usage(dialect_name, top, None)
    except _Untrue:
        return None
    return usage if usage is not None and _had_input(dialect_name, usage) else None


class UsageReader:
    """Collects the usage of one streamed answer."""

    def __init__(self, dialect_name: DialectName) -> None:
        self._dialect_name = dialect_name
        self._told: Usage | None = None
        self._told_output = False

    def __repr__(self) -> str:
        return f"<UsageReader {'final' if self.final else 'open'} {self.usage}>"

    @property
    def usage(self) -> Usage | None:
        """What was reported so far; None: nothing, or what cannot be true."""
        if self._told is not None and self._told_output and not _had_input(self._dialect_name, self._told):
            return None
        return self._told

    @property
    def final(self) -> bool:
        """Whether the output was reported; Anthropic's first event tells only the input."""
        return self._told_output and self.usage is not None

    def feed(self, event: SseEvent) -> None:
        """Look at one event; cheap for those that carry no usage."""
        try:
            self._feed(event)
        except _Untrue:
            self._told, self._told_output = None, False

    def _feed(self, event: SseEvent) -> None:
        match self._dialect_name:
            case DialectName.ANTHROPIC_MESSAGES:
                if event.event in {"message_start", "message_delta"} or not event.event:
                    self._feed_anthropic(event)
            case DialectName.OPENAI_CHAT:
                if b'"usage"' in event.data:
                    self._take(read_object(event.data))
            case DialectName.OPENAI_RESPONSES:
                if event.event in _RESPONSES_ENDS or (not event.event and b'"usage"' in event.data):
                    self._take(_members(read_object(event.data) or {}, "response"))
            case DialectName.OLLAMA:
                if b'_count"' in event.data:  # only the last line has them
                    self._take(read_object(event.data))

    def _feed_anthropic(self, event: SseEvent) -> None:
        if b'"usage"' not in event.data:
            return
        top = read_object(event.data) or {}
        message = _members(top, "message")
        usage = _usage(self._dialect_name, message or top, self._told)
        if usage is not None:
            self._told = usage
            self._told_output = self._told_output or not message

    def _take(self, top: _Members | None) -> None:
        usage = _usage(self._dialect_name, top, None) if top else None
        if usage is not None:
            self._told = usage
            self._told_output = True


def _members(top: _Members, name: str) -> _Members:
    raw = top.get(name)
    return {} if raw is None else read_object(raw) or {}


def _tokens(members: _Members, name: str) -> int | None:
    """A number of tokens; None: none is told. Raises _Untrue."""
    raw = members.get(name)
    value = read_value(raw)
    if value is None and (raw is None or bytes(raw) == b"null"):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_TOKENS:
        raise _Untrue
    return value


def _had_input(dialect_name: DialectName, usage: Usage) -> bool:
    """Whether a usage has input, as every answer had; Ollama tells none of a prompt that its cache holds."""
    return usage.total_input_tokens > 0 or (dialect_name is DialectName.OLLAMA and usage.output_tokens > 0)


def _usage(dialect_name: DialectName, top: _Members, before: Usage | None) -> Usage | None:
    """The usage among the members of an answer; what it does not tell is taken from `before`."""
    members = _members(top, "usage")
    match dialect_name:
        case DialectName.ANTHROPIC_MESSAGES:
            return _anthropic(members, before)
        case DialectName.OPENAI_CHAT:
            return _openai(members or _members(_members(top, "x_groq"), "usage"), "prompt", "completion")
        case DialectName.OPENAI_RESPONSES:
            return _openai(members, "input", "output")
        case DialectName.OLLAMA:
            return _ollama(top)


def _anthropic(members: _Members, before: Usage | None) -> Usage | None:
    input_tokens = _tokens(members, "input_tokens")
    output_tokens = _tokens(members, "output_tokens")
    if input_tokens is None and output_tokens is None:
        return None
    base = before or Usage()
    cache_read_tokens = _tokens(members, "cache_read_input_tokens")
    cache_write_tokens = _tokens(members, "cache_creation_input_tokens")
    return Usage(
        # Gateways that tell the input at the beginning may send zeros in the end.
        input_tokens=input_tokens or base.input_tokens,
        cache_read_tokens=cache_read_tokens or base.cache_read_tokens,
        cache_write_tokens=cache_write_tokens or base.cache_write_tokens,
        output_tokens=base.output_tokens if output_tokens is None else output_tokens,
        reported=True,
    )


def _openai(members: _Members, input_name: str, output_name: str) -> Usage | None:
    all_input_tokens = _tokens(members, f"{input_name}_tokens")
    output_tokens = _tokens(members, f"{output_name}_tokens")
    if all_input_tokens is None and output_tokens is None:
        return None
    details = _members(members, f"{input_name}_tokens_details")
    cached_tokens = _tokens(details, "cached_tokens")
    if cached_tokens is None:
        cached_tokens = _tokens(members, "prompt_cache_hit_tokens") or 0  # DeepSeek
    total_tokens = all_input_tokens or 0
    cache_read_tokens = min(cached_tokens, total_tokens)
    cache_write_tokens = min(_tokens(details, "cache_write_tokens") or 0, total_tokens - cache_read_tokens)
    return Usage(
        input_tokens=total_tokens - cache_read_tokens - cache_write_tokens,
        cache_read_tokens=cache_read_tokens,
        cache_write_tokens=cache_write_tokens,
        output_tokens=output_tokens or 0,
        reported=True,
    )


def _ollama(top: _Members) -> Usage | None:
    """`prompt_eval_count` is absent where the whole prompt came from the model's cache."""
    input_tokens, output_tokens = _tokens(top, "prompt_eval_count"), _tokens(top, "eval_count")
    if input_tokens is None and output_tokens is None:
        return None
    return Usage(input_tokens=input_tokens or 0, output_tokens=output_tokens or 0, reported=True)
