import asyncio
import hashlib
import json
import os
import socket
import threading

import httpx
import pytest

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.call import Truth
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.faults import NAMED, ODD_ENDS, OK, ErrorStatus, OddEnd, Stall
from hivemind_addon.sim.limits import Limit, LimitKind
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.server import SimServer
from lab.running_server import RunningServer, download_bytes, running_server
from tests.cases import each
from tests.patience import PATIENCE_S

from .clients import call_body, h1_request, hear

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
ASK = [{"role": "user", "content": "hello"}]


KEPT = httpx.Limits(keepalive_expiry=None)
"""For one connection, however slow the machine is."""


def ended(server: RunningServer) -> Truth:
    """The truth once nothing is in flight: the server hears a little later that a client has gone."""
    never = threading.Event()
    for _ in range(100 * PATIENCE_S):
        if not (truth := server.truth()).in_flight:
            return truth
        never.wait(0.01)
    pytest.fail(f"it does not end: {truth}")


def lines_of(response: httpx.Response) -> list[dict]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


@pytest.fixture(params=["h1", "h1-tls", "h2"])
def http(request, plain, secure, trusting):
    """A client of each protocol, with its server's address."""
    server = plain if request.param == "h1" else secure
    with httpx.Client(
        base_url=server.url,
        http1=request.param != "h2",
        http2=request.param == "h2",
        verify=trusting,
        timeout=PATIENCE_S,
    ) as client:
        yield client


def test_anthropics_own_client_gets_whole_and_streamed_answers(plain, new_key):
    import anthropic

    client = anthropic.Anthropic(base_url=plain.url, api_key=new_key(), max_retries=0)
    whole = client.messages.create(model="sim-1", max_tokens=100, messages=ASK)
    with client.messages.stream(model="sim-1", max_tokens=100, messages=ASK) as stream:
        streamed = stream.get_final_message()
    assert whole.content[0].text.startswith(f"{whole.id.replace('msg', 'req')} attempt 1 ")
    assert streamed.content[0].text.startswith(f"{streamed.id.replace('msg', 'req')} attempt 2 ")
    assert (whole.usage.output_tokens, streamed.usage.output_tokens) == (8, 8)
    assert whole.stop_reason == streamed.stop_reason == "end_turn"


def test_both_own_clients_work_over_http2_and_tls(secure, trusting, new_key):
    import anthropic
    import openai

    key = new_key()
    with anthropic.DefaultHttpxClient(http2=True, http1=False, verify=trusting) as http:
        claude = anthropic.Anthropic(base_url=secure.url, api_key=key, max_retries=0, http_client=http)
        whole = claude.messages.create(model="sim-1", max_tokens=100, messages=ASK)
        with claude.messages.stream(model="sim-1", max_tokens=100, messages=ASK) as stream:
            streamed = stream.get_final_message()
    with openai.DefaultHttpxClient(http2=True, http1=False, verify=trusting) as http:
        gpt = openai.OpenAI(base_url=f"{secure.url}/v1", api_key=key, max_retries=0, http_client=http)
        answer = gpt.chat.completions.create(model="sim-1", messages=ASK)
        chunks = list(gpt.chat.completions.create(model="sim-1", messages=ASK, stream=True))
    assert " attempt 1 " in whole.content[0].text
    assert " attempt 2 " in streamed.content[0].text
    assert " attempt 3 " in answer.choices[0].message.content
    assert " attempt 4 " in chunks[1].choices[0].delta.content
    assert secure.connections()[-1].http2


