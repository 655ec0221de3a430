"""A checkpoint: the last full context of a conversation, kept so that it can be continued.

The APIs that agents use are stateless: the request that is refused carries the whole conversation. It is kept as it
was to be sent, without credentials.

Its agent and session tell whose conversation it is, and its thread which of them: a session may have several, such as
those of a script's workers that share a name. The newest of a thread takes the older one's place.
"""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Raw, Struct


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
    """How the body is to be read: a `DialectName`'s value."""
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


class CheckpointStore(Protocol):
    """Where they are kept; a folder, 0700. The methods block: call them off the event loop."""

    def keep(self, checkpoint: Checkpoint) -> CheckpointHead:
        """Write it, durable when it returns; then forget the oldest beyond what is retained. Raises OSError.

        Answers under which head it is kept: where the same request is there already, nothing is written.
        """

    def heads(self) -> list[CheckpointHead]:
        """The newest first; what cannot be read is left out."""

    def read(self, checkpoint_id: str) -> Checkpoint:
        """By its id, or its unambiguous beginning. Raises UnknownCheckpoint, also where its file cannot be read."""
