"""What a context is, and the values around it."""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Raw, Struct, field

from hivemind_addon.formats.base.json_values import read_value
from hivemind_addon.formats.wire.conversation_parts import text_of
from hivemind_addon.kernel.values.spend import Spend


class ContextHead(Struct, frozen=True):
    """What is known of one version of a context without its conversation."""

    id: str
    """The conversation's, the same for all its versions; ten hex digits."""
    version: int
    """Counted from 1; 0: it is not kept yet."""
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
    """Why it was kept, for people."""
    messages: int
    tokens: int
    """Of the request's input as the provider counted it, all kinds, else as estimated."""
    body_bytes: int
    kind: str = ""
    """What the request was for: a `CallKind`'s value."""
    spent: Spend = field(default_factory=Spend)
    """By the session as far as it is known; what is given to `keep` is since the version before."""
    arrived_wall: float = 0.0
    """When its request came, in epoch seconds: of two versions the one that came later is the newer."""
    request_hash: str = ""
    """The ticket's: a client that comes back sends the same one. Empty: it cannot be told."""
    ticket_id: str = ""
    answer_bytes: int = 0
    """Of what came back; 0: nothing whole, or a later version has it among its messages."""


class Context(Struct, frozen=True):
    """All of it."""

    head: ContextHead
    method: str
    url: str
    headers: Mapping[str, str]
    """As sent, lower-case names, without credentials and without what a new connection makes anew."""
    body: Raw
    """The request's body, decoded JSON."""
    answer: bytes = b""
    """What came back, decoded: a plain answer or a stream. Empty: nothing whole, or it was not kept."""
    answer_id: str = ""
    """What the provider calls that answer, where a later request may name it; given to `keep` only."""


class TakenResult(Struct, frozen=True):
    """What a tool gave, which a compaction took out of a request."""

    id: str
    """A hash of it: what the stub in its place names."""
    kept_wall: float
    """Epoch seconds."""
    agent: str
    session: str
    call_id: str
    """The tool call's; empty: it has none."""
    value: Raw
    """JSON."""

    @property
    def text(self) -> str:
        """What it says."""
        return text_of(read_value(self.value))


class NotKept(Exception):
    """A request cannot be made a context; one line that says why."""


class UnknownContext(Exception):
    """No context has this id; one line for people."""


@dataclass(frozen=True, slots=True)
class KeepRule:
    """What is kept of the older ones; the newest one stays in any case."""

    size_bytes: int = 1_000_000_000
    """Of the file."""
    age_s: float = 30 * 86_400.0
    versions: int = 100
    """Of one context: the first and the newest stay, of the others the oldest go first."""
