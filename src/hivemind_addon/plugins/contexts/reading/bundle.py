"""Contexts as one file, for another machine.

    line 1        BUNDLE_MARK and the format's version, as text
    the rest      Zstandard: a line of JSON for each version of a context, oldest first, then one with their number and
                  the SHA-256 of all lines before it

The sum finds damage and a file that was cut off; it proves nothing about who made the file. Of the headers only those
are in it that say how a body is meant, and they are picked again when a bundle is read, as is the address: who takes a
bundle from somebody else need not trust what it says.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import zstandard
from msgspec import Struct
from msgspec.structs import replace

from hivemind_addon.formats.base.json_values import decoder, read_object
from hivemind_addon.plugins.contexts.store import Context, ContextHead

BUNDLE_MARK = b"hivemind contexts "
BUNDLE_VERSION = 1
KEPT_HEADERS = frozenset(
    (
        *("content-type", "user-agent", "originator", "openai-beta", "x-openai-internal-codex-responses-lite"),
        *("anthropic-version", "anthropic-beta"),
    )
)
"""Which say how a body is meant, or what program sent it."""
_MAX_LINE_BYTES = 256 * 1024 * 1024
_MAX_BYTES = 8 * 1024 * 1024 * 1024
"""Of a whole bundle, unpacked: a small file may unpack to any size."""
_WINDOW_LOG = 27
"""Versions repeat what was said before: a window of 128 MB sees that."""
_LEVEL = 9
_ID = re.compile(r"[0-9a-f]{6,64}")
_URL = re.compile(r"https?://[^\s/@?#]+(/[^\s#]*)?")


class BadBundle(Exception):
    """A file is no bundle that can be read; one line that names it."""


class _End(Struct):
    versions: int
    sha256: str


_CONTEXT = decoder(Context)
_END = decoder(_End)


def bundle(contexts: Iterable[Context]) -> bytes:
    """The file's content. `contexts`: those of one id one after the other, oldest first."""
    out = io.BytesIO()
    out.write(b"%b%d\n" % (BUNDLE_MARK, BUNDLE_VERSION))
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW_LOG, enable_ldm=True, write_checksum=True
    )
    summed, versions = hashlib.sha256(), 0
    with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(out, closefd=False) as writer:
        for context in contexts:
            line = msgspec.json.encode(replace(context, headers=_kept(context.headers))) + b"\n"
            summed.update(line)
            writer.write(line)
            versions += 1
        writer.write(msgspec.json.encode(_End(versions, summed.hexdigest())) + b"\n")
    return out.getvalue()


def read_bundle(file: Path) -> Iterator[Context]:
    """What is in it, as it was put in. Raises BadBundle, also at its end, and OSError.

    So take nothing of it before the end was reached.
    """
    with file.open("rb") as opened:
        mark, _, version = opened.readline(64).partition(BUNDLE_MARK)
        if mark or not version.strip().isdigit():
            raise BadBundle(
                f"{file} is no bundle of contexts; `hivemind context export ID --as bundle -o FILE` makes one"
            )
        if int(version) != BUNDLE_VERSION:
            raise BadBundle(
                f"{file} is a bundle of version {int(version)}; this hivemind reads version {BUNDLE_VERSION}"
            )
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG)
        with decompressor.stream_reader(opened, closefd=False) as reader:
            try:
                yield from _checked(file, io.BufferedReader(_Bounded(reader, file)))
            except (zstandard.ZstdError, msgspec.MsgspecError) as error:
                raise BadBundle(f"{file} is damaged: {' '.join(str(error).split())}") from error


class _Bounded(io.RawIOBase):
    """Reads up to a bound."""

    def __init__(self, reader: zstandard.ZstdDecompressionReader, file: Path) -> None:
        self._reader = reader
        self._file = file
        self._left = _MAX_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = self._reader.read(len(buffer))
        self._left -= len(found)
        if self._left < 0:
            raise BadBundle(f"{self._file} unpacks to more than {_MAX_BYTES >> 30} GB")
        buffer[: len(found)] = found
        return len(found)


def _checked(file: Path, lines: io.BufferedReader) -> Iterator[Context]:
    summed, versions = hashlib.sha256(), 0
    ahead = lines.readline(_MAX_LINE_BYTES)
    while line := ahead:
        ahead = lines.readline(_MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise BadBundle(f"{file} is cut off, or has a line of more than {_MAX_LINE_BYTES >> 20} MB")
        if not ahead:  # the last one
            end = _END(line)
            if (end.versions, end.sha256) != (versions, summed.hexdigest()):
                raise BadBundle(f"{file} is damaged: what is in it has another SHA-256")
            return
        summed.update(line)
        versions += 1
        yield _harmless(file, _CONTEXT(line))
    raise BadBundle(f"{file} is cut off")


def _harmless(file: Path, context: Context) -> Context:
    """Without what only a bundle of somebody's own making would have. Raises BadBundle."""
    head = context.head
    texts = msgspec.structs.asdict(head).values()
    if not _ID.fullmatch(head.id) or any(isinstance(one, str) and "\0" in one for one in texts):
        raise BadBundle(f"{file} holds a context that no hivemind has made (id {head.id[:20]!r})")
    if not _URL.fullmatch(context.url) or read_object(context.body) is None:
        raise BadBundle(f"{file}: context {head.id} has no request that could be sent")
    return replace(context, headers=_kept(context.headers))


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name in KEPT_HEADERS and value.isprintable()}


def new_versions(contexts: Iterable[Context], known: Mapping[str, Iterable[ContextHead]]) -> Iterator[Context]:
    """Those that a store does not have yet, each with what was spent since the version before it.

    `known`: by id, the heads that the store has.
    """
    have = {(head.id, head.kept_wall, head.body_bytes) for heads in known.values() for head in heads}
    spent = {head.id: head.spent for heads in known.values() for head in heads}  # the last one's
    for context in contexts:
        head = context.head
        if (head.id, head.kept_wall, head.body_bytes) in have:
            continue
        before = spent.get(head.id)
        since = head.spent - before if before is not None and head.spent.tokens >= before.tokens else head.spent
        spent[head.id] = head.spent
        yield replace(context, head=replace(head, version=0, spent=since))
