import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.proxy.capture.secrets import Redactor, clean_stream

KEY = "sk-ant-api03-Ab1Cd2Ef3Gh4Ij5Kl6"


def anthropic(text):
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def anthropic_tool(text):
    return {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": text}}


def chat(text):
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def chat_tool(text):
    return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}]}


def responses(text):
    return {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "content_index": 0, "delta": text}


def ollama(text):
    return {"message": {"role": "assistant", "content": text}, "done": False}


SHAPES = [anthropic, anthropic_tool, chat, chat_tool, responses, ollama]


def stream(events, *, data=True):
    lines = [json.dumps(event).encode() for event in events]
    return b"".join(b"data: %s\n\n" % line if data else line + b"\n" for line in lines)


def texts(body):
    """All strings of a stream that are pieces of a text, joined."""
    found = []

    def walk(value):
        if isinstance(value, dict):
            for name, one in value.items():
                if isinstance(one, str) and name in ("text", "partial_json", "content", "arguments", "delta"):
                    found.append(one)
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    for line in body.splitlines():
        if line:
            walk(json.loads(line.removeprefix(b"data:")))
    return "".join(found)


@given(
    st.sampled_from(SHAPES),
    st.text("ab é\n", max_size=10),
    st.text("ab é\n", max_size=10),
    st.lists(st.integers(1, 60), max_size=6),
    st.booleans(),
)
def test_a_secret_in_pieces_is_found_wherever_it_is_torn(shape, before, after, cuts, data):
    text = f"{before} {KEY} {after}"
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    redactor = Redactor("ab12")
    body = redactor.clean(clean_stream(stream(map(shape, pieces), data=data), redactor))
    assert KEY not in texts(body)
    assert texts(body) == f"{before} redacted-ab12-1 {after}"


def test_pieces_of_different_texts_are_not_put_together():
    body = stream([anthropic(KEY[:10]), anthropic_tool(KEY[10:]), chat(KEY[:10])])
    assert clean_stream(body, Redactor("ab12")) == body


def test_a_stream_without_secrets_is_not_touched():
    body = b': comment\r\ndata: {"delta": "hello"}\r\n\r\ndata: [DONE]\r\n\r\ndata: {broken\n'
    assert clean_stream(body, Redactor("ab12")) is body
