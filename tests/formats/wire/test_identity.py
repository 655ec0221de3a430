import hashlib
import json
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.profile.load import format_for, is_call, load_profiles
from hivemind_addon.formats.profile.model import ClientRule, Profile, RequestPlace
from hivemind_addon.formats.wire import identity
from hivemind_addon.formats.wire.dialect import dialect_of
from hivemind_addon.formats.wire.identity import ALONE, Machine, call_kind, is_headless, names_in
from hivemind_addon.formats.wire.proxy_user import ProxyWords, given_id, priority_of, proxy_words
from hivemind_addon.formats.wire.request import RequestFacts, read_request
from hivemind_addon.formats.wire.requester import read_requester
from hivemind_addon.kernel.values.ticket import CallKind, Delivery, Priority

PROFILE = Profile(
    session_headers=("x-claude-code-session-id", "x-session-id"),
    account=(RequestPlace(header="openai-organization"),),
)
PEER = "127.0.0.1:50001"


def who(headers=None, *, hint="", user="", peer=PEER):
    return identify(PROFILE, headers or {}, RequestFacts(session_hint=hint), user, peer)


def test_the_proxy_user_is_the_agent():
    assert who({"user-agent": "claude-cli/2.1"}, user="agent-7").agent == "agent-7"


def test_without_one_the_user_agents_product_and_its_session_name_it():
    one = who({"user-agent": "claude-cli/2.1.197 (external, cli)"}, hint="s")
    assert one.agent.startswith("claude-cli-")
    assert one.agent == who({"user-agent": "claude-cli/2.2"}, hint="s", peer="127.0.0.1:9").agent
    assert one.agent != who({"user-agent": "claude-cli/2.2"}, hint="t").agent


def test_an_agent_that_says_nothing_is_its_connection():
    assert who().agent.startswith("client-")
    assert who().agent == who().agent
    assert who().agent != who(peer="127.0.0.1:50002").agent
    assert who().session != who(peer="127.0.0.1:50002").session


def test_the_session_is_the_first_header_that_is_there():
    both = {"x-session-id": "b", "x-claude-code-session-id": "a"}
    assert who(both, hint="c").session == "a"
    assert who({"x-session-id": "b"}, hint="c").session == "b"
    assert who({"x-session-id": "  "}, hint="c").session == "c"


def test_a_session_without_a_name_is_the_agent_itself_or_its_connection():
    assert who(user="agent-7").session == "agent-7"
    assert who().session.endswith(f"@{PEER}")


def test_the_account_is_what_the_request_names_else_a_hash_of_the_credential_else_anonymous():
    secret = "Bearer sk-very-secret"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    assert who({"openai-organization": "org-1", "authorization": secret}).account == "org-1"
    assert who({"authorization": secret}).account == f"key-{digest[:12]}"
    assert who({"x-api-key": "a"}).account != who({"x-api-key": "b"}).account
    assert who().account == "anonymous"


GOOGLE = Profile(
    account=(
        RequestPlace(path=r"/projects/([^/]+)/locations/([^/]+)/"),
        RequestPlace(body="project"),
    ),
    credentials=(
        RequestPlace(header="x-goog-api-key"),
        RequestPlace(query="key"),
        RequestPlace(header="authorization"),
    ),
)
AMAZON = Profile(
    credentials=(
        RequestPlace(header="authorization", match=r"Credential=([^/]+)/\d+/([^/]+)/"),
        RequestPlace(header="authorization"),
    )
)
VERTEX = "/v1/projects/Acme-1/locations/us-central1/publishers/google/models/gemini-2.5-pro:generateContent"


def account(profile, headers=None, path="", **members):
    return identify(profile, headers or {}, RequestFacts(members=members), "", PEER, path).account


def signed(key_id, signature, region="us-east-1", day="20261120"):
    scope = f"{key_id}/{day}/{region}/bedrock/aws4_request"
    return {
        "authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host;x-amz-date, Signature={signature}"
    }


