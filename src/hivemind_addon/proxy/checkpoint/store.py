"""A checkpoint: the last full context of a conversation, kept so that it can be continued.

The APIs that agents use are stateless: the request that is refused carries the whole conversation. It is kept as it
was to be sent, without credentials.

Its agent and session tell whose conversation it is, and its thread which of them: a session may have several, such as
those of a script's workers that share a name. The newest of a thread takes the older one's place.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from hivemind_addon.proxy.runtime.append_file import breathe
from hivemind_addon.system.folders import make_private
from hivemind_addon.system.whole_file import write_whole


class CheckpointHead(Struct, frozen=True):
    """What is known of a checkpoint without its conversation."""

    id: str
    """The id of the first ticket that was refused with it; the same request sent again makes no new one."""
    kept_wall: float
    """Epoch seconds."""
    agent: str
    session: str
    """The lane."""
    task: str
    model: str
    dialect: str
    """How the body is to be read: a packaged wire format's name."""
    host: str
    path: str
    reason: str
    """Why it was kept, for people."""
    messages: int
    body_bytes: int
    kind: str = ""
    """What the request was for: a `CallKind`'s value."""
    thread: str = ""
    """Hash of the conversation's first words; a newer one of the same agent, session and thread replaces the older."""
    request_hash: str = ""
    """The ticket's: a client that comes back sends the same one. Empty: it cannot be told."""


class Checkpoint(Struct, frozen=True):
    """All of it."""

    head: CheckpointHead
    method: str
    url: str
    headers: Mapping[str, str]
    """As sent, lower-case names, without credentials and without what a new connection makes anew."""
    body: Raw
    """The request's body, decoded JSON."""


class NotKept(Exception):
    """A request cannot be made a checkpoint; one line that says why."""


class UnknownCheckpoint(Exception):
    """No checkpoint has this id; one line for people."""


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


class CheckpointStore:
    """Checkpoints in a folder: a file each, written whole or not at all, readable by their owner alone.

        ID.checkpoint    a line of JSON, the head; then the rest of it, JSON as well

    So what there is can be listed without reading the conversations. Several proxies may share a folder; of several
    threads of one only one may `keep`. The methods block: call them off the event loop.
    """

    def __init__(self, folder: Path, *, retention: KeepRule | None = None) -> None:
        """The folder is made when something is kept."""
        self.folder = folder
        self._retention = retention or KeepRule()
        self._heads: dict[str, CheckpointHead] = {}
        """By id, of those that were read before: a file never changes."""

    def __repr__(self) -> str:
        return f"<CheckpointStore {self.folder}>"

    def keep(self, checkpoint: Checkpoint) -> CheckpointHead:
        """Write it, durable when it returns; then forget the oldest beyond what is retained.

        Answers under which head it is kept: where the same request is there already, nothing is written. Raises OSError
        and FolderNotPrivate.
        """
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
        """The newest first; what cannot be read is left out."""
        known, self._heads = self._heads, {}
        for name in self._names():
            if head := known.get(name) or self._head(self._path(name)):
                self._heads[name] = head
        return sorted(self._heads.values(), key=lambda head: (head.kept_wall, head.id), reverse=True)

    def read(self, checkpoint_id: str) -> Checkpoint:
        """By its id, or its unambiguous beginning. Raises UnknownCheckpoint, also where its file cannot be read."""
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
