import inspect

import pytest

from tests.cases import each


def test_all_cases_are_tried_and_each_that_fails_is_named():
    tried = []

    @each("number", [1, 2, 3])
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

    @each("one, other", [(1, 2), (3, 4)])
    @each("third", "ab")
    def together(one, other, third, fixture):
        tried.append((one, other, third, fixture))

    assert list(inspect.signature(together).parameters) == ["fixture"]
    together(fixture="given")
    assert tried == [(1, 2, "a", "given"), (1, 2, "b", "given"), (3, 4, "a", "given"), (3, 4, "b", "given")]


def test_a_case_that_pytest_itself_ends_is_named_too():
    @each("case", [1])
    def never(case):
        pytest.fail("not so")

    with pytest.raises(ExceptionGroup) as caught:
        never()
    assert [str(error) for error in caught.value.exceptions] == ["not so, in the case {'case': 1}"]


async def test_coroutines_are_awaited():
    tried = []

    @each("case", [1, 2])
    async def later(case):
        tried.append(case)

    await later()
    assert tried == [1, 2]


def test_an_empty_table_is_refused():
    with pytest.raises(AssertionError, match="there is no case"):
        each("case", [])
