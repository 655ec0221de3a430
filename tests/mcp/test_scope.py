import pytest

from hivemind_addon.tools.mcp.scope import BadWord, Permission, ServerScope, flag, read_allow


def test_words_are_told_apart_by_commas_and_blanks():
    assert read_allow("submit, Batch budgets") == {Permission.SUBMIT, Permission.BATCH, Permission.BUDGETS}
    assert read_allow("") == frozenset()
    assert read_allow("all") == frozenset(Permission)


@pytest.mark.parametrize(("word", "hint"), [("budget", "did you mean budgets?"), ("sumbit", "did you mean submit?")])
def test_an_unknown_word_is_named_with_what_may_be_meant(word, hint):
    with pytest.raises(BadWord, match="is nothing to allow; there are submit, batch") as error:
        read_allow(f"config,{word}")
    assert hint in str(error.value)


def test_a_word_that_is_like_none_gets_no_hint():
    with pytest.raises(BadWord) as error:
        read_allow("xyz")
    assert "mean" not in str(error.value)


def test_one_of_what_is_needed_is_enough():
    scope = ServerScope(frozenset({Permission.BATCH}))
    assert scope.has(frozenset())
    assert scope.has(frozenset({Permission.SUBMIT, Permission.BATCH}))
    assert not scope.has(frozenset({Permission.SETUP}))


def test_the_flag_for_what_several_permissions_give_is_always_the_same_one():
    assert flag({Permission.BATCH, Permission.SUBMIT}) == "--allow submit"
