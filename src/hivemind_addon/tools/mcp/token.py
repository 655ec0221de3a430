"""The secret that clients over HTTP have to say: made here, kept in a file that only its owner reads."""

import hmac
import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

_BYTES = 32
_LEAST_CHARS = 16
_MOST_BYTES = 4096


class BadToken(Exception):
    """The file cannot be used; one line that names it and the cure."""


def new_token() -> str:
    """One that nobody guesses."""
    return secrets.token_urlsafe(_BYTES)


def kept_token(file: Path) -> str:
    """The token in a file; one is made where there is none, 0600. Raises BadToken, OSError."""
    if not file.exists():
        token = new_token()
        with NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}-") as made:  # 0600 from its first byte
            made.write(f"{token}\n")
            made.flush()
            with suppress(FileExistsError):  # whoever starts at the same moment finds a whole one
                os.link(made.name, file)
    return _read(file)


def is_token(said: str, token: str) -> bool:
    """Whether an `Authorization` header says it; takes as long for a near miss as for a far one."""
    kind, _, word = said.strip().partition(" ")
    same = hmac.compare_digest(word.strip().encode(errors="replace"), token.encode())
    return same and kind.lower() == "bearer"


def _read(file: Path) -> str:
    with file.open("rb") as source:
        found = os.fstat(source.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise BadToken(f"{file} is no file; name another one")
        if sys.platform != "win32":
            if found.st_uid != os.getuid():
                raise BadToken(f"{file} belongs to somebody else; name another file")
            if stat.S_IMODE(found.st_mode) & 0o077:
                raise BadToken(f"{file} can be read by others; chmod 600 {file}")
        text = source.read(_MOST_BYTES).decode("ascii", "replace").strip()
    if len(text) < _LEAST_CHARS or not text.isprintable() or " " in text:
        raise BadToken(f"{file} has no token of at least {_LEAST_CHARS} letters and digits; remove it for a new one")
    return text
