import csv
import io
import json

import click
import pytest
from click.testing import CliRunner

from hivemind_addon.tools.commands.printing import Format, format_option, print_rows

ROWS = [{"agent": "a, b", "tokens": 1234567, "hidden": [1]}, {"agent": "c", "tokens": None, "hidden": []}]
COLUMNS = {"agent": "Agent", "tokens": "Tokens"}


@click.command()
@format_option
def show(form: Format) -> None:
    print_rows(ROWS, COLUMNS, form)


def said(*arguments: str) -> str:
    result = CliRunner().invoke(show, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_table_has_the_columns_that_are_asked_for():
    text = said()
    assert "Agent" in text
    assert "1,234,567" in text
    assert "hidden" not in text


def test_json_has_everything():
    assert json.loads(said("--json")) == ROWS


def test_csv_is_quoted_and_has_the_columns_of_json():
    assert said("--csv").splitlines() == ["agent,tokens,hidden", '"a, b",1234567,[1]', "c,,[]"]


def test_a_text_that_a_spreadsheet_would_run_stays_a_text(capsys):
    names = ["=1+2", "+1", "-1", "@SUM(A1)", " =1", "\t=1", '=HYPERLINK("http://x.test")']
    print_rows([{"agent": name, "tokens": -1} for name in names], {}, Format.CSV)
    assert list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:] == [[f"'{name}", "-1"] for name in names]


@pytest.mark.parametrize("form", [Format.TABLE, Format.CSV, Format.JSON])
def test_nothing_is_said_in_each_form(form, capsys):
    print_rows([], COLUMNS, form, none="no agents")
    assert capsys.readouterr().out.strip() == {"table": "no agents", "csv": "", "json": "[]"}[form.value]


def test_a_narrow_terminal_spares_what_may_be_spared(monkeypatch, capsys):
    rows = [{"agent": "reviewer-1", "tokens": 5, "state": "waits for the provider"}]
    columns = {"agent": "Agent", "tokens": "Tokens", "state": "State"}

    def headings(width):
        monkeypatch.setenv("COLUMNS", str(width))
        print_rows(rows, columns, Format.TABLE, spare=("tokens", "state"))
        first, *more = capsys.readouterr().out.splitlines()
        assert max(map(len, (first, *more))) <= width
        return first.split()

    assert headings(len("reviewer-1") + 1 + len("Tokens") + 1 + len("waits for the provider")) == [
        "Agent",
        "Tokens",
        "State",
    ]
    assert headings(39) == ["Agent", "State"]
    assert headings(20) == ["Agent"]


def test_a_table_says_values_in_the_words_that_are_given(capsys):
    print_rows(ROWS, COLUMNS, Format.TABLE, words={"tokens": lambda tokens: f"{tokens / 1e6:.1f}M"})
    assert "1.2M" in capsys.readouterr().out


def test_an_id_stays_in_one_line_and_what_is_beside_it_is_folded(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    row = {"id": "3f9c01ab2e77", "name": "a-name-of-thirty-two-characters-!"}
    print_rows([row], {"id": "Request", "name": "Name"}, Format.TABLE)
    assert "3f9c01ab2e77" in capsys.readouterr().out


def test_what_clients_name_themselves_moves_no_cursor(capsys):
    print_rows([{"agent": "\x1b[2Jboo"}], {"agent": "Agent"}, Format.TABLE)
    assert "?[2Jboo" in capsys.readouterr().out
