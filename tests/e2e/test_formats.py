"""Formats of other providers through a real mitmdump: failures nobody sees, signatures that stay good, and books."""

import base64
import json
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.faults import NAMED
from lab.fleets.fleet import journal_book, provider_book
from lab.running_server import RunningServer, running_server
from tests.e2e.proxy import QUICK, Proxy, options, profiles, running
from tests.sim.aws import messages_of, signed

pytestmark = [pytest.mark.slow, pytest.mark.quick, pytest.mark.xdist_group("formats")]

GEMINI = "/v1beta/models/gemini-2.5-pro"
CODE_ASSIST = "/v1internal"
BEDROCK = "/model/anthropic.claude-sonnet-4-5-v1%3A0"
PROFILES = {
    "gemini": """
paths: ["*/models/*:generateContent", "*/models/*:streamGenerateContent"]
model_paths: ["*/models/{model}:generateContent", "*/models/{model}:streamGenerateContent"]
credentials: [x-goog-api-key]
format: gemini
""",
    "codeassist": """
paths: ["/v1internal:generateContent", "/v1internal:streamGenerateContent"]
format: code-assist
""",
    "bedrock": """
paths: ["/model/*/invoke", "/model/*/invoke-with-response-stream", "/model/*/converse", "/model/*/converse-stream"]
format: bedrock-converse
formats: {"*/invoke": bedrock-invoke, "*/invoke-with-response-stream": bedrock-invoke}
model_paths: ["/model/{model}/*"]
""",
    "cohere": """
paths: ["/v2/chat"]
format: cohere
""",
}
_TEXT = {"role": "user", "parts": [{"text": "hello"}]}
_MESSAGE = {"role": "user", "content": "hello"}


@dataclass(frozen=True)
class Asked:
    """One way to ask one provider."""

    profile: str
    dialect: SimDialect
    path: str
    body: dict
    streamed: bool = True
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.profile} {self.path}"


_CONVERSE = {"messages": [{"role": "user", "content": [{"text": "hello"}]}]}
_INVOKE = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 100, "messages": [_MESSAGE]}
_WRAPPED = {"model": "m", "project": "p", "request": {"contents": [_TEXT]}}
_KEY = (("x-goog-api-key", "sk-sim-e2e"),)
_BEARER = (("authorization", "Bearer sk-sim-e2e"),)
ASKED = [
    Asked("gemini", SimDialect.GEMINI, f"{GEMINI}:streamGenerateContent?alt=sse", {"contents": [_TEXT]}, headers=_KEY),
    Asked("gemini", SimDialect.GEMINI_ARRAY, f"{GEMINI}:streamGenerateContent", {"contents": [_TEXT]}, headers=_KEY),
    Asked(
        "gemini", SimDialect.GEMINI, f"{GEMINI}:generateContent", {"contents": [_TEXT]}, streamed=False, headers=_KEY
    ),
    Asked(
        "codeassist", SimDialect.CODE_ASSIST, f"{CODE_ASSIST}:streamGenerateContent?alt=sse", _WRAPPED, headers=_BEARER
    ),
    Asked(
        "codeassist",
        SimDialect.CODE_ASSIST,
        f"{CODE_ASSIST}:generateContent",
        _WRAPPED,
        streamed=False,
        headers=_BEARER,
    ),
    Asked("bedrock", SimDialect.CONVERSE, f"{BEDROCK}/converse-stream", _CONVERSE),
    Asked("bedrock", SimDialect.CONVERSE, f"{BEDROCK}/converse", _CONVERSE, streamed=False),
    Asked("bedrock", SimDialect.INVOKE, f"{BEDROCK}/invoke-with-response-stream", _INVOKE),
    Asked("bedrock", SimDialect.INVOKE, f"{BEDROCK}/invoke", _INVOKE, streamed=False),
    Asked(
        "cohere", SimDialect.COHERE, "/v2/chat", {"model": "m", "messages": [_MESSAGE], "stream": True}, headers=_BEARER
    ),
    Asked(
        "cohere", SimDialect.COHERE, "/v2/chat", {"model": "m", "messages": [_MESSAGE]}, streamed=False, headers=_BEARER
    ),
]
"""Bedrock's are signed."""


