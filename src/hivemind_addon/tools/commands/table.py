"""Rows as a table for people. By itself: it takes rich, which a command that prints none need not load."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table

from hivemind_addon.proxy.api.words import printable

_WHOLE = ("id",)
"""Keys of columns that stay in one line: what is in them is copied."""
_GAP = 1
"""Cells between two columns."""


def print_table(
    rows: Sequence[Mapping[str, object]],
    columns: Mapping[str, str],
    *,
    title: str,
    words: Mapping[str, Callable[[Any], str]],
    spare: Sequence[str],
) -> None:
    """Print it, as wide as it is or as the terminal lets it be; the arguments are those of `printing.print_rows`."""
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


def _cell(value: object, word: Callable[[Any], str]) -> str:
    """Without what would move a terminal's cursor: names come out of clients' requests."""
    if value is None:
        return ""
    return "\n".join(map(printable, word(value).split("\n")))


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
