"""Work that outlives its request, through a real proxy: background responses and batches against budgets."""

import gzip
import itertools
import json
import signal
import sqlite3
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from tests.e2e.proxy import for_host, options, profiles, running

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("budgets")]

USAGE = {"input_tokens": 50_000, "output_tokens": 9_000, "total_tokens": 59_000}


class Provider(BaseHTTPRequestHandler):
    """Answers what the test has put into `answers`, by method and path; else 404."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.do_GET()

    def do_GET(self):
        found = self.server.answers.get(f"{self.command} {self.path.partition('?')[0]}")
        found = found() if callable(found) else found
        status, media_type, body, *is_open = found or (404, "application/json", b"{}")
        self.send_response(status)
        self.send_header("content-type", media_type)
        if body[:2] == b"\x1f\x8b":
            self.send_header("content-encoding", "gzip")
        self.send_header("content-length", str(len(body) + len(is_open)))  # of an open answer a byte is missing
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_):
        pass


@contextmanager
def provider():
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        server.answers = {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def answered(value, *, status=200, packed=False):
    text = json.dumps(value).encode()
    return status, "application/json", gzip.compress(text) if packed else text


def response(number, status, usage=None):
    return {
        "id": f"resp_{number}",
        "object": "response",
        "status": status,
        "background": True,
        "output": [],
        "usage": usage,
    }


def in_background(server, later):
    """POSTs begin resp_0, resp_1, …, each `queued`; a GET answers `later(number)`."""
    numbers = itertools.count()

    def begin():
        number = next(numbers)
        server.answers[f"GET /v1/responses/resp_{number}"] = answered(later(number), packed=number % 2 == 1)
        return answered(response(number, "queued"))

    server.answers["POST /v1/responses"] = begin


@pytest.fixture
def server(runtime_dir):
    with provider() as one:
        yield one


def run(folder, server, *, extends="openai", ports=None, **values):
    settings = profiles(folder, mine=for_host(server.server_port, extends=extends))
    return running(folder / "conf", *settings, *options(journal=folder / "journal.db", **values), ports=ports)


class Client:
    """One agent behind the proxy."""

    def __init__(self, proxy, server, agent="agent-1"):
        self.proxy, self.agent, self.base = proxy, agent, f"http://127.0.0.1:{server.server_port}"

    def __call__(self, method, path, **content):
        with self.proxy.client(self.agent) as client:
            return client.request(method, self.base + path, headers={"authorization": "Bearer k"}, **content)

    def begin(self, **more):
        """Begin a response in background mode."""
        asked = {"model": "gpt-5", "input": "hi", "background": True, "max_output_tokens": 9000}
        return self("POST", "/v1/responses", json=asked | more)

    def account(self):
        """Spent and reserved tokens."""
        asked = ["budget", "--json", "-p", str(self.proxy.port)]
        if (done := CliRunner().invoke(main, asked)).exit_code:  # it opens the socket for commands after the ports
            self.proxy.wait_for(lambda _: CliRunner().invoke(main, asked).exit_code == 0, "it answers commands")
            done = CliRunner().invoke(main, asked)
        mine = (one for one in json.loads(done.output) if one["holder"] == f"agent {self.agent}")
        return next(((one["spent_tokens"], one["reserved_tokens"]) for one in mine), (0, 0))

    def reserved(self):
        """Wait for a reservation, and return it."""
        self.proxy.wait_for(lambda _: self.account()[1], "a reservation")
        return self.account()[1]

    def wait_for(self, spent, reserved=0):
        self.proxy.wait_for(lambda _: self.account() == (spent, reserved), f"{spent} spent and {reserved} reserved")


def requests(folder):
    """All requests in the journal, the newest first."""
    done = CliRunner().invoke(main, ["history", "list", "--json", "--journal", str(folder / "journal.db")])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_background_responses_count_in_budgets_once_however_often_they_are_polled(tmp_path, server):
    in_background(server, lambda number: response(number, "completed", USAGE))
    with run(tmp_path, server, agent_budget="100k") as proxy:
        client = Client(proxy, server)
        for number in range(2):
            assert client.begin().json()["status"] == "queued"
            assert client.reserved(), "a job is in flight"
            for _ in range(3):
                assert client("GET", f"/v1/responses/resp_{number}").json()["usage"] == USAGE
        client.wait_for(118_000)
        refused = client.begin()
        assert refused.status_code == 400
        assert "118,000 tokens of 100,000" in refused.json()["error"]["message"]
        assert proxy.stop() == 0
    _, *done = requests(tmp_path)
    assert [(one["end"], one["tokens"], one["attempts"]) for one in done] == [("delivered", 59_000, 1)] * 2
    started = int(done[-1]["arrived"]) // 86_400 * 86_400
    result = {"model": "gpt-5-2025-08-07", "input_tokens": 100_000, "output_tokens": 18_000, "input_cached_tokens": 0}
    report = {"object": "page", "data": [{"start_time": started, "end_time": started + 86_400, "results": [result]}]}
    (tmp_path / "usage.json").write_text(json.dumps(report))
    bill = ["history", "bill", str(tmp_path / "usage.json"), "--journal", str(tmp_path / "journal.db")]
    assert CliRunner().invoke(main, bill).exit_code == 0, "the provider bills what is booked"


@pytest.mark.parametrize(
    ("method", "path", "answer", "spent"),
    [
        ("GET", "", response(0, "in_progress"), None),
        ("GET", "/input_items", {"object": "list", "data": []}, None),
        ("POST", "/cancel", response(0, "cancelled"), 0),
        ("GET", "", response(0, "failed"), 0),
        ("GET", "", response(0, "incomplete", USAGE | {"input_tokens": 1000, "total_tokens": 10_000}), 10_000),
        ("GET", "?stream=true&starting_after=3", [response(0, "in_progress"), response(0, "completed", USAGE)], 59_000),
        ("GET", "?stream=true", [response(0, "queued"), response(0, "in_progress")], None),
    ],
)
def test_what_a_later_answer_says_ends_a_job_or_not(shared, method, path, answer, spent):
    client, server = shared
    path = f"/v1/responses/resp_0{path}"
    if isinstance(answer, list):
        events = [{"type": f"response.{one['status']}", "response": one} for one in answer]
        sent = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events).encode()
        server.answers[f"{method} /v1/responses/resp_0"] = 200, "text/event-stream", sent
    else:
        server.answers[f"{method} {path}"] = answered(answer)
    before, _ = client.account()
    server.answers["POST /v1/responses"] = answered(response(0, "queued"))
    client.begin()
    reserved = client.reserved()
    if isinstance(answer, list):
        assert client(method, path).content == sent, "it passes untouched"
    else:
        assert client(method, path).json() == answer
    client.wait_for(before + (spent or 0), reserved if spent is None else 0)
    server.answers["POST /v1/responses/resp_0/cancel"] = answered(response(0, "cancelled"))
    client("POST", "/v1/responses/resp_0/cancel")
    client.wait_for(before + (spent or 0))


@pytest.fixture(scope="module")
def shared(tmp_path_factory, runtime_dir):
    """A client of a proxy and a provider that many cases use one after the other."""
    with provider() as server, run(tmp_path_factory.mktemp("jobs"), server, agent_budget="10m") as proxy:
        yield Client(proxy, server), server


def test_a_job_under_another_label_is_one(tmp_path, server):
    server.answers["GET /v1/responses/resp_0"] = answered(response(0, "completed", USAGE))
    server.answers["POST /v1/responses"] = 200, "text/event-stream", answered(response(0, "queued"))[2]
    with run(tmp_path, server, agent_budget="100k") as proxy:
        client = Client(proxy, server)
        client.begin()
        assert client.reserved()
        client("GET", "/v1/responses/resp_0")
        client.wait_for(59_000)
        assert proxy.stop() == 0


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_outlives_its_proxy(tmp_path, server, stop):
    in_background(server, lambda _: response(0, "completed", USAGE))
    with run(tmp_path, server, agent_budget="100k") as proxy:
        client = Client(proxy, server)
        client.begin()
        reserved = client.reserved()
        proxy.wait_for(lambda _: kept_jobs(tmp_path) == 1, "the journal has the job")
        proxy.stop(stop)
    with run(tmp_path, server, agent_budget="100k", ports=proxy.ports) as proxy:
        client = Client(proxy, server)
        client.wait_for(0, reserved)
        for _ in range(2):
            client("GET", "/v1/responses/resp_0")
        client.wait_for(59_000)
        proxy.wait_for(lambda _: kept_jobs(tmp_path) == 0, "the journal knows that the job has ended")
        assert proxy.stop() == 0
    (one,) = requests(tmp_path)
    assert (one["end"], one["tokens"], one["attempts"]) == ("delivered", 59_000, 1)


def kept_jobs(folder):
    with closing(sqlite3.connect(f"file:{folder / 'journal.db'}?mode=ro", uri=True)) as database:
        found = database.execute("SELECT value FROM kept WHERE name LIKE 'jobs%'").fetchone()
    return len(json.loads(found[0])) if found else None


def test_a_client_that_leaves_a_background_stream_leaves_a_job(tmp_path, server):
    events = [{"type": "response.created", "response": response(7, "in_progress")}]
    events += [{"type": "response.output_text.delta", "delta": "word"}]
    server.answers["POST /v1/responses"] = 200, "text/event-stream", ("".join(map(as_event, events))).encode(), "open"
    end = {"type": "response.completed", "response": response(7, "completed", USAGE)}
    server.answers["GET /v1/responses/resp_7"] = 200, "text/event-stream", as_event(end).encode()
    with run(tmp_path, server, agent_budget="100k") as proxy:
        client = Client(proxy, server)
        asked = {"model": "gpt-5", "input": "hi", "background": True, "stream": True}
        with proxy.client("agent-1") as one, one.stream("POST", f"{client.base}/v1/responses", json=asked) as answer:
            assert b"response.created" in next(answer.iter_bytes())
        proxy.wait_for(lambda state: client.account()[1] and not state["live"], "only the job is left")
        client("GET", "/v1/responses/resp_7?stream=true&starting_after=1")
        client.wait_for(59_000)


def as_event(event):
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


MESSAGE = {
    "type": "message",
    "model": "claude-sonnet-4-5",
    "usage": {"input_tokens": 900, "output_tokens": 100, "cache_read_input_tokens": 7},
}
RESULTS = [
    {"custom_id": "a", "result": {"type": "succeeded", "message": MESSAGE}},
    {"custom_id": "b", "result": {"type": "errored", "error": {"type": "error", "error": {"type": "invalid_request_error"}}}},
    {"custom_id": "c", "result": {"type": "succeeded", "message": MESSAGE}},
    {"custom_id": "d", "result": {"type": "expired"}},
]  # fmt: skip
GEMINI = {
    "response": {"usageMetadata": {"promptTokenCount": 900, "candidatesTokenCount": 100, "thoughtsTokenCount": 7}}
}
BATCHES = {
    "anthropic": [
        ("POST /v1/messages/batches", {"id": "msgbatch_01Ab", "processing_status": "in_progress"}, None),
        ("GET /v1/messages/batches/msgbatch_01Ab", {"id": "msgbatch_01Ab", "processing_status": "ended"}, None),
        ("GET /v1/messages/batches/msgbatch_01Ab/results", RESULTS, 2014),
    ],
    "openai": [
        ("POST /v1/batches", {"id": "batch_9", "status": "validating", "expires_at": 9_999_999_999}, None),
        ("GET /v1/batches/batch_9", {"id": "batch_9", "status": "in_progress", "usage": USAGE}, None),
        ("GET /v1/batches/batch_9", {"id": "batch_9", "status": "completed", "usage": USAGE}, 59_000),
    ],
    "gemini": [
        ("POST /v1beta/models/g:batchGenerateContent", {"name": "batches/77", "metadata": {"state": "BATCH_STATE_PENDING"}}, None),
        ("GET /v1beta/batches/77", {"name": "batches/77", "metadata": {"state": "BATCH_STATE_RUNNING"}}, None),
        ("GET /v1beta/batches/77", {"name": "batches/77", "metadata": {"state": "BATCH_STATE_SUCCEEDED"}, "done": True, "response": {"inlinedResponses": {"inlinedResponses": [GEMINI, {"error": {"code": 3}}, GEMINI]}}}, 2014),
    ],
}  # fmt: skip


@pytest.mark.parametrize("extends", BATCHES)
def test_batches_pass_by_and_count_with_the_usage_of_their_results(tmp_path, server, extends):
    with run(tmp_path, server, extends=extends, agent_budget="2k") as proxy:
        client = Client(proxy, server)
        asked = {"requests": [{"custom_id": "a", "params": {"model": "claude-sonnet-4-5", "max_tokens": 9}}]}
        (begin, begun, _), *later = BATCHES[extends]
        server.answers[begin] = answered(begun)
        assert client(*begin.split(), json=asked).json() == begun
        reserved = client.reserved()
        for line, value, tokens in later:
            lines = "\n".join(map(json.dumps, value)) if isinstance(value, list) else json.dumps(value, indent=1)
            server.answers[line] = 200, "application/x-jsonl", lines.encode()
            for _ in range(2):
                assert client(*line.split()).text == lines
            client.wait_for(tokens or 0, reserved if tokens is None else 0)
        server.answers[begin] = None
        assert client(*begin.split(), json=asked).status_code == 400, "a spent budget refuses it"
