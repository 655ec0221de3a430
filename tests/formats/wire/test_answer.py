import gzip
import json
import tracemalloc
import zlib
from pathlib import Path

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.wire.answer import AnswerReader, Phase
from hivemind_addon.formats.wire.dialect import Dialect
from hivemind_addon.formats.wire.error import ErrorFacts
from hivemind_addon.formats.wire.transcript import dialect_named
from hivemind_addon.kernel.values.ticket import Usage
from tests.dialects import ALL, ANTHROPIC, CHAT, OLLAMA, RESPONSES
from tests.formats.wire.eventstream import event_message

DATA = Path(__file__).parent / "data"


def count_words(text: str) -> int:
    return len(text.split())


def reader(name: Dialect, encoding: str = "") -> AnswerReader:
    return AnswerReader(name, encoding)


def recorded(path: str) -> bytes:
    return (DATA / path).read_bytes()


def phases(name: Dialect, stream: bytes) -> list[str]:
    """The phases in order, read event by event."""
    watched = reader(name)
    seen = [watched.phase]
    end = b"\n" if name is OLLAMA else b"\n\n"
    for event in stream.split(end):
        watched.feed(event + end)
        if watched.phase is not seen[-1]:
            seen.append(watched.phase)
    return [phase.name for phase in seen]


def test_recorded_streams_walk_through_their_phases(subtests):
    ways = {
        "BEFORE_CONTENT CONTENT COMPLETE": [
            (ANTHROPIC, "anthropic/message.sse"),
            (CHAT, "openai/chat.sse"),
            (RESPONSES, "openai/response.sse"),
            (RESPONSES, "codex/response.sse"),
            (OLLAMA, "ollama/chat.ndjson"),
            (OLLAMA, "ollama/generate.ndjson"),
        ],
        "BEFORE_CONTENT CONTENT": [(ANTHROPIC, "anthropic/cut.sse"), (OLLAMA, "ollama/cut.ndjson")],
        "BEFORE_CONTENT FAILED": [
            (ANTHROPIC, "anthropic/overloaded_before_content.sse"),
            (CHAT, "openai/chat_error_before_content.sse"),
            (RESPONSES, "openai/response_failed.sse"),
            (OLLAMA, "ollama/error_before_content.ndjson"),
        ],
        "BEFORE_CONTENT CONTENT FAILED": [
            (ANTHROPIC, "anthropic/overloaded_after_content.sse"),
            (CHAT, "openrouter/error_mid_stream.sse"),
            (OLLAMA, "ollama/error_after_content.ndjson"),
        ],
    }
    for way, streams in ways.items():
        for name, path in streams:
            with subtests.test(path):
                assert phases(name, recorded(path)) == way.split()


@pytest.mark.parametrize("path", ["before", "after"])
def test_an_error_says_what_it_is_and_whether_content_came_before(path):
    watched = reader(ANTHROPIC)
    watched.feed(recorded(f"anthropic/overloaded_{path}_content.sse"))
    assert watched.error == ErrorFacts(type="overloaded_error", message="Overloaded")
    assert watched.content_seen is (path == "after")


STREAMS = {
    "anthropic/message.sse": ANTHROPIC,
    "anthropic/cut.sse": ANTHROPIC,
    "anthropic/overloaded_after_content.sse": ANTHROPIC,
    "openai/chat_tools.sse": CHAT,
    "openai/chat_with_usage.sse": CHAT,
    "openrouter/error_mid_stream.sse": CHAT,
    "openai/response.sse": RESPONSES,
    "openai/response_failed.sse": RESPONSES,
    "codex/response.sse": RESPONSES,
    "ollama/chat.ndjson": OLLAMA,
    "ollama/cut.ndjson": OLLAMA,
    "ollama/error_after_content.ndjson": OLLAMA,
}


def verdict(watched: AnswerReader) -> tuple[object, ...]:
    watched.finish()
    return watched.phase, watched.content_seen, watched.error, watched.broken, watched.usage(count_words)


@given(st.sampled_from(sorted(STREAMS)), st.integers(1, 400), st.sampled_from(["", "gzip", "br"]))
def test_chunks_and_encodings_change_no_verdict(path, size, encoding):
    stream = recorded(path)
    body = {"": stream, "gzip": gzip.compress(stream), "br": brotli.compress(stream)}[encoding]
    plain, watched = reader(STREAMS[path]), reader(STREAMS[path], encoding)
    plain.feed(stream)
    decoded = b"".join(watched.feed(body[i : i + size]) for i in range(0, len(body), size))
    assert decoded == stream
    assert verdict(watched) == verdict(plain)


