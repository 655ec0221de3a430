"""What single providers and clients need: Ollama's lines, Codex's transport, spent windows, the official SDKs."""

import hashlib
import itertools
import json
import re
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import zstandard

from hivemind_addon.sim.faults import NAMED
from tests.e2e.conftest import Call
from tests.e2e.proxy import NO_TLS, PATIENCE_S, QUICK, Proxy, for_host, free_port, options, profiles, running
from tests.e2e.raw_provider import NDJSON_HEAD, STREAM_HEAD, chunk, raw_provider, whole
from tests.proxy.gate.test_answer_table import FORMS, JSON, SSE, WORDS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("providers")]

DATA = Path(__file__).parents[1] / "formats" / "wire" / "data"


class Hangup(OSError):
    """Ends the connection."""


class Scripted:
    """A provider whose answers a test gives, one for each request: bytes (without an end: a cut), or what sends them."""

    def __init__(self):
        self.port = free_port()
        self.answers, self.served = [], 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def script(self, *answers):
        self.answers, self.served = list(answers), 0

    def __call__(self, _, send):
        answer = self.answers[self.served]
        self.served += 1
        if callable(answer):
            answer(send)
            return
        send(answer)
        if not answer.endswith(b"0\r\n\r\n") and b"content-length" not in answer:
            raise Hangup


@dataclass(frozen=True, slots=True)
class Stand:
    """One proxy, forward and in reverse before Ollama, and three providers."""

    proxy: Proxy
    ollama: Scripted
    codex: Scripted
    claude: Scripted


@pytest.fixture(scope="module")
def stand(tmp_path_factory):
    folder = tmp_path_factory.mktemp("providers")
    ollama, codex, claude = providers = [Scripted() for _ in range(3)]
    settings = profiles(
        folder,
        lines=f"extends: ollama\nhosts: []\n{QUICK}keep_alive_s: 0.05\n",
        codexmine=for_host(codex.port, extends="codex", more=QUICK + "websocket: refuse\n"),
        claudemine=for_host(claude.port, slots=1),
    )
    with ExitStack() as stack:
        for one in providers:
            stack.enter_context(raw_provider(one.port, None, one))
        modes = ("regular", f"reverse:{ollama.url}")
        settings += options(reverse_profile="lines")
        proxy = stack.enter_context(running(folder / "conf", *settings, modes=modes))
        yield Stand(proxy, ollama, codex, claude)
        assert "Traceback" not in proxy.log, proxy.log
        assert proxy.state()["guard_trips"] == 0


# Ollama: lines instead of events, one slot, no account -----------------------------------------------------------------

LINES = (DATA / "ollama" / "chat.ndjson").read_bytes()
BROKEN = (DATA / "ollama" / "error_before_content.ndjson").read_bytes()
PLAIN = (
    b'{"model":"qwen3","message":{"role":"assistant","content":"Hi"},"done":true,"prompt_eval_count":9,"eval_count":2}'
)
EACH = [chunk(line) for line in LINES.splitlines(keepends=True)]
STREAMED = NDJSON_HEAD + b"".join(EACH) + chunk(b"")


def chat(stand, path="/api/chat", **changes):
    request = {"model": "qwen3", "messages": [{"role": "user", "content": "hi"}]} | changes
    return stand.proxy.post(path, json.dumps(request))


def test_lines_reach_the_client_as_they_come_and_the_last_one_ends_them(stand):
    go = threading.Event()

    def slow(send):
        send(NDJSON_HEAD + b"".join(EACH[:3]))
        assert go.wait(PATIENCE_S)
        send(b"".join(EACH[3:]) + chunk(b""))

    stand.ollama.script(slow)
    with httpx.Client(timeout=PATIENCE_S, trust_env=False, verify=NO_TLS) as client:
        url = f"http://127.0.0.1:{stand.proxy.ports[1]}/api/chat"
        with client.stream("POST", url, content=b'{"model": "qwen3", "messages": []}') as answer:
            assert answer.headers["content-type"] == "application/x-ndjson"
            pieces = answer.iter_raw()
            seen = b""
            while b"Hello" not in seen:
                seen += next(pieces)
            assert b"done_reason" not in seen
            go.set()
            assert seen + b"".join(pieces) == LINES


