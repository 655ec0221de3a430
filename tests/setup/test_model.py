import pytest

from hivemind_addon.tools.setup.model import lookup


def test_a_value_is_found_by_its_path():
    data = {"a": {"b": {"c": 1}}, "n": None}
    assert lookup(data, ("a", "b")) == {"c": 1}
    assert lookup(data, ("a", "x", "y")) is None


def test_what_blocks_the_way_is_named():
    with pytest.raises(KeyError, match=r"a\.b"):
        lookup({"a": {"b": 3}}, ("a", "b", "c"))
