"""Messages from one node to another and back: each once, in order, however the engine loses, doubles or delays them.

Each message has a number; each envelope tells the newest number that came in order. What is not acknowledged is sent
again. One channel is one session: a new session begins anew with number 1 on both sides.
"""

from collections import deque
from collections.abc import Callable

import msgspec
from msgspec import Raw

_NEVER = float("inf")
_MOST_AT_ONCE = 1000
"""Messages in one envelope."""
_MOST_AHEAD = 10_000
"""Messages that are kept which came before one that is missing."""
_DRIFT = 2e-4
"""More seconds in a second than two clocks drift apart: the offset follows them."""
_encode = msgspec.msgpack.Encoder().encode


class Channel[M]:
    """One node's end of a session."""

    def __init__(self, *, decode: Callable[[Raw], M], resend_s: float, ack_s: float) -> None:
        """`ack_s`: how long an acknowledgement may wait for a message that it can go with."""
        self._decode = decode
        self._resend_s = resend_s
        self._ack_s = ack_s
        self._unacked: deque[Raw] = deque()
        self._first = 1
        """The number of the oldest that is not acknowledged."""
        self._sent_up_to = 0
        self._sent_at = -_NEVER
        """When an envelope went that had a message in it."""
        self._received = 0
        self._ahead: dict[int, Raw] = {}
        self._ack_due_at = _NEVER
        self._heard_at = 0.0
        self.offset = _NEVER
        """The other's clock, in this node's: to be added to its instants."""

    def __repr__(self) -> str:
        return f"<Channel, {len(self._unacked)} unacknowledged, {self._received} received>"

    def send(self, message: object) -> None:
        """Put a message into the next envelope."""
        self._unacked.append(Raw(_encode(message)))

    @property
    def has_news(self) -> bool:
        """Whether something was never sent."""
        return self._sent_up_to < self._first + len(self._unacked) - 1

    @property
    def is_acknowledged(self) -> bool:
        """Whether all that was sent has come."""
        return not self._unacked

    @property
    def due_at(self) -> float:
        """When an envelope is due if nothing happens before: to send again, or to acknowledge."""
        return min(self._sent_at + self._resend_s if self._unacked else _NEVER, self._ack_due_at)

    def take(self, now: float) -> tuple[int, int, list[Raw]]:
        """For an envelope that goes now: acknowledged number, first number, messages."""
        start = 0
        if now < self._sent_at + self._resend_s:
            start = max(0, self._sent_up_to - self._first + 1)
        last = min(len(self._unacked), start + _MOST_AT_ONCE)
        messages = [self._unacked[place] for place in range(start, last)]
        if messages:
            self._sent_at = now
            self._sent_up_to = max(self._sent_up_to, self._first + last - 1)
        self._ack_due_at = _NEVER
        return self._received, self._first + start, messages

    def receive(self, *, at: float, ack: int, first: int, messages: list[Raw], now: float) -> list[M]:
        """What is new of an envelope that came, in order."""
        self.offset = min(self.offset + _DRIFT * (now - self._heard_at), now - at)
        self._heard_at = now
        while self._unacked and self._first <= ack:
            self._unacked.popleft()
            self._first += 1
        self._sent_up_to = max(self._sent_up_to, self._first - 1)
        if messages:
            self._ack_due_at = min(self._ack_due_at, now + self._ack_s)
        for number, message in enumerate(messages, first):
            if self._received < number <= self._received + _MOST_AHEAD:
                self._ahead[number] = message
        new = []
        while self._received + 1 in self._ahead:
            self._received += 1
            new.append(self._decode(self._ahead.pop(self._received)))
        return new
