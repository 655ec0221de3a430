"""Which seeds and numbers of random loads work may use, and which only a report may use. Pure.

    0 … 999,999             work: tests, tuning, the decision digest, `hivemind lab scenario`
    1,000,000 … 999,999,999 reports: a key names one of 999 blocks of a million, and a report counts from its start

A scheduler that was tuned on the worlds of a report looks better than it is. So `hivemind lab prove` takes numbers of
the first row, and with `--report` those of a key. The key is the version by default: each release is judged on numbers
that nobody could tune on before.
"""

from hashlib import blake2b

HELD_OUT_FROM = 1_000_000
_BLOCK = 1_000_000
_BLOCKS = 999


def first_number(key: str | None) -> int:
    """The first seed, and the first number of a random load: of the key's block, or without a key 0."""
    if key is None:
        return 0
    return HELD_OUT_FROM + _BLOCK * (int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) % _BLOCKS)


def is_held_out(number: int) -> bool:
    """Whether only a report may use it."""
    return number >= HELD_OUT_FROM
