"""What is taken out of a request: by its messages alone, the same in all that follow, and everything else as it came."""

import json
import random
import re

import pytest

from hivemind_addon.formats.profile.grants import Compaction
from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.profile.model import Tokens
from hivemind_addon.plugins.contexts.compaction import ask_provider, is_edited_elsewhere, shorten
from tests.dialects import ANTHROPIC, CHAT, CODE_ASSIST, COHERE, GEMINI, OLLAMA, RESPONSES

SETTINGS = Compaction(at=0.7, to=0.4, keep=2)
WINDOW = 20_000
TOKENS = Tokens()
"""Four bytes each."""


def anthropic(results, **more):
    messages = [{"role": "user", "content": "Find the bug"}]
    for number, text in enumerate(results):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"path": f"{number}.py"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return {"model": "m", "system": "You help", "tools": [{"name": "Read"}], "messages": messages, **more}


def chat(results, **more):
    messages = [{"role": "system", "content": "You help"}, {"role": "user", "content": "Find the bug"}]
    for number, text in enumerate(results):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "Read", "arguments": "{}"}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": text},
        ]
    return {"model": "m", "messages": messages, **more}


def responses(results, **more):
    items = [{"role": "user", "content": "Find the bug"}]
    for number, text in enumerate(results):
        kind = ("function_call", "custom_tool_call")[number % 2]
        items += [
            {"type": kind, "call_id": f"call_{number}", "name": "shell"},
            {"type": f"{kind}_output", "call_id": f"call_{number}", "output": text},
        ]
    return {"model": "m", "input": items, **more}


def gemini(results, **more):
    contents = [{"role": "user", "parts": [{"text": "Find the bug"}]}]
    for text in results:
        contents += [
            {"role": "model", "parts": [{"functionCall": {"name": "read"}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"output": text}}}]},
        ]
    return {"contents": contents, **more}


def code_assist(results, **more):
    return {"model": "m", "request": gemini(results), **more}


FORMATS = {
    "anthropic": (ANTHROPIC, anthropic),
    "openai-chat": (CHAT, chat),
    "openai-responses": (RESPONSES, responses),
    "gemini": (GEMINI, gemini),
    "code-assist": (CODE_ASSIST, code_assist),
    "cohere": (COHERE, chat),
    "ollama": (OLLAMA, chat),
}


def shortened(body, dialect=ANTHROPIC, settings=SETTINGS):
    data = body if isinstance(body, bytes) else encoded(body)
    return shorten(data, dialect, settings, window_tokens=WINDOW, tokens=TOKENS, preamble_bytes=20)


def encoded(body):
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def texts(count, size=4000):
    return [f"fact {number}: " + "x" * size for number in range(count)]


@pytest.mark.parametrize("name", FORMATS)
def test_old_results_become_stubs_in_every_format_that_has_them_and_all_else_stays_to_the_byte(name):
    dialect, build = FORMATS[name]
    bodies = (encoded(build(texts(count), stream=True)) for count in range(1, 30))
    before, short = next((body, short) for body in bodies if (short := shortened(body, dialect)))
    assert len(short.body) < 0.42 * WINDOW * 4 < 0.7 * WINDOW * 4 < len(before)
    told = [re.search(r"fact \d+", one.text)[0] for one in short.taken]
    assert told == [f"fact {number}" for number in range(len(told))]
    assert len(told) > 5
    # Put back, it is what it was.
    again = short.body
    for one in short.taken:
        stub = re.search(rb'"\[hivemind took [^]]*recall %b`\.\]"' % one.id.encode(), again)
        whole = b'{"output":%b}' % stub[0] if name in ("gemini", "code-assist") else stub[0]
        again = again.replace(whole, one.value, 1)
    assert again == before
    assert json.loads(short.body).keys() == json.loads(before).keys()


@pytest.mark.parametrize("seed", range(8))
def test_each_request_begins_as_the_one_before_until_the_threshold_is_passed_again(seed):
    """So the provider's cache is read; nothing is remembered for it, so a restart changes nothing."""
    rng = random.Random(seed)
    sizes = [min(9000, round(rng.lognormvariate(0, 1) * 2500)) for _ in range(60)]
    keep = rng.randrange(7)
    settings = Compaction(at=0.7, to=0.4, keep=keep)
    results = [f"{number}:" + "x" * size for number, size in enumerate(sizes)]
    before, times, last = b"", 0, []
    for count in range(1, len(sizes) + 1):
        body = encoded(anthropic(results[:count]))
        short = shortened(body, settings=settings)
        sent = short.body if short else body
        taken = [one.id for one in short.taken] if short else []
        assert shortened(sent, settings=settings) is None, "who sends it again sends the same"
        assert taken[: len(last)] == last
        if taken == last:
            assert sent.startswith(before.removesuffix(b"]}"))
        else:
            times += 1
        before, last = sent, taken
    grown = sum(sizes) / (0.15 * WINDOW * 4)
    assert 1 <= times <= grown + 1 + sum(size > 0.3 * WINDOW for size in sizes), "each time is worth it"


