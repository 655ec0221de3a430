"""An answer of the simulated provider before it has a shape, and what each dialect makes of it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from hivemind_addon.kernel.values.ticket import Dimension

Headers = tuple[tuple[str, str], ...]
"""Lower-case names, in order."""
_CHARS_PER_TOKEN = 4


class SimDialect(Enum):
    """The shape of a request and its answer; chosen by the path."""

    MESSAGES = "anthropic-messages"
    CHAT = "openai-chat"
    RESPONSES = "openai-responses"
    OLLAMA = "ollama-chat"
    GEMINI = "gemini"
    GEMINI_ARRAY = "gemini-array"
    """Its streams without `alt=sse`: one JSON array, element by element."""
    CODE_ASSIST = "code-assist"
    """Gemini in an envelope, as Gemini CLI's login speaks it."""
    VERTEX_MESSAGES = "vertex-messages"
    """Messages with Google's errors."""
    CONVERSE = "bedrock-converse"
    INVOKE = "bedrock-invoke"
    """With Claude: Messages in AWS's framing."""
    COHERE = "cohere"

    @property
    def charges_output_late(self) -> bool:
        """Whether limits are charged for output as it is generated; else its maximum is reserved beforehand."""
        return self in _CHARGED_LATE

    @property
    def settles_output(self) -> bool:
        """Whether limits get back what was reserved for output and not generated."""
        return self in (SimDialect.CONVERSE, SimDialect.INVOKE)


