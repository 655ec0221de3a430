import gzip
import json

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.values.ticket import CallKind
from hivemind_addon.plugins.contexts.from_request import ELSEWHERE, is_conversation
from hivemind_addon.plugins.contexts.store import NotKept
from tests.cases import each
from tests.kernel.samples import ticket
from tests.plugins.contexts.samples import BODIES, MESSAGES, RESPONSES, WALL, context


@each("dialect", BODIES)
def test_the_whole_request_is_kept_as_it_was_to_be_sent(dialect):
    kept = context(dialect=dialect, task="task-9")
    assert json.loads(bytes(kept.body)) == BODIES[dialect]
    assert kept.method == "POST"
    head = kept.head
    assert (head.ticket_id, head.agent, head.session, head.task) == ("c0ffee0001", "agent-1", "s-1", "task-9")
    assert (head.kept_wall, head.dialect, head.kind) == (WALL, dialect, "turn")
    assert head.host == "api.test"
    assert head.path.startswith("/v1/")
    assert "?" not in head.path
    assert head.messages == len(BODIES[dialect].get("messages") or BODIES[dialect]["input"])
    assert head.body_bytes == len(bytes(kept.body))


def test_a_coded_body_is_kept_in_plain():
    raw = json.dumps(MESSAGES).encode()
    assert bytes(context(body=raw, encoding="").body) == raw
    coded = context(body=gzip.compress(raw), encoding="gzip")
    assert bytes(coded.body) == raw
    with pytest.raises(NotKept, match="cannot be decoded"):
        context(body=b"no gzip", encoding="gzip")


@each("body", [b"", b"no JSON", b"[]", b'{"model": "m"}', b'{"messages": []}'])
def test_what_is_no_conversation_is_not_kept(body):
    with pytest.raises(NotKept, match="no conversation"):
        context(body=body)


@each(
    ("words", "read"),
    [
        (rb"half \ud83d a pair", "half ? a pair"),
        (b"no \xff utf-8", "no � utf-8"),
        (rb"\ud83d\ude00 whole", "😀 whole"),
    ],
)
def test_what_strict_readers_stumble_over_is_kept_so_that_they_can_read_it(words, read):
    kept = context(body=b'{"messages": [{"role": "user", "content": "%b"}]}' % words)
    assert json.loads(bytes(kept.body))["messages"][0]["content"] == read


def test_a_thread_is_the_same_while_its_conversation_grows_whatever_is_marked_for_a_cache():
    first = {**MESSAGES, "messages": MESSAGES["messages"][:1]}
    unmarked = json.loads(json.dumps(MESSAGES).replace(', "cache_control": {"type": "ephemeral"}', ""))
    other = {**MESSAGES, "messages": [{"role": "user", "content": "Something else."}]}
    threads = [context(body=body).head.id for body in (MESSAGES, first, unmarked, other)]
    assert threads[0] == threads[1] == threads[2] != threads[3]
    prompts = [
        context(body=json.dumps({"prompt": prompt}).encode(), dialect="openai-chat").head.id
        for prompt in ("one", "two")
    ]
    assert prompts[0] != prompts[1]


def test_a_request_that_leaves_its_past_with_the_provider_says_so():
    assert ELSEWHERE not in context(dialect="openai-responses").head.reason
    continued = context(body={**RESPONSES, "previous_response_id": "resp_1"}, dialect="openai-responses")
    assert continued.head.reason.endswith(ELSEWHERE)


@each("kind", CallKind)
def test_titles_and_checks_are_no_conversations(kind):
    kept = is_conversation(replace(ticket(), kind=kind))
    assert kept is (kind in {CallKind.TURN, CallKind.SUBAGENT, CallKind.COMPACTION})
