"""Services that are no models: named by an option, or in files of a user's own."""

import pytest

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.formats.profile.load import (
    NamedTool,
    UnknownTool,
    is_call,
    limit_group,
    load_profiles,
    of_group,
    parse_tools,
    tool_names,
)
from hivemind_addon.formats.wire.description import may_repeat, only_reads


def named(text):
    return load_profiles(None, parse_tools(text))


def refused(text):
    with pytest.raises(UnknownTool) as error:
        named(text)
    return str(error.value)


def test_nothing_is_claimed_before_it_is_named():
    assert load_profiles(None).match_host("api.github.com", 443) is None
    assert named("github").match_host("api.github.com", 443).name == "github"
    assert named(" github , tavily,").match_host("api.tavily.com", 443).name == "tavily"
    assert named("github").match_host("api.anthropic.com", 443).name == "anthropic"


def test_every_ready_one_can_be_named_and_schedules_any_method_and_path():
    assert set(tool_names()) == {"brave", "e2b", "exa", "github", "index", "mcp", "sandbox", "tavily"}
    for name, hosts in tool_names().items():
        profile = load_profiles(None, (NamedTool(name, hosts or ("localhost:9000",)),)).by_name[name]
        assert profile.is_plain
        assert is_call(profile, "DELETE", "/any/path?of=it")


def test_a_host_takes_the_place_of_its_own_and_may_be_given_more_than_once():
    profiles = named("github=git.example:8443,mcp=localhost:9000,mcp=tools.example")
    assert profiles.match_host("git.example", 8443).name == "github"
    assert profiles.match_host("api.github.com", 443) is None
    assert profiles.match_host("localhost", 9000).name == profiles.match_host("tools.example", 80).name == "mcp"
    assert profiles.match_host("localhost", 9001) is not profiles.by_name["mcp"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gihub", "there is no tool 'gihub'; choose one of brave, e2b"),
        ("plain=localhost", "there is no tool 'plain'; choose"),
        ("=x", "there is no tool ''; choose"),
        ("mcp", "mcp is at no host of its own; name yours: mcp=HOST"),
        ("mcp=", "'mcp=': no host name: ''; write mcp=HOST or mcp=HOST:PORT"),
        ("mcp=localhost:x", "'mcp=localhost:x': no port: 'x'; write mcp=HOST or mcp=HOST:PORT"),
        ("github=api.openai.com", "github=api.openai.com: openai is there already; name each host once"),
        ("mcp=packages.test,index=packages.test", "index=packages.test: mcp is there already; name each host once"),
    ],
)
def test_what_is_named_wrongly_is_told_in_one_line_with_the_cure(text, said):
    assert refused(text).startswith(said)


def test_a_user_s_file_needs_no_naming_and_may_change_a_ready_one(tmp_path):
    (tmp_path / "tracker.yaml").write_text("kind: plain\nhosts: [tracker.example]\n")
    (tmp_path / "github.yaml").write_text("extends: github\nconcurrency: {initial: 2, maximum: 3}\n")
    profiles = load_profiles(tmp_path)
    assert profiles.match_host("tracker.example", 443).refusal.status == 429
    github = profiles.match_host("api.github.com", 443)
    assert (github.concurrency.maximum, [one.limit for one in github.stated]) == (3, ["points", "graphql-points"])
    again = load_profiles(tmp_path, parse_tools("github"))
    assert again.match_host("api.github.com", 443).concurrency.maximum == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("paths: ['*']\nsafe_paths: [/x]", "safe_paths: only a plain profile has it"),
        ("kind: plain\nstated: [{limit: a, amount: 5, per_s: 60, groups: [x]}]", "there is no group 'x'"),
        ("kind: plain\nstated: [{limit: a, amount: 0, per_s: 60}]", "0 is not above zero"),
        ("kind: plian", "'plian' is not known here; write one of model, plain"),
    ],
)
def test_what_a_file_says_wrongly_is_told_with_its_name(tmp_path, text, said):
    (tmp_path / "tracker.yaml").write_text(f"hosts: [tracker.example]\n{text}\n")
    with pytest.raises(DocumentError, match=r"tracker\.yaml") as error:
        load_profiles(tmp_path)
    assert said in str(error.value)


def test_a_call_is_of_the_first_group_of_its_path_and_its_answers_tell_that_group_s_limits():
    github = named("github").by_name["github"]
    paths = {"/search/code": "code_search", "/search/issues": "search", "/graphql": "graphql", "/user": "core"}
    assert {path: limit_group(github, path) for path in paths} == paths
    assert [one.meter for one in of_group(github, "core").meters] == ["requests"]
    assert [one.meter for one in of_group(github, "search").meters] == ["searches"]
    assert of_group(github, "free").meters == ()


def test_only_what_may_be_done_twice_may_be_repeated():
    tavily = named("tavily").by_name["tavily"]
    for method, headers, path, may, reads in (
        ("GET", {}, "/x", True, True),
        ("put", {}, "/x", True, False),
        ("DELETE", {}, "/x", True, False),
        ("POST", {}, "/x", False, False),
        ("PATCH", {"idempotency-key": "1"}, "/x", True, False),
        ("POST", {}, "/search?q=1", True, True),
    ):
        assert may_repeat(tavily, method, headers, path) is may, (method, path)
        assert only_reads(tavily, method, path) is reads, (method, path)
