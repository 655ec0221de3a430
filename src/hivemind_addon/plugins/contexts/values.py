"""A context, and the values around a context."""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Raw, Struct, field

from hivemind_addon.formats.base.json_values import read_value
from hivemind_addon.formats.wire.conversation_parts import text_of
from hivemind_addon.kernel.values.spend import Spend


class ContextHead(Struct, frozen=True):
    """A version of a context without the conversation."""

    id: str
    """The conversation's, the same for all its versions; ten hex digits."""
    version: int
    """Counted from 1; 0: the version is not kept yet."""
    kept_wall: float
    """Epoch seconds."""
    agent: str
    session: str
    """The lane."""
    parent_session: str
    """The session that started this one; empty: none is known."""
    task: str
    model: str
    dialect: str
    """How the body is to be read: a packaged wire format's name."""
    host: str
    path: str
    reason: str
    """Why the version was kept, for people."""
    messages: int
    tokens: int
    """Of the request's input as the provider counted it, all kinds, else as estimated."""
    body_bytes: int
    kind: str = ""
    """The purpose of the request: a `CallKind`'s value."""
    spent: Spend = field(default_factory=Spend)
    """By the session as far as that is known; given to `keep`: since the version before."""
    arrived_wall: float = 0.0
    """When the request came, in epoch seconds: of two versions the later request is the newer version."""
    request_hash: str = ""
    """The ticket's: a client that comes back sends the same hash. Empty: not known."""
    ticket_id: str = ""
    answer_bytes: int = 0
    """Of the answer; 0: nothing whole came back, or a later version has the answer among the messages."""


class Context(Struct, frozen=True):
    """A version with the conversation."""

    head: ContextHead
    method: str
    url: str
    headers: Mapping[str, str]
    """As sent, lower-case names, without credentials and without headers that a new connection makes anew."""
    body: Raw
    """The request's body, decoded JSON."""
    answer: bytes = b""
    """The answer, decoded: plain or a stream. Empty: nothing whole came back, or the answer was not kept."""
    answer_id: str = ""
    """The provider's name for that answer, where a later request may name the answer; given to `keep` only."""


class TakenResult(Struct, frozen=True):
    """A tool's result, which a compaction took out of a request."""

    id: str
    """A hash of the result, which the stub in the request names."""
    kept_wall: float
    """Epoch seconds."""
    agent: str
    session: str
    call_id: str
    """The tool call's; empty: there is none."""
    value: Raw
    """JSON."""

    @property
    def text(self) -> str:
        """The text of the result."""
        return text_of(read_value(self.value))


class NotKept(Exception):
    """A request cannot be made a context; a line that says why."""


class UnknownContext(Exception):
    """No context has this id, or a version is damaged; a line for people."""


@dataclass(frozen=True, slots=True)
class KeepRule:
    """How much is kept; the newest context stays in any case."""

    size_bytes: int = 1_000_000_000
    """Of the file."""
    age_s: float = 30 * 86_400.0
    versions: int = 100
    """Of a context: the first and the newest stay, of the others the oldest go first."""
