import json

import pytest

from hivemind_addon.tools.setup.merge import is_empty, merge, remove
from hivemind_addon.tools.setup.model import FileEntry, FileFormat, SetupTrouble, lookup

WANTED = (FileEntry(("env", "PROXY"), "p"), FileEntry(("env", "CA"), "c"))


def env(merged):
    return json.loads(merged.text).get("env")


def test_it_is_put_in_once_and_the_order_is_ours():
    first = merge('{\n  "a": 1\n}\n', FileFormat.JSON, WANTED)
    assert list(env(first)) == ["PROXY", "CA"]
    assert set(first.put) == set(WANTED)
    assert first.made == (("env",),)
    again = merge(first.text, FileFormat.JSON, WANTED, ours=first.put, made=first.made)
    assert (again.text, set(again.put), again.made) == (first.text, set(WANTED), first.made)


def test_what_the_user_has_set_otherwise_stays_and_is_told():
    merged = merge('{"env": {"PROXY": "corporate"}}', FileFormat.JSON, WANTED)
    assert env(merged) == {"PROXY": "corporate", "CA": "c"}
    assert merged.kept == ((WANTED[0], "corporate"),)
    assert merged.put == (WANTED[1],)


def test_what_the_user_has_set_alike_is_not_ours_to_take_out():
    text = '{"env": {"PROXY": "p"}}'
    merged = merge(text, FileFormat.JSON, WANTED)
    assert merged.put == (WANTED[1],)
    assert remove(merged.text, FileFormat.JSON, merged.put, merged.made).text == text


def test_what_we_have_set_before_follows_what_we_want_now():
    first = merge("{}", FileFormat.JSON, WANTED)
    then = (FileEntry(("env", "PROXY"), "q"),)
    second = merge(first.text, FileFormat.JSON, then, ours=first.put, made=first.made)
    assert env(second) == {"PROXY": "q"}
    assert second.put == then
    assert remove(second.text, FileFormat.JSON, second.put, second.made).text == "{}"


def test_what_the_user_has_changed_since_stays():
    first = merge("{}", FileFormat.JSON, WANTED)
    text = first.text.replace('"p"', '"mine"')
    assert merge(text, FileFormat.JSON, WANTED, ours=first.put).kept == ((WANTED[0], "mine"),)
    removed = remove(text, FileFormat.JSON, first.put, first.made)
    assert env(removed) == {"PROXY": "mine"}
    assert removed.kept == ((WANTED[0], "mine"),)


def test_an_object_that_the_user_uses_too_stays():
    first = merge("{}", FileFormat.JSON, WANTED)
    text = first.text.replace('"env": {', '"env": {"MINE": "x",')
    assert env(remove(text, FileFormat.JSON, first.put, first.made)) == {"MINE": "x"}


def test_something_else_in_the_way_is_named():
    with pytest.raises(SetupTrouble, match="something else than an object at env"):
        merge('{"env": 3}', FileFormat.JSON, WANTED)


def test_empty_is_what_says_nothing():
    assert is_empty("{ }\n", FileFormat.JSON)
    assert is_empty("\n", FileFormat.DOTENV)
    assert not is_empty("# mine\n", FileFormat.TOML)
    assert not is_empty('{"a": 1}', FileFormat.JSON)


def test_a_value_is_found_by_its_path():
    data = {"a": {"b": {"c": 1}}, "n": None}
    assert lookup(data, ("a", "b")) == {"c": 1}
    assert lookup(data, ("a", "x", "y")) is None


def test_what_blocks_the_way_is_named():
    with pytest.raises(KeyError, match=r"a\.b"):
        lookup({"a": {"b": 3}}, ("a", "b", "c"))
