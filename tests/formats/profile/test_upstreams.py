"""Endpoints in profiles, and their keys: what is wrong is told with file, key path and cure, and never with the key."""

import os

import pytest

from hivemind_addon.formats.profile.upstreams import HELD_KEY
from hivemind_addon.proxy.gate.settings import BadOption, read_profiles
from tests.formats.profile.test_load import error_of, load

SECRET = "sk-very-secret"


def profile(*upstreams):
    return "extends: openai\n" + "upstreams:\n" + "".join(f"  - {one}\n" for one in upstreams)


@pytest.mark.parametrize(
    ("upstream", "error"),
    [
        ("{name: a, url: 'https://x.test/v1'}", "upstreams[0].url: 'https://x.test/v1' has a path; write https://HOST"),
        ("{name: a, url: x.test}", "upstreams[0].url: no URL: 'x.test'; write https://HOST or http://HOST:PORT"),
        ("{name: a, url: 'https://me:pw@x.test'}", "upstreams[0].url: a URL with a user, a query or a fragment"),
        ("{name: a b}", "upstreams[0].name: no name of an endpoint: 'a b'; write letters, digits, dots and dashes"),
        ("{name: a, key: {env: A, file: b}}", "upstreams[0].key: it is in the environment or in a file, one of them"),
        (
            "{name: a, url: 'http://x.test', key: {env: A}}",
            "upstreams[0].url: the key would go in clear text to another",
        ),
        ("{name: a, url: 'http://127.evil.test', key: {env: A}}", "upstreams[0].url: the key would go in clear text"),
        ("{name: a, key: sk-1}", "upstreams[0].key: expected a mapping"),
        ("{name: a, weight: 0}", "upstreams[0].weight: 0 is not above zero; write a positive number"),
        ("{name: a, paths: {v1: /v2}}", "upstreams[0].paths.v1: no beginning of a path: 'v1'; begin it with /"),
    ],
)
def test_what_is_wrong_with_one_is_told(tmp_path, upstream, error):
    assert f"mine.yaml: {error}" in error_of(tmp_path, mine=profile(upstream) + "hosts: [x.test]\n")


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.0.0.2:1", "http://[::1]:1", "https://x.test"])
def test_a_key_may_go_to_this_machine_and_elsewhere_by_https(tmp_path, url):
    assert load(tmp_path, mine=profile(f"{{name: a, url: '{url}', key: {{env: A}}}}") + "hosts: ['*.x.test']\n")


def test_a_key_without_a_url_wants_whole_hosts_also_where_they_are_inherited(tmp_path):
    """Else clients would choose where it goes."""
    told = "mine.yaml: upstreams[1].key: clients would choose where it goes, for the profile's hosts have {}; add url: https"
    upstreams = profile("{name: own}", "{name: b, key: {env: A}}")
    assert told.format("*.x.test") in error_of(tmp_path, mine=upstreams + "hosts: [a.test, '*.x.test']\n")
    azure = upstreams.replace("openai", "azure", 1)
    assert "upstreams[1].key: clients would choose" in error_of(tmp_path, azure=azure)


def test_two_of_one_name_are_refused(tmp_path):
    text = profile("{name: a}", "{name: a, url: 'https://x.test'}") + "hosts: [x.test]\n"
    assert "upstreams[1].name: a stands twice; give each endpoint its own name" in error_of(tmp_path, mine=text)


def test_only_the_profile_that_lists_them_has_them(tmp_path):
    profiles = load(
        tmp_path,
        openai=profile("{name: a}"),
        mine="extends: openai\nhosts: [x.test]\n",
    )
    assert [one.name for one in profiles.by_name["openai"].upstreams] == ["a"]
    assert profiles.by_name["mine"].upstreams == ()


def keys(folder, *upstreams):
    (folder / "openai.yaml").write_text(profile(*upstreams))
    return read_profiles(folder, "", None).keys