@given(
    st.sampled_from(ALL),
    st.sampled_from(["", "gzip", "br", "deflate", "zstd", "what"]),
    st.lists(st.binary(max_size=60)),
)
def test_nothing_raises_on_hostile_bytes(name, encoding, chunks):
    watched = reader(name, encoding)
    decoded = b"".join(watched.feed(chunk) for chunk in chunks)
    decoded += watched.finish()
    assert encoding or decoded == b"".join(chunks)
    assert (watched.phase is Phase.FAILED) == (watched.error is not None)
    usage = watched.usage(count_words)
    assert usage is None or usage.output_tokens >= 0


def test_a_body_that_cannot_be_decoded_is_passed_through():
    for coding, body, why in (
        ("compress", b"\x1f\x9d" * 9, "unknown content-encoding"),
        ("gzip", b"\0" * 20, "gzip: "),
    ):
        watched = reader(ANTHROPIC, coding)
        assert watched.feed(body) == b""
        assert watched.broken is not None
        assert watched.broken.startswith(why)
        assert watched.phase is Phase.CONTENT
        assert not watched.content_seen


@pytest.mark.parametrize("coding", ["compress", "UTF-8", "gzip", "br", "zstd", "deflate"])
@pytest.mark.parametrize("size", [1, 9, 5000])
def test_text_is_not_compressed_whatever_the_head_says(coding, size):
    stream = recorded("anthropic/message.sse")
    watched = reader(ANTHROPIC, coding)
    passed = b"".join(watched.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    assert passed == stream
    assert watched.phase is Phase.COMPLETE


def test_the_end_of_a_coding_may_be_missing():
    watched = reader(ANTHROPIC, "gzip")
    compressor = zlib.compressobj(wbits=31)
    stream = recorded("anthropic/message.sse")
    watched.feed(compressor.compress(stream) + compressor.flush(zlib.Z_SYNC_FLUSH))
    watched.finish()
    assert watched.phase is Phase.COMPLETE
    assert watched.broken is None


def test_the_windows_that_a_stream_tells_are_kept():
    watched = reader(RESPONSES)
    watched.feed(recorded("codex/response.sse"))
    assert watched.windows is not None
    assert b'"used_percent": 42.5' in watched.windows.data
    assert reader(RESPONSES).windows is None
    nameless = reader(RESPONSES)
    nameless.feed(recorded("codex/response.sse").replace(b"event: codex.rate_limits\n", b""))
    assert nameless.windows is not None


def test_a_last_line_without_its_end_is_read_and_half_of_one_is_not():
    whole = recorded("ollama/chat.ndjson").rstrip()
    for stream, phase in ((whole, Phase.COMPLETE), (whole[:-5], Phase.CONTENT)):
        watched = reader(OLLAMA)
        watched.feed(stream)
        watched.finish()
        assert watched.phase is phase
    assert watched.usage(count_words).output_tokens == 2


def test_bytes_behind_the_end_are_decoded_and_not_judged():
    watched = reader(ANTHROPIC)
    watched.feed(recorded("anthropic/message.sse"))
    assert watched.feed(recorded("anthropic/overloaded_before_content.sse")) != b""
    assert watched.phase is Phase.COMPLETE
    assert watched.error is None


def test_a_chat_that_closes_after_its_finish_reason_is_complete():
    watched = reader(CHAT)
    watched.feed(recorded("openai/chat.sse").replace(b"data: [DONE]\n\n", b""))
    assert watched.phase is Phase.CONTENT
    watched.finish()
    assert watched.phase is Phase.COMPLETE


def test_a_chat_that_closes_in_its_text_is_not_complete():
    watched = reader(CHAT)
    watched.feed(recorded("openai/chat.sse").split(b" world")[0])
    watched.finish()
    assert watched.phase is Phase.CONTENT


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DONE]\n"])
def test_the_end_counts_without_its_blank_line(end):
    watched = reader(CHAT)
    watched.feed(recorded("openai/chat.sse").replace(b"data: [DONE]\n\n", end))
    watched.finish()
    assert watched.phase is Phase.COMPLETE


