"""OpenAI's Responses."""

from collections.abc import Iterator, Mapping, Sequence

from hivemind_addon.sim.dialect.openai import OpenAI
from hivemind_addon.sim.dialect.reply import (
    Headers,
    LimitView,
    Problem,
    Reply,
    StreamEvent,
    ToolCall,
    json,
    rounded_up,
    sse,
)


class Responses(OpenAI):
    """Named and numbered events; the last one holds the whole answer."""

    def error_object(self, problem: Problem) -> dict[str, object]:
        """The end of a Codex plan's window has words of its own (Codex's sources of 2026-08)."""
        view = problem.limit
        if view is None or not view.plan:
            return super().error_object(problem)
        return {
            "type": "usage_limit_reached",
            "message": "The usage limit has been reached",
            "plan_type": "plus",
            "resets_at": rounded_up(problem.wall_now + view.full_in_s),
            "resets_in_seconds": rounded_up(view.full_in_s),
        }

    def limit_headers(self, limits: Sequence[LimitView], wall_now: float) -> Headers:
        """The windows of a Codex plan too: percent, minutes, instants in epoch seconds."""
        plans: list[tuple[str, str]] = []
        for view in limits:
            if name := view.plan:
                plans += [
                    (f"x-codex-{name}-used-percent", f"{100 * view.used:.1f}"),
                    (f"x-codex-{name}-window-minutes", str(round(view.window_s / 60))),
                    (f"x-codex-{name}-reset-at", str(rounded_up(wall_now + view.full_in_s))),
                ]
        return (*super().limit_headers(limits, wall_now), *plans)

    def whole_body(self, reply: Reply) -> bytes:
        return json(_ended(reply))

    def events(self, reply: Reply) -> Iterator[StreamEvent]:
        for number, (kind, fields, tokens) in enumerate(_events(reply)):
            yield StreamEvent(sse({"type": kind, "sequence_number": number, **fields}, kind), tokens)

    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        response = {
            "id": "resp_failed",
            "object": "response",
            "created_at": 0,
            "status": "failed",
            "error": {"code": error["code"] or error["type"], "message": error["message"]},
            "output": [],
            "usage": None,
        }
        fields = {"type": "response.failed", "sequence_number": 0, "response": response}
        return StreamEvent(sse(fields, "response.failed"))


_Event = tuple[str, dict[str, object], int]
"""Kind, fields, and the output tokens that it delivers."""


def _events(reply: Reply) -> Iterator[_Event]:
    begun = _response(reply, "in_progress")
    yield "response.created", {"response": begun}, 0
    yield "response.in_progress", {"response": begun}, 0
    index = 0
    if text := reply.text():
        yield from _message_events(reply, text)
        index = 1
    if call := reply.call:
        yield from _call_events(reply, call, index)
    kind = "response.incomplete" if reply.truncated else "response.completed"
    yield kind, {"response": _ended(reply)}, 0


def _message_events(reply: Reply, text: str) -> Iterator[_Event]:
    place = {"item_id": reply.id("msg_"), "output_index": 0, "content_index": 0}
    begun = {**_message_item(reply, ""), "status": "in_progress", "content": []}
    yield "response.output_item.added", {"output_index": 0, "item": begun}, 0
    yield "response.content_part.added", {**place, "part": _part("")}, 0
    for piece, tokens in reply.deltas():
        yield "response.output_text.delta", {**place, "delta": piece}, tokens
    yield "response.output_text.done", {**place, "text": text}, 0
    yield "response.content_part.done", {**place, "part": _part(text)}, 0
    yield "response.output_item.done", {"output_index": 0, "item": _message_item(reply, text)}, 0


def _call_events(reply: Reply, call: ToolCall, index: int) -> Iterator[_Event]:
    item = _call_item(reply, call, call.arguments)
    place = {"item_id": item["id"], "output_index": index}
    kind, whole = ("custom_tool_call_input", "input") if call.freeform else ("function_call_arguments", "arguments")
    begun = {**_call_item(reply, call, ""), "status": "in_progress"}
    yield "response.output_item.added", {"output_index": index, "item": begun}, 0
    for piece, tokens in reply.call_deltas():
        yield f"response.{kind}.delta", {**place, "delta": piece}, tokens
    yield f"response.{kind}.done", {**place, whole: call.arguments}, 0
    yield "response.output_item.done", {"output_index": index, "item": item}, 0


def _response(reply: Reply, status: str) -> dict[str, object]:
    return {
        "id": reply.id("resp_"),
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": reply.model,
        "output": [],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def _ended(reply: Reply) -> dict[str, object]:
    output = []
    if text := reply.text():
        output.append(_message_item(reply, text))
    if call := reply.call:
        output.append(_call_item(reply, call, call.arguments))
    usage = {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens},
        "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.output_tokens,
    }
    ended = _response(reply, "completed") | {"output": output, "usage": usage}
    if reply.truncated:
        ended |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return ended


def _message_item(reply: Reply, text: str) -> dict[str, object]:
    return {
        "id": reply.id("msg_"),
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [_part(text)],
    }


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(reply: Reply, call: ToolCall, arguments: str) -> dict[str, object]:
    item: dict[str, object] = {"status": "completed", "call_id": call.id, "name": call.name}
    if call.namespace:
        item["namespace"] = call.namespace
    if call.freeform:
        return item | {"id": reply.id("ctc_"), "type": "custom_tool_call", "input": arguments}
    return item | {"id": reply.id("fc_"), "type": "function_call", "arguments": arguments}
