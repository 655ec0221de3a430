"""Counts tokens with OpenAI's published vocabulary, o200k_base, from the package's own copy: never a download."""

from __future__ import annotations

import base64
import gzip
import hashlib
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import tiktoken

VOCABULARY = Path(__file__).with_name("o200k_base.tiktoken.gz")
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""Of the uncompressed file; what tiktoken itself expects."""

# As in tiktoken's openai_public.o200k_base, which cannot be called: it would fetch the vocabulary.
SPECIAL_TOKENS = {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
_ALTERNATIVES = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""",
    r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
    r"""\s*[\r\n]+""",
    r"""\s+(?!\S)""",
    r"""\s+""",
)
PATTERN = "|".join(_ALTERNATIVES)

_BYTES_PER_TOKEN = 4
"""Where there is no vocabulary."""

_PIECE_CHARS = 65536
"""tiktoken panics (StackOverflow) over a run of a million blanks (0.14, 2026-08); such pieces are safe."""


class Tokenizer:
    """Counts tokens; until its owner has called `load`, by bytes."""

    def __init__(self, vocabulary: Path = VOCABULARY) -> None:
        self._vocabulary = vocabulary
        self._encoding: tiktoken.Encoding | None = None
        self._problem: str | None = None
        self.wanted: Callable[[], None] | None = None
        """Called once, when there is something to count and no vocabulary: its owner is to call `load`."""

    def __repr__(self) -> str:
        state = self._problem or ("loaded" if self._encoding else "not loaded")
        return f"<Tokenizer o200k_base, {state}>"

    def is_ready(self) -> bool:
        """Whether it counts exactly. Where it could and does not yet, its owner hears that it is wanted."""
        if self.wanted is not None and self._encoding is None and self._problem is None:
            tell, self.wanted = self.wanted, None
            tell()
        return self._encoding is not None

    def load(self) -> str | None:
        """Load the vocabulary, once (about 0.3 s: not on the event loop). One line when it cannot be had.

        Without it `count` goes on with a quarter of a text's bytes, so that scheduling goes on.
        """
        if self._encoding is None and self._problem is None:
            try:
                self._encoding = _read_encoding(self._vocabulary)
            except (OSError, EOFError, ValueError, zlib.error) as error:
                self._problem = (
                    f"{self._vocabulary}: {error}; tokens are estimated from bytes. Install the package again."
                )
        return self._problem

    def count(self, text: str) -> int:
        """Tokens of a text; special tokens in it are plain text. About 0.1 ms for 1 KB at worst."""
        if self._encoding is None:
            return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)
        return sum(
            len(self._encoding.encode_ordinary(text[start : start + _PIECE_CHARS]))
            for start in range(0, len(text), _PIECE_CHARS)
        )


@cache
def _read_encoding(vocabulary: Path) -> tiktoken.Encoding:
    """Read once in a process, of which it takes 50 MB.

    OSError, EOFError, zlib.error: unreadable; ValueError: not the file that it should be.
    """
    import tiktoken  # noqa: PLC0415 - a proxy that has nothing to count does without

    content = gzip.decompress(vocabulary.read_bytes())
    if hashlib.sha256(content).hexdigest() != SHA256:
        msg = "not the published vocabulary (wrong SHA-256)"
        raise ValueError(msg)
    ranks: dict[bytes, int] = {}
    for line in content.splitlines():
        token, _, rank = line.partition(b" ")
        ranks[base64.b64decode(token)] = int(rank)
    made = tiktoken.Encoding("o200k_base", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=SPECIAL_TOKENS)
    ranks.clear()  # it has its own copy, and keeps ours for nothing but pickling
    return made
