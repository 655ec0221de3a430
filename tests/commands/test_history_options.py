import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import history_options
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


@pytest.mark.parametrize(
    ("arguments", "environment", "port"),
    [
        ((), {}, 8080),
        ((), {"HIVEMIND_PORT": "9090"}, 9090),
        (("-p", "7070"), {}, 7070),
        (("retries",), {}, 8080),
        (("retries",), {"HIVEMIND_PORT": "9090"}, 9090),
        (("retries", "-p", "7070"), {"HIVEMIND_PORT": "9090"}, 7070),
        (("-p", "7070", "retries"), {}, 7070),
        (("-p", "7070", "retries", "-p", "6060"), {}, 6060),
    ],
)
def test_the_journal_is_that_of_the_proxy_on_a_port(journal, monkeypatch, arguments, environment, port):
    asked = []

    def journal_of(port):
        asked.append(port)
        return journal

    monkeypatch.delenv("HIVEMIND_PORT", raising=False)
    monkeypatch.setattr(history_options, "journal_of", journal_of)
    result = CliRunner().invoke(main, ["history", *arguments], env=environment)
    assert result.exit_code == 0, result.output
    assert asked == [port]