def trouble(folder, *upstreams):
    with pytest.raises(BadOption) as caught:
        keys(folder, *upstreams)
    text = str(caught.value)
    assert text.startswith(f"{folder}/openai.yaml: upstreams[")
    assert SECRET not in text
    return text.removeprefix(f"{folder}/openai.yaml: ").replace(f"{folder}/", "")


def test_a_key_comes_from_the_environment_or_a_file_and_shows_in_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY", SECRET)
    (tmp_path / "b.key").write_text(f"{SECRET}-b\n")
    (tmp_path / "b.key").chmod(0o600)
    read = keys(tmp_path, "{name: a, key: {env: A_KEY}}", "{name: b, key: {file: b.key}}")
    assert read["openai", "a"].in_header("authorization") == f"Bearer {SECRET}"
    assert read["openai", "b"].in_header("api-key") == f"{SECRET}-b"
    assert SECRET not in repr(read)
    assert SECRET not in repr(read_profiles(tmp_path, "", 4))
    assert read_profiles(tmp_path, "", 4).keys == read


def test_a_variable_that_is_not_set_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("A_KEY", raising=False)
    assert trouble(tmp_path, "{name: a, key: {env: A_KEY}}") == (
        "upstreams[0].key.env: A_KEY is not set in the proxy's environment; export A_KEY=… before the proxy starts"
    )


def test_what_agents_have_in_the_place_of_a_key_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY", HELD_KEY)
    assert trouble(tmp_path, "{name: a, key: {env: A_KEY}}") == (
        "upstreams[0].key.env: A_KEY has what `hivemind exec` gives agents in its place; "
        "start the proxy outside of `hivemind exec`"
    )


def test_the_variables_that_hold_keys_are_known_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY", SECRET)
    monkeypatch.setenv("B_KEY", SECRET + "-b")
    both = profile("{name: own}", "{name: b, key: {env: B_KEY}}", "{name: a, key: {env: A_KEY}}")
    (tmp_path / "openai.yaml").write_text(both)
    assert read_profiles(tmp_path, "", None).key_variables == ("A_KEY", "B_KEY")
    assert read_profiles(None, "", None).key_variables == ()


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_file_that_others_may_read_is_refused(tmp_path):
    file = tmp_path / "b.key"
    file.write_text(SECRET)
    file.chmod(0o640)
    assert trouble(tmp_path, "{name: b, key: {file: b.key}}") == (
        "upstreams[0].key.file: b.key is not its owner's alone (mode 0640); own it, and run: chmod 600 b.key"
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "b.key holds no key; write the key into it, and nothing else"),
        (f"{SECRET} {SECRET}", "no key: it has blanks or control characters; store the bare key"),
        (f"sk-ant-oat01-{SECRET}", "this is the token of a login, not an API key; make an API key"),
        (f"eyJhbGciOi.{SECRET}.x", "this is the token of a login, not an API key; make an API key"),
    ],
)
def test_what_is_no_api_key_is_refused(tmp_path, text, error):
    file = tmp_path / "b.key"
    file.write_text(text)
    file.chmod(0o600)
    assert error in trouble(tmp_path, "{name: b, key: {file: b.key}}")


def test_a_file_that_is_not_there_is_told(tmp_path):
    assert "b.key cannot be read: No such file" in trouble(tmp_path, "{name: b, key: {file: b.key}}")


def test_one_key_is_not_two_endpoints(tmp_path, monkeypatch):
    """Unless each is another deployment, which has limits of its own."""
    monkeypatch.setenv("A_KEY", SECRET)
    one, other = "{name: a, key: {env: A_KEY}", "{name: b, key: {env: A_KEY}"
    assert "upstreams[1].key: a has the same key, and its limits are one" in trouble(tmp_path, one + "}", other + "}")
    assert len(keys(tmp_path, one + ", models: {gpt: x}}", other + ", models: {gpt: y}}")) == 2
