import csv
import json
import sqlite3
from contextlib import closing

import pytest

from hivemind_addon.api.proxy_user import given_id
from tests.commands.asking import COMMANDS, fill, journal_fixture, run, said  # noqa: F401 - a fixture
from tests.journal.book import journal_with


@pytest.mark.usefixtures("journal")
class TestAsked:
    """What each question answers, from the default journal."""

    @pytest.mark.parametrize("width", [80, 160])
    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_table_fits_the_terminal(self, command, width):
        lines = said(*command.split(), width=width).splitlines()
        assert max(map(len, lines)) <= width

    @pytest.mark.parametrize("command", [*COMMANDS, "ticket 3f9c01ab2e"])
    def test_json_and_csv_of_everything(self, command):
        assert json.loads(said(*command.split(), "--json"))
        header, *rows = csv.reader(said(*command.split(), "--csv").splitlines())
        assert header
        assert rows
        assert all(len(row) == len(header) for row in rows)

    def test_the_newest_requests(self):
        heading, _, *rows = said().splitlines()
        assert heading.split() == ["Came", "Request", "Agent", "End", "Tries", "Waited", "In", "Cached", "Out", "Cost"]
        assert [row.split()[1] for row in rows] == ["b000000000", "3f9c77ab2e", "3f9c01ab2e"]
        assert "nightly-1" in said(width=160)

    def test_of_more_requests_it_says_so(self):
        assert said("-n", 2).splitlines()[-1] == "There are older ones: -n 10"

    def test_filters(self):
        assert "b000000000" in said("--agent", "b*", "--end", "refused", "--since", "2h")
        assert said("--agent", "nobody") == "no such request is known\n"
        assert said("--until", "2h") == "no such request is known\n"

    def test_a_request_by_its_id_or_its_beginning(self):
        for name in ("3f9c01ab2e", "3f9c0"):
            assert said("ticket", name).startswith("3f9c01ab2e ran once; 1 attempt failed without running\n")

    def test_requests_of_one_key_are_one_request(self):
        text = said("ticket", "key-1")
        assert text.startswith("Idempotency-Key key-1: ran twice; 1 attempt failed without running\n")
        assert "\n3f9c77ab2e ran once\n" in text
        assert json.loads(said("ticket", "key-1", "--json"))["verdict"].startswith("ran twice")

    def test_a_task_is_several_requests(self):
        assert said("ticket", "nightly-1").startswith("task nightly-1: 2 requests: 2 ran once\n")

    def test_many_requests_of_a_task_are_listed(self, journal):
        journal.unlink()
        journal_with(journal, lambda book: (book.run(), *(book.ticket(f"a{n}", task="t") for n in range(9))))
        text = said("ticket", "t")
        assert text.startswith("task t: 9 requests: 9 never ran\n")
        assert text.splitlines()[-1].startswith("Each one's story: hivemind history ticket a")

    def test_what_an_agent_cost_today(self):
        assert json.loads(said("agents", "ann", "--json"))[0]["micro_usd"] == 60_000
        assert "total" in said("agents")
        assert "nothing was asked for since" in said("agents", "nobody")
        assert json.loads(said("agents", "--by", "day", "--json"))[0]["requests"] == 3

    def test_a_refused_request_is_not_told_as_lost(self):
        heading, *_ = [line for line in said("agents", width=160).splitlines() if "Requests" in line]
        assert heading.split()[:5] == ["Agent", "Requests", "Delivered", "Refused", "Attempts"]
        [bob] = json.loads(said("agents", "bob", "--json"))
        assert (bob["refused"], bob["lost"]) == (1, 0)
        [bob] = csv.DictReader(said("agents", "bob", "--csv").splitlines())
        assert (bob["refused"], bob["lost"]) == ("1", "0")

    def test_the_total_is_not_for_programs(self):
        assert [one["name"] for one in json.loads(said("agents", "--json"))] == ["ann", "bob"]

    def test_what_was_tried_again(self):
        told = json.loads(said("retries", "--json"))
        assert told["reasons"] == [{"reason": "529 overloaded_error", "retries": 1, "requests": 1, "delivered": 1}]
        assert [one["id"] for one in told["requests"]] == ["3f9c01ab2e"]
        assert "no request was tried again since" in said("retries", "--agent", "bob")

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("ticket", "3f9c"), "no request, task or Idempotency-Key is '3f9c'; there are 3f9c01ab2e, 3f9c77ab2e"),
            (("ticket", "zzz"), "is or begins with 'zzz'"),
            (("ticket", ""), "is or begins with ''"),
            (("ticket", "\udcff"), "begins with '?'"),
            (("incident", "9"), "no incident 9 is known: there is 1"),
            (("incident", "zero"), "'zero' is no number and not `last`"),
            (("incident", "0"), "'0' is no number"),
            (("agents", "--since", "soon"), "'soon' is no instant"),
            (("--since", "1h", "--until", "2h"), "--since is not before --until"),
            (("--json", "agents"), "write `--json` or `--csv` behind `agents`"),
            (("--agent", "ann", "retries"), "write `--agent` behind `retries`"),
            (("--end", "well"), "'well' is not one of"),
        ],
    )
    def test_what_is_asked_wrongly_is_said_in_a_line(self, arguments, words):
        result = run(*arguments)
        assert result.exit_code in (1, 2)
        assert words in result.output.splitlines()[-1]
        assert "Traceback" not in result.output


