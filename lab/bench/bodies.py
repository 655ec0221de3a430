"""Requests as coding agents send them: Messages of any size, and small ones of other APIs."""

import json
import random

_VOCABULARY = (
    "the a of to and in is that for it as with on be this by are from or an at not have which will can if when file "
    "function returns value error test line class module import path list string number index loop branch commit"
)
_WORDS = _VOCABULARY.split()
_TOOLS = ("Read", "Edit", "Bash", "Grep", "Glob", "Write", "WebFetch", "Task")


def conversation(size_bytes: int, *, streamed: bool, seed: int = 0) -> bytes:
    """About so many bytes: system prompt, tools, and turns that alternate between tool calls and their results."""
    rng = random.Random(seed)
    request = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 64,
        "stream": streamed,
        "system": [{"type": "text", "text": prose(rng, size_bytes // 40)}],
        "messages": [{"role": "user", "content": prose(rng, 200)}],
    }
    if size_bytes > 20_000:
        request["tools"] = [
            {"name": name, "description": prose(rng, size_bytes // 200), "input_schema": {"type": "object"}}
            for name in _TOOLS
        ]
    left = size_bytes - len(json.dumps(request))
    while left > 2_000:
        turn = tool_turn(rng, rng.randint(300, min(6_000, left)))
        request["messages"] += turn
        left -= len(json.dumps(turn))
    request["messages"].append({"role": "user", "content": prose(rng, max(1, left - 40))})
    return json.dumps(request).encode()


def gemini_request(size_bytes: int, *, seed: int = 0) -> bytes:
    """About so many bytes: a system prompt and a user's text."""
    rng = random.Random(seed)
    request = {
        "systemInstruction": {"parts": [{"text": prose(rng, size_bytes // 40)}]},
        "generationConfig": {"maxOutputTokens": 64},
        "contents": [{"role": "user", "parts": [{"text": ""}]}],
    }
    request["contents"][0]["parts"][0]["text"] = prose(rng, max(1, size_bytes - len(json.dumps(request)) - 20))
    return json.dumps(request).encode()


def converse_request(size_bytes: int, *, seed: int = 0) -> bytes:
    """The same."""
    rng = random.Random(seed)
    request = {
        "system": [{"text": prose(rng, size_bytes // 40)}],
        "inferenceConfig": {"maxTokens": 64},
        "messages": [{"role": "user", "content": [{"text": ""}]}],
    }
    request["messages"][0]["content"][0]["text"] = prose(rng, max(1, size_bytes - len(json.dumps(request)) - 20))
    return json.dumps(request).encode()


def next_turn(body: bytes, answer: str, size_bytes: int) -> bytes:
    """The same conversation, with the answer and so many bytes of new user text."""
    request = json.loads(body)
    request["messages"] += [
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
        {"role": "user", "content": prose(random.Random(len(body)), size_bytes)},
    ]
    return json.dumps(request).encode()


def tool_turn(rng: random.Random, size_bytes: int) -> list[dict]:
    call = f"toolu_{rng.getrandbits(64):016x}"
    return [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": prose(rng, 80)},
                {"type": "tool_use", "id": call, "name": rng.choice(_TOOLS), "input": {"path": "src/main.py"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call, "content": prose(rng, size_bytes)}],
        },
    ]


def prose(rng: random.Random, chars: int) -> str:
    """Words and line breaks; the breaks are escaped in JSON, as those of files are."""
    words = []
    length = 0
    while length < chars:
        word = rng.choice(_WORDS) + ("\n" if rng.random() < 0.08 else " ")
        words.append(word)
        length += len(word)
    return "".join(words)[:chars]