PLAYED = {
    "anthropic": SimDialect.MESSAGES,
    "openai-chat": SimDialect.CHAT,
    "openai-responses": SimDialect.RESPONSES,
    "ollama": SimDialect.OLLAMA,
}
"""Name of a recorded wire format → the dialect that the simulator speaks for it."""
_CHARGED_LATE = frozenset(
    {
        SimDialect.MESSAGES,
        SimDialect.VERTEX_MESSAGES,
        SimDialect.GEMINI,
        SimDialect.GEMINI_ARRAY,
        SimDialect.CODE_ASSIST,
        SimDialect.COHERE,
    }
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants to be run."""

    id: str
    name: str
    arguments: str
    """JSON; of a freeform tool, its input as it is."""
    namespace: str = ""
    """Of a tool that Responses announced in one."""
    freeform: bool = False
    """A tool of Responses whose input is plain text."""


@dataclass(frozen=True, slots=True)
class TaskTurn:
    """What the model says next in a task: a text, a tool call, or both."""

    text: str = ""
    call: ToolCall | None = None

    @property
    def output_tokens(self) -> int:
        """What it counts; at least one."""
        arguments = self.call.arguments if self.call else ""
        return max(1, _tokens(self.text) + _tokens(arguments))


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful answer. Without a task's turn its text names the attempt that made it."""

    dialect: SimDialect
    request_id: str
    attempt: int
    digest: str
    """Of the request's body."""
    model: str
    input_tokens: int
    """Uncached."""
    cached_tokens: int
    output_tokens: int
    tokens_per_delta: int
    truncated: bool
    """Whether the request's maximum ended it."""
    include_usage: bool
    """Chat only: whether a stream ends with a usage chunk."""
    written_tokens: int = 0
    """Input that went into the prompt cache; neither in `input_tokens` nor in `cached_tokens`."""
    turn: TaskTurn | None = None
    """What it says, where a task decides it."""

    @property
    def call(self) -> ToolCall | None:
        """The tool call that ends it."""
        return self.turn.call if self.turn else None

    @property
    def prompt_tokens(self) -> int:
        """All input, cached or not."""
        return self.input_tokens + self.cached_tokens + self.written_tokens

    def id(self, prefix: str) -> str:
        """The answer's name, as each dialect begins it."""
        return self.request_id.replace("req_", prefix)

    def deltas(self) -> Iterator[tuple[str, int]]:
        """The text in pieces, each with the output tokens that it counts."""
        if self.turn is not None:
            yield from self._pieces(self.turn.text)
            return
        yield (
            f"{self.request_id} attempt {self.attempt} for {self.digest}:",
            min(self.tokens_per_delta, self.output_tokens),
        )
        for done in range(self.tokens_per_delta, self.output_tokens, self.tokens_per_delta):
            yield f" w{done}", min(self.tokens_per_delta, self.output_tokens - done)

    def call_deltas(self) -> Iterator[tuple[str, int]]:
        """The tool call's arguments in pieces, likewise; empty without one."""
        yield from self._pieces(self.call.arguments if self.call else "")

    def text(self) -> str:
        """The whole text."""
        return "".join(text for text, _ in self.deltas())

    def _pieces(self, text: str) -> Iterator[tuple[str, int]]:
        size = self.tokens_per_delta * _CHARS_PER_TOKEN
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            yield piece, _tokens(piece)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream as it goes out."""

    data: bytes
    output_tokens: int = 0
    """What this event delivers; above zero for content only."""


@dataclass(frozen=True, slots=True)
class LimitView:
    """One limit at one instant, for the headers."""

    dimension: Dimension
    amount: int
    remaining: float
    full_in_s: float
    window_s: float = 60
    is_cut: bool = False
    """Whether the instant at which it is whole is told in seconds that are cut, not rounded up."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request gets an error."""

    status: int
    message: str
    error: str | None = None
    """Type (and code) of the error, where it is not the usual one."""
    retry_after_s: float | None = None
    """None: the error does not say when to come back."""
    limit: LimitView | None = None
    """The limit that refuses it."""


def _tokens(text: str) -> int:
    return -(-len(text) // _CHARS_PER_TOKEN)


json = msgspec.json.Encoder().encode


class Shape(ABC):
    """One dialect's answers, streams, errors and headers. Stateless."""

    stream_type = "text/event-stream; charset=utf-8"
    """The content type of a streamed answer."""
    error_comes_alone = False
    """Whether an error inside a stream has to arrive apart from the events before it."""

    def status(self, status: int) -> int:
        """The status that this provider uses where another one would use `status`."""
        return status

    @abstractmethod
    def whole_body(self, reply: Reply) -> bytes:
        """The unstreamed answer."""

    @abstractmethod
    def stream_events(self, reply: Reply) -> list[StreamEvent]:
        """The streamed answer, event by event, its end included."""

    @abstractmethod
    def error_object(self, problem: Problem) -> dict[str, object]:
        """What an error answer says."""

    @abstractmethod
    def spent_credit(self) -> dict[str, object]:
        """The error object of an account without money."""

    @abstractmethod
    def error_body(self, error: Mapping[str, object], request_id: str) -> bytes:
        """An error answer's body."""

    @abstractmethod
    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        """An error inside a stream that began well."""

    def opening_error_event(self, error: Mapping[str, object]) -> StreamEvent:
        """The same before any other event."""
        return self.error_event(error)

    def error_headers(self, error: Mapping[str, object]) -> Headers:  # noqa: ARG002 - few say it in a header
        """What the head of an error answer says of it."""
        return ()

    @abstractmethod
    def models_body(self) -> bytes:
        """The list of models: one."""

    @abstractmethod
    def identity_headers(self, request_id: str, organization: str) -> Headers:
        """Who answered, and the answer's own name."""

    @abstractmethod
    def limit_headers(self, limits: Sequence[LimitView], wall_now: float) -> Headers:
        """The rate-limit headers. `wall_now`: seconds since the epoch."""

    @abstractmethod
    def retry_after_headers(self, retry_after_s: float) -> Headers:
        """When to come back, never too early."""


def sse(fields: Mapping[str, object], event: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + json(fields) + b"\n\n"


def rounded_up(value: float) -> int:
    """Up, but not for what floating point added."""
    return math.ceil(value - 1e-6)


def duration(seconds: float) -> str:
    """As Go writes it, in whole milliseconds rounded up: `12ms`, `1s`, `1.5s`, `6m0s`, `1h0m0s`."""
    milliseconds = rounded_up(max(0.0, seconds) * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest_ms = divmod(milliseconds, 60_000)
    rest = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + rest