def test_what_changes_every_hour_names_no_new_account():
    assert account(GOOGLE, {"authorization": "Bearer ya29.a"}, VERTEX) == "acme-1/us-central1"
    assert account(GOOGLE, {"authorization": "Bearer ya29.b"}, VERTEX + "?alt=sse") == "acme-1/us-central1"
    assert account(GOOGLE, {"authorization": "Bearer ya29.c"}, "/v1internal:generateContent", project="p-7") == "p-7"


def test_a_key_in_the_query_is_hashed_like_one_in_a_header():
    path = "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse&key=AIza%2Dsecret"
    digest = hashlib.sha256(b"AIza-secret").hexdigest()
    assert account(GOOGLE, path=path) == account(GOOGLE, {"x-goog-api-key": "AIza-secret"}) == f"key-{digest[:12]}"
    assert account(GOOGLE, path="/v1beta/models/m:generateContent?xkey=1&key=") == "anonymous"


def test_a_signature_s_key_and_region_are_the_account_whatever_it_signs():
    one = account(AMAZON, signed("AKIAIOSFODNN7EXAMPLE", "aa"))
    assert one.startswith("key-")
    assert one == account(AMAZON, signed("AKIAIOSFODNN7EXAMPLE", "bb", day="20261121"))
    assert one != account(AMAZON, signed("AKIAIOSFODNN7EXAMPLE", "aa", region="eu-west-1"))
    assert one != account(AMAZON, {"authorization": "Bearer bedrock-api-key-1"}) != "anonymous"


def test_the_credential_itself_is_nowhere():
    identity = who({"authorization": "Bearer sk-very-secret", "x-api-key": "sk-other"})
    assert "sk-" not in repr(identity)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "x" * 500, "\ud800"])
def test_names_are_fit_for_logs_and_different_ones_stay_different(name):
    first, second = who(user=name, hint=name), who(user=f"{name}!", hint=f"{name}!")
    for text in (first.agent, first.session):
        assert text.isprintable()
        assert len(text) <= 80
    assert first.agent != second.agent
    assert first.session != second.session


@given(
    st.dictionaries(st.sampled_from(["x-session-id", "user-agent", "authorization", "openai-organization"]), st.text()),
    st.text(),
    st.text(),
    st.text(),
)
def test_any_request_has_an_identity(headers, hint, user, peer):
    identity = who(headers, hint=hint, user=user, peer=peer)
    for text in (identity.agent, identity.session, identity.account):
        assert text.isprintable()
        assert 0 < len(text) <= 80