def test_openais_own_client_gets_whole_and_streamed_answers(plain, new_key):
    import openai

    client = openai.OpenAI(base_url=f"{plain.url}/v1", api_key=new_key(), max_retries=0)
    whole = client.chat.completions.create(model="sim-1", messages=ASK)
    chunks = list(
        client.chat.completions.create(model="sim-1", messages=ASK, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert " attempt 1 " in whole.choices[0].message.content
    assert " attempt 2 " in text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 8


def test_the_clients_find_the_other_paths_too(plain, new_key):
    import anthropic
    import openai

    claude = anthropic.Anthropic(base_url=plain.url, api_key=new_key())
    gpt = openai.OpenAI(base_url=f"{plain.url}/v1", api_key=new_key())
    assert claude.messages.count_tokens(model="sim-1", messages=ASK).input_tokens > 0
    assert [model.id for model in claude.models.list()] == ["sim-1"]
    assert [model.id for model in gpt.models.list()] == ["sim-1"]


@each(
    ("name", "error"),
    [
        ("400", "BadRequestError"),
        ("401", "AuthenticationError"),
        ("403", "PermissionDeniedError"),
        ("404", "NotFoundError"),
        ("429", "RateLimitError"),
        ("500", "InternalServerError"),
        ("529", "InternalServerError"),
        ("close-before-head", "APIConnectionError"),
        ("body-cut", "APIConnectionError"),
    ],
)
def test_anthropics_own_client_understands_the_faults(plain, faults_of, name, error):
    import anthropic

    client = anthropic.Anthropic(base_url=plain.url, api_key=faults_of(name), max_retries=0)
    with pytest.raises((getattr(anthropic, error), httpx.RemoteProtocolError)):
        client.messages.create(model="sim-1", max_tokens=100, messages=ASK)


def test_an_error_event_reaches_the_clients_as_an_error(plain, faults_of):
    import anthropic
    import openai

    claude = anthropic.Anthropic(base_url=plain.url, api_key=faults_of("error-in-the-middle"), max_retries=0)
    seen = []
    with (
        pytest.raises(anthropic.APIStatusError),
        claude.messages.stream(model="sim-1", max_tokens=9, messages=ASK) as stream,
    ):
        seen.extend(stream.text_stream)
    gpt = openai.OpenAI(base_url=f"{plain.url}/v1", api_key=faults_of("error-first"), max_retries=0)
    with pytest.raises(openai.APIError, match="Overloaded"):
        list(gpt.chat.completions.create(model="sim-1", messages=ASK, stream=True))
    assert len(seen) == 4


@each("path", [MESSAGES, CHAT])
@each("stream", [True, False])
@each("coding", ["gzip", "br", "zstd"])
def test_encoded_answers_decode_to_the_plain_ones(http, faults_of, path, stream, coding):
    key = faults_of(coding, "ok")
    post = {"content": call_body(stream=stream), "headers": {"x-api-key": key}}
    encoded, plain_answer = http.post(path, **post), http.post(path, **post)
    assert encoded.headers["content-encoding"] == coding
    first, second = encoded.headers["request-id"], plain_answer.headers["request-id"]
    assert encoded.text == plain_answer.text.replace(second[4:], first[4:]).replace("attempt 2", "attempt 1")


@each("path", [MESSAGES, CHAT])
def test_json_may_answer_a_streamed_request(http, faults_of, path):
    key = faults_of("json-for-stream")
    answer = http.post(path, content=call_body(stream=True), headers={"x-api-key": key})
    assert answer.headers["content-type"] == "application/json"
    assert "usage" in answer.json()


@each("path", [MESSAGES, CHAT])
@each(
    ("name", "status", "words"),
    [
        ("429", 429, "error"),
        ("500", 500, "error"),
        ("503", 503, "error"),
        ("413", 413, "error"),
        ("402", 402, "billing_error"),
        ("html", 502, "<html>"),
        ("spent-credit", 429, "error"),
    ],
)
def test_error_answers_look_the_same_on_every_protocol(http, faults_of, path, name, status, words):
    answer = http.post(path, content=call_body(stream=True), headers={"x-api-key": faults_of(name)})
    assert answer.status_code == status
    assert words in answer.text
    assert "retry-after" not in answer.headers


def test_retry_after_and_should_retry_are_headers(http, faults_of):
    key = faults_of("429-retry-after", "500-should-not-retry")
    first, second = (http.post(MESSAGES, content=call_body(), headers={"x-api-key": key}) for _ in range(2))
    assert (first.status_code, first.headers["retry-after"]) == (429, "1")
    assert (second.status_code, second.headers["x-should-retry"]) == (500, "false")


def test_error_events_stand_at_their_places_on_every_protocol(http, faults_of):
    key = faults_of("error-first", "error-second", "error-in-the-middle")
    types = [
        [event["type"] for event in lines_of(http.post(MESSAGES, content=body, headers={"x-api-key": key}))]
        for body in [call_body(stream=True)] * 3
    ]
    assert types[0] == ["error"]
    assert types[1] == ["message_start", "error"]
    assert types[2] == ["message_start", "ping", "content_block_start", *["content_block_delta"] * 4, "error"]


def test_a_stall_is_heard_as_silence(plain, new_key):
    key = new_key()
    plain.script(key, [Stall(600, 1)])
    with socket.create_connection((plain.host, plain.port), timeout=PATIENCE_S) as connection:
        connection.sendall(h1_request(key, call_body(stream=True)))
        heard = b""
        while not heard.endswith(b"\n\n\r\n"):  # the chunk of an event
            heard += connection.recv(65536)
        assert heard.count(b"event: ") == heard.count(b"event: message_start") == 1
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(65536)


def test_a_request_without_key_or_sense_is_told_so(http, new_key):
    assert http.post(MESSAGES, content=call_body()).status_code == 401
    assert http.post(MESSAGES, content=b"{", headers={"x-api-key": new_key()}).status_code == 400


def test_a_body_beyond_the_bound_is_too_large(plain, new_key):
    answer = httpx.post(
        plain.url + MESSAGES, content=b" " * (33 * 1024 * 1024), headers={"x-api-key": new_key()}, timeout=PATIENCE_S
    )
    assert answer.status_code == 413


def test_unknown_paths_are_not_found_in_the_shape_of_the_dialect(http):
    assert http.post("/v1/nothing").json()["error"]["code"] == "not_found"
    claude = http.post("/v1/nothing", headers={"anthropic-version": "2023-06-01"}).json()
    assert claude["error"]["type"] == "not_found_error"
    assert http.head("/").status_code == 404


def test_an_echo_says_what_arrived(http):
    echo = http.get("/echo?a=b", headers={"X-One": "1"}).json()
    assert (echo["query"], echo["headers"]["x-one"]) == ("a=b", "1")
    assert echo["host"].startswith("127.0.0.1:")


def test_an_upload_is_counted_and_hashed(http):
    content = os.urandom(600_000)
    pieces = (content[at : at + 7000] for at in range(0, len(content), 7000))
    expected = {"size": 600_000, "sha256": hashlib.sha256(content).hexdigest()}
    assert http.post("/upload", content=content).json() == expected
    assert http.post("/upload", content=pieces).json() == expected


@each("query", ["size=300000", "size=300000&chunks=7", "size=0"])
def test_a_download_is_what_was_asked_for(http, query):
    size = int(query.split("&")[0].removeprefix("size="))
    assert http.get(f"/download?{query}").content == download_bytes(0, size)


def test_a_download_needs_numbers(http):
    assert http.get("/download?size=many").status_code == 400


def test_the_bytes_of_a_download_follow_from_their_places():
    whole = bytes(place % 251 for place in range(3000))
    assert all(download_bytes(at, at + 300) == whole[at : at + 300] for at in range(0, 2700, 97))


def test_connections_and_heads_are_recorded(secure, trusting):
    before = {connection.number for connection in secure.connections()}
    url = f"https://localhost:{secure.port}"
    with httpx.Client(base_url=url, http2=True, verify=trusting, timeout=PATIENCE_S, limits=KEPT) as client:
        for _ in range(3):
            client.get("/echo", headers={"x-hivemind-test": "1", "Host": "api.example"})
        (mine,) = [each for each in secure.connections() if each.number not in before]
    assert (mine.http2, mine.sni, mine.requests) == (True, "localhost", 3)
    assert mine.hosts == {"api.example"}
    assert "x-hivemind-test" in mine.header_names
    assert "proxy-authorization" not in mine.header_names
    assert secure.requests()[-1].headers["x-hivemind-test"] == "1"


def test_limits_hold_on_the_socket_and_the_truth_tells_by_agent():
    limit = Limit(Dimension.REQUESTS, 4, 3600, LimitKind.WINDOW)
    with running_server(ProviderSettings(limits=(limit,))) as server:
        for number in range(6):
            headers = {"x-api-key": "sk-sim-a", "x-sim-agent": f"agent-{number % 2}"}
            answer = httpx.post(server.url + MESSAGES, content=call_body(), headers=headers, timeout=PATIENCE_S)
        truth = server.truth()
    assert answer.status_code == 429
    assert 3500 < int(answer.headers["retry-after"]) <= 3600
    assert truth.by_status == {200: 4, 429: 2}
    assert {name: (agent.attempts, agent.completed) for name, agent in truth.agents.items()} == {
        "agent-0": (3, 2),
        "agent-1": (3, 2),
    }


def test_the_concurrent_peak_is_what_really_ran(new_key):
    """Who gets an answer leaves it unread until all have been answered."""
    all_are_answered = threading.Barrier(8)
    statuses: list[int] = []
    with running_server(ProviderSettings(concurrency=3)) as server, httpx.Client(timeout=PATIENCE_S) as client:
        headers = {"x-api-key": new_key(), "x-sim-interval-ms": "600000"}

        def call() -> None:
            url, body = server.url + MESSAGES, call_body(stream=True)
            with client.stream("POST", url, content=body, headers=headers) as answer:
                statuses.append(answer.status_code)
                all_are_answered.wait(PATIENCE_S)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        truth = ended(server)
    assert sorted(statuses) == [200] * 3 + [529] * 5
    assert (truth.peak_in_flight, truth.in_flight, truth.overloaded) == (3, 0, 5)


def test_a_client_that_goes_abandons_its_attempt(new_key):
    request = h1_request(new_key(), call_body(stream=True), extra="x-sim-interval-ms: 600000\r\n")
    with running_server() as server:
        with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
            connection.sendall(request)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            assert server.truth().in_flight == 1
        assert ended(server).abandoned == 1


@each("stream", [False, True])
@each("how", ODD_ENDS)
def test_an_answer_with_an_odd_end_is_paid_whoever_leaves(new_key, how, stream):
    key = new_key()
    with running_server() as server:
        server.script(key, [OddEnd(how)])
        with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
            connection.sendall(h1_request(key, call_body(stream=stream), extra="connection: close\r\n"))
            heard = b""
            while b"end_turn" not in heard:
                heard += connection.recv(65536)
            if how != "left-open":
                while piece := connection.recv(65536):
                    heard += piece
                has_last_chunk = how in ("no-terminal", "other-label")
                assert heard.endswith(b"0\r\n\r\n") is has_last_chunk
        truth = ended(server)
    assert (truth.attempts, truth.completed, truth.cut, truth.abandoned) == (1, 1, 0, 0)


def test_a_reset_begins_anew_with_the_same_seed():
    settings = ProviderSettings(faults={"500": 0.3, "503": 0.3})

    def statuses() -> list[int]:
        headers = {"x-api-key": "sk-sim-a"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S) as client:
            return [client.post(MESSAGES, content=call_body()).status_code for _ in range(30)]

    with running_server(settings, seed=3) as server:
        first = statuses()
        server.reset()
        assert server.truth().attempts == 0
        assert statuses() == first
    assert set(first) == {200, 500, 503}


def test_scripts_of_parallel_tests_do_not_disturb_each_other(plain, new_key):
    keys = [new_key() for _ in range(4)]
    for key in keys:
        plain.script(key, [ErrorStatus(500), OK, ErrorStatus(503)], then=NAMED["529"])
    with httpx.Client(base_url=plain.url, timeout=PATIENCE_S) as client:
        seen = [
            [client.post(MESSAGES, content=call_body(), headers={"x-api-key": key}).status_code for key in keys]
            for _ in range(4)
        ]
    assert seen == [[500] * 4, [200] * 4, [503] * 4, [529] * 4]


def test_a_taken_port_is_told_at_the_start(plain):
    with pytest.raises(OSError, match="address already in use"), running_server(port=plain.port):
        pytest.fail("two servers on one port")


async def test_a_server_lives_in_a_running_loop_too():
    server = SimServer()
    await server.start()
    request = h1_request("sk-sim-a", call_body(), extra="connection: close\r\n")
    heard = await asyncio.to_thread(hear, server.port, request)
    await server.stop()
    assert heard.status == 200
    assert server.truth().completed == 1
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(hear, server.port, request)


async def test_stopping_cuts_what_is_open():
    server = SimServer()
    await server.start()
    request = h1_request("sk-sim-a", call_body(stream=True), extra="x-sim-interval-ms: 60000\r\n")
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(request)
    await reader.readuntil(b"content_block_delta")
    assert server.truth().in_flight == 1
    await server.stop()
    assert b"message_stop" not in await reader.read()
    writer.close()
    assert (server.truth().in_flight, server.truth().abandoned) == (0, 1)


def test_both_dialects_are_served_at_once(plain, new_key):
    key = new_key()
    answers = {
        dialect: httpx.post(
            plain.url + path, content=call_body(), headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S
        )
        for dialect, path in ((SimDialect.MESSAGES, MESSAGES), (SimDialect.CHAT, CHAT))
    }
    assert answers[SimDialect.MESSAGES].json()["type"] == "message"
    assert answers[SimDialect.CHAT].json()["object"] == "chat.completion"


def test_every_dialect_has_its_path():
    with running_server() as server:
        for path in ("/v1/responses", "/api/chat", "/v1/chat/completions"):
            heard = hear(
                server.port, h1_request("k", call_body(input="hello"), path=path, extra="connection: close\r\n")
            )
            assert heard.status == 200
        truth = server.truth()
        assert truth.completed == 3


def test_a_websocket_is_answered_426():
    with running_server() as server:
        headers = {"connection": "upgrade", "upgrade": "websocket"}
        url = f"{server.url}/v1/responses"
        assert httpx.get(url, headers=headers, trust_env=False, timeout=PATIENCE_S).status_code == 426