def test_half_a_terminal_event_is_no_end_unless_a_reason_to_stop_came_before_it():
    answer, end = recorded("anthropic/message.sse"), b'_stop"}\n\n'
    stop = answer.index(b"event: message_delta")
    for body, has_stopped in ((answer[:stop] + b"event: message" + end[:-4], False), (answer.removesuffix(end), True)):
        watched = reader(ANTHROPIC)
        watched.feed(body)
        assert watched.phase is Phase.CONTENT
        assert watched.has_stopped is has_stopped
        watched.finish()
        assert watched.phase is (Phase.COMPLETE if has_stopped else Phase.CONTENT)


def test_content_behind_a_reason_to_stop_takes_it_back_and_bookkeeping_does_not(subtests):
    """Of several choices each ends by itself."""
    stop, word = ({"index": 0, "delta": {}, "finish_reason": "stop"}, {"index": 1, "delta": {"content": "a word more"}})
    chunks = {
        "usage": ({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}, True),
        "nothing": ({"choices": [{"index": 0, "delta": {}, "finish_reason": None}]}, True),
        "content": ({"choices": [word]}, False),
    }
    for name, (behind, has_stopped) in chunks.items():
        watched = reader(CHAT)
        for chunk in ({"choices": [word]}, {"choices": [stop]}, behind):
            watched.feed(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        with subtests.test(name):
            assert watched.has_stopped is has_stopped


def test_reported_usage_is_taken_and_nothing_is_counted():
    for name, path in (
        (ANTHROPIC, "anthropic/message"),
        (CHAT, "openai/chat_with_usage"),
        (RESPONSES, "openai/response"),
    ):
        watched = reader(name)
        watched.feed(recorded(f"{path}.sse"))
        counted: list[str] = []
        usage = watched.usage(lambda text, counted=counted: counted.append(text) or 0)
        assert usage.reported
        assert counted == []


def test_output_is_counted_where_no_usage_is_reported():
    watched = reader(CHAT)
    watched.feed(recorded("openai/chat.sse"))
    assert watched.usage(len) == Usage(output_tokens=len("Hello world"))


def test_a_cut_anthropic_stream_keeps_its_input_and_counts_its_output():
    watched = reader(ANTHROPIC)
    watched.feed(recorded("anthropic/cut.sse"))
    assert watched.usage(len) == Usage(25, 5000, 1000, len("Hello world"), tier="standard")


def test_an_answer_without_any_output_is_believed():
    watched = reader(ANTHROPIC)
    watched.feed(b'event: message_start\ndata: {"message":{"usage":{"input_tokens":5,"output_tokens":0}}}\n\n')
    watched.feed(b'event: message_delta\ndata: {"usage":{"output_tokens":0}}\n\n')
    assert watched.usage(len) == Usage(5, reported=True)


def test_nothing_was_used_before_anything_came():
    assert reader(RESPONSES).usage(len) is None


class Counter:
    """Four characters are a token."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def __call__(self, text: str) -> int:
        self.pieces.append(text)
        return len(text) // 4


def chat_event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


@pytest.mark.parametrize(("text", "events"), [("four", 20_000), ("four" * 3000, 60)])
def test_a_long_answer_is_counted_in_part_and_in_pieces(text, events):
    watched, counter = reader(CHAT), Counter()
    for _ in range(20):
        watched.feed(chat_event(text) * (events // 20))
    assert watched.usage(counter).output_tokens == pytest.approx(len(text) / 4 * events, rel=0.01)
    assert max(map(len, counter.pieces)) <= 4096
    assert sum(map(len, counter.pieces)) <= 64 * 1024 + len(text)


@pytest.mark.parametrize("event", [chat_event("four"), b"event: odd\n\n"], ids=["with text", "without data"])
def test_a_long_answer_is_watched_within_bounded_memory(event):
    watched = reader(CHAT)
    tracemalloc.start()
    for _ in range(200):
        watched.feed(event * 100)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 1_000_000


def test_a_stream_whose_framing_is_damaged_passes_unread():
    watched = reader(dialect_named("bedrock-converse"))
    watched.feed(event_message("messageStart", b'{"role":"assistant"}'))
    assert (watched.phase, watched.broken) == (Phase.BEFORE_CONTENT, None)
    assert watched.feed(b"HTTP/1.1 502 Bad Gateway") == b"HTTP/1.1 502 Bad Gateway"
    assert watched.phase is Phase.CONTENT
    assert "checksum" in watched.broken
    late = event_message("metadata", b'{"usage":{"inputTokens":1,"outputTokens":2}}')
    assert watched.feed(late) == late
    assert watched.usage(count_words) is None
    watched.finish()
    assert watched.answer() is None
