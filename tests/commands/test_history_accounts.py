import json

import pytest

from tests.commands.asking import journal_fixture, said  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("journal")


def test_budgets():
    text = said("budgets", width=160)
    assert "agent bob" in text
    assert "700 tokens, $5.10" in text
    assert "agent bob has spent its budget" in text


def test_runs():
    assert [one["fate"] for one in json.loads(said("runs", "--json"))] == ["stopped", "runs"]


def test_a_run_of_which_nobody_holds_the_lock_has_died(journal):
    journal.with_name("journal.db.lock").touch()
    assert [one["fate"] for one in json.loads(said("runs", "--json"))] == ["stopped", "died"]
