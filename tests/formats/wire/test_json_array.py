from hivemind_addon.formats.wire.json_array import JsonArrayParser
from hivemind_addon.formats.wire.sse import SseEvent

# As the Gemini API writes it: pretty-printed, with a comma of its own between the elements.
FIRST = b'{\n  "candidates": [{"content": {"parts": [{"text": "a \\"{[\\" b"}]}}]\n}'
LAST = b'{"candidates": [{"finishReason": "STOP"}]}'


def test_an_element_is_an_event_as_soon_as_it_is_whole():
    parser = JsonArrayParser()
    assert parser.feed(b"[" + FIRST[:30]) == []
    assert parser.feed(FIRST[30:]) == [SseEvent("", FIRST)]
    assert parser.feed(b"\n,\r\n" + LAST + b"\n]\n") == [SseEvent("", LAST)]
    assert parser.finish() == []


def test_an_error_alone_is_an_event():
    error = b'{"error": {"code": 503, "status": "UNAVAILABLE"}}'
    assert JsonArrayParser().feed(error + b"\n") == [SseEvent("", error)]


def test_half_an_object_is_none():
    parser = JsonArrayParser()
    assert parser.feed(b'[{"a": {}') == []
    assert parser.finish() == []
    assert parser.feed(b"}") == []