CLAUDE_CODE = "claude-cli/2.1.330 (external, {})"
CODEX_UA = "0.169.0 (Debian 12.0.0; x86_64) unknown"
HEADLESS = [
    # Claude Code and its SDKs, Claude Code on GitHub and in the background.
    {"user-agent": CLAUDE_CODE.format("sdk-cli"), "x-app": "cli"},
    {"user-agent": "claude-cli/2.1.197 (external, sdk-cli)", "x-app": "cli"},
    {"user-agent": CLAUDE_CODE.format("sdk-ts, agent-sdk/0.2.30"), "x-app": "cli"},
    {"user-agent": CLAUDE_CODE.format("sdk-py, agent-sdk/0.1.9")},
    {"user-agent": CLAUDE_CODE.format("claude-code-github-action")},
    {"user-agent": CLAUDE_CODE.format("cli"), "x-app": "cli-bg"},
    # `codex exec` and the Codex SDKs.
    {"originator": "codex_exec", "user-agent": f"codex_exec/{CODEX_UA} (codex_exec; 0.169.0)"},
    {"user-agent": "codex_exec/0.169.0 (Ubuntu 24.4.0; x86_64)"},
    {"originator": "codex_sdk_ts", "user-agent": f"codex_sdk_ts/{CODEX_UA}"},
    {"originator": "codex_sdk_py", "user-agent": f"codex_sdk_py/{CODEX_UA}"},
]
WITH_A_PERSON = [
    # Claude Code in a terminal, in an editor, remote; Codex in a terminal, an older one, in an editor.
    {"user-agent": CLAUDE_CODE.format("cli"), "x-app": "cli"},
    {"user-agent": CLAUDE_CODE.format("claude-vscode, agent-sdk/0.2.30"), "x-app": "cli"},
    {"user-agent": CLAUDE_CODE.format("remote_mobile"), "x-app": "cli"},
    {"originator": "codex-tui", "user-agent": f"codex-tui/{CODEX_UA}"},
    {"originator": "codex_cli_rs", "user-agent": "codex_cli_rs/0.60"},
    {"originator": "codex_vscode", "user-agent": f"codex_vscode/{CODEX_UA}"},
    # Others, and SDKs.
    {"user-agent": "GeminiCLI/0.20/gemini-3-pro (linux; x64; terminal)"},
    {"user-agent": "QwenCode/0.5 (linux; x64)"},
    {"user-agent": "opencode/1.0.3", "x-session-id": "ses_1"},
    {"user-agent": "copilot/0.0.400", "x-initiator": "agent"},
    {"user-agent": "Charm-Crush/0.20 (https://charm.land/crush)"},
    {"goose-session-id": "20261120_1"},
    {"user-agent": "Cline/3.40", "originator": "cline"},
    {"user-agent": "RooCode/3.30", "originator": "roo-code"},
    {"x-kilocode-taskid": "t"},
    {"x-mux-workspace-id": "w"},
    {"x-coder-chat-id": "c"},
    {"user-agent": "litellm/1.80"},  # aider, OpenHands
    {"user-agent": "KimiCLI/1.2"},
    {"user-agent": "swe-agent/1.1"},
    {"user-agent": "Anthropic/Python 0.70.0"},
    {"user-agent": "AsyncOpenAI/Python 2.8.0"},
    {"user-agent": "my-sdk-cli/1 codex_exec/1"},  # somebody who is called so
    {},
]
"""What they send, as recorded or as their sources say (docs/delivery.md)."""


def test_a_client_that_runs_headless_is_known_by_its_headers():
    assert [one for one in HEADLESS if not is_headless(Profile(), one)] == []
    assert [one for one in WITH_A_PERSON if is_headless(Profile(), one)] == []


def test_a_profile_names_more_headless_clients():
    mine = {"user-agent": "my-night-agent/1", "x-mode": "batch"}
    rule = ClientRule({"user-agent": "^my-night-agent/", "x-mode": "^batch$"})
    assert is_headless(Profile(headless=(rule,)), mine)
    assert not is_headless(Profile(headless=(rule,)), {"user-agent": "my-night-agent/1"})
    assert is_headless(Profile(headless=(rule,)), {"originator": "codex_exec"}), "and the others are still known"


# Lineage ----------------------------------------------------------------------------------------------------------------


def identify(profile, headers, facts, user, peer, path="", machine=ALONE):
    names = names_in(profile, headers, facts)
    requester = read_requester(profile, headers, facts.members, path, machine)
    return identity.identify(names, requester.account, requester.product, user, peer, machine)


PACKAGED = load_profiles(None).by_name


def of(profile, headers, *, body=None, path="/v1/messages", user=""):
    name = dialect_of(format_for(PACKAGED[profile], path))
    facts = read_request(json.dumps({"model": "m", **(body or {})}).encode(), name.plan)
    one = identify(PACKAGED[profile], headers, facts, user, PEER)
    # Whichever proxy of a cluster a sub-agent uses, it finds its parent's tree.
    other = identify(PACKAGED[profile], headers, facts, user, f"{PEER}@ci-2", machine=Machine(name="ci-2"))
    if PEER in one.session:
        assert (other.agent != one.agent, other.session != one.session) == (not user, True)
    else:
        assert other == one
    return one, call_kind(
        read_requester(PACKAGED[profile], headers, facts.members, path).calls,
        facts,
        has_parent=bool(one.parent_session),
    )


