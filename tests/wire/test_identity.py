import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.profile.model import Delivery, Profile
from hivemind_addon.wire.identity import identify, proxy_words
from hivemind_addon.wire.request import RequestFacts

PROFILE = Profile(
    session_headers=("x-claude-code-session-id", "x-session-id"), request_account_headers=("openai-organization",)
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


@pytest.mark.parametrize(
    ("password", "delivery"),
    [
        ("whole", Delivery.WHOLE),
        ("stream", Delivery.STREAM),
        ("prio-high+whole", Delivery.WHOLE),
        ("x.whole,y", Delivery.WHOLE),
        ("a whole b", Delivery.WHOLE),
        ("whole,stream", Delivery.STREAM),
        ("WHOLE", Delivery.WHOLE),
        ("wholesale", None),
        ("x", None),
        ("", None),
    ],
)
def test_words_of_the_proxy_password_choose_the_delivery(password, delivery):
    assert proxy_words(password).delivery is delivery


@given(st.text())
def test_any_password_is_read(password):
    assert proxy_words(password).delivery in {None, *Delivery}
