import json

import pytest

from hivemind_addon.proxy.journal.tables import BudgetRow
from hivemind_addon.tools.commands import history_rows as rows
from hivemind_addon.tools.commands.printing import Format
from hivemind_addon.tools.history.history import biographies, find
from hivemind_addon.tools.history.reader import JournalReader
from tests.journal.book import NOON, journal_with


def test_an_instant_is_there_for_people_and_for_programs(monkeypatch):
    assert rows.dated({"at": None, "text": "x"}, "at") == {"at": None, "at_iso": None, "text": "x"}
    told = rows.dated({"began": NOON}, "began")
    assert told["began"] == NOON
    assert str(told["began_iso"]).startswith("20")


def test_csv_has_the_columns_for_programs(capsys):
    listed = [{"pid": 12345, "lasted_s": 3.0}]
    rows.print_listing(listed, {"pid": "Process"}, Format.CSV, headings=("pid", "lasted_s"))
    assert capsys.readouterr().out == "pid,lasted_s\n12345,3.0\n"
    rows.print_listing(listed, {"pid": "Process"}, Format.TABLE)
    assert "12345" in capsys.readouterr().out


def test_a_request_as_a_whole(tmp_path):
    def fill(book):
        book.run()
        book.ticket("a1")
        book.attempt("a1", 1, NOON + 1, "throttled", tokens=5, retry_at=NOON + 2, retry_reason="429")
        book.attempt("a1", 2, NOON + 2)
        book.wait("a1")

    with JournalReader(journal_with(tmp_path / "journal.db", fill)) as journal:
        [one] = biographies(journal, find(journal, "a1", 1).tickets)
    whole = json.loads(json.dumps(rows.whole(one)))
    assert whole["verdict"] == "ran once; 1 attempt failed without running"
    assert [attempt["fate"] for attempt in whole["tries"]] == ["did not run", "ran"]
    assert (whole["tokens"], whole["tokens_in"], whole["micro_usd"]) == (1505, 1400, 30_000)
    assert whole["waits"][0]["reason"] == "rate limit"


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ((None, 5_000_000), "$5.00"),
        ((1000, None), "1,000 tokens"),
        ((10, 20), "10 tokens, $0.0000"),
        ((0, None), "0 tokens"),
    ],
)
def test_an_account_in_words(limit, words):
    account = BudgetRow("everyone", "", "day", 0, 1, *limit, NOON, 0, 0, 0, 0, 0, 0)
    row = rows.account_row(account)
    assert (row["holder"], row["limit"], row["spent"]) == ("everyone", words, "")