def test_what_fails_before_its_content_is_tried_again_and_nothing_else(stand, subtests):
    failures = {
        "error line": NDJSON_HEAD + b"".join(map(chunk, BROKEN.splitlines(keepends=True))) + chunk(b""),
        "busy": whole(503, b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'),
        "500": whole(500, b'{"error":"llama runner process has terminated"}'),
        "cut": NDJSON_HEAD + EACH[0],
        "no last line": NDJSON_HEAD + EACH[0] + chunk(b""),
    }
    for name, failure in failures.items():
        with subtests.test(name):
            stand.ollama.script(failure, STREAMED)
            assert chat(stand).content == LINES
            assert stand.ollama.served == 2
    with subtests.test("a cut after content"):
        stand.ollama.script(NDJSON_HEAD + b"".join(EACH[:3]))
        with pytest.raises(httpx.RemoteProtocolError):
            chat(stand)
    with subtests.test("a model that is not there"):
        stand.ollama.script(whole(404, b'{"error":"model \'qwen9\' not found"}'))
        answer = chat(stand, model="qwen9")
        assert (answer.status_code, answer.json()) == (404, {"error": "model 'qwen9' not found"})
        assert stand.ollama.served == 1


def test_plain_answers_and_the_other_shapes_go_through(stand):
    sse = (DATA / "openai" / "chat_with_usage.sse").read_bytes()
    response = (DATA / "openai" / "response.sse").read_bytes()
    streams = (STREAM_HEAD + chunk(one) + chunk(b"") for one in (sse, response))
    stand.ollama.script(whole(200, PLAIN), *streams)
    assert chat(stand, stream=False).content == PLAIN
    # A loaded machine answers after the first keep-alive's time.
    for path, stream in {"/v1/chat/completions": sse, "/v1/responses": response}.items():
        assert chat(stand, path, stream=True, input="hi").content.replace(b": waiting\n\n", b"") == stream


def test_one_request_runs_at_a_time_and_no_comment_disturbs_the_lines(stand):
    go, began, running_now, most = threading.Event(), threading.Event(), [], []

    def slow(send):
        running_now.append(send)
        most.append(len(running_now))
        began.set()
        assert go.wait(PATIENCE_S)
        running_now.remove(send)
        send(STREAMED)

    stand.ollama.script(slow, slow, slow)
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(chat, stand) for _ in range(3)]
        assert began.wait(PATIENCE_S)
        with pytest.raises(TimeoutError):
            asked[0].result(0.5)  # ten keep-alives' time
        go.set()
        for answer in asked:
            assert answer.result(PATIENCE_S).headers["content-type"] == "application/x-ndjson"
            assert answer.result(PATIENCE_S).content == LINES
    assert max(most) == 1


# Codex: its WebSocket becomes plain requests, its streams' failures are obeyed, its plan is read -------------------------

GOOD = (DATA / "codex" / "response.sse").read_bytes()
LIMITED = (
    (DATA / "openai" / "response_failed.sse")
    .read_bytes()
    .replace(b"try again in 11 seconds", b"try again in 0.1 seconds")
)
SPENT_PLAN = (DATA / "codex" / "response_failed_usage_limit.sse").read_bytes()
PATH = "/backend-api/codex/responses"
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "openai-beta": "responses_websockets=2026-02-06",
}
BODY = json.dumps({"model": "gpt-5.1-codex", "stream": True, "input": [{"role": "user", "content": "hi"}]}).encode()


def events(stream):
    return STREAM_HEAD + chunk(stream) + chunk(b"")


