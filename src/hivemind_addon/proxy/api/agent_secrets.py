"""The file of agents' names and secrets: `hivemind agent` writes it, a proxy with `hivemind_agent_secrets` reads it.

    {"version": 1, "agents": {"reviewer-1": {"salt": "...", "hash": "...", "cost": 4096, "made_wall": 1795500000}}}

A secret is 192 random bits, shown once. The file has its salted hash (scrypt), so that nobody who reads it is an agent.
In a proxy's password the secret is the first word; what the agent asks for may follow: `SECRET.task-12.prio-low`.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base import json_values
from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.formats.wire.proxy_user import WORD_BREAK, clean
from hivemind_addon.proxy.system.whole_file import write_whole

_VERSION = 1
_SALT_BYTES = 16
_HASH_BYTES = 32
_SECRET_BYTES = 24
_COST = 4096
"""Scrypt's n, with r = 8 and p = 1: 4 MB and some 7 ms. A secret is no password that could be guessed."""
_HIGHEST_COST = 1 << 17
_NAME = re.compile(r"[^\s:@/,*?\[\]]{1,80}")
"""Fit for an address (no `:`, `@`, `/`), and no glob of the agents file."""
_ANEW = "make it anew with `hivemind agent add NAME --file FILE`"


class SecretHash(Struct, frozen=True):
    """What a secret is known by."""

    salt: bytes
    hash: bytes
    made_wall: float
    """Epoch seconds."""
    cost: int = _COST

    def is_of(self, secret: str) -> bool:
        """Whether this is the one. Takes milliseconds."""
        return hmac.compare_digest(self.hash, _hash(secret, self.salt, self.cost))


class _Document(Struct):
    agents: dict[str, SecretHash]
    version: int = _VERSION


def new_secret() -> str:
    """One that nobody guesses, and one word of a proxy's password."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def hash_secret(secret: str, wall: float) -> SecretHash:
    """What is kept of it. `wall`: now, in epoch seconds."""
    salt = os.urandom(_SALT_BYTES)
    return SecretHash(salt, _hash(secret, salt, _COST), wall, _COST)


def _hash(secret: str, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(
        secret.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=cost,
        r=8,
        p=1,
        maxmem=2048 * (cost + 8),
        dklen=_HASH_BYTES,
    )


def split_password(password: str) -> tuple[str, str]:
    """A proxy's password as its secret, and the words that follow."""
    parts = WORD_BREAK.split(password, maxsplit=1)
    return parts[0], parts[1] if len(parts) > 1 else ""


def check_name(name: str) -> None:
    """ValueError, with the cure: no agent can have this name."""
    if not _NAME.fullmatch(name) or clean(name) != name:
        raise ValueError(f"{name!r} is no name for an agent; use letters, digits, `-`, `_` and `.`, at most 80")


def read_secrets(file: Path) -> Mapping[str, SecretHash]:
    """Name → what its secret is known by. DocumentError: the file is not there, is none, or others may write it."""
    try:
        data, mode = file.read_bytes(), file.stat().st_mode
    except OSError as error:
        raise DocumentError(file, "", f"cannot be read: {error.strerror}", _ANEW) from None
    if stat.S_IMODE(mode) & (stat.S_IWGRP | stat.S_IWOTH):
        raise DocumentError(file, "", "others may write it, and make themselves an agent", f"chmod 600 {file}")
    try:
        document = json_values.decode(data, _Document)
    except msgspec.DecodeError as error:
        raise DocumentError(file, "", f"no file of agents' secrets: {error}", _ANEW) from None
    if document.version != _VERSION:
        raise DocumentError(file, "version", f"{document.version} is not known here", f"install the newest, or {_ANEW}")
    for name, known in document.agents.items():
        place = f"agents.{name}"
        try:
            check_name(name)
        except ValueError as error:
            raise DocumentError(file, place, str(error), "take it out") from None
        is_power = known.cost > 1 and known.cost & (known.cost - 1) == 0
        if not is_power or known.cost > _HIGHEST_COST or len(known.hash) != _HASH_BYTES:
            raise DocumentError(file, place, "no hash of a secret", f"`hivemind agent rotate {name} --file {file}`")
    return document.agents


def write_secrets(file: Path, agents: Mapping[str, SecretHash]) -> None:
    """The whole file anew, for its owner alone. Raises OSError."""
    document = msgspec.json.encode(_Document(dict(sorted(agents.items()))))
    write_whole(file, msgspec.json.format(document, indent=1), b"\n")
