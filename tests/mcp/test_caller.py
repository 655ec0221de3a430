from fnmatch import fnmatchcase

import pytest

from hivemind_addon.proxy.profile.model import Profile
from hivemind_addon.proxy.wire.identity import identify
from hivemind_addon.proxy.wire.request import RequestFacts
from hivemind_addon.tools.mcp.caller import Caller, caller_of


def test_what_is_told_counts_more_than_the_environment():
    environment = {"HIVEMIND_AGENT": "env", "HIVEMIND_PORT": "9000"}
    assert caller_of(environment) == Caller(agent="env", port=9000)
    assert caller_of(environment, agent="told", port=1) == Caller(agent="told", port=1)


def test_a_task_is_known_with_its_runner():
    environment = {"HIVEMIND_TASK": "f/t", "HIVEMIND_RUNNER": "/run/r.sock"}
    assert caller_of(environment) == Caller(agent="", port=8080, task="f/t", runner="/run/r.sock")


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_an_agent_that_was_only_given_a_proxy_is_known_by_its_address(name):
    found = caller_of({name: "http://my%20agent:whole.prio-low@127.0.0.1:9090"})
    assert found == Caller(agent="my agent", port=9090)


@pytest.mark.parametrize(
    "url", ["http://user:pw@proxy.corp.test:3128", "http://127.0.0.1:9090", "no address", "http://a@[::1", ""]
)
def test_another_proxy_says_nothing(url):
    assert caller_of({"HTTPS_PROXY": url}) == Caller(agent="", port=8080)


@pytest.mark.parametrize("port", ["0", "70000", "x", "²", "-1"])
def test_a_port_that_is_none_is_not_used(port):
    assert caller_of({"HIVEMIND_PORT": port}).port == 8080


@pytest.mark.parametrize("name", ["*", "a[bc]", "who?", "plain", "[", "**"])
def test_a_name_full_of_stars_still_means_one_agent(name):
    glob = Caller(agent=name, port=1).glob
    assert fnmatchcase(name, glob)
    assert not fnmatchcase("other", glob)
    assert not fnmatchcase("ab", glob)


@pytest.mark.parametrize("name", ["two\nlines", "n" * 200, "bell\a", "plain"])
def test_a_name_is_the_one_that_the_proxy_makes_of_it(name):
    proxys = identify(Profile(), {}, RequestFacts(), name, "127.0.0.1:1").agent
    assert caller_of({"HIVEMIND_AGENT": name}).agent == caller_of({}, agent=name).agent == proxys
