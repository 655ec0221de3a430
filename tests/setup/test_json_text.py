import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.tools.setup.json_text import put, read, take
from hivemind_addon.tools.setup.model import HasComments, SetupTrouble


def test_a_new_member_stands_first_and_no_other_line_changes():
    text = '{\n    "model": "opus",\n    "env": {\n        "A": "b"\n    }\n}\n'
    changed = put(text, ("env", "B"), "c")
    assert changed == '{\n    "model": "opus",\n    "env": {\n        "B": "c",\n        "A": "b"\n    }\n}\n'
    assert take(changed, ("env", "B")) == text


def test_objects_on_the_way_are_made():
    text = '{\n\t"a": 1\n}'
    changed = put(text, ("x", "y"), {"z": [1]})
    assert changed == '{\n\t"x": {\n\t\t"y": {\n\t\t\t"z": [\n\t\t\t\t1\n\t\t\t]\n\t\t}\n\t},\n\t"a": 1\n}'
    assert take(changed, ("x",)) == text


@pytest.mark.parametrize("text", ["", "{}\n", "{ }", "\n"])
def test_an_empty_file_gets_an_object(text):
    changed = put(text, ("a", "b"), "c")
    assert json.loads(changed) == {"a": {"b": "c"}}
    assert changed.startswith('{\n  "a": {\n    "b": "c"\n  }\n}')


def test_an_object_on_one_line_stays_on_it():
    text = '{"env": {"A": "b"}, "x": 1}'
    changed = put(text, ("env", "B"), {"c": 1})
    assert changed == '{"env": {"B": {"c": 1}, "A": "b"}, "x": 1}'
    assert take(changed, ("env", "B")) == text


def test_numbers_escapes_and_double_keys_keep_their_form():
    text = '{\n  "n": 1.000e5,\n  "s": "\\u00e9 } , \\" {",\n  "n": [ ],\n  "e": {}\n}\n'
    changed = put(text, ("e", "k"), "ü")
    assert take(changed, ("e", "k")) == text
    assert read(changed)["e"] == {"k": "ü"}


def test_members_are_taken_from_anywhere():
    text = '{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}\n'
    assert take(text, ("a",)) == '{\n  "b": 2,\n  "c": 3\n}\n'
    assert take(text, ("b",)) == '{\n  "a": 1,\n  "c": 3\n}\n'
    assert take(text, ("c",)) == '{\n  "a": 1,\n  "b": 2\n}\n'
    assert take('{\n  "a": 1\n}\n', ("a",)) == "{}\n"


@pytest.mark.parametrize(
    "text",
    ['{"a": 1} // why', '{/* why */ "a": 1}', '{"a": [1,], }', '{\n// a\n"a": "http://x" // "b"\n,}'],
)
def test_comments_are_told_from_damage(text):
    with pytest.raises(HasComments, match="by hand"):
        read(text)


@pytest.mark.parametrize("text", ["{", '{"a" 1}', "[1]", "null", '{"a": "//}', "// only"])
def test_damage_is_said(text):
    with pytest.raises(SetupTrouble, match="mend it first") as caught:
        read(text)
    assert not isinstance(caught.value, HasComments)


KEYS = st.text(max_size=4)
OBJECTS = st.dictionaries(
    KEYS,
    st.recursive(
        st.integers() | st.text(max_size=5) | st.none() | st.booleans(),
        lambda one: st.lists(one, max_size=3) | st.dictionaries(KEYS, one, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@given(data=OBJECTS, indent=st.sampled_from([None, 0, 1, 2, 4, "\t"]), ascii_=st.booleans(), value=OBJECTS)
def test_what_is_put_in_is_there_and_the_rest_is_as_it_was(data, indent, ascii_, value):
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_) + "\n"
    changed = put(text, ("new key", "below"), value)
    assert json.loads(changed) == {**data, "new key": {"below": value}}
    assert take(changed, ("new key",)) == text
