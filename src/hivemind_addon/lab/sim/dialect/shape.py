"""What every dialect must say, and the pieces that several of them are made of."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from hivemind_addon.lab.sim.dialect.reply import Headers, LimitView, Reply, StreamEvent

json = msgspec.json.Encoder().encode


class Shape(ABC):
    """One dialect's answers, streams, errors and headers. Stateless."""

    stream_type = "text/event-stream; charset=utf-8"
    """The content type of a streamed answer."""

    @abstractmethod
    def whole_body(self, reply: Reply) -> bytes:
        """The unstreamed answer."""

    @abstractmethod
    def stream_events(self, reply: Reply) -> list[StreamEvent]:
        """The streamed answer, event by event, its end included."""

    @abstractmethod
    def error_object(self, status: int, message: str, error: str | None) -> dict[str, object]:
        """The error object of a status. `error`: its type (and code), where it is not the usual one."""

    @abstractmethod
    def spent_credit(self) -> dict[str, object]:
        """The error object of an account without money."""

    @abstractmethod
    def error_body(self, error: Mapping[str, object], request_id: str) -> bytes:
        """An error answer's body."""

    @abstractmethod
    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        """An error inside a stream that began well."""

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