def ask_codex(stand, account, content=BODY, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named |= {"authorization": "Bearer t", "chatgpt-account-id": account, "content-type": "application/json"}
    with stand.proxy.client() as client:
        return client.post(stand.codex.url + PATH, content=content, headers=named)


def test_a_websocket_upgrade_is_answered_426_and_plain_requests_go_on(stand, stage, key):
    stand.codex.script(events(GOOD), whole(200, b"{}"))
    with stand.proxy.client() as client:
        answer = client.get(stand.codex.url + PATH, headers=UPGRADE)
        assert answer.status_code == 426
        assert "plain requests" in answer.json()["error"]["message"]
        assert client.get(stand.codex.url + PATH, headers=UPGRADE).status_code == 426, "on the same connection"
        assert stand.codex.served == 0
        before = stand.proxy.state()["snapshot"]["counters"]["tickets"]
        assert ask_codex(stand, "acct-1").content == GOOD
        assert client.get(stand.codex.url + PATH.replace("/responses", "/models")).status_code == 200
        assert stand.proxy.state()["snapshot"]["counters"]["tickets"] == before + 1, "other paths pass by"
    call = Call(key, chat=True)
    with stage.proxy.client() as client:  # inside TLS as well
        assert client.get("https://h1.chat.test/v1/responses", headers=call.headers | UPGRADE).status_code == 426
        assert stage.providers.attempts(key) == 0
        assert client.send(call.request("https://h1.chat.test")).status_code == 200
    stage.settled()


def test_the_plans_windows_are_read_from_the_stream_and_a_compressed_request_arrives_as_it_came(stand):
    soon = str(int(time.time()) + 3600).encode()
    told = re.sub(rb'"reset_at": \d+', b'"reset_at": ' + soon, GOOD)
    stand.codex.script(events(told))
    packed = zstandard.ZstdCompressor().compress(BODY)
    assert ask_codex(stand, "acct-2", packed, content_encoding="zstd").content == told
    state = stand.proxy.wait_for(lambda state: state["live"] == 0, "the end")
    submitted = [event for event in state["events"] if event.startswith("Submitted")][-1]
    assert "model='gpt-5.1-codex'" in submitted
    assert "streamed=True" in submitted
    (pool,) = [pool for pool in state["snapshot"]["pools"] if "/acct-2/" in pool["key"]]
    assert [(one["name"], one["used"]) for one in pool["windows"]] == [("primary", 0.425), ("secondary", 0.07)]
    assert "window primary 42% used" in stand.proxy.log


def test_a_response_that_fails_before_its_content_is_tried_again_when_it_says(stand):
    stand.codex.script(events(LIMITED), events(GOOD))
    began = time.perf_counter()
    assert ask_codex(stand, "acct-3").content == GOOD
    assert time.perf_counter() - began > 0.1
    assert stand.codex.served == 2


def test_a_plan_that_is_spent_is_told_as_it_came_and_to_everybody_after_it(stand):
    stand.codex.script(events(SPENT_PLAN))
    asked_at = time.time()
    first = ask_codex(stand, "acct-4")
    assert (first.status_code, first.content) == (200, SPENT_PLAN)
    second = ask_codex(stand, "acct-4")
    assert second.status_code == 429
    error = second.json()["error"]
    assert error["type"] == "usage_limit_reached"
    in_five_minutes = asked_at + 298 < error["resets_at"] < time.time() + 302
    assert in_five_minutes, "nobody said when: it is asked again then"

    resets_at = int(time.time()) + 9000
    said = {"error": {"type": "usage_limit_reached", "plan_type": "plus", "resets_at": resets_at}}
    stand.codex.script(whole(429, json.dumps(said).encode()))
    assert ask_codex(stand, "acct-5").json() == said
    again = ask_codex(stand, "acct-5")
    assert abs(again.json()["error"]["resets_at"] - resets_at) <= 2, "it said when it comes back"
    assert again.headers["x-should-retry"] == "false"
    assert stand.codex.served == 1


# A spent window of an account: who cannot wait hears of it at once, and its end lets one go first ------------------------------

MESSAGE = b'{"type": "message", "content": [{"type": "text", "text": "hi"}], "usage": {"input_tokens": 5, "output_tokens": 2}}'
SPENT = (
    b'{"type":"error","error":{"type":"rate_limit_error","message":"This would exceed your limit."},"request_id":"r1"}'
)


def spent(lasts_s, go=None):
    """An answer that says how long the account is refused, given at the test's go-ahead."""

    def answer(send):
        assert go is None or go.wait(PATIENCE_S)
        reset = str(int(time.time() + lasts_s))
        headers = {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": reset}
        headers |= {"anthropic-ratelimit-unified-5h-utilization": "1.01", "x-said": "provider"}
        send(whole(429, SPENT, **headers))

    return answer


def good(go):
    def answer(send):
        assert go.wait(PATIENCE_S)
        send(whole(200, MESSAGE))

    return answer


def ask_claude(stand, account, agent):
    return stand.proxy.ask(f"{stand.claude.url}/v1/messages", agent, key=account)


def pool_of(stand, key, state=None):
    """The pool of a key; empty: there is none yet."""
    account = "key-" + hashlib.sha256(key.encode()).hexdigest()[:12]
    pools = (state or stand.proxy.state())["snapshot"]["pools"]
    return next((pool for pool in pools if f"/{account}/" in pool["key"]), {})


def test_a_spent_window_is_told_to_everybody_at_once(stand):
    go, lasts_s = threading.Event(), 3600
    stand.claude.script(spent(lasts_s, go))
    refused_before = stand.proxy.state()["snapshot"]["counters"]["refused"]
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(ask_claude, stand, "k1", "agent-0")
        stand.proxy.wait_for(lambda _: stand.claude.served == 1, "the first attempt")
        waiting = [threads.submit(ask_claude, stand, "k1", f"agent-{number}") for number in (1, 2)]
        stand.proxy.wait_for(lambda state: pool_of(stand, "k1", state)["queued"] == 2, "two that wait")
        go.set()

        hit = first.result(PATIENCE_S)
        assert (hit.status_code, hit.content) == (429, SPENT), "the very answer of the provider"
        assert hit.headers["x-said"] == "provider"
        for answer in [one.result(PATIENCE_S) for one in waiting] + [ask_claude(stand, "k1", "agent-3")]:
            assert answer.status_code == 429
            assert answer.headers["x-should-retry"] == "false"
            assert 0 < int(answer.headers["retry-after"]) <= lasts_s + 1
            assert answer.headers["anthropic-ratelimit-unified-status"] == "rejected"
            assert abs(int(answer.headers["anthropic-ratelimit-unified-reset"]) - time.time()) < lasts_s + 2
            error = answer.json()["error"]
            assert error["type"] == "rate_limit_error"
            assert "until 20" in error["message"]
    assert stand.claude.served == 1
    pool = pool_of(stand, "k1")
    assert pool["account_block"]["reason"] == "This would exceed your limit.", "in the provider's words"
    assert [one["name"] for one in pool["windows"]] == ["5h", "unified"]
    assert "the account is refused for" in stand.proxy.log
    assert stand.proxy.state()["snapshot"]["counters"]["refused"] == refused_before + 3


def test_the_end_of_a_spent_window_lets_one_go_first_which_may_put_it_back_for_all(stand):
    go = threading.Event()
    stand.claude.script(spent(2), good(go), good(go), spent(2), spent(3600))
    with ThreadPoolExecutor(2) as threads:
        held = [threads.submit(ask_claude, stand, "k2", f"agent-{number}") for number in (0, 1)]
        stand.proxy.wait_for(lambda state: pool_of(stand, "k2", state).get("in_flight") == 1, "the one that goes first")
        stand.proxy.wait_for(lambda state: pool_of(stand, "k2", state)["queued"] == 1, "one that waits for it")
        go.set()
        assert [one.result(PATIENCE_S).content for one in held] == [MESSAGE, MESSAGE], "they wait longer than it lasts"
    stand.proxy.settled()
    assert pool_of(stand, "k2")["account_block"] is None
    assert "the account is served again" in stand.proxy.log

    assert ask_claude(stand, "k2", "agent-0").content == SPENT, "the second one lasts longer than its client waits"
    refused = ask_claude(stand, "k2", "agent-2")
    assert re.search(r"\(in (1 h [01]|5\d) min\)", refused.json()["error"]["message"])
    assert stand.claude.served == 5


# The official Python SDKs, with their own retries off, through forward proxy and TLS, before a faulty provider -----------

FAULTS = [NAMED[name] for name in ("429-retry-after", "502", "reset-before-head", "body-cut", "529")]
STREAM_FAULTS = [NAMED[name] for name in ("503", "close-before-head", "error-first", "error-second", "head-then-reset")]
ASKED = {"model": "sim-1", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("version", ["h1", "h2"])
def test_the_official_sdks_see_one_good_answer_and_one_good_stream(stage, key, version):
    import anthropic
    import openai

    context = ssl.create_default_context(cafile=str(stage.proxy.ca))
    way = {"proxy": stage.proxy.url("sdk"), "verify": context, "http2": version == "h2", "trust_env": False}
    way["timeout"] = PATIENCE_S  # all is what a user gives to an SDK
    names = ("claude", "claude-stream", "gpt", "gpt-stream", "claude-401", "gpt-400")
    keys = {name: f"{key}-{name}" for name in names}
    for name, own in keys.items():
        fault = [NAMED[name.rpartition("-")[2]]] if name[-1].isdigit() else None
        stage.providers.script(own, fault or (STREAM_FAULTS if "stream" in name else FAULTS))

    with ExitStack() as stack, ThreadPoolExecutor(4) as threads:

        def claude(name):
            http = stack.enter_context(anthropic.DefaultHttpxClient(**way))
            url = f"https://{version}.sim.test"
            return anthropic.Anthropic(api_key=keys[name], base_url=url, max_retries=0, http_client=http).messages

        def gpt(name):
            http = stack.enter_context(openai.DefaultHttpxClient(**way))
            url = f"https://{version}.chat.test/v1"
            return openai.OpenAI(api_key=keys[name], base_url=url, max_retries=0, http_client=http).chat.completions

        def claude_stream():
            with claude("claude-stream").stream(max_tokens=64, **ASKED) as stream:
                return "".join(stream.text_stream), stream.get_final_message()

        def gpt_stream():
            return list(gpt("gpt-stream").create(stream=True, stream_options={"include_usage": True}, **ASKED))

        message = threads.submit(claude("claude").create, max_tokens=64, **ASKED)
        streamed_message = threads.submit(claude_stream)
        completion = threads.submit(gpt("gpt").create, **ASKED)
        chunks = threads.submit(gpt_stream).result(PATIENCE_S)
        message, completion = message.result(PATIENCE_S), completion.result(PATIENCE_S)
        text, last = streamed_message.result(PATIENCE_S)
        with pytest.raises(anthropic.AuthenticationError):
            claude("claude-401").create(max_tokens=64, **ASKED)
        with pytest.raises(openai.BadRequestError):
            gpt("gpt-400").create(**ASKED)

    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.content[0].text
    assert text == last.content[0].text
    assert completion.choices[0].message.content
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] in ("stop", "length")
    assert message.usage.output_tokens == last.usage.output_tokens == 8
    assert completion.usage.completion_tokens == chunks[-1].usage.completion_tokens == 8
    attempts = {name: stage.providers.attempts(own) for name, own in keys.items()}
    assert attempts == dict(zip(names, (6, 6, 6, 6, 1, 1), strict=True))
    stage.settled()


# The same SDKs before answers with odd ends and labels: as directly, or better ----------------------------------------------

EMOJI = (b"@@", b"\\ud83d")
THROTTLED = b'data: {"error_code": "ModelArts.81101.429", "error_msg": "Too many requests"}\n\n'
ODD_STREAMS = {
    "labelled as JSON": {"label": JSON},
    "labelled as text": {"label": "text/plain"},
    "without a label": {"label": ""},
    "left open": {"end": "open"},
    "no last chunk": {"end": "closed"},
    "half a terminal event": {"end": "closed", "left_out": 0.5},
    "no terminal event": {"left_out": 1},
    "length one too large": {"end": "closed", "spare": 1},
    "half an emoji": {"change": EMOJI},
    "said to be compressed": {"more": "content-encoding: UTF-8\r\n"},
    "usage late": {"pause_s": 1.2},
    "throttled with foreign members first": {"first": STREAM_HEAD + chunk(THROTTLED) + chunk(b"")},
}
ODD_OBJECTS = {
    "labelled as events": {"label": SSE},
    "labelled as text": {"label": "text/plain"},
    "left open": {"end": "open"},
    "no last chunk": {"end": "closed"},
    "length one too large": {"end": "closed", "spare": 1},
    "half an emoji": {"change": EMOJI},
    "said to be compressed": {"more": "content-encoding: UTF-8\r\n"},
}


class Odd(Scripted):
    """A provider of one format with one oddity."""

    def __init__(self, form, oddity, over, *, streamed):
        super().__init__()
        self.form, self.oddity, self.over, self.streamed = form, oddity, over, streamed

    def __call__(self, _, send):
        odd = {"label": SSE if self.streamed else JSON, "end": "clean", "spare": None, "more": ""} | self.oddity
        self.served += 1
        if self.served == 1 and "first" in odd:
            send(odd["first"])
            return
        pieces = self.form.parts(self.form.events()) if self.streamed else [self.form.whole()]
        pieces = [piece.replace(*odd.get("change", EMOJI[:1] * 2)) for piece in pieces]
        pieces[-1] = pieces[-1][: round(len(pieces[-1]) * (1 - odd.get("left_out", 0)))]
        size, is_chunked = len(b"".join(pieces)), odd["spare"] is None
        framing = "transfer-encoding: chunked" if is_chunked else f"content-length: {size + odd['spare']}"
        label = f"content-type: {odd['label']}\r\n" if odd["label"] else ""
        send(f"HTTP/1.1 200 OK\r\n{label}{odd['more']}{framing}\r\n\r\n".encode())
        for number, piece in enumerate(filter(None, pieces)):
            time.sleep(odd.get("pause_s", 0) if number == 2 else 0)  # behind the stop reason
            send(chunk(piece) if is_chunked else piece)
        if odd["end"] == "open":
            self.over.wait(PATIENCE_S)
        if odd["end"] != "clean":
            raise Hangup
        send(chunk(b""))


def said_by(sdk, provider, **way):
    """The text that an SDK gets, and the tokens that it hears of."""
    library = pytest.importorskip(sdk)
    client = {"api_key": "k", "max_retries": 0}
    with library.DefaultHttpxClient(trust_env=False, verify=NO_TLS, **way) as http:
        if sdk == "anthropic":
            messages = library.Anthropic(base_url=provider.url, http_client=http, **client).messages
            if provider.streamed:
                with messages.stream(max_tokens=64, **ASKED) as stream:
                    message = stream.get_final_message()
            else:
                message = messages.create(max_tokens=64, **ASKED)
            return message.content[0].text, (message.usage.input_tokens, message.usage.output_tokens)
        chats = library.OpenAI(base_url=f"{provider.url}/v1", http_client=http, **client).chat.completions
        if not provider.streamed:
            answer = chats.create(**ASKED)
            return answer.choices[0].message.content, (answer.usage.prompt_tokens, answer.usage.completion_tokens)
        chunks = list(chats.create(stream=True, stream_options={"include_usage": True}, **ASKED))
        text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
        usage = next((one.usage for one in chunks if one.usage), None)
        return text, usage and (usage.prompt_tokens, usage.completion_tokens)


def test_an_odd_answer_is_asked_for_once_and_reaches_the_sdks_as_directly_or_better(tmp_path):
    over = threading.Event()
    forms = {"anthropic": FORMS["messages"], "openai": FORMS["chat"]}
    rows = {
        (sdk, streamed, name): Odd(form, oddity, over, streamed=streamed)
        for (sdk, form), (streamed, odd) in itertools.product(
            forms.items(), ((False, ODD_OBJECTS), (True, ODD_STREAMS))
        )
        for name, oddity in odd.items()
    }

    def play(row):
        """What each way brings: text, tokens, calls."""
        (sdk, streamed, name), provider = row
        ways = {"direct": {"timeout": 1 if name == "left open" else PATIENCE_S}}
        for delivery in ("auto", "whole", "stream") if streamed else ("auto",):
            headers = {"x-hivemind-delivery": delivery}
            ways[delivery] = {"timeout": PATIENCE_S, "proxy": proxy.url(), "headers": headers}
        got = {}
        for way, settings in ways.items():
            provider.served = 0
            try:
                got[way] = *said_by(sdk, provider, **settings), provider.served
            except Exception as error:  # noqa: BLE001 - each SDK has its own, and the transport's pass through
                got[way] = repr(error), None, provider.served
        return got

    with ExitStack() as stack:
        for provider in rows.values():
            stack.enter_context(raw_provider(provider.port, None, provider))
        stack.callback(over.set)
        texts = {}
        for library, profile in (("anthropic", "anthropic"), ("openai", "openai-compatible")):
            hosts = [f"127.0.0.1:{provider.port}" for row, provider in rows.items() if row[0] == library]
            texts[f"odd{library}"] = f"extends: {profile}\nhosts: {hosts}\n{QUICK}"
        proxy = stack.enter_context(running(tmp_path / "conf", *profiles(tmp_path, **texts)))
        with ThreadPoolExecutor(len(rows)) as threads:
            results = dict(zip(rows, threads.map(play, rows.items()), strict=True))
        counters = proxy.settled()["snapshot"]["counters"]
        assert "Traceback" not in proxy.log, proxy.log
    worse, usage = {}, (123, 45)
    for row, (direct, *others) in zip(rows, map(dict.values, results.values()), strict=True):
        good = direct if direct[1] == usage else (f"{WORDS} @@", usage, 1 + ("first" in rows[row].oddity))
        if any(other != good for other in others):
            worse[row] = results[row]
    assert not worse
    calls, direct = sum(len(got) - 1 for got in results.values()), [got["direct"][1] for got in results.values()]
    assert direct.count(usage) > len(rows) / 2
    assert (counters["input_tokens"], counters["output_tokens"]) == (123 * calls, 45 * calls)
