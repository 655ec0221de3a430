import base64
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from lab.generators.schemas import DOCUMENTS
from tests.cases import each
from tests.plugins.captures.captured import record
from tests.plugins.captures.samples import make_call

PAGE = (Path(__file__).parents[3] / "docs" / "profiles.md").read_text(encoding="utf-8")
GUIDE = PAGE.partition("## A foreign format without Python")[2].partition("\n## ")[0]
ASKED, ANSWERED, REFUSED = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
(PARROT,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
MINE = """
extends: openai-compatible
hosts: [api.example.com]
response_account_headers: [x-org]
meters: [{meter: requests, dimension: requests, limit: x-limit, remaining: x-left, reset: x-reset}]
"""
CHAT = {"model": "m", "stream": True, "max_tokens": 9, "messages": [{"role": "user", "content": "secret words"}]}
DONE = (
    'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
    'data: {"choices":[{"delta":{"content":"é → ☃"}}]}\n\n'
    'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\n'
    "data: [DONE]\n\n"
)


def entry(url, asked, answer, *, status=200, kind="text/event-stream", method="POST", content=None, sent=(), got=()):
    request = {
        "method": method,
        "url": url,
        "httpVersion": "HTTP/1.1",
        "headers": head({"x-api-key": "sk-mine", **dict(sent)}),
    }
    if asked is not None:
        request["postData"] = {
            "mimeType": "application/json",
            "text": asked if isinstance(asked, str) else json.dumps(asked),
        }
    return {
        "startedDateTime": "2026-11-23T10:00:00.000Z",
        "time": 12,
        "request": request,
        "response": {
            "status": status,
            "httpVersion": "HTTP/1.1",
            "headers": head({"content-type": kind, **dict(got)}),
            "content": content or {"mimeType": kind, "text": answer},
        },
    }


def head(headers):
    return [{"name": name, "value": value} for name, value in headers.items()]


@pytest.fixture
def check(tmp_path):
    def run(profile, *entries, sample=None, arguments=("--json",), name="mine"):
        file = tmp_path / f"{name}.yaml"
        file.write_text(profile, encoding="utf-8")
        if entries:
            sample = tmp_path / "recorded.har"
            sample.write_text(json.dumps({"log": {"entries": entries}}), encoding="utf-8")
        more = ["--sample", str(sample)] if sample else []
        return CliRunner().invoke(main, ["config", "profile", "check", str(file), *more, *arguments])

    return run


def exchanges(result):
    return json.loads(result.output)["exchanges"]


CHAT_URL = "https://api.example.com/v1/chat/completions"


# The worked example of docs/profiles.md


def test_the_foreign_format_of_the_guide_is_understood(check):
    url = "https://api.parrot.example/v3/talk"
    cut = ANSWERED.rpartition('{"over"')[0]
    whole = '{"says": "Hello yourself!", "why": "enough", "cost": {"heard": 12, "spoken": 3}}'
    result = check(
        PARROT,
        entry(url, ASKED, ANSWERED, kind="application/x-ndjson", sent={"x-parrot-key": "k"}),
        entry(url, ASKED, whole, kind="application/json"),
        entry(url, ASKED, ANSWERED.splitlines()[0] + "\n" + REFUSED, kind="application/x-ndjson"),
        entry(url, ASKED, REFUSED, status=429, kind="application/json"),
        entry(url, ASKED, cut, kind="application/x-ndjson"),
    )
    streamed, plain, failed, refused, torn = exchanges(result)
    asked = streamed["request"]
    assert (asked["model"], asked["streamed"], asked["max_output_tokens"], asked["messages"]) == (
        "macaw-2",
        True,
        200,
        1,
    )
    assert asked["pool"]["account"].startswith("key-")
    told = streamed["answer"]
    assert (told["end"], told["stop"], told["said_chars"]) == ("complete", "enough", len("Hello yourself!"))
    assert {one["meaning"]: one["count"] for one in told["events"]} == {"bookkeeping": 1, "content": 2, "terminal": 1}
    for one in (streamed, plain):
        usage = one["answer"]["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["reported"]) == (12, 3, True)
        assert one["faults"] == []
    for one in (failed, refused):
        told = one["answer"]
        assert (told["kind"], told["retryable"], told["retry_after_s"], one["faults"]) == ("throttled", True, 7.0, [])
        assert "too_loud" in told["reason"]
    assert torn["faults"] == [
        "its stream has no end (events.terminal, done, done_if, complete_if)",
        "no usage was found (usage.in_events, input, output)",
    ]
    assert result.exit_code == 1


# What is said of a profile


def test_a_profile_is_told_with_what_it_inherits_and_changes(check):
    profile = (
        "extends: openai\nhosts: [a.example]\nformat: {usage: {input: [/in], output: [/out]}, events: {done: bye}}"
    )
    told = json.loads(check(profile).output)["profile"]
    assert (told["name"], told["extends"], told["hosts"]) == ("mine", ["openai"], ["a.example"])
    *_, usual = told["formats"]
    assert usual == {
        "paths": "",
        "preset": "openai-chat",
        "changed": {"events.done": "bye", "usage.input": ["/in"], "usage.output": ["/out"]},
    }
    assert told["doubts"] == []


def test_a_plain_profile_is_told_with_the_limits_that_it_states(check):
    profile = "extends: github\nhosts: [git.example]\nsafe_paths: [/find]"
    told = json.loads(check(profile).output)["profile"]
    assert told["stated"]["points"] == "900 in 60 s, of which a read takes 1 and a write 5"
    assert told["groups"]["graphql"] == ["/graphql", "/api/graphql"]
    assert told["safe_paths"] == ["/find"]
    assert told["doubts"] == []


def test_a_profile_without_paths_hosts_or_accounts_is_doubted(check):
    doubts = json.loads(check("credentials: []").output)["profile"]["doubts"]
    assert [doubt.partition(":")[0] for doubt in doubts] == [
        "paths is empty",
        "hosts is empty",
        "nothing names an account",
    ]


def test_what_it_extends_may_lie_beside_it(check, tmp_path):
    (tmp_path / "house.yaml").write_text("extends: openai\nhosts: [house.example]\nconcurrency: {initial: 2}")
    (tmp_path / "no-profile.yaml").write_text("services: {web: {image: x}}")
    told = json.loads(check("extends: house\nhosts: [mine.example]").output)["profile"]
    assert told["extends"] == ["house", "openai"]
    changed = json.loads(check("extends: openai\nhosts: [inherited, b.example]", name="openai").output)["profile"]
    assert (changed["extends"], changed["hosts"]) == (["openai"], ["api.openai.com", "b.example"])


@each(
    ("profile", "said"),
    [
        ("hostss: [a]", "mine.yaml: hostss: unknown key; did you mean hosts?"),
        ("extends: nobody", "mine.yaml: extends: there is no profile 'nobody'"),
        ("extends: mine", "mine.yaml: extends: mine extends itself"),
        ("format: {extends: nothing}", "mine.yaml: format: there is no format 'nothing'"),
        ("hosts: [api.openai.com]", "mine.yaml: hosts[0]: api.openai.com is claimed by"),
        ("", "mine.yaml: it is empty"),
    ],
)
def test_a_bad_file_is_one_line(check, profile, said):
    result = check(profile)
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert said in result.output


def test_a_circle_beside_it_is_one_line(check, tmp_path):
    (tmp_path / "house.yaml").write_text("extends: mine")
    result = check("extends: house")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "a circle" in result.output


def test_a_file_that_no_folder_would_read_is_told(tmp_path):
    (tmp_path / "mine.txt").write_text("extends: openai")
    result = CliRunner().invoke(main, ["config", "profile", "check", str(tmp_path / "mine.txt")])
    assert result.exit_code == 1
    assert "rename it to mine.yaml" in result.output


# What is understood of a sample


def test_an_exchange_is_read_as_the_proxy_reads_it(check):
    got = {"x-limit": "50", "x-left": "12", "x-reset": "3s", "x-org": "org-of-mine", "retry-after": "soon"}
    result = check(MINE, entry(CHAT_URL, CHAT, DONE, got=got))
    (one,) = exchanges(result)
    assert (result.exit_code, one["claimed"], one["faults"]) == (0, True, [])
    told = one["answer"]
    assert {event["meaning"]: event["count"] for event in told["events"]} == {
        "bookkeeping": 1,
        "content": 2,
        "terminal": 1,
    }
    assert told["said_chars"] == len("é → ☃")
    (meter,) = told["meters"]
    assert (meter["limit"], meter["remaining"], meter["reset_in_s"]) == (50, 12, 3)
    assert one["oddities"] == ["retry-after: cannot read 'soon'"]
    assert told["account"].startswith("account-")
    for secret in ("sk-mine", "secret words", "org-of-mine"):
        assert secret not in result.output


@each(
    ("url", "method", "why"),
    [
        ("https://elsewhere.example/v1/chat", "POST", "host: no profile has it among hosts"),
        ("https://api.openai.com/v1/chat/completions", "POST", "host: it is the profile openai's"),
        ("https://api.example.com/v1/embeddings", "POST", "path: none of paths matches"),
        (CHAT_URL, "GET", "method: GET, and only POST is a model call"),
    ],
)
def test_what_passes_by_says_why(check, url, method, why):
    result = check(MINE, entry(url, CHAT, DONE, method=method))
    (one,) = exchanges(result)
    assert (one["claimed"], one["why"]) == (False, why)
    assert result.exit_code == 1  # nothing was tried


def test_an_excluded_path_and_a_websocket_say_why(check):
    profile = MINE + 'websocket: refuse\nexclude_paths: ["*/tiny/*"]\npaths: ["/*"]'
    upgrade = {"upgrade": "websocket"}
    told = exchanges(
        check(
            profile,
            entry("https://api.example.com/tiny/chat/completions", CHAT, DONE),
            entry("https://api.example.com/v1/responses", None, "", method="GET", sent=upgrade, status=426),
        )
    )
    assert [one["why"] for one in told] == [
        "path: */tiny/* of exclude_paths matches",
        "method: a WebSocket's upgrade, not a POST (websocket: refuse)",
    ]


@each(
    ("answer", "kind", "faults"),
    [
        ("\n\n".join(DONE.split("\n\n")[:2]) + "\n\n", "text/event-stream", ["end", "usage"]),
        (DONE.replace(',"usage":{"prompt_tokens":5,"completion_tokens":3}', ""), "text/event-stream", ["usage"]),
        (
            'data: {"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\ndata: [DONE]\n\n',
            "text/event-stream",
            ["content"],
        ),
        ('{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}', "application/json", ["usage"]),
        ('{"usage":{"prompt_tokens":5,"completion_tokens":3}}', "application/json", ["content"]),
        ("<html>log in first</html>", "text/html", ["content", "usage"]),
        ('data: {"error":{"code":"rate_limit_exceeded","message":"x"}}\n\n', "text/event-stream", []),
        ('{"error":{"type":"server_error","message":"x"}}', "application/json", []),
    ],
)
def test_a_good_answer_without_usage_content_or_end_is_a_fault(check, answer, kind, faults):
    result = check(MINE, entry(CHAT_URL, CHAT, answer, kind=kind))
    (one,) = exchanges(result)
    assert len(one["faults"]) == len(faults)
    assert all(word in fault for word, fault in zip(faults, one["faults"], strict=True))
    assert result.exit_code == bool(faults)


def test_bodies_in_base64_and_texts_without_a_charset_are_read(check):
    packed = base64.b64encode(DONE.encode()).decode()
    latin = DONE.replace("é → ☃", "é")
    told = exchanges(
        check(
            MINE,
            entry(CHAT_URL, CHAT, "", content={"encoding": "base64", "text": packed}),
            entry(CHAT_URL, CHAT, latin),
            entry(CHAT_URL, CHAT, DONE, got={"content-encoding": "gzip"}),
        )
    )
    assert [one["answer"]["said_chars"] for one in told] == [5, 1, 5]
    assert [one["faults"] for one in told] == [[], [], []]


RECORDED = """
extends: openai-compatible
hosts: ["127.0.0.1"]
paths: ["/*"]
exclude_paths: ["*/v1/models"]
formats:
  "*/api/chat": ollama
  "*/v2/chat": cohere
  "*:streamGenerateContent": gemini
  "*/converse-stream": bedrock-converse
  "*/invoke-with-response-stream": bedrock-invoke
model_paths: ["*/v1beta/models/{model}:streamGenerateContent", "*/model/{model}/*", inherited]
"""


def test_what_mitmdump_recorded_of_ten_formats_is_understood(check):
    """`mitmdump --set hardump=…` before the simulated provider (mitmproxy 12.2, 2026-11)."""
    result = check(RECORDED, sample=Path(__file__).parent / "data" / "recorded.har")
    told = [one for one in exchanges(result) if one["claimed"]]
    assert [one["request"]["format"] for one in told] == [
        "openai-chat",
        "openai-chat",
        "anthropic",
        "openai-responses",
        "ollama",
        "cohere",
        "gemini",
        "gemini",
        "bedrock-converse",
        "bedrock-invoke",
    ]
    assert [one["faults"] for one in told] == [[]] * 10
    assert {one["answer"]["end"] for one in told} == {"complete"}
    assert [one["answer"]["usage"]["output_tokens"] for one in told] == [8] * 9 + [5]
    assert len({one["request"]["pool"]["account"] for one in told}) == 1
    assert result.exit_code == 0
    assert "SECRET" not in result.output


def test_an_exchange_that_cannot_be_read_costs_no_other_one(check):
    torn = entry(CHAT_URL, CHAT, DONE)
    del torn["request"]["postData"]["text"]
    result = check(MINE, torn, entry(CHAT_URL, CHAT, DONE))
    told = json.loads(result.output)
    assert (len(told["exchanges"]), result.exit_code) == (1, 0)
    assert told["damage"] == ["exchange 1: KeyError: 'text'"]


def test_our_own_captures_are_samples_too(check, tmp_path):
    night = tmp_path / "night.flow"
    night.write_bytes(record(make_call("1")))
    (one,) = exchanges(check("extends: anthropic", sample=night, name="anthropic"))
    assert one["claimed"]


@each("text", ["Call me Ishmael.", '{"log": {"entries": [{"request": 1}]}}', '{"other": 1}'])
def test_a_bad_sample_is_one_line(check, tmp_path, text):
    novel = tmp_path / "novel.har"
    novel.write_text(text)
    for sample in (novel, tmp_path / "missing.har"):
        result = check(MINE, sample=sample)
        assert (result.exit_code, result.output.count("\n")) == (1, 1)
        assert sample.name in result.output


def test_people_read_it_in_lines_with_a_summary(check):
    result = check(MINE, entry(CHAT_URL, CHAT, DONE), entry(CHAT_URL, CHAT, "data: [DONE]\n\n"), arguments=())
    assert result.exit_code == 1
    for words in (
        "the profile mine, which extends openai-compatible, openai",
        "openai-chat: model m, streamed, at most 9 tokens, 1 message",
        "1 bookkeeping, 2 content, 1 terminal",
        "5 input, 3 output",
        "2 exchanges: 2 model calls of this profile, 1 not understood: 2",
    ):
        assert words in " ".join(result.output.split())


# Schemas


def test_schemas_are_printed_by_kind():
    assert CliRunner().invoke(main, ["config", "schema"]).output.split() == sorted([*DOCUMENTS, "config"])
    where = CliRunner().invoke(main, ["config", "schema", "config", "--path"]).output.strip()
    assert "max_concurrency" in json.loads(Path(where).read_text())["properties"]
    assert json.loads(CliRunner().invoke(main, ["config", "schema", "fleet"]).output)["title"].startswith("A fleet")
    wrong = CliRunner().invoke(main, ["config", "schema", "novel"])
    assert wrong.exit_code == 2
    assert "there are agents, batch" in wrong.output
