import inspect

import pytest

from tests.cases import over


def test_all_cases_are_tried_and_each_that_fails_is_named():
    tried = []

    @over("number", [1, 2, 3])
    def only_two(number):
        tried.append(number)
        assert number == 2

    with pytest.raises(ExceptionGroup, match="2 of 3 cases fail") as caught:
        only_two()
    assert tried == [1, 2, 3]
    assert [error.__notes__ for error in caught.value.exceptions] == [
        ["in the case {'number': 1}"],
        ["in the case {'number': 3}"],
    ]


def test_tables_are_stacked_and_fixtures_are_left_to_pytest():
    tried = []

    @over("one, other", [(1, 2), (3, 4)])
    @over("third", "ab")
    def together(one, other, third, fixture):
        tried.append((one, other, third, fixture))

    assert list(inspect.signature(together).parameters) == ["fixture"]
    together(fixture="given")
    assert tried == [(1, 2, "a", "given"), (1, 2, "b", "given"), (3, 4, "a", "given"), (3, 4, "b", "given")]


def test_what_would_never_run_is_refused():
    async def later(case):
        raise AssertionError(case)

    with pytest.raises(AssertionError, match="nobody would await it"):
        over("case", [1])(later)
    with pytest.raises(AssertionError, match="there is no case"):
        over("case", [])