@dataclass(frozen=True)
class Stand:
    """One proxy, and a provider of each profile."""

    proxy: Proxy
    journal: Path
    servers: dict[str, RunningServer]

    def ask(self, asked: Asked, *, at: datetime | None = None):
        server = self.servers[asked.profile]
        body = json.dumps(asked.body).encode()
        host = f"{server.host}:{server.port}"
        headers = dict(asked.headers) or signed(asked.path, body, host=host, at=at)
        headers |= {"content-type": "application/json"}
        with self.proxy.client(asked.dialect.value) as client:
            return client.post(f"http://{host}{asked.path}", content=body, headers=headers)

    def script(self, asked: Asked, *names: str) -> None:
        key = "AKIASIM" if asked.profile == "bedrock" else "sk-sim-e2e"
        self.servers[asked.profile].script(key, [NAMED[name] for name in names])


@pytest.fixture(scope="module")
def stand(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats")
    with ExitStack() as stack:
        servers = {name: stack.enter_context(running_server()) for name in PROFILES}
        texts = {name: f"hosts: ['127.0.0.1:{servers[name].port}']\n{QUICK}{text}" for name, text in PROFILES.items()}
        settings = [*profiles(folder, **texts), *options(journal=folder / "journal.db")]
        proxy = stack.enter_context(running(folder / "conf", *settings))
        yield Stand(proxy, folder / "journal.db", servers)
        assert "Traceback" not in proxy.log, proxy.log
        assert proxy.state()["guard_trips"] == 0


def said(asked: Asked, content: bytes) -> str:
    """The words of an answer, whatever stands around them."""
    if asked.profile == "bedrock" and asked.streamed:
        payloads = [json.loads(payload) for _, payload in messages_of(content)]
        return "".join(
            base64.b64decode(one["bytes"]).decode() if "bytes" in one else json.dumps(one) for one in payloads
        )
    return content.decode()


def test_failures_before_the_first_word_are_tried_again_unseen(stand, subtests):
    for asked in ASKED:
        with subtests.test(asked.name):
            first = "error-first" if asked.streamed else "500"
            stand.script(asked, "529", first, "reset-before-head", "body-cut" if not asked.streamed else "500")
            before = stand.servers[asked.profile].truth()
            answer = stand.ask(asked)
            after = stand.servers[asked.profile].truth()
            assert answer.status_code == 200, answer.text
            assert " attempt " in said(asked, answer.content)
            assert "verloaded" not in said(asked, answer.content)
            assert (after.attempts - before.attempts, after.completed - before.completed) == (5, 1)
            assert 403 not in after.by_status


def test_clients_of_google_hear_of_a_cut_by_an_error_in_the_stream(stand, subtests):
    """Gemini CLI tries again after a 503 in the stream, and dies of a connection that closes."""
    for asked in (one for one in ASKED if one.path.endswith("?alt=sse")):
        for fault in ("stream-close", "stream-reset"):
            with subtests.test(f"{asked.name} {fault}"):
                stand.script(asked, fault)
                answer = stand.ask(asked)
                error = json.loads(answer.text.splitlines()[-1])["error"]
                assert (answer.status_code, error["code"], error["status"]) == (200, 503, "UNAVAILABLE")
    stand.proxy.settled()


def test_the_books_are_those_of_the_providers(stand):
    for asked in ASKED:
        assert stand.ask(asked).status_code == 200
    stand.proxy.settled()
    theirs = provider_book(server.truth() for server in stand.servers.values())
    formats = {name: name for name in theirs}
    stand.proxy.wait_for(lambda _: journal_book(stand.journal, formats) == theirs, f"{theirs} in the journal")
    assert {*theirs} == {asked.dialect.value for asked in ASKED}


def test_a_signature_that_the_provider_refuses_is_the_clients_own_matter(stand):
    asked = next(one for one in ASKED if one.dialect is SimDialect.CONVERSE)
    server = stand.servers["bedrock"]
    attempts = server.truth().attempts
    answer = stand.ask(asked, at=datetime.now(UTC) - timedelta(minutes=6))
    assert (answer.status_code, answer.headers["x-amzn-errortype"]) == (403, "InvalidSignatureException")
    assert answer.json()["message"].startswith("Signature expired: ")
    assert server.truth().attempts == attempts + 1