def test_a_sub_agent_of_claude_code_has_a_session_of_its_own_and_its_parent():
    root, turn = of("anthropic", {"x-claude-code-session-id": "s"})
    child, kind = of("anthropic", {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a1"})
    assert (root.session, root.parent_session, turn) == ("s", "", CallKind.TURN)
    assert (child.session, child.parent_session, kind) == ("s/a1", "s", CallKind.SUBAGENT)
    assert child.agent == root.agent


def test_a_nested_sub_agent_of_claude_code_belongs_to_the_same_tree():
    nested = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a2", "x-claude-code-parent-agent-id": "a1"}
    assert of("anthropic", nested)[0].parent_session == "s"


def test_claude_codes_user_id_tells_the_session_and_its_parent():
    user_id = json.dumps({"device_id": "d", "account_uuid": "u", "session_id": "s2", "parent_session_id": "s1"})
    child, kind = of("anthropic", {}, body={"metadata": {"user_id": user_id}})
    assert (child.session, child.parent_session, kind) == ("s2", "s1", CallKind.SUBAGENT)
    assert child.agent == of("anthropic", {"x-claude-code-session-id": "s1"})[0].agent


def test_an_opencode_child_session_names_its_parent_to_every_provider():
    headers = {"user-agent": "opencode/1.0", "x-session-id": "c", "x-parent-session-id": "p"}
    for profile, path in (("anthropic", "/v1/messages"), ("openai", "/v1/chat/completions")):
        child, kind = of(profile, headers, path=path)
        assert (child.session, child.parent_session, kind) == ("c", "p", CallKind.SUBAGENT)


def test_a_thread_of_codex_is_a_sub_agent_where_it_is_not_the_session_itself():
    path = "/v1/responses"
    main, turn = of("openai", {"session-id": "s", "thread-id": "s"}, path=path)
    assert (main.session, main.parent_session, turn) == ("s", "", CallKind.TURN)
    child, kind = of("openai", {"session-id": "s", "thread-id": "t"}, path=path)
    assert (child.session, child.parent_session, kind) == ("s/t", "s", CallKind.SUBAGENT)


def test_codex_names_the_parent_thread_in_a_header_that_holds_json():
    metadata = json.dumps({"session_id": "t", "parent_thread_id": "s", "request_kind": "turn"})
    child, _ = of("openai", {"session-id": "t", "x-codex-turn-metadata": metadata}, path="/v1/responses")
    assert (child.session, child.parent_session) == ("t", "s")


def test_a_damaged_header_says_nothing():
    for damaged in ("", "{", "[]", "null", '"x"', '{"parent_thread_id": 7}', "[" * 20_000):
        child, kind = of("openai", {"session-id": "t", "x-codex-turn-metadata": damaged}, path="/v1/responses")
        assert (child.session, child.parent_session, kind) == ("t", "", CallKind.TURN), damaged[:30]


def test_what_a_request_is_for_is_told_by_the_profiles_rules(subtests):
    opencode, claude = {"user-agent": "opencode/1"}, {"user-agent": "claude-cli/2.1"}
    child = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}
    haiku, sonnet = {"model": "claude-haiku-4-5", "messages": [{}]}, {"model": "claude-sonnet-4-5", "messages": [{}]}
    cases = [
        ("openai", "/v1/responses", {"x-openai-subagent": "review"}, {}, CallKind.SUBAGENT),
        ("openai", "/v1/responses/compact", {}, {}, CallKind.COMPACTION),
        ("openai", "/v1/chat/completions", opencode, {"messages": [{}, {}]}, CallKind.AUXILIARY),
        ("openai", "/v1/chat/completions", opencode, {"messages": [{}] * 9}, CallKind.TURN),
        ("openai", "/v1/chat/completions", opencode, {"messages": [{}], "tools": [{}]}, CallKind.TURN),
        ("anthropic", "/v1/messages", claude, haiku, CallKind.AUXILIARY),
        ("anthropic", "/v1/messages", claude, sonnet, CallKind.TURN),
        ("anthropic", "/v1/messages", claude, haiku | {"tools": [{}]}, CallKind.TURN),
        ("anthropic", "/v1/messages", claude | child, haiku, CallKind.SUBAGENT),
        ("anthropic", "/v1/messages", {"user-agent": "mine/1"}, haiku, CallKind.TURN),
    ]
    said = {"compaction": CallKind.COMPACTION, "prewarm": CallKind.PREWARM, "memory": CallKind.AUXILIARY}
    for word, kind in said.items():
        cases.append(("openai", "/v1/responses", {"x-codex-turn-metadata": f'{{"request_kind": "{word}"}}'}, {}, kind))
    for profile, path, headers, body, kind in cases:
        with subtests.test(path=path, headers=headers, body=body):
            assert of(profile, headers, body=body, path=path)[1] is kind


WORDS = {
    "whole": {"delivery": Delivery.WHOLE},
    "stream": {"delivery": Delivery.STREAM},
    "prio-high+whole": {"delivery": Delivery.WHOLE, "priority": Priority.HIGH},
    "x.whole,y": {"delivery": Delivery.WHOLE},
    "a whole b": {"delivery": Delivery.WHOLE},
    "whole,stream": {"delivery": Delivery.STREAM},
    "WHOLE": {"delivery": Delivery.WHOLE},
    "auto": {"delivery": Delivery.AUTO},
    "prio-low": {"priority": Priority.LOW},
    "whole,prio-high": {"delivery": Delivery.WHOLE, "priority": Priority.HIGH},
    "prio-low+prio-critical": {"priority": Priority.CRITICAL},
    "wait-3600": {"patience_s": 3600},
    "whole.wait-60": {"delivery": Delivery.WHOLE, "patience_s": 60},
    "task-42": {"task": "42"},
    "whole,task-Nightly_7+prio-low": {"delivery": Delivery.WHOLE, "task": "Nightly_7", "priority": Priority.LOW},
    "TASK-Ab": {"task": "Ab"},
    "task-a task-b": {"task": "b"},
    "task-a,task-": {"task": "a"},
    "task-8f14e45f-ceea-467f-ab6e-1b2c3d4e5f60": {"task": "8f14e45f-ceea-467f-ab6e-1b2c3d4e5f60"},
}
NO_WORDS = "wholesale", "x", "", "prio-urgent", "low", "wait-0", "wait--5", "wait-123456", "mytask-a", "task"


def test_a_proxy_password_asks_by_its_words():
    told = {password: proxy_words(password) for password in (*WORDS, *NO_WORDS)}
    assert told == {password: ProxyWords(**WORDS.get(password, {})) for password in told}


@given(st.text())
def test_any_password_is_read(password):
    assert proxy_words(password).delivery in {None, *Delivery}


def test_priorities_have_names():
    assert priority_of(" High ") is Priority.HIGH
    assert priority_of("0") is None


# One realistic request of each agent ------------------------------------------------------------------------------------

CLAUDE = {
    "user-agent": "claude-cli/2.1.197 (external, cli)",
    "x-app": "cli",
    "x-stainless-timeout": "600",
    "x-claude-code-session-id": "5e5c1a7e-0001",
}
CLAUDE_BODY = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 64000,
    "stream": True,
    "tools": [{"name": "Bash"}],
    "system": [{"type": "text", "text": "You are Claude Code"}],
    "messages": [{"role": "user", "content": "fix it"}],
    "metadata": {"user_id": json.dumps({"device_id": "d", "account_uuid": "u", "session_id": "5e5c1a7e-0001"})},
}
COMPACT = "Your task is to create a detailed summary of the conversation so far, paying close attention to the user"
CODEX = {
    "user-agent": "codex_exec/0.169.0 (Ubuntu 24.4.0; x86_64)",
    "originator": "codex_exec",
    "session-id": "019a-root",
    "thread-id": "019a-root",
    "x-codex-window-id": "019a-root:0",
}
CODEX_BODY = {"model": "gpt-5.1-codex", "stream": True, "tools": [{}], "input": [{}], "prompt_cache_key": "019a-root"}