def test_marks_of_a_prompt_cache_that_move_change_no_decision():
    results = texts(40)
    before = None
    for count in range(20, 40):
        body = anthropic(results[:count])
        plain = shortened(body)
        body["messages"][-1]["content"][0]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
        body["messages"][0]["content"] = [
            {"type": "text", "text": "Find the bug", "cache_control": {"type": "ephemeral"}}
        ]
        marked = shortened(body)
        assert [one.id for one in marked.taken] == [one.id for one in plain.taken]
        assert b'"cache_control":{"type":"ephemeral","ttl":"1h"}' in marked.body
        before = before or marked.taken[0].id
        assert before == marked.taken[0].id


def test_what_the_agent_compacts_itself_begins_anew():
    body = anthropic(["small"] * 10)
    assert shortened(body) is None


def test_a_little_gain_is_not_worth_a_cold_cache_but_fitting_is():
    few = [*texts(3), "y" * 56_000, "z" * 9_000]
    assert shortened(anthropic(few)) is None, "of 12 KB no more than half of 24 KB would go"
    assert len(shortened(anthropic([*few, "z" * 3_000])).taken) >= 3, "else it would not fit at all"


def test_images_count_by_their_tokens_and_go_with_their_result():
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 300_000}}
    few = anthropic([[picture], *texts(3)])
    assert shortened(few) is None, "1,500 tokens each, whatever their bytes"
    many = [[{"type": "text", "text": "a screen"}, picture]] * 12
    short = shortened(anthropic(many))
    assert len(short.taken) >= 5
    assert short.taken[0].text == "a screen\n(image)"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"messages": 1}',
        b'{"messages": [1, "a", null, {"role": "user", "content": {"type": "tool_result"}}]}',
        b'{"messages": [{"content": [{"type": "tool_result"}, {"type": "tool_result", "content": null}]}]}',
        b'{"messages": "' + b"x" * 90_000 + b'"}',
        b'{"messages": [' + b"[" * 90_000,
        b'{"messages": [{"content": [{"type": "tool_result", "content": "a", "content": "' + b"x" * 90_000 + b'"}]}]}',
        b"\xff" * 90_000,
    ],
)
def test_what_is_no_conversation_stays(body):
    assert shortened(body + b" " * 60_000) is None


def test_spaces_escapes_and_halves_of_characters_stay_as_they_came():
    body = json.dumps(anthropic([*texts(15), '\ud83d \u20ac ]} " \\']), indent=1).encode()
    short = shortened(b" \n" + body)
    assert short.taken
    rest = re.sub(rb'"\[hivemind took [^]]*\]"', b"", short.body)
    gone = body
    for one in short.taken:
        gone = gone.replace(one.value, b"", 1)
    assert rest == b" \n" + gone
    assert b"\\ud83d" in rest


# Where the provider does it itself -------------------------------------------------------------------------------------

EDITING = load_profiles(None).by_name["anthropic"].context_editing
OURS = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "input_tokens", "value": 14_000},
    "keep": {"type": "tool_uses", "value": 2},
    "clear_at_least": {"type": "input_tokens", "value": 3_000},
}
THINKING = {"type": "clear_thinking_20251015", "keep": "all"}


@pytest.mark.parametrize(
    ("own", "edits"),
    [
        ({}, [OURS]),
        ({"context_management": {}}, [OURS]),
        ({"context_management": {"edits": []}}, [OURS]),
        ({"context_management": {"edits": [THINKING]}, "stream": True}, [THINKING, OURS]),
    ],
)
def test_the_provider_is_asked_behind_what_its_client_asks_for(own, edits):
    before = anthropic(["a"], **own)
    assert not is_edited_elsewhere(encoded(before), ANTHROPIC)
    asked = ask_provider(encoded(before), EDITING, SETTINGS, window_tokens=WINDOW)
    assert json.loads(asked) == before | {"context_management": {"edits": edits}}
    assert asked.startswith(encoded(anthropic(["a"]))[:-1])


@pytest.mark.parametrize(
    ("dialect", "own"),
    [
        (ANTHROPIC, {"context_management": {"edits": [THINKING, {"type": "compact_20260112"}]}}),
        (ANTHROPIC, {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
        (ANTHROPIC, {"context_management": {"edits": [1]}}),
        (ANTHROPIC, {"context_management": {"edits": {"type": "new"}}}),
        (RESPONSES, {"context_management": [{"type": "compaction", "compact_threshold": 100_000}]}),
    ],
)
def test_a_client_that_has_its_context_edited_is_told_apart(dialect, own):
    assert is_edited_elsewhere(encoded(anthropic(["a"], **own)), dialect)
