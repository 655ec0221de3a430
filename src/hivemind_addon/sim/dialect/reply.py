"""A reply of the simulated provider without a wire format, and the abstract wire format of a dialect."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec

from hivemind_addon.formats.base.document import read_yaml
from hivemind_addon.kernel.values.ticket import Dimension

Headers = tuple[tuple[str, str], ...]
"""Lower-case names, in order."""
_CHARS_PER_TOKEN = 4


class SimDialect(Enum):
    """The wire format of a request and the reply, as the path says."""

    MESSAGES = "anthropic-messages"
    CHAT = "openai-chat"
    RESPONSES = "openai-responses"
    OLLAMA = "ollama-chat"
    GEMINI = "gemini"
    GEMINI_ARRAY = "gemini-array"
    """Gemini's streams without `alt=sse`: a JSON array, element by element."""
    CODE_ASSIST = "code-assist"
    """Gemini in an envelope, as used by the login of Gemini CLI."""
    VERTEX_MESSAGES = "vertex-messages"
    """Messages with Google's errors."""
    CONVERSE = "bedrock-converse"
    INVOKE = "bedrock-invoke"
    """With Claude: Messages in AWS's framing."""
    COHERE = "cohere"

    @property
    def charges_output_late(self) -> bool:
        """Whether limits are charged for output during generation; else the maximum is reserved beforehand."""
        return self in _CHARGED_LATE

    @property
    def counts_uncached(self) -> bool:
        """Whether limits leave out input that a prompt cache holds."""
        return self in (SimDialect.MESSAGES, SimDialect.VERTEX_MESSAGES, SimDialect.CONVERSE, SimDialect.INVOKE)

    @property
    def settles_output(self) -> bool:
        """Whether limits get back the part of reserved output that was not generated."""
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
    """JSON; of a freeform tool, the plain input."""
    namespace: str = ""
    """The namespace in which Responses announced the tool; empty: none."""
    freeform: bool = False
    """A tool of Responses whose input is plain text."""


@dataclass(frozen=True, slots=True)
class TaskTurn:
    """The model's next turn in a task: a text, a tool call, or both."""

    text: str = ""
    call: ToolCall | None = None

    @property
    def output_tokens(self) -> int:
        """Output tokens of the turn; at least 1."""
        arguments = self.call.arguments if self.call else ""
        return max(1, _tokens(self.text) + _tokens(arguments))


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful reply. Without a task's turn the text names the attempt."""

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
    """Whether the reply ends at the request's maximum."""
    include_usage: bool
    """Chat only: whether a stream ends with a usage chunk."""
    written_tokens: int = 0
    """Input that went into the prompt cache; neither in `input_tokens` nor in `cached_tokens`."""
    turn: TaskTurn | None = None
    """The content, if a task decides the content."""

    @property
    def call(self) -> ToolCall | None:
        """The tool call at the end of the reply."""
        return self.turn.call if self.turn else None

    @property
    def prompt_tokens(self) -> int:
        """All input, cached or not."""
        return self.input_tokens + self.cached_tokens + self.written_tokens

    def id(self, prefix: str) -> str:
        """The id of the reply, with the prefix of the dialect."""
        return self.request_id.replace("req_", prefix)

    def deltas(self) -> Iterator[tuple[str, int]]:
        """The text in pieces, each with a number of output tokens."""
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
        """The tool call's arguments in pieces, likewise; empty without a call."""
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
    """An event of a stream on the wire."""

    data: bytes
    output_tokens: int = 0
    """Output tokens in this event; above zero for content only."""