def codex(**metadata):
    whole = {"session_id": "019a-root", "thread_id": "019a-root", "agent_name": "/root", "request_kind": "turn"}
    return CODEX | {"x-codex-turn-metadata": json.dumps(whole | metadata)}


OPENCODE = {"user-agent": "opencode/1.0.3", "x-session-id": "ses_1", "x-session-affinity": "ses_1"}
CHAT_BODY = {"model": "gpt-5.1", "stream": True, "tools": [{}], "messages": [{}, {}, {}]}
TITLE_BODY = {"model": "gpt-5-nano", "stream": True, "messages": [{}, {}]}
MESSAGES, CHAT, RESPONSES = "/v1/messages", "/v1/chat/completions", "/v1/responses"
CODEX_PATH = "/backend-api/codex/responses"
LITELLM = {"user-agent": "litellm/1.80"}


class Call(NamedTuple):
    """One request, and what it tells. An agent that names no session is known by the user of its proxy address."""

    headers: dict[str, str]
    session: str = "agent-7"
    parent: str = ""
    kind: CallKind = CallKind.TURN
    body: dict[str, object] = CHAT_BODY
    path: str = CHAT
    profile: str = "openai"


def messages(headers, session, parent="", kind=CallKind.TURN, body=CLAUDE_BODY, profile="anthropic"):
    return Call(headers, session, parent, kind, body, MESSAGES, profile)


