import re

from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.system.glob import glob_matches
from tests.cases import each


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
