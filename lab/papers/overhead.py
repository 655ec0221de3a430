"""The price of a request, as `python -m lab.bench --json FILE` measured it: the only timed figures."""

from pathlib import Path

import msgspec


class Overhead(msgspec.Struct, frozen=True):
    """Of requests of 1 KB over one connection, medians over the rounds."""

    added_ms: float
    """By mitmdump with the addon, to a request that goes straight."""
    bare_added_ms: float
    """By mitmdump alone."""
    rounds: int
    machine: str
    """In words."""


class BadOverhead(Exception):
    """The file holds no such figures; one line that names file and cure."""


def read_overhead(file: Path) -> Overhead:
    """The figures in a file. Raises BadOverhead."""
    cure = 'write it with: python -m lab.bench --only "1 KB plain, 1" --json FILE'
    try:
        return msgspec.json.decode(file.read_bytes(), type=Overhead)
    except OSError as error:
        raise BadOverhead(f"{file}: {error.strerror}; {cure}") from error
    except msgspec.DecodeError as error:
        raise BadOverhead(f"{file}: {error}; {cure}") from error
