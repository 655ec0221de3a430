"""The terminal that a command prints on: its width, and what it takes. By the rules of rich, which loads for longer."""

import os
import sys

_DEFAULT_WIDTH = 80
_DUMB = ("", "dumb", "unknown")


def terminal_width() -> int:
    """Columns: as COLUMNS says, else as the terminal of any standard stream has."""
    chosen = os.environ.get("COLUMNS", "")
    if chosen.isdecimal() and int(chosen):
        return int(chosen)
    for descriptor in (0, 1, 2):
        try:
            return os.get_terminal_size(descriptor).columns or _DEFAULT_WIDTH
        except OSError:  # no terminal
            continue
    return _DEFAULT_WIDTH


def is_screen() -> bool:
    """Whether there is a terminal that something can be drawn on."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in _DUMB


def shows_styles() -> bool:
    """Whether what is printed may be more than plain text: on a terminal, or where the environment insists."""
    return sys.stdout.isatty() or any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))


def shows_colour() -> bool:
    """Whether it may have colours, too: NO_COLOR, a terminal without them and a pipe say no."""
    return shows_styles() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") not in _DUMB
