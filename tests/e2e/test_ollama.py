"""Ollama behind a real proxy, in reverse mode: lines instead of events, one slot, no account."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.proxy import NO_TLS, PATIENCE_S, free_port, running
from tests.e2e.raw_provider import NDJSON_HEAD, STREAM_HEAD, chunk, raw_provider, whole

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "wire" / "data"
LINES = (DATA / "ollama" / "chat.ndjson").read_bytes()
BROKEN = (DATA / "ollama" / "error_before_content.ndjson").read_bytes()
PLAIN = (
    b'{"model":"qwen3","message":{"role":"assistant","content":"Hi"},"done":true,"prompt_eval_count":9,"eval_count":2}'
)
BUSY = b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'
QUICK = "retry: {first_backoff_s: 0.02, max_backoff_s: 0.1}\nbreaker: {first_probe_s: 0.05, max_probe_s: 0.2}\n"
CUT = NDJSON_HEAD + chunk(LINES.splitlines(keepends=True)[0])


def streamed(lines=LINES):
    return NDJSON_HEAD + b"".join(chunk(line) for line in lines.splitlines(keepends=True)) + chunk(b"")


class Hangup(OSError):
    """Ends the connection."""


@contextmanager
def house(tmp_path, handler, more=""):
    port = free_port()
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.yaml").write_text(f"extends: ollama\nhosts: []\n{QUICK}{more}")
    settings = (f"hivemind_profiles={tmp_path / 'profiles'}", "hivemind_reverse_profile=mine")
    arguments = [word for one in settings for word in ("--set", one)]
    modes = (f"reverse:http://127.0.0.1:{port}",)
    with raw_provider(port, None, handler), running(tmp_path / "conf", *arguments, modes=modes) as proxy:
        yield proxy


@contextmanager
def scripted(tmp_path, *answers):
    """A provider that gives these answers in turn; an answer without an end is a cut."""
    served = []

    def handler(number, send):
        served.append(number)
        send(answers[number])
        if not answers[number].endswith(b"0\r\n\r\n") and b"content-length" not in answers[number]:
            raise Hangup

    with house(tmp_path, handler) as proxy:
        yield proxy, served
        assert "Traceback" not in proxy.log


def ask(proxy, path="/api/chat", **changes):
    request = {"model": "qwen3", "messages": [{"role": "user", "content": "hi"}]} | changes
    return httpx.post(
        f"http://127.0.0.1:{proxy.port}{path}",
        content=json.dumps(request),
        timeout=PATIENCE_S,
        trust_env=False,
        verify=NO_TLS,
    )


def test_lines_are_streamed_by_default_and_the_last_one_ends_them(tmp_path):
    with scripted(tmp_path, streamed()) as (proxy, served):
        answer = ask(proxy)
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.content == LINES
        assert served == [0]


def test_lines_reach_the_client_as_they_come(tmp_path):
    go = threading.Event()

    def handler(_, send):
        lines = LINES.splitlines(keepends=True)
        send(NDJSON_HEAD + b"".join(map(chunk, lines[:3])))
        assert go.wait(PATIENCE_S)
        send(b"".join(map(chunk, lines[3:])) + chunk(b""))

    with house(tmp_path, handler) as proxy, httpx.Client(timeout=PATIENCE_S, trust_env=False, verify=NO_TLS) as client:
        url = f"http://127.0.0.1:{proxy.port}/api/chat"
        with client.stream("POST", url, content=b'{"model": "qwen3", "messages": []}') as answer:
            pieces = answer.iter_raw()
            seen = b""
            while b"Hello" not in seen:
                seen += next(pieces)
            assert b"done_reason" not in seen
            go.set()
            assert seen + b"".join(pieces) == LINES


@pytest.mark.parametrize(
    "failure",
    [streamed(BROKEN), whole(503, BUSY), whole(500, b'{"error":"llama runner process has terminated"}'), CUT],
    ids=["error line", "busy", "500", "cut"],
)
def test_what_fails_before_its_content_is_tried_again(tmp_path, failure):
    with scripted(tmp_path, failure, streamed()) as (proxy, served):
        assert ask(proxy).content == LINES
        assert served == [0, 1]


def test_a_stream_that_ends_without_its_last_line_has_failed(tmp_path):
    without_end = NDJSON_HEAD + chunk(LINES.splitlines(keepends=True)[0]) + chunk(b"")
    with scripted(tmp_path, without_end, streamed()) as (proxy, served):
        assert ask(proxy).content == LINES
        assert served == [0, 1]


def test_a_cut_after_content_reaches_the_client(tmp_path):
    begun = NDJSON_HEAD + b"".join(map(chunk, LINES.splitlines(keepends=True)[:3]))
    with scripted(tmp_path, begun) as (proxy, served):
        with pytest.raises(httpx.RemoteProtocolError):
            ask(proxy)
        assert served == [0]


def test_a_model_that_is_not_there_is_told_at_once(tmp_path):
    with scripted(tmp_path, whole(404, b'{"error":"model \'qwen9\' not found"}')) as (proxy, served):
        answer = ask(proxy, model="qwen9")
        assert (answer.status_code, answer.json()) == (404, {"error": "model 'qwen9' not found"})
        assert served == [0]


def test_plain_answers_and_the_other_shapes_go_through(tmp_path):
    sse = (DATA / "openai" / "chat_with_usage.sse").read_bytes()
    response = (DATA / "openai" / "response.sse").read_bytes()
    answers = (whole(200, PLAIN), STREAM_HEAD + chunk(sse) + chunk(b""), STREAM_HEAD + chunk(response) + chunk(b""))
    with scripted(tmp_path, *answers) as (proxy, _):
        assert ask(proxy, stream=False).content == PLAIN
        assert ask(proxy, "/v1/chat/completions", stream=True).content == sse
        assert ask(proxy, "/v1/responses", stream=True, input="hi").content == response


class Slow:
    """Answers when it is told to, and knows how many it had at once."""

    def __init__(self):
        self.go = threading.Event()
        self.began = threading.Event()
        self.running = self.most = 0

    def __call__(self, _, send):
        self.running += 1
        self.most = max(self.most, self.running)
        self.began.set()
        assert self.go.wait(PATIENCE_S)
        self.running -= 1
        send(streamed())


def test_one_request_runs_at_a_time_and_no_comment_disturbs_the_lines(tmp_path):
    slow = Slow()
    with house(tmp_path, slow, "keep_alive_s: 0.05\n") as proxy, ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(ask, proxy) for _ in range(3)]
        assert slow.began.wait(PATIENCE_S)
        with pytest.raises(TimeoutError):
            asked[0].result(0.5)  # ten keep-alives' time
        slow.go.set()
        for answer in asked:
            assert answer.result(PATIENCE_S).headers["content-type"] == "application/x-ndjson"
            assert answer.result(PATIENCE_S).content == LINES
        assert slow.most == 1
