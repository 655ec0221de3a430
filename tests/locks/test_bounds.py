import pytest

from hivemind_addon.tools.locks.model import (
    MAX_NAMES,
    MAX_TTL_S,
    MAX_VALUE_CHARS,
    Holder,
    LeaseError,
    Request,
    check_name,
    checked_names,
)

NOBODY = Holder("a", 0, "")


def test_names_come_once_each_in_canonical_order():
    assert checked_names(Request(("b", "a", "b"), NOBODY, 1)) == ("a", "b")


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\x00", "x" * 201, "\udcff"])
def test_what_cannot_be_printed_is_no_name(name):
    with pytest.raises(LeaseError, match="is no name"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "main branch", "repo/file.py", "gpu:0", "Brücke", "x" * 200])
def test_names_are_text(name):
    check_name(name)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request((), NOBODY, 1), "needs a name"),
        (Request(tuple(map(str, range(MAX_NAMES + 1))), NOBODY, 1), "65 names"),
        (Request(("a",), NOBODY, 0), "0 s"),
        (Request(("a",), NOBODY, MAX_TTL_S * 2), "at most 2,592,000 s"),
        (Request(("a",), NOBODY, float("nan")), "nan s"),
        (Request(("a",), NOBODY, 1, capacity=0), "at most 0"),
        (Request(("a",), NOBODY, 1, capacity=10**12), "1 to 1,000,000"),
        (Request(("a",), NOBODY, 1, value="x" * (MAX_VALUE_CHARS + 1)), "4,097"),
        (Request(("a",), NOBODY, 1, value="\udcff"), "no text"),
        (Request(("a",), Holder("\udcff", 0, ""), 1), "no text"),
    ],
)
def test_what_is_out_of_bounds_is_said_in_one_line(request_, says):
    with pytest.raises(LeaseError, match=says) as caught:
        checked_names(request_)
    assert "\n" not in str(caught.value)
