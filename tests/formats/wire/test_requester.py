"""What is remembered of a head says the same as what is worked out anew."""

import pytest

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.wire.identity import Machine, Names, account_of, calls_of, identify, is_headless
from hivemind_addon.formats.wire.requester import _requesters_of, read_requester

PACKAGED = load_profiles(None).by_name
ALIKE = {"user-agent": "claude-cli/2.1 (external, cli)", "x-api-key": "sk-1", "x-claude-code-session-id": "s-1"}


@pytest.mark.parametrize("profile", sorted(PACKAGED))
def test_whatever_an_answer_depends_on_makes_another_one(profile: str):
    rules = PACKAGED[profile]
    asked = _requesters_of(rules)
    for name in asked.headers:
        for value in ("one", "two", '{"session_id":"a"}', "Bearer a", "claude-cli/2 (external, sdk-cli)", "30"):
            for path in ("/v1/messages", "/v1/messages?key=1"):
                headers = {**ALIKE, name: value}
                requester = read_requester(rules, headers, {}, path)
                assert requester.account == account_of(rules, headers, {}, path)
                assert requester.is_headless == is_headless(rules, headers)
                assert requester.calls == calls_of(rules, headers, {}, path)
    for name in asked.members:
        for value in ("one", "two"):
            assert read_requester(rules, {}, {name: value}).account == account_of(rules, {}, {name: value}, "")


def test_the_machine_counts():
    rules, headers = PACKAGED["anthropic"], {"x-api-key": "sk-1"}
    for machine in (Machine(), Machine(has_own_agents=True, name="m"), Machine(account_key=b"k")):
        account = read_requester(rules, headers, {}, machine=machine).account
        assert account == account_of(rules, headers, {}, "", machine)


def test_a_connection_names_who_has_no_other_name():
    nameless, named = Names("", "", ""), Names("s", "", "")
    assert identify(nameless, "", "a", "", "1:1") != identify(nameless, "", "a", "", "1:2")
    assert identify(nameless, "", "a", "ann", "1:1") == identify(nameless, "", "a", "ann", "1:2")
    assert identify(named, "", "a", "", "1:1") == identify(named, "", "a", "", "1:2")


def test_the_same_is_worked_out_once_and_what_else_a_head_says_is_no_matter():
    rules = PACKAGED["anthropic"]
    first = read_requester(rules, {**ALIKE, "x-session-id": "10"}, {})
    assert read_requester(rules, {**ALIKE, "x-session-id": "11"}, {}) is first


def test_memory_is_bounded():
    rules = PACKAGED["openai"]
    for number in range(1000):
        read_requester(rules, {"user-agent": str(number)}, {})
    assert len(_requesters_of(rules).known) <= 256
    long = {"user-agent": "x" * 5000}
    assert read_requester(rules, long, {}) is not read_requester(rules, long, {})
