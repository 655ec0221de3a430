"""The forms of files: what is not ours keeps every byte."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.tools.setup import dotenv_text, json_text, toml_text
from hivemind_addon.tools.setup.model import HasComments, SetupTrouble
from tests.cases import each


def test_a_new_member_stands_first_and_no_other_line_changes():
    text = '{\n    "model": "opus",\n    "env": {\n        "A": "b"\n    }\n}\n'
    changed = json_text.put(text, ("env", "B"), "c")
    assert changed == '{\n    "model": "opus",\n    "env": {\n        "B": "c",\n        "A": "b"\n    }\n}\n'
    assert json_text.take(changed, ("env", "B")) == text


def test_objects_on_the_way_are_made():
    text = '{\n\t"a": 1\n}'
    changed = json_text.put(text, ("x", "y"), {"z": [1]})
    assert changed == '{\n\t"x": {\n\t\t"y": {\n\t\t\t"z": [\n\t\t\t\t1\n\t\t\t]\n\t\t}\n\t},\n\t"a": 1\n}'
    assert json_text.take(changed, ("x",)) == text


@each("text", ["", "{}\n", "{ }", "\n"])
def test_an_empty_file_gets_an_object(text):
    changed = json_text.put(text, ("a", "b"), "c")
    assert json.loads(changed) == {"a": {"b": "c"}}
    assert changed.startswith('{\n  "a": {\n    "b": "c"\n  }\n}')


def test_an_object_on_one_line_stays_on_it():
    text = '{"env": {"A": "b"}, "x": 1}'
    changed = json_text.put(text, ("env", "B"), {"c": 1})
    assert changed == '{"env": {"B": {"c": 1}, "A": "b"}, "x": 1}'
    assert json_text.take(changed, ("env", "B")) == text


def test_numbers_escapes_and_double_keys_keep_their_form():
    text = '{\n  "n": 1.000e5,\n  "s": "\\u00e9 } , \\" {",\n  "n": [ ],\n  "e": {}\n}\n'
    changed = json_text.put(text, ("e", "k"), "ü")
    assert json_text.take(changed, ("e", "k")) == text
    assert json_text.read(changed)["e"] == {"k": "ü"}


def test_members_are_taken_from_anywhere():
    text = '{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}\n'
    assert json_text.take(text, ("a",)) == '{\n  "b": 2,\n  "c": 3\n}\n'
    assert json_text.take(text, ("b",)) == '{\n  "a": 1,\n  "c": 3\n}\n'
    assert json_text.take(text, ("c",)) == '{\n  "a": 1,\n  "b": 2\n}\n'
    assert json_text.take('{\n  "a": 1\n}\n', ("a",)) == "{}\n"


@each("text", ['{"a": 1} // why', '{/* why */ "a": 1}', '{"a": [1,], }', '{\n// a\n"a": "http://x" // "b"\n,}'])
def test_comments_are_told_from_damage(text):
    with pytest.raises(HasComments, match="by hand"):
        json_text.read(text)


@each("text", ["{", '{"a" 1}', "[1]", "null", '{"a": "//}', "// only"])
def test_damaged_json_is_said(text):
    with pytest.raises(SetupTrouble, match="mend it first") as caught:
        json_text.read(text)
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
    changed = json_text.put(text, ("new key", "below"), value)
    assert json.loads(changed) == {**data, "new key": {"below": value}}
    assert json_text.take(changed, ("new key",)) == text


PATH = ("mcp_servers", "hivemind")
SERVER = {"command": "/a b/hivemind", "args": ["mcp", "-p", "9090"]}


@each(
    "text",
    [
        "",
        "# only a comment\n",
        'model = "x" # why\n\n[mcp_servers.other]\ncommand = "y"   # kept\n',
        '[mcp_servers]\n[mcp_servers.other]\ncommand = "y"\n\n# the end\n',
        'a = 1\n\n[[projects]]\npath = "p"\n',
        '[mcp_servers]\nother = {command = "y"}\n',
        '"odd key" = 1\n\n\n',
    ],
)
def test_a_table_is_put_in_and_taken_out_again(text):
    changed = toml_text.put(text, PATH, SERVER)
    data = tomllib.loads(changed)
    assert data["mcp_servers"].pop("hivemind") == SERVER
    if not data["mcp_servers"]:
        del data["mcp_servers"]
    before = tomllib.loads(text)
    if before.get("mcp_servers") == {}:
        del before["mcp_servers"]
    assert data == before
    assert changed.startswith(text)
    assert toml_text.read(changed) == tomllib.loads(changed)
    assert toml_text.take(changed, PATH) == text


def test_where_a_table_cannot_be_added_nothing_is():
    with pytest.raises(SetupTrouble):
        toml_text.put('mcp_servers = {other = {command = "y"}}\n', PATH, SERVER)


def test_damaged_toml_is_said():
    with pytest.raises(SetupTrouble, match=r"is no TOML .*mend it first"):
        toml_text.read("a = \n")


def test_lines_are_read_as_they_are_meant():
    text = "# a comment\nA=1\nexport B = 'two words'\nC=\"x\" \n\nD=y # why\nno line\n"
    assert dotenv_text.read(text) == {"A": "1", "B": "two words", "C": "x", "D": "y"}


@each("value", ["http://a:b@127.0.0.1:8080", "localhost,127.0.0.1,::1", "/a b/c.pem", "x#y", ""])
def test_a_line_is_put_in_and_taken_out_again(value):
    text = "A=1 # mine\n"
    changed = dotenv_text.put(text, ("NEW",), value)
    assert dotenv_text.read(changed) == {"A": "1", "NEW": value}
    assert dotenv_text.take(changed, ("NEW",)) == text


def test_a_file_without_an_end_of_line_gets_one():
    assert dotenv_text.put("A=1", ("B",), "2") == "A=1\nB=2\n"
    assert toml_text.put("a = 1", PATH, SERVER).startswith("a = 1\n\n[mcp_servers.hivemind]\n")


def test_what_a_line_cannot_hold_is_refused():
    with pytest.raises(SetupTrouble):
        dotenv_text.put("", ("A",), "a\nb")
