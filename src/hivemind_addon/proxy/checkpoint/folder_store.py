"""Checkpoints in a folder: a file each, written whole or not at all, readable by their owner alone.

    ID.checkpoint    a line of JSON, the head; then the rest of it, JSON as well

So what there is can be listed without reading the conversations. Several proxies may share a folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from hivemind_addon.proxy.checkpoint.model import Checkpoint, CheckpointHead, UnknownCheckpoint
from hivemind_addon.proxy.runtime.append_file import breathe
from hivemind_addon.system.folders import make_private
from hivemind_addon.system.whole_file import write_whole

FOLDER_NAME = "checkpoints"
SUFFIX = ".checkpoint"
_HEAD_BYTES = 64 * 1024
_UNFINISHED = ".unfinished-"
_UNFINISHED_S = 3600.0
"""After this time nobody finishes such a file: its process died."""
_UNREADABLE = (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_HEAD = msgspec.json.Decoder(CheckpointHead)


@dataclass(frozen=True, slots=True)
class KeepRule:
    """What is kept of the older ones; the newest one stays in any case."""

    count: int = 200
    size_bytes: int = 1_000_000_000
    age_s: float = 30 * 86_400.0


class _Rest(Struct):
    """What a file holds besides the head."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: Raw


_REST = msgspec.json.Decoder(_Rest)


class FolderStore:
    """Implements `CheckpointStore`. Of several threads only one may `keep`."""

    def __init__(self, folder: Path, *, retention: KeepRule | None = None) -> None:
        """The folder is made when something is kept."""
        self.folder = folder
        self._retention = retention or KeepRule()
        self._heads: dict[str, CheckpointHead] = {}
        """By id, of those that were read before: a file never changes."""

    def __repr__(self) -> str:
        return f"<FolderStore {self.folder}>"

    def keep(self, checkpoint: Checkpoint) -> CheckpointHead:
        """See CheckpointStore. Raises OSError and FolderNotPrivate."""
        head = checkpoint.head
        make_private(self.folder, cure="name another place for the proxy's files")
        others = [one for one in self.heads() if one.id != head.id]
        for one in others:
            if head.request_hash and _request(one) == _request(head):
                return one
        self._write(checkpoint)
        with suppress(OSError):
            self._forget(head, others)
        return head

    def heads(self) -> list[CheckpointHead]:
        """See CheckpointStore."""
        known, self._heads = self._heads, {}
        for name in self._names():
            if head := known.get(name) or self._head(self._path(name)):
                self._heads[name] = head
        return sorted(self._heads.values(), key=lambda head: (head.kept_wall, head.id), reverse=True)

    def read(self, checkpoint_id: str) -> Checkpoint:
        """See CheckpointStore."""
        path = self._path(self._full_id(checkpoint_id))
        try:
            head, _, rest = path.read_bytes().partition(b"\n")
            read, told = _HEAD.decode(head), _REST.decode(rest)
        except OSError as error:
            raise UnknownCheckpoint(f"{path}: {error.strerror}") from error
        except _UNREADABLE as error:
            raise UnknownCheckpoint(f"{path}: damaged, or of a newer version ({error})") from error
        return Checkpoint(head=read, method=told.method, url=told.url, headers=told.headers, body=told.body)

    def _full_id(self, beginning: str) -> str:
        names = list(self._names())
        found = [name for name in names if name == beginning] or [name for name in names if name.startswith(beginning)]
        if len(found) == 1 and beginning:
            return found[0]
        if len(found) > 1:
            raise UnknownCheckpoint(f"{beginning!r} may be {' or '.join(sorted(found)[:5])}; say more of it")
        where = f"in {self.folder}; `hivemind checkpoint list` shows them"
        raise UnknownCheckpoint(f"no checkpoint {beginning!r} {where}" if names else f"no checkpoints {where}")

    def _path(self, checkpoint_id: str) -> Path:
        return self.folder / f"{checkpoint_id}{SUFFIX}"

    def _names(self) -> Iterator[str]:
        """All ids."""
        try:
            entries = sorted(entry.name for entry in self.folder.iterdir())
        except OSError:
            return
        yield from (name.removesuffix(SUFFIX) for name in entries if name.endswith(SUFFIX) and name[0] != ".")

    def _head(self, path: Path) -> CheckpointHead | None:
        try:
            with path.open("rb") as file:
                return _HEAD.decode(file.readline(_HEAD_BYTES))
        except _UNREADABLE:
            return None

    def _write(self, checkpoint: Checkpoint) -> None:
        rest = msgspec.json.encode(_Rest(checkpoint.method, checkpoint.url, checkpoint.headers, checkpoint.body))
        breathe()
        head = msgspec.json.encode(checkpoint.head) + b"\n"
        write_whole(self._path(checkpoint.head.id), head, rest, prefix=_UNFINISHED)

    def _forget(self, newest: CheckpointHead, others: Sequence[CheckpointHead]) -> None:
        """What it replaces, and what is beyond what is retained; `others` newest first."""
        keep = self._retention
        count, size_bytes = 1, newest.body_bytes
        for head in others:
            count, size_bytes = count + 1, size_bytes + head.body_bytes
            too_much = count > keep.count or size_bytes > keep.size_bytes
            if too_much or _thread(head) == _thread(newest) or newest.kept_wall - head.kept_wall > keep.age_s:
                self._path(head.id).unlink(missing_ok=True)
                count, size_bytes = count - 1, size_bytes - head.body_bytes
        for left in self.folder.glob(f"{_UNFINISHED}*"):
            if newest.kept_wall - left.stat().st_mtime > _UNFINISHED_S:
                left.unlink(missing_ok=True)


def _request(head: CheckpointHead) -> tuple[str, str, str]:
    return head.agent, head.session, head.request_hash


def _thread(head: CheckpointHead) -> tuple[str, str, str]:
    return head.agent, head.session, head.thread
