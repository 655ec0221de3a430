import json
import sqlite3
from contextlib import closing

import pytest

from tests.commands.asking import journal_fixture, said  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("journal")


def test_budgets():
    text = said("budgets", width=160)
    assert "agent bob" in text
    assert "700 tokens, $5.10" in text
    assert "agent bob has spent its budget" in text
    assert text.splitlines()[0].split() == ["Whose", "Per", "Spent", "Of", "Since"]  # nothing was added to any


def test_budgets_that_were_added_to_say_so(journal):
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("UPDATE budget SET added_micro_usd = 2000000")
    text = said("budgets", width=160)
    assert text.splitlines()[0].split() == ["Whose", "Per", "Spent", "Of", "Added", "Since"]
    assert "$2.00" in text


def test_runs():
    assert [one["fate"] for one in json.loads(said("runs", "--json"))] == ["stopped", "runs"]


def test_a_run_of_which_nobody_holds_the_lock_has_died(journal):
    journal.with_name("journal.db.lock").touch()
    assert [one["fate"] for one in json.loads(said("runs", "--json"))] == ["stopped", "died"]
