from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.base.typed import BadValue, DocumentError, DocumentRules, convert
from hivemind_addon.formats.profile.model import InputCharge, Profile
from hivemind_addon.formats.profile.rules import PROFILE_RULES
from hivemind_addon.kernel.values.ticket import Delivery, Dimension, OutcomeKind
from tests.cases import each

FILE = Path("profiles/my.yaml")


def error_of(document):
    with pytest.raises(DocumentError) as caught:
        convert(Profile, document, FILE)
    return str(caught.value)


def test_every_kind_of_value_becomes_what_its_type_hint_says():
    profile = convert(
        Profile,
        {
            "hosts": ["a.example"],
            "formats": {"*/messages": {"name": "mine"}},
            "delivery": "whole",
            "keep_alive_s": 3,
            "charge": {"input": "uncached"},
            "meters": [{"meter": "r", "dimension": "requests", "limit": "X-Limit", "remaining": "x-left"}],
            "outcomes": [{"kind": "ignored", "retry": False, "retry_after": None, "headers": {"X-A": "^b"}}],
        },
        FILE,
    )
    assert profile.hosts == ("a.example",)
    assert profile.formats["*/messages"].name == "mine"
    assert profile.delivery is Delivery.WHOLE
    assert profile.keep_alive_s == 3
    assert profile.charge.input is InputCharge.UNCACHED
    assert profile.charge.default_output_tokens == Profile().charge.default_output_tokens
    assert profile.meters[0].dimension is Dimension.REQUESTS
    assert profile.outcomes[0].kind is OutcomeKind.IGNORED


def test_an_empty_document_is_the_defaults():
    assert convert(Profile, {}, FILE) == Profile()


def test_an_unknown_key_names_file_key_path_and_the_likely_word():
    assert error_of({"retry": {"max_failurs": 3}}) == (
        "profiles/my.yaml: retry.max_failurs: unknown key; did you mean max_failures?"
    )


def test_an_unknown_key_like_no_other_is_answered_with_the_known_ones():
    assert "known keys: max_failures, max_ambiguous" in error_of({"retry": {"zzz": 3}})


@each(
    ("document", "said"),
    [
        ({"hosts": "a.example"}, "hosts: expected a list, got 'a.example'"),
        ({"delivery": "fast"}, "delivery: 'fast' is not known here; write one of stream, whole"),
        ({"delivery": {}}, "delivery: a mapping is not known here"),
        ({"delivery": None}, "delivery: nothing is not known here"),
        ({"keep_alive_s": "3s"}, "keep_alive_s: expected a number, got '3s'"),
        ({"keep_alive_s": -1}, "keep_alive_s: -1 is negative"),
        ({"keep_alive_s": float("nan")}, "keep_alive_s: expected a number, got nan"),
        ({"keep_alive_s": float("inf")}, "keep_alive_s: expected a number, got inf"),
        ({"keep_alive_s": 10**400}, "keep_alive_s: expected a number"),
        ({"keep_alive_s": True}, "keep_alive_s: expected a number, got True"),
        ({"refusal": {"status": 429.5}}, "refusal.status: expected a whole number, got 429.5"),
        ({"refusal": []}, "refusal: expected a mapping, got a list"),
        ({"refusal": None}, "refusal: expected a mapping, got nothing"),
        ({"outcomes": [{"kind": "ignored"}]}, "outcomes[0]: retry is missing; add retry"),
        ({"outcomes": [{"kind": "ignored", "retry": "no"}]}, "outcomes[0].retry: expected true or false"),
        ({"outcomes": [{"kind": "hard", "retry": False}]}, "outcomes[0].kind: 'hard' is not known here"),
        ({"calls": [{"kind": "turn", "says": 7}]}, "calls[0].says: expected a text, got 7"),
        ({"calls": [{"kind": "nap"}]}, "calls[0].kind: 'nap' is not known here"),
        ({"windows": [{"used": "x-used"}]}, "windows[0]: window is missing; add window"),
        ({"cache_needs_marks": "yes"}, "cache_needs_marks: expected true or false"),
        ({"websocket": "off"}, "websocket: 'off' is not known here; write one of turns, refuse, tunnel"),
        ({"meters": ["requests"]}, "meters[0]: expected a mapping, got 'requests'"),
        ({3: "x"}, "3: unknown key"),
    ],
)
def test_a_bad_value_is_one_line_with_its_place_and_a_cure(document, said):
    line = error_of(document)
    assert line.startswith(f"profiles/my.yaml: {said}")
    assert "; " in line
    assert "\n" not in line


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([f.name for f in fields(Profile)]) | st.text(max_size=5), values, max_size=3))
def test_any_document_is_a_profile_or_a_line(document):
    try:
        made = convert(Profile, document, FILE, rules=PROFILE_RULES)
    except DocumentError as error:
        made = str(error)
    assert isinstance(made, Profile) or (made.startswith("profiles/my.yaml: ") and len(made.splitlines()) == 1)


@dataclass(frozen=True)
class Shop:
    """A document of another kind."""

    hours: tuple[float, float]
    doors: int = 1
    name: str = ""


def opened(document):
    def odd(value):
        if value % 2 == 0:
            raise BadValue(f"{value} is even", "write an odd number")
        return value

    rules = DocumentRules(values={(Shop, "doors"): odd}, unwritten={Shop: frozenset({"name"})})
    return convert(Shop, document, FILE, rules=PROFILE_RULES | rules)


def test_documents_of_another_kind_bring_their_own_rules():
    assert opened({"hours": [9, 17], "doors": 3}) == Shop((9, 17), 3)
    for document, told in (
        ({"hours": [9, 17], "doors": 2}, "doors: 2 is even; write an odd number"),
        ({"hours": [9, 17], "name": "x"}, "name: unknown key"),
        ({"hours": [17, 9]}, "hours: [17, 9] is no range; write its two ends, the smaller one first"),
        ({"hours": [9]}, "hours: [9] is no range"),
    ):
        with pytest.raises(DocumentError) as caught:
            opened(document)
        assert told in str(caught.value)


def test_what_documents_share_is_typed_once():
    shared, known = {"input": 1, "output": 2}, {}
    first, second = (
        convert(Profile, {"prices": {"x": shared}, "hosts": hosts}, FILE, rules=PROFILE_RULES, known=known)
        for hosts in (["a.test"], ["b.test"])
    )
    assert (first.hosts, second.hosts) == (("a.test",), ("b.test",))
    assert first.prices == second.prices
    listed = ["one-*", "two-*"]
    first, second = (
        convert(Profile, {"model_groups": listed}, FILE, rules=PROFILE_RULES, known=known) for _ in range(2)
    )
    assert first.model_groups is second.model_groups
