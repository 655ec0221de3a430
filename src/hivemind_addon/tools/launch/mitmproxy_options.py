"""Whether mitmproxy knows the options that it is to be given: asked of itself, where they are not the usual ones."""

import difflib
import re
import subprocess
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

_USUAL = frozenset({"--set", "--mode", "-m", "-s", "--scripts", "--listen-host", "--listen-port", "-q", "-v"})
"""Known without asking, which takes a second."""
_PREFIX = "hivemind_"
"""The addon checks its own."""
_PATIENCE_S = 60.0


class UnknownOption(Exception):
    """Mitmproxy has no such option; one line that offers the nearest."""


def check_options(options: Sequence[str], program: Path, ours: Sequence[str] = ()) -> None:
    """`program`: mitmdump or mitmweb; `ours`: options of our own command, which may have been meant.

    Raises UnknownOption for the first that it does not know. Without an answer nothing is known, and nothing raised.
    """
    words = [word for word in _words(options) if word not in _USUAL]
    if words and (known := re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", _says(program, "--help"))):
        for word in words:
            if not _is_known(word, known):
                raise UnknownOption(f"no such option: {word}{_meant(word, [*ours, *known])}")
    names = [name for name in _set_names(options) if not name.startswith(_PREFIX)]
    # A script of the user's has options of its own, which are known when it is loaded.
    if names and not _has_scripts(options):
        known = re.findall(r"^(\w+):", _says(program, "--options"), re.MULTILINE)
        for name in names if known else ():
            if name not in known:
                raise UnknownOption(f"--set {name}: no such option{_meant(name, known)}")


def _words(options: Sequence[str]) -> Iterator[str]:
    """The options themselves, without their values."""
    return (one.partition("=")[0] for one in options if one.startswith("-") and one != "-")


def _set_names(options: Sequence[str]) -> Iterator[str]:
    for word, value in zip_longest(options, options[1:], fillvalue=""):
        if word == "--set" or word.startswith("--set="):
            yield (value if word == "--set" else word.removeprefix("--set=")).partition("=")[0]


def _has_scripts(options: Sequence[str]) -> bool:
    return any(word in ("-s", "--scripts") for word in _words(options)) or "scripts" in _set_names(options)


def _is_known(word: str, known: Sequence[str]) -> bool:
    """As argparse has it: long ones may be cut short, and short ones run together."""
    return word[:2] in known if word[1] != "-" else any(one.startswith(word) for one in known)


def _meant(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, dict.fromkeys(known), n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""


def _says(program: Path, word: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the program that is going to be started
            [program, word], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout  # whatever the exit status: that of `--help` is 1
