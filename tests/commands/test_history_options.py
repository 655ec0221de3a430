import pytest

from tests.commands.asking import journal_fixture, said  # noqa: F401 - a fixture
from tests.journal.book import journal_with

pytestmark = pytest.mark.usefixtures("journal")


def test_another_journal_may_be_named_before_or_behind_the_question(tmp_path):
    other = journal_with(tmp_path / "other.db", lambda book: (book.run(), book.ticket("c000000000", agent="carl")))
    for arguments in (("--journal", other, "agents"), ("agents", "--journal", other)):
        assert "carl" in said(*arguments)
    assert "carl" in said("--journal", other)


def test_it_says_of_which_time_it_speaks():
    assert said("agents", "--since", "2h", "--until", "now").startswith("since ")
    assert " until " in said("agents", "--since", "2h", "--until", "now").splitlines()[0]
