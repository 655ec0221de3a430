"""What OpenAI's formats share: the error object and the usage."""

from typing import override

import msgspec

from hivemind_addon.api.ticket import Usage
from hivemind_addon.proxy.wire.dialect import Dialect, members_at, tokens_at
from hivemind_addon.proxy.wire.parts import Values


class OpenAIDialect(Dialect):
    """Errors and usage of both formats."""

    @override
    def error_body(self, status: int, error: str, message: str, resets_at: int | None = None) -> bytes:
        value = openai_error(error or _usual_error(status), message)
        if resets_at is not None:
            value["error"]["resets_at"] = resets_at  # where Codex looks for it
        return msgspec.json.encode(value)


def _usual_error(status: int) -> str:
    names = {429: "rate_limit_exceeded", 503: "server_is_overloaded", 529: "server_is_overloaded"}
    return names.get(status, "server_error" if status >= 500 else "invalid_request_error")


def openai_error(error: str, message: str) -> dict[str, dict[str, object]]:
    """The error object in its envelope."""
    return {"error": {"message": message, "type": error, "param": None, "code": error}}


def openai_usage(members: Values, input_name: str, output_name: str) -> Usage | None:
    """The usage among these members; cached input, read and written, is counted inside the input."""
    all_input_tokens = tokens_at(members, f"{input_name}_tokens")
    output_tokens = tokens_at(members, f"{output_name}_tokens")
    if all_input_tokens is None and output_tokens is None:
        return None
    details = members_at(members, f"{input_name}_tokens_details")
    cached_tokens = tokens_at(details, "cached_tokens")
    if cached_tokens is None:
        cached_tokens = tokens_at(members, "prompt_cache_hit_tokens") or 0  # DeepSeek
    total_tokens = all_input_tokens or 0
    cache_read_tokens = min(cached_tokens, total_tokens)
    cache_write_tokens = min(tokens_at(details, "cache_write_tokens") or 0, total_tokens - cache_read_tokens)
    return Usage(
        input_tokens=total_tokens - cache_read_tokens - cache_write_tokens,
        cache_read_tokens=cache_read_tokens,
        cache_write_tokens=cache_write_tokens,
        output_tokens=output_tokens or 0,
        reported=True,
    )
