"""Rows for people and for programs: a table, JSON or CSV, chosen by `--json` and `--csv`."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table

from hivemind_addon.tools.dash.glyphs import printable

Row = Mapping[str, object]
"""Column's key → plain value. JSON and CSV have all keys; a table has the columns that are asked for."""
Words = Mapping[str, Callable[[Any], str]]
"""Column's key → how a table words a value that is not None; a number is still one, and stands at the right."""
_WHOLE = ("id",)
"""Keys of columns that stay in one line: what is in them is copied."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How a cell begins that a spreadsheet runs."""
_GAP = 1
"""Cells between two columns."""


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
            console = Console(highlight=False, markup=False)
            cells = [{key: _cell(row.get(key), words.get(key, _plain)) for key in columns} for row in rows]
            shown = _fitting(columns, cells, spare, console.width)
            table = Table(
                title=title or None,
                title_justify="left",
                header_style="bold",
                box=SIMPLE_HEAD,
                show_edge=False,
                pad_edge=False,
                padding=0,
            )
            for key in shown:
                is_number = all(isinstance(row.get(key), int | float | None) for row in rows)
                justify: JustifyMethod = "right" if is_number else "left"
                table.add_column(columns[key], justify=justify, overflow="fold", no_wrap=is_number or key in _WHOLE)
            for row_cells in cells:
                table.add_row(*(row_cells[key] for key in shown))
            console.print(table)


def _fitting(
    columns: Mapping[str, str], cells: Sequence[Mapping[str, str]], spare: Sequence[str], width: int
) -> list[str]:
    """The columns that are shown: all that fit, and all that cannot be spared."""
    shown = list(columns)
    widths = {
        key: max(cell_len(line) for text in (columns[key], *(row[key] for row in cells)) for line in text.split("\n"))
        for key in columns
    }
    for key in filter(shown.__contains__, spare):
        if sum(widths[one] for one in shown) + _GAP * (len(shown) - 1) <= width:
            break
        shown.remove(key)
    return shown


def _csv_cell(value: object) -> object:
    """A text that a spreadsheet would run gets the mark that keeps it a text: names come out of clients' requests.

    What is nested is JSON.
    """
    if value is None:
        return ""
    if isinstance(value, list | tuple | dict):
        return msgspec.json.encode(value).decode()
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) else value


def _cell(value: object, word: Callable[[Any], str]) -> str:
    """Without what would move a terminal's cursor: names come out of clients' requests."""
    if value is None:
        return ""
    return "\n".join(map(printable, word(value).split("\n")))


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
