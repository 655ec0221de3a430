"""Conversations of each kind, and contexts made of them."""

import json

from msgspec.structs import replace

from hivemind_addon.formats.wire.dialect import dialect_named
from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.kernel.values.ticket import CallKind
from hivemind_addon.plugins.contexts.from_request import SentRequest, take
from tests.kernel.samples import ticket

NOTHING = Spend()
WALL = 1_795_345_317.25  # 2026-11-22T11:01:57.250Z

MESSAGES = {
    "model": "claude-opus-5-5",
    "max_tokens": 9,
    "stream": True,
    "system": [{"type": "text", "text": "You are a careful program."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Read r.txt.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "# Environment: what the program says anew"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I look.", "signature": "c2ln"},
                {"type": "text", "text": "I read it."},
                {"type": "tool_use", "id": "t-1", "name": "Bash", "input": {"command": "cat r.txt"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t-1",
                    "content": [{"type": "text", "text": "```\nline 1\n```", "cache_control": {"type": "ephemeral"}}],
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": "The user has opened r.txt."}]},
    ],
}
RESPONSES = {
    "model": "gpt-6.1-sol",
    "instructions": "You are a careful program.",
    "input": [
        {"type": "additional_tools", "role": "developer", "tools": []},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>"}
            ],
        },
        {"role": "user", "content": "Read r.txt."},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
        {"type": "function_call", "call_id": "c-1", "name": "shell", "arguments": '{"command":["cat","r.txt"]}'},
        {"type": "function_call_output", "call_id": "c-1", "output": "line 1"},
        {"role": "developer", "content": "The user has opened r.txt."},
    ],
}
CHAT = {
    "model": "gpt-5",
    "messages": [
        {"role": "system", "content": "You are a careful program."},
        {"role": "user", "content": "Read r.txt."},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c-1", "function": {"name": "shell", "arguments": '{"cmd":"cat"}'}}],
        },
        {"role": "tool", "tool_call_id": "c-1", "content": "line 1"},
    ],
}
BODIES = {
    "anthropic": MESSAGES,
    "openai-responses": RESPONSES,
    "openai-chat": CHAT,
}
URLS = {
    "anthropic": "https://api.anthropic.com/v1/messages?beta=true",
    "openai-responses": "https://api.openai.com/v1/responses",
    "openai-chat": "https://api.openai.com/v1/chat/completions",
}


def sent(body=None, dialect="anthropic", **changes):
    """A request as it was to be sent."""
    raw = body if isinstance(body, bytes) else json.dumps(body or BODIES[dialect]).encode()
    given = {
        "dialect": dialect_named(dialect),
        "method": "POST",
        "url": URLS.get(dialect, ""),
        "headers": {"content-type": "application/json", "user-agent": "claude-cli/2.1.330 (external, cli)"},
        "body": raw,
        "encoding": "",
    }
    return SentRequest(**given | changes)


def context(
    id_="",
    *,
    agent="agent-1",
    session="s-1",
    request_hash="",
    kind=CallKind.TURN,
    task="",
    wall=WALL,
    model="claude-opus-5-5",
    reason="the budget of everyone per day was spent",
    answer=b"",
    spent=NOTHING,
    arrived=0.0,
    **request,
):
    """One of a request, see `sent`; with this id, else with its own."""
    asked = replace(
        ticket("c0ffee0001", session=session, request_hash=request_hash), agent=agent, kind=kind, task=task, model=model
    )
    taken = take(
        asked, sent(**request), reason=reason, now_wall=wall, answer=answer, spent=spent, tokens=7, arrived_wall=arrived
    )
    return replace(taken, head=replace(taken.head, id=id_)) if id_ else taken


def conversation(*texts, dialect="anthropic", session="s-1", **more):
    """One whose messages are these, of a user and the model in turns."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    return context(body={**BODIES[dialect], "messages": messages}, session=session, dialect=dialect, **more)