@pytest.mark.parametrize("command", [*COMMANDS, "ticket x"])
def test_without_a_journal_each_says_how_to_get_one(tmp_path, monkeypatch, command):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    result = run(*command.split())
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert "hivemind run" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_of_an_empty_journal_each_says_that_nothing_is_there(tmp_path, command):
    path = journal_with(tmp_path / "journal.db", lambda _book: None)
    assert len(said(*command.split(), "--journal", path).splitlines()) == 1
    json.loads(said(*command.split(), "--journal", path, "--json")) if command != "incident" else None


def test_a_damaged_journal_is_one_line(tmp_path):
    path = journal_with(tmp_path / "journal.db", fill)
    path.write_bytes(path.read_bytes()[:8192])
    result = run("--journal", path)
    assert result.exit_code == 1
    assert "is damaged" in result.output
    assert result.output.count("\n") == 1


def test_a_long_id_is_found_as_its_client_gave_it(tmp_path):
    key = "order-" + "7" * 200
    path = journal_with(tmp_path / "j.db", lambda book: book.ticket("3f9c01ab2e", idempotency_key=given_id(key)))
    assert "3f9c01ab2e" in said("ticket", key, "--journal", path)


_ODD = (
    0,
    -1,
    2**62,
    -(2**62),
    1e308,
    float("inf"),
    float("-inf"),
    "",
    "x",
    "\x1b[2J\na",
    "[/bold]",
    b"\xff",
    1e18,
    None,
)
_COLUMNS = {
    "ticket": ("arrived", "admitted", "ended", "end", "reason", "attempts", "waited_s", "pool", "model", "run", "kind"),
    "attempt": ("began", "ended", "outcome", "reason", "status", "tokens", "micro_usd", "retry_at", "retry_reason"),
    "wait": ("began", "reason", "position"),
    "happening": ("at", "event", "text", "fields", "pool"),
    "run": ("began", "seen", "ended", "pid"),
}


@pytest.mark.parametrize(("table", "column"), [(table, one) for table, columns in _COLUMNS.items() for one in columns])
def test_whatever_the_journal_holds_no_question_ends_in_a_traceback(journal, table, column):
    """SQLite takes any value in any column; a disk, an editor or another version may have written it."""
    whole = journal.read_bytes()
    for odd in _ODD:
        journal.write_bytes(whole)
        with closing(sqlite3.connect(journal)) as connection, connection:
            connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?', (odd,))
        for question in (["ticket", "3f9c01ab2e"], ["retries", "--since", "1990-01-01"], ["incident"]):
            for form in ((), ("--json",)):
                result = run(*question, *form)
                assert result.exception is None or isinstance(result.exception, SystemExit), (odd, question, form)


def test_what_cannot_be_told_is_one_line(journal):
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("UPDATE attempt SET tokens = 'many'")
    result = run("ticket", "3f9c01ab2e")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert str(journal) in result.output
