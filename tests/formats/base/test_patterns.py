import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.base.patterns import glob_matches, host_parts, normal_host, normal_path, path_matches
from tests.cases import each
from tests.cpu_time import least_cpu_s


@each(
    ("glob", "text", "matches"),
    [
        ("/v1/messages", "/v1/messages", True),
        ("/v1/messages", "/v1/messages/batches", False),
        ("*/v1/messages", "/v1/messages", True),
        ("*/v1/messages", "/anthropic/v1/messages", True),
        ("*/v1/messages", "/v1/messages/", False),
        ("/*", "/", True),
        ("/*", "/a/b/c", True),
        ("api.*githubcopilot.com", "api.individual.githubcopilot.com", True),
        ("*a*a*", "a", False),
        ("ab*ba", "aba", False),
        ("", "", True),
        ("*", "", True),
        ("[a]?", "a1", False),
    ],
)
def test_a_star_matches_any_run_and_nothing_else_is_special(glob, text, matches):
    assert glob_matches(glob, text) is matches


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_it_agrees_with_the_regular_expression_of_the_same_meaning(glob, text):
    expected = re.fullmatch(".*".join(map(re.escape, glob.split("*"))), text) is not None
    assert glob_matches(glob, text) is expected


@each("chars", [10, 199, 200, 201, 100_000])
def test_texts_of_any_length_match_the_same_way_however_often_they_are_asked(chars):
    text = "a" * chars
    for _ in range(2):
        assert glob_matches("a*a", text)
        assert not glob_matches("a*b", text)


SPELLINGS = [
    "/v1/chat/completions",
    "/v1/chat/completions?a=/b",
    "/v1/%63hat/completions",
    "/v1/%63%48at%2fcompletions",
    "//v1/chat/completions",
    "/v1//chat///completions",
    "/v1/./chat/completions",
    "/v1/x/../chat/completions",
    "/v1/x/%2e%2e/chat/completions",
    "/v1/x/..;/chat/completions",
    "/v1/chat;x=1/completions;y",
    "/v1/chat/completions/",
    "/V1/Chat/COMPLETIONS",
    "/v1\\chat\\completions",
    "/v1/chat/completions%20",
    "/../v1/chat/completions",
]


def test_all_spellings_of_a_path_are_one(subtests):
    for path in SPELLINGS:
        with subtests.test(path=path):
            assert normal_path(path) == "/v1/chat/completions"
            assert path_matches("*/chat/completions", path)


def test_other_paths_stay_others(subtests):
    for path in [
        "/v1/chat/completions2",
        "/v1/%2563hat/completions",
        "/v1/chat",
        "/",
        "",
        "*",
        "/v1/chat/completions/x",
    ]:
        with subtests.test(path=path):
            assert not path_matches("*/v1/chat/completions", path)


def test_a_glob_in_upper_case_means_the_same():
    assert path_matches("/Team/*", "/team/x")


def test_a_long_path_is_no_work():
    assert least_cpu_s(lambda: path_matches("*/chat/completions", "/%2e%2e/a" * 7000)) < 0.05


@each(
    ("pattern", "parts"),
    [
        ("API.Example.com.", ("api.example.com", None)),
        ("localhost:8000", ("localhost", 8000)),
        ("[::1]:8000", ("::1", 8000)),
        ("[::1]", ("::1", None)),
        ("*.example.com:443", ("*.example.com", 443)),
        ("bücher.example", ("xn--bcher-kva.example", None)),
        ("my_host", ("my_host", None)),
    ],
)
def test_hosts_are_read_in_one_spelling(pattern, parts):
    assert host_parts(pattern) == parts


def test_a_name_that_idna_cannot_write_stays_as_it_is():
    assert normal_host("Bücher..example") == "bücher..example"


@each("pattern", ["a.example:0", "a.example:65536", "a.example:x", "a b", "", "https://a.example"])
def test_what_is_no_host_is_refused(pattern):
    with pytest.raises(ValueError, match=r"no (host name|port)"):
        host_parts(pattern)
