import msgspec
import pytest

from hivemind_addon.formats.base.json_values import read_object, read_value
from hivemind_addon.formats.base.pointer import Pointer, Pointers
from hivemind_addon.formats.base.typed import BadValue, DocumentError

ERROR = b"""{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "null": null, "a/b": {"m~n": 1, "": 2}, "details": [
  {"@type": "QuotaFailure", "violations": [{"quotaId": "A-PerMinute"}, {"quotaId": "B-PerDay"}]},
  {"@type": "RetryInfo", "retryDelay": "38s"}, 7, null]}}"""

FORMS = {
    "still JSON": read_object(ERROR),
    "decoded": msgspec.json.decode(ERROR),
    "decoded outside": {"error": read_object(msgspec.json.encode(msgspec.json.decode(ERROR)["error"]))},
    "as one": msgspec.Raw(ERROR),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/error/code", [429]),
        ("/error/null", []),
        ("/error/none", []),
        ("/error/code/deeper", []),
        ("/error/a~1b/m~0n", [1]),
        ("/error/a~1b/", [2]),
        ("/error/a~1b/*", [1, 2]),
        ("/error/details/1/retryDelay", ["38s"]),
        ("/error/details/01/retryDelay", []),
        ("/error/details/-", []),
        ("/error/details/9", []),
        ("/error/details/3", []),
        ("/error/details/*/retryDelay", ["38s"]),
        ("/error/details/*/violations/*/quotaId", ["A-PerMinute", "B-PerDay"]),
        ("/*/status", ["RESOURCE_EXHAUSTED"]),
        ("/error/details/2", [7]),
    ],
)
def test_what_stands_there_is_found_however_much_is_decoded(form: str, text: str, found: list[object]):
    pointer, top = Pointer.parse(text), FORMS[form]
    assert list(pointer.find_all(top)) == found
    assert pointer.find(top) == (found[0] if found else None)
    assert pointer.is_anywhere(top) is bool(found)


def test_the_empty_pointer_is_the_whole():
    assert Pointer.parse("").find({"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    "top", [{}, {"a": msgspec.Raw(b"{broken")}, {"a": msgspec.Raw(b'"text"')}, [], None, 5, "text"]
)
def test_what_cannot_be_read_is_not_there(top: object):
    for text in ("/a/b", "/a/0", "/a/*", "/*/b", "/0"):
        assert Pointer.parse(text).find(top) is None
        assert not Pointer.parse(text).is_anywhere(top)


@pytest.mark.parametrize("text", ["error/code", "*", "/error/~2", "/error/~"])
def test_what_is_no_pointer_is_refused_with_a_cure(text: str):
    with pytest.raises(BadValue) as told:
        Pointer.parse(text)
    assert told.value.cure
    assert not isinstance(told.value, DocumentError)


@pytest.mark.parametrize("top", [*FORMS.values(), {}, {"error": None}, {"error": [{"code": 1}]}, 5])
def test_several_find_together_what_each_finds_alone(top: object):
    pointers = [
        Pointer.parse(text)
        for text in ("/error/details/*/retryDelay", "/error/code", "", "/none/at/all", "/error/details/*", "/error")
    ]
    together = Pointers([*pointers, pointers[0]])
    found = together.find_all(top)
    for place, pointer in zip(together.places, [*pointers, pointers[0]], strict=True):
        read = [read_value(one) if isinstance(one, msgspec.Raw) else one for one in found.get(place, [])]
        assert [one for one in read if one is not None] == pointer.find_all(top)