@dataclass(frozen=True, slots=True)
class LimitView:
    """The state of a limit at an instant, for the headers."""

    dimension: Dimension
    amount: int
    remaining: float
    full_in_s: float
    window_s: float = 60
    is_cut: bool = False
    """Whether the headers cut the seconds until the limit is full, instead of rounding up."""
    plan: str = ""
    """The window of a plan that this is; empty: a limit of its own."""

    @property
    def used(self) -> float:
        """The share of the limit that is used up; above 1 after a late charge."""
        return 1 - self.remaining / self.amount


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request gets an error."""

    status: int
    message: str
    error: str | None = None
    """Type (and code) of the error; None: the usual type."""
    retry_after_s: float | None = None
    """None: the error does not say when to come back."""
    limit: LimitView | None = None
    """The limit that refuses the request."""
    wall_now: float = 0.0
    """Seconds since the epoch, where a limit refuses."""


def _tokens(text: str) -> int:
    return -(-len(text) // _CHARS_PER_TOKEN)


json = msgspec.json.Encoder().encode


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fixed words of a family of dialects: words.yaml."""

    spent_credit: dict[str, object]
    """The error object of an account without money."""
    models: dict[str, object]
    """The list of models, with a single model."""
    errors: dict[int, str] = {}
    """Status → the name of an error."""
    codes: dict[int, str] = {}
    """Status → the code beside that name, if there is any."""
    usual_error: str = ""
    """The name where `errors` has none."""

    @classmethod
    @cache
    def of(cls, family: str) -> "Words":
        """The words of a family."""
        file = Path(__file__).with_name("words.yaml")
        return msgspec.convert(read_yaml(file.read_bytes(), file)[family], cls)

    def error(self, problem: "Problem") -> str:
        """The name of an error."""
        return problem.error or self.errors.get(problem.status, self.usual_error)


class Shape(ABC):
    """The answers, streams, errors and headers of a dialect. Stateless."""

    words: Words
    """Of the dialect's family."""
    stream_type = "text/event-stream; charset=utf-8"
    """The content type of a streamed answer."""
    error_comes_alone = False
    """Whether an error inside a stream has to arrive apart from the events before it."""
    statuses: Mapping[int, int] = MappingProxyType({})
    """The statuses that other providers use → the one that this provider uses instead."""

    @abstractmethod
    def whole_body(self, reply: Reply) -> bytes:
        """The unstreamed answer."""

    @abstractmethod
    def events(self, reply: Reply) -> Iterable[StreamEvent]:
        """The streamed answer, event by event, including the end."""

    @abstractmethod
    def error_object(self, problem: Problem) -> dict[str, object]:
        """The content of an error answer."""

    @abstractmethod
    def error_body(self, error: Mapping[str, object], request_id: str) -> bytes:
        """The body of an error answer."""

    @abstractmethod
    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        """An error inside a stream that began well."""

    def opening_error_event(self, error: Mapping[str, object]) -> StreamEvent:
        """The same before any other event."""
        return self.error_event(error)

    def error_headers(self, error: Mapping[str, object]) -> Headers:  # noqa: ARG002 - few say it in a header
        """The headers that describe an error."""
        return ()

    def models_body(self) -> bytes:
        """The list of models, with a single model."""
        return json(self.words.models)

    def identity_headers(self, request_id: str, organization: str) -> Headers:  # noqa: ARG002 - some say it
        """The organization and the id of the answer, where a header has them; `request-id` is the simulator's own."""
        return (("request-id", request_id),)

    def limit_headers(self, limits: Sequence[LimitView], wall_now: float) -> Headers:  # noqa: ARG002 - some say them
        """The rate-limit headers, where there are some. `wall_now`: seconds since the epoch."""
        return ()

    def retry_after_headers(self, retry_after_s: float, *, exact: bool = False) -> Headers:
        """When to come back, never too early: as a rule in whole seconds."""
        return (("retry-after", f"{retry_after_s:.6f}" if exact else str(rounded_up(retry_after_s))),)


def sse(fields: Mapping[str, object], event: str | None = None) -> bytes:
    """A server-sent event."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + json(fields) + b"\n\n"


def rounded_up(value: float) -> int:
    """Round up, but ignore the error of floating point."""
    return math.ceil(value - 1e-6)


def duration(seconds: float) -> str:
    """In the notation of Go, in whole milliseconds rounded up: `12ms`, `1s`, `1.5s`, `6m0s`, `1h0m0s`."""
    milliseconds = rounded_up(max(0.0, seconds) * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest_ms = divmod(milliseconds, 60_000)
    rest = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + rest
