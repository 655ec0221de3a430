"""Follows an attempt's answer from a service that is no model: judged by the head, and passed on unread.

Only the beginning of an error's body is kept, and read only if a rule of the profile needs the words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hivemind_addon.formats.profile.load import of_group
from hivemind_addon.formats.wire.answer import Phase
from hivemind_addon.formats.wire.decoding import DecodeError, decode
from hivemind_addon.formats.wire.hints import read_hints
from hivemind_addon.formats.wire.outcome import judge_answer
from hivemind_addon.kernel.values.ticket import Hints, Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.formats.wire.answer import AnswerClock
    from hivemind_addon.formats.wire.dialect import Dialect
    from hivemind_addon.formats.wire.transcript import Transcript
    from hivemind_addon.kernel.values.ticket import Usage

MOST_READ_BYTES = 64 * 1024
"""Longest body of an error that is read."""
SWITCHING_PROTOCOLS = 101
_SERVERS_FAULT = 500

_NO_HINTS = Hints()
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(eq=False, slots=True)
class PlainAnswer:
    """Has the methods of `AnswerInProgress`, for a body that is not read."""

    profile: Profile
    dialect: Dialect
    clock: AnswerClock
    group: str
    """The limit group of the request."""
    sent_at: float = 0.0
    head_at: float = 0.0
    last_byte_at: float = 0.0
    hints: Hints = _NO_HINTS
    """The limits that the head states."""
    kept: list[bytes] = field(default_factory=list)
    """The pieces of an error that are kept back."""
    looked_bytes: int = 0
    ends_at: float = math.inf
    """Always infinite: only the transport shows the end of a body that is not read."""
    unreadable: str | None = None
    """Always None: nothing is read."""
    answer: Transcript | None = None
    """Always None: such an answer has no conversation."""
    phase: Phase | None = None
    """None: no head yet. An error is in the phase before content until the end, and then FAILED."""
    _status: int = 0
    _headers: Mapping[str, str] = _NO_HEADERS

    def sent(self) -> None:
        """The request is on the way."""
        self.sent_at = self.last_byte_at = self.clock.monotonic()

    def head(self, status: int, headers: Mapping[str, str]) -> bool:
        """The head came, with headers by lower-case name. True: pieces of the body go to `look` or `tee`."""
        self.head_at = self.last_byte_at = self.clock.monotonic()
        self._status, self._headers = status, headers
        self.hints = read_hints(of_group(self.profile, self.group), headers, self.clock.wall())
        self.phase = Phase.CONTENT if status < 400 else Phase.BEFORE_CONTENT
        return True

    def is_channel(self, method: str) -> bool:
        """Whether a channel follows the head instead of an answer: a WebSocket, or events for listeners."""
        if self._status == SWITCHING_PROTOCOLS:
            return True
        media_type = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        return method == "GET" and self._status == 200 and media_type == "text/event-stream"

    def heard(self, _chunk: bytes) -> bool:
        """A piece of the body came. False: the head is right about the body."""
        self.last_byte_at = self.clock.monotonic()
        return False

    def is_complete(self, _body: bytes) -> bool:
        """False: the body does not show the end."""
        return False

    def look(self, chunk: bytes) -> Phase:
        """A piece of an error came and is kept back."""
        self.kept.append(self.tee(chunk))
        self.looked_bytes += len(chunk)
        assert self.phase is not None
        return self.phase

    def tee(self, chunk: bytes) -> bytes:
        """A piece came and is passed on unchanged."""
        self.last_byte_at = self.clock.monotonic()
        return chunk

    def take_kept(self) -> bytes:
        """Return all pieces kept back. Later pieces are not kept."""
        kept = b"".join(self.kept)
        self.kept.clear()
        return kept

    def finish(self) -> Phase | None:
        """The answer came to the end."""
        if self.phase is Phase.CONTENT:
            self.phase = Phase.COMPLETE
        elif self.phase is Phase.BEFORE_CONTENT:
            self.phase = Phase.FAILED
        return self.phase

    def judge_stream(self) -> Outcome:
        """The outcome of the answer."""
        return self._judge(self._status, b"".join(self.kept))

    def judge_body(self, status: int, body: bytes, _count: Callable[[str], int]) -> tuple[Outcome, Usage | None]:
        """The outcome of an answer without a body, and no usage, as nothing is counted."""
        return self._judge(status, body), None

    def _judge(self, status: int, body: bytes) -> Outcome:
        if status < 400:
            return Outcome(OutcomeKind.SUCCESS, str(status), status, retry_after_s=self.hints.retry_after_s)
        wall_now, places = self.clock.wall(), self.dialect.form.error
        read = self._read(body)
        outcome = judge_answer(self.profile, status, self._headers, read, self.hints, wall_now, places=places)
        if outcome.kind is OutcomeKind.IGNORED and not outcome.retryable and status < _SERVERS_FAULT:
            # The service has done its part: a request for a missing thing is answered (404), not failed.
            return replace(outcome, kind=OutcomeKind.SUCCESS)
        return outcome

    def _read(self, body: bytes) -> bytes | None:
        """The body of an error, if a rule needs the words."""
        rules = self.profile.outcomes
        if not any(rule.message or rule.error or rule.body for rule in rules) or len(body) > MOST_READ_BYTES:
            return None
        try:
            return decode(body, self._headers.get("content-encoding", ""), MOST_READ_BYTES)
        except DecodeError:
            return None

    def usage(self, _count: Callable[[str], int]) -> Usage | None:
        """None: nothing is counted."""
        return None

    def stream_windows(self) -> Hints | None:
        """None: no event is read."""
        return None
