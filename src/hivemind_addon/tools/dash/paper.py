"""The picture where nothing moves: printed, piped, or kept as a file."""

import os
import sys
from datetime import tzinfo
from io import StringIO, TextIOWrapper
from re import DOTALL, sub

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from hivemind_addon.api.report import Report
from hivemind_addon.tools.dash.picture import PictureLook, picture

_THEME = TerminalTheme(
    (24, 27, 33),
    (208, 212, 220),
    [
        (24, 27, 33),
        (224, 108, 96),
        (126, 190, 120),
        (229, 179, 84),
        (97, 158, 232),
        (190, 140, 220),
        (86, 182, 194),
        (208, 212, 220),
    ],
    [
        (92, 99, 112),
        (224, 108, 96),
        (126, 190, 120),
        (240, 200, 110),
        (120, 175, 245),
        (205, 160, 235),
        (110, 200, 210),
        (240, 242, 245),
    ],
)
"""Colours for the SVG: dark, calm, and with enough contrast for small print."""


def is_screen() -> bool:
    """Whether there is a terminal that something can be drawn on."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def print_picture(report: Report, *, requests: bool = False) -> None:
    """Print it, as wide as the terminal, or as COLUMNS says; with every request by its id instead of what happened."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal of another age gets `?` for what it cannot show
    console = Console(highlight=False)
    for line in picture(
        report, PictureLook(width=console.width, log=not requests, opened=None if requests else frozenset())
    ).lines:
        console.print(line, end="\n", soft_wrap=True)


def svg_of(report: Report, *, width: int, height: int | None = None, zone: tzinfo | None = None) -> str:
    """The picture as an SVG file's text."""
    console = Console(record=True, width=width, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(picture(report, PictureLook(width=width, height=height, zone=zone)).text)
    text = console.export_svg(title="hivemind top", theme=_THEME, unique_id="hivemind-top")
    # Whoever opens the file is not to fetch a font from somewhere.
    return sub(r"@font-face \{.*?\}", "", text, flags=DOTALL).replace(
        "Fira Code,", "ui-monospace,Menlo,Consolas,DejaVu Sans Mono,"
    )
