"""What is remembered of a head says the same as what is worked out anew."""

import pytest

from hivemind_addon.proxy.profile.load import load_profiles
from hivemind_addon.proxy.wire.identity import Machine, identify, is_headless, names_in
from hivemind_addon.proxy.wire.request import RequestFacts
from hivemind_addon.proxy.wire.requester import _requesters_of, read_requester

PACKAGED = load_profiles(None).by_name
ALIKE = {"user-agent": "claude-cli/2.1 (external, cli)", "x-api-key": "sk-1", "x-claude-code-session-id": "s-1"}


@pytest.mark.parametrize("profile", sorted(PACKAGED))
def test_whatever_an_answer_depends_on_makes_another_one(profile: str):
    rules = PACKAGED[profile]
    known = _requesters_of(rules)
    for name in known.headers:
        for value in ("one", "two", '{"session_id":"a"}', "Bearer a", "claude-cli/2 (external, sdk-cli)", "30"):
            for path in ("/v1/messages", "/v1/messages?key=1"):
                headers = {**ALIKE, name: value}
                requester = read_requester(rules, headers, RequestFacts(), path)
                assert requester.names == names_in(rules, headers, RequestFacts(), path)
                assert requester.is_headless == is_headless(rules, headers)
    for name in known.members:
        for value in ("one", "two"):
            facts = RequestFacts(members={name: value})
            assert read_requester(rules, {}, facts).names == names_in(rules, {}, facts)


def test_what_the_body_and_the_machine_say_counts():
    rules = PACKAGED["anthropic"]
    for facts in (RequestFacts(), RequestFacts(session_hint="a"), RequestFacts(session_hint="a", parent_hint="b")):
        for machine in (Machine(), Machine(has_own_agents=True, name="m"), Machine(account_key=b"k")):
            names = read_requester(rules, {"x-api-key": "sk-1"}, facts, machine=machine).names
            assert names == names_in(rules, {"x-api-key": "sk-1"}, facts, machine=machine)


def test_a_connection_names_who_has_no_other_name():
    names = read_requester(PACKAGED["anthropic"], {"user-agent": "a/1"}, RequestFacts()).names
    assert identify(names, "", "1:1") != identify(names, "", "1:2")
    assert identify(names, "ann", "1:1") == identify(names, "ann", "1:2")
    named = names._replace(session="s")
    assert identify(named, "", "1:1") == identify(named, "", "1:2")


def test_the_same_is_worked_out_once_and_what_else_a_head_says_is_no_matter():
    rules = PACKAGED["anthropic"]
    first = read_requester(rules, {**ALIKE, "content-length": "10"}, RequestFacts())
    assert read_requester(rules, {**ALIKE, "content-length": "11"}, RequestFacts()) is first


def test_memory_is_bounded():
    rules = PACKAGED["openai"]
    for number in range(1000):
        read_requester(rules, {"user-agent": str(number)}, RequestFacts())
    assert len(_requesters_of(rules).known) <= 256
    long = {"user-agent": "x" * 5000}
    assert read_requester(rules, long, RequestFacts()) is not read_requester(rules, long, RequestFacts())
