"""Rows for people and for programs: a table, JSON or CSV, chosen by `--json` and `--csv`."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

import click
import msgspec

Row = Mapping[str, object]
"""Column's key → plain value. JSON and CSV have all keys; a table has the columns that are asked for."""
Words = Mapping[str, Callable[[Any], str]]
"""Column's key → how a table words a value that is not None; a number is still one, and stands at the right."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How a cell begins that a spreadsheet runs."""


class Format(Enum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def format_option[**P, R](command: Callable[P, R]) -> Callable[P, R]:
    """`--json` and `--csv`; the command gets `form: Format`."""
    for form, text in ((Format.CSV, "Print CSV."), (Format.JSON, "Print JSON.")):
        command = click.option(
            f"--{form.value}", "form", flag_value=form, type=click.UNPROCESSED, default=Format.TABLE, help=text
        )(command)
    return command


json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: object) -> None:
    """For programs, and readable for people."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def print_rows(
    rows: Sequence[Row],
    columns: Mapping[str, str],
    form: Format,
    *,
    title: str = "",
    none: str = "nothing",
    words: Words = MappingProxyType({}),
    spare: Sequence[str] = (),
) -> None:
    """`columns` of a table: key → heading, in order. `none` is said instead of an empty table.

    `spare`: keys of columns that a table does without where the terminal is too narrow for all, the first one first.
    """
    match form:
        case Format.JSON:
            print_json(rows)
        case Format.CSV if rows:
            text = io.StringIO()
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({key: _csv_cell(value) for key, value in row.items()} for row in rows)
            click.echo(text.getvalue(), nl=False)
        case Format.CSV:
            pass
        case Format.TABLE if not rows:
            click.echo(none)
        case Format.TABLE:
            from hivemind_addon.tools.commands.table import print_table  # noqa: PLC0415 - rich takes a while to load

            print_table(rows, columns, title=title, words=words, spare=spare)


def _csv_cell(value: object) -> object:
    """A text that a spreadsheet would run gets the mark that keeps it a text: names come out of clients' requests.

    What is nested is JSON.
    """
    if value is None:
        return ""
    if isinstance(value, list | tuple | dict):
        return msgspec.json.encode(value).decode()
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) else value