def responses(headers, session="019a-root", parent="", kind=CallKind.TURN, key="", path=RESPONSES, profile="openai"):
    return Call(headers, session, parent, kind, CODEX_BODY | {"prompt_cache_key": key or session}, path, profile)


def codex_login(headers, session="019a-root", parent="", kind=CallKind.TURN, key="", path=CODEX_PATH):
    return responses(headers, session, parent, kind, key, path, "codex")


CLAUDE_ID = "5e5c1a7e-0001"
HAIKU_BODY = {"model": "claude-haiku-4-5", "messages": [{}]}
CLASSIFIER_BODY = {
    "model": "claude-haiku-4-5",
    "max_tokens": 2112,
    "stop_sequences": ["</block>"],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.263"},
        {"type": "text", "text": "You are a security monitor for autonomous AI coding agents.\n\n## Context"},
    ],
    "messages": [{"role": "user", "content": "# CLAUDE.md"}, {"role": "user", "content": "<transcript>"}],
    "metadata": CLAUDE_BODY["metadata"],
}
CLAUDE_TITLE_BODY = {
    "model": "claude-opus-4-8",
    "system": [
        {"type": "text", "text": "You are a Claude agent, built on Anthropic's Claude Agent SDK."},
        {"type": "text", "text": "Generate a concise, sentence-case title (3-7 words) that captures the main topic"},
    ],
    "tools": [],
    "messages": [{"role": "user", "content": "<session>\nhello\n</session>"}],
    "metadata": CLAUDE_BODY["metadata"],
}
CRUSH = {"user-agent": "Charm-Crush/0.20 (https://charm.land/crush)", "x-session-id": "9f", "x-session-affinity": "9f"}
COPILOT = {"user-agent": "copilot/0.0.400", "x-interaction-id": "i", "x-initiator": "agent"}
CODEX_CHILD = codex(thread_id="019a-child", parent_thread_id="019a-root", subagent_kind="collab_spawn") | {
    "thread-id": "019a-child",
    "x-openai-subagent": "collab_spawn",
    "x-codex-parent-thread-id": "019a-root",
}
AUXILIARY, SUBAGENT = CallKind.AUXILIARY, CallKind.SUBAGENT
AGENTS = {
    "Claude Code": messages(CLAUDE, CLAUDE_ID),
    "Claude Code before 2.1.86": messages(
        {"user-agent": "claude-cli/2.0.1"},
        "5e5c-2",
        body=CLAUDE_BODY | {"metadata": {"user_id": "user_0a_account_0b_session_5e5c-2"}},
    ),
    "Claude Code, sub-agent": messages(
        CLAUDE | {"x-claude-code-agent-id": "a1"}, f"{CLAUDE_ID}/a1", CLAUDE_ID, SUBAGENT
    ),
    "Claude Code, title": messages(
        CLAUDE, CLAUDE_ID, kind=AUXILIARY, body=CLAUDE_BODY | {"model": "claude-haiku-4-5", "tools": []}
    ),
    "Claude Code, compaction": messages(
        CLAUDE,
        CLAUDE_ID,
        kind=CallKind.COMPACTION,
        body=CLAUDE_BODY | {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": COMPACT}]},
    ),
    "Claude Code, classifier": messages(CLAUDE, CLAUDE_ID, kind=CallKind.CLASSIFIER, body=CLASSIFIER_BODY),
    "Claude Code, title by a large model": messages(CLAUDE, CLAUDE_ID, kind=AUXILIARY, body=CLAUDE_TITLE_BODY),
    "Claude Code on Ollama": messages(CLAUDE, CLAUDE_ID, profile="ollama"),
    "Codex": responses(codex()),
    "Codex before 2026": responses({"user-agent": "codex_cli_rs/0.60", "session_id": "s", "conversation_id": "s"}, "s"),
    "Codex, its metadata alone": responses({"x-codex-turn-metadata": codex()["x-codex-turn-metadata"]}),
    "Codex with a login": codex_login(codex()),
    "Codex, sub-agent": codex_login(CODEX_CHILD, "019a-root/019a-child", "019a-root", SUBAGENT, key="019a-child"),
    "Codex, review": responses(codex(subagent_kind="review"), kind=SUBAGENT),
    "Codex, prewarm": responses(codex(request_kind="prewarm"), kind=CallKind.PREWARM),
    "Codex, compaction": codex_login(codex(), kind=CallKind.COMPACTION, path=f"{CODEX_PATH}/compact"),
    "Codex, memory": responses(CODEX | {"x-openai-memgen-request": "1"}, kind=AUXILIARY),
    "OpenCode": Call(OPENCODE, "ses_1"),
    "OpenCode, child session": messages(
        OPENCODE | {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}, "ses_2", "ses_1", SUBAGENT
    ),
    "OpenCode, title": Call(OPENCODE, "ses_1", kind=AUXILIARY, body=TITLE_BODY),
    "OpenCode Zen": Call({"x-opencode-session": "ses_3"}, "ses_3"),
    "OpenCode on Ollama": Call(OPENCODE, "ses_1", path="/api/chat", profile="ollama"),
    "Crush": Call(CRUSH, "9f"),
    "Crush, title": messages(
        {"user-agent": "Charm-Crush/0.20", "x-session-id": "9f"}, "9f", kind=AUXILIARY, body=HAIKU_BODY
    ),
    "Goose": Call({"goose-session-id": "20261120_1"}, "20261120_1"),
    "Goose, naming its session": messages(
        {"goose-session-id": "20261120_1"}, "20261120_1", kind=AUXILIARY, body=HAIKU_BODY
    ),
    "Copilot CLI": Call(COPILOT | {"x-client-session-id": "cs"}, "cs"),
    "Cline": Call({"user-agent": "Cline/3.40", "x-task-id": "task"}, "task"),
    "Roo": Call({"user-agent": "RooCode/3.30", "x-roo-task-id": "t"}, "t"),
    "Roo with a login": codex_login({"originator": "roo-code", "session_id": "t"}, "t", key="019a-root"),
    "Kilo": Call({"x-kilocode-taskid": "t"}, "t"),
    "Mux": messages({"x-mux-workspace-id": "w"}, "w", body={"messages": [{}]}),
    "Coder": Call({"x-coder-chat-id": "c"}, "c"),
    "OpenHands": Call(
        LITELLM | {"x-litellm-session-id": "conv"}, "conv", body=CHAT_BODY | {"prompt_cache_key": "conv"}
    ),
    "OpenHands, sub-agent": Call(
        LITELLM | {"x-litellm-session-id": "conv-2"},
        "conv-2",
        "conv",
        SUBAGENT,
        CHAT_BODY | {"prompt_cache_key": "conv"},
    ),
    "aider": Call(LITELLM),
    "SWE-agent": Call({"user-agent": "swe-agent/1.1"}),
    "mini-swe-agent": Call(LITELLM, body={"messages": [{}]}, profile="openai-compatible"),
    "Qwen Code": Call({"user-agent": "QwenCode/0.5 (linux; x64)"}, profile="openai-compatible"),
}


def test_every_agents_session_parent_and_kind_of_call_are_known():
    wrong = {}
    for name, call in AGENTS.items():
        one, kind = of(call.profile, call.headers, body=call.body, path=call.path, user="agent-7")
        told = (
            one.agent,
            one.session,
            one.parent_session,
            kind,
            is_call(PACKAGED[call.profile], "POST", call.path),
        )
        if told != ("agent-7", call.session, call.parent, call.kind, True):
            wrong[name] = told
    assert wrong == {}, "the proxy user wins over every name; the session, its parent and the kind are the request's"


def test_counting_tokens_passes_by():
    assert not is_call(PACKAGED["anthropic"], "POST", "/v1/messages/count_tokens?beta=true")
    assert not is_call(PACKAGED["openai"], "POST", "/v1/responses/input_tokens")


def test_without_a_proxy_user_all_of_a_tree_are_one_agent():
    call = AGENTS["Codex, sub-agent"]
    child, _ = of("codex", call.headers, body=call.body, path=CODEX_PATH)
    root, _ = of("codex", codex(), body=CODEX_BODY, path=CODEX_PATH)
    assert child.agent == root.agent
    assert root.agent.startswith("codex_exec-")


def test_a_session_may_be_named_in_the_body():
    """As Gemini CLI's Code Assist does; a profile of one's own says where."""
    profile = replace(PACKAGED["openai"], session_headers=("body#request.session_id",))
    facts = read_request(
        b'{"model": "gemini-3", "request": {"session_id": "s", "contents": []}}', dialect_of(profile.format).plan
    )
    assert identify(profile, {"user-agent": "GeminiCLI/0.20"}, facts, "", PEER).session == "s"


def test_other_users_of_a_cache_key_are_no_parents():
    one, kind = of("openai", {"x-session-id": "a"}, body=CHAT_BODY | {"prompt_cache_key": "shared"}, path=CHAT)
    assert (one.session, one.parent_session, kind) == ("a", "", CallKind.TURN)


def test_a_compaction_is_known_by_its_first_words(subtests):
    cases = [
        (COMPACT, CallKind.COMPACTION),
        ("CRITICAL: TEXT ONLY.\n\nYour task is to create a detailed summary of this conversation", CallKind.COMPACTION),
        ("Your task is to create a detailed summary of the RECENT portion of the conversation", CallKind.COMPACTION),
        ("Summarize the conversation in README", CallKind.TURN),
        ("x" * 5000 + COMPACT, CallKind.TURN),
        ("\ud800", CallKind.TURN),
    ]
    for text, kind in cases:
        for profile, path in [("anthropic", MESSAGES), ("openai", CHAT)]:
            with subtests.test(text=text, kind=kind):
                body = {
                    "messages": [
                        {"role": "user", "content": "a"},
                        {"role": "user", "content": [{"type": "text", "text": text}]},
                    ]
                }
                assert of(profile, {}, body=body, path=path)[1] is kind


def test_a_compaction_is_known_after_the_results_of_tools_too():
    """As Claude Code asks in the middle of its work (2.1.330)."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": '"text": ' + "x" * 20_000}
    for asked, kind in (
        (COMPACT, CallKind.COMPACTION),
        ("Go on", CallKind.TURN),
        ("x" * 3000 + COMPACT, CallKind.TURN),
    ):
        text = {"type": "text", "text": asked, "cache_control": {"type": "ephemeral"}}
        body = {"messages": [{"role": "user", "content": [result, text]}]}
        assert of("anthropic", {}, body=body, path=MESSAGES)[1] is kind


def test_an_id_that_a_client_gives_is_fit_for_logs_and_stays_different():
    assert given_id("  order-7  ") == "order-7"
    assert given_id("") == given_id(" \t ") == ""
    for long in ("x" * 300, "x" * 299 + "y", "x" * 100_000, "a\nb", "a\x1bb"):
        assert len(given_id(long)) <= 80
        assert given_id(long).isprintable()
    assert given_id("x" * 300) != given_id("x" * 299 + "y")
    assert given_id("a\nb") != given_id("a?b")
