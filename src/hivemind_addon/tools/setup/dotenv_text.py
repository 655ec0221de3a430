"""Files of `NAME=value` lines: `.env`."""

import re
from collections.abc import Mapping, Sequence

from hivemind_addon.tools.setup.model import SetupTrouble, Value

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*")
_PLAIN = re.compile(r"[\w@%+=:,./~\[\]*-]*")


def read(text: str) -> Mapping[str, str]:
    """What it says; lines that say nothing are passed over."""
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return {line[1]: _unquoted(line[2]) for line in found if line}


def put(text: str, path: Sequence[str], value: Value) -> str:
    """With a line at the end. Raises SetupTrouble: a value that a line cannot hold."""
    word = str(value)
    if "\n" in word or '"' in word:
        raise SetupTrouble(f"cannot hold {word!r} in a line")
    shown = word if _PLAIN.fullmatch(word) else f'"{word}"'
    before = text if not text or text.endswith("\n") else f"{text}\n"
    return f"{before}{path[0]}={shown}\n"


def take(text: str, path: Sequence[str]) -> str:
    """Without the lines that set it."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not ((found := _LINE.fullmatch(line)) and found[1] == path[0]))


def _unquoted(word: str) -> str:
    if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1]
    return word.partition(" #")[0].rstrip()
