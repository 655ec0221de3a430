"""Names and numbers as words and small pictures, one line each. Pure; readable without colour."""

import math
from collections.abc import Sequence
from enum import StrEnum

from rich.cells import cell_len, set_cell_size
from rich.text import Text

_HEIGHTS = "▁▂▃▄▅▆▇█"


class Tone(StrEnum):
    """Styles, by what they say. Blue and yellow are told apart by nearly everybody, and words say the same."""

    TITLE = "bold"
    FAINT = "dim"
    GOOD = "cyan"
    WAITS = "yellow"
    BAD = "bold yellow"
    BANNER = "bold reverse"


def cut(text: str, width: int) -> str:
    """The text in at most this many cells; `…` where something is missing."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…" if width else ""


def cut_middle(text: str, width: int) -> str:
    """As `cut`, for names whose end says the most: begin and end stay."""
    if cell_len(text) <= width or width < 9:
        return cut(text, width)
    tail = set_cell_size(text[::-1], (width - 1) // 2).rstrip()[::-1]
    return set_cell_size(text, width - 1 - cell_len(tail)).rstrip() + "…" + tail


def padded(text: str, width: int) -> str:
    """The text in exactly this many cells."""
    return set_cell_size(cut(text, width), width)


def bar(share: float, width: int) -> str:
    """A level from 0 to 1 as a line of a fixed width, thick up to the level; never empty before it is, nor full."""
    halves = round(min(1.0, max(0.0, share)) * width * 2)
    if 0 < share < 1:
        halves = max(1, min(2 * width - 1, halves))
    whole, half = divmod(halves, 2)
    return ("━" * whole + "╸" * half).ljust(width, "─")


def spark(values: Sequence[float], width: int, *, most: float | None = None) -> str:
    """The newest values, the newest at the right, as columns; `most` is a full column (else the largest is)."""
    shown = list(values)[-width:]
    top = max(most or 0, *shown) if shown else 0
    drawn = "".join(" " if value <= 0 else _HEIGHTS[min(7, math.ceil(8 * value / top) - 1)] for value in shown)
    return drawn.rjust(width)


def sentence(pieces: Sequence[tuple[int, str, str]], width: int, *, between: str = "  ") -> Text:
    """Pieces (rank, text, style) in their order; the ones with the highest ranks go when there is no room."""
    kept = [piece for piece in pieces if piece[1]]
    while len(kept) > 1 and sum(cell_len(text) for _, text, _ in kept) + cell_len(between) * (len(kept) - 1) > width:
        last = max(range(len(kept)), key=lambda index: (kept[index][0], index))
        del kept[last]
    line = Text(no_wrap=True, overflow="ellipsis", end="")
    for index, (_, text, style) in enumerate(kept):
        line.append(between if index else "").append(text, style)
    line.truncate(width, overflow="ellipsis")
    return line
