"""The picture where nothing moves: printed or piped."""

import os
import sys
from collections.abc import Iterable
from io import TextIOWrapper

from rich.console import Console
from rich.text import Text

from hivemind_addon.api.report import Report
from hivemind_addon.tools.dash.picture import PictureLook, picture


def is_screen() -> bool:
    """Whether there is a terminal that something can be drawn on."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def print_picture(report: Report, *, requests: bool = False) -> None:
    """Print it, as wide as the terminal, or as COLUMNS says; with every request by its id instead of what happened."""
    look = PictureLook(width=Console().width, log=not requests, opened=None if requests else frozenset())
    print_lines(picture(report, look).lines)


def print_lines(lines: Iterable[Text]) -> None:
    """Print what was drawn for this terminal."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal of another age gets `?` for what it cannot show
    console = Console(highlight=False)
    for line in lines:
        console.print(line, end="\n", soft_wrap=True)
