"""Columns of fixed widths, as many as there is room for. Numbers that change must not make the others jump."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from hivemind_addon.tools.dash.glyphs import Tone, cut

_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a grid."""

    title: str
    rank: int
    """The ones with the highest rank are left out first."""
    width: int
    """Of its cells; of a growing column the least."""
    grows: int = 0
    """Its part of the width that is left over; 0: it keeps its width."""
    right: bool = False


@dataclass(frozen=True, slots=True)
class GridCell:
    """One cell's text, without control characters."""

    text: str
    style: str = ""


class Grid:
    """The columns that fit into a width."""

    def __init__(self, columns: Sequence[Column], width: int) -> None:
        chosen = list(columns)
        while len(chosen) > 1 and _least(chosen) > width:
            chosen.remove(max(chosen, key=lambda column: column.rank))
        left = max(0, width - _least(chosen))
        parts = sum(column.grows for column in chosen)
        self._width = width
        self._widths = {column.title: column.width + left * column.grows // max(1, parts) for column in chosen}
        self._columns = chosen

    def width_of(self, title: str) -> int:
        """How wide a column's cells are; 0: it is left out."""
        return self._widths.get(title, 0)

    def heading(self) -> Text:
        """The line above the rows."""
        return self.row([GridCell(column.title, Tone.FAINT) for column in self._columns])

    def rows(self, cells: Iterable[dict[str, GridCell]]) -> Iterable[Text]:
        """Lines, from cells by their column's title; a cell that is missing is empty."""
        empty = GridCell("")
        for one in cells:
            yield self.row([one.get(column.title, empty) for column in self._columns])

    def row(self, cells: Sequence[GridCell]) -> Text:
        """One line of cells, one for each column that fits."""
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        for index, (column, cell) in enumerate(zip(self._columns, cells, strict=True)):
            width = self._widths[column.title]
            text = cut(cell.text, width)
            padding = " " * (width - cell_len(text))
            if index:
                line.append(" " * _GAP)
            if column.right:
                line.append(padding)
            line.append(text, cell.style or None)
            if not column.right:
                line.append(padding)
        line.truncate(self._width)
        return line


def _least(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)
