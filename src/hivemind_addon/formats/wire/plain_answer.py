"""One attempt's answer of a service that is no model: judged by its head, and passed on unread.

Only of an error's body the beginning is kept, and read only where a rule of the profile asks for its words.
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
"""Of an error's body."""
SWITCHING_PROTOCOLS = 101
_SERVERS_FAULT = 500

_NO_HINTS = Hints()
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(eq=False, slots=True)
class PlainAnswer:
    """Does what `AnswerInProgress` does, of a body that nobody reads."""

    profile: Profile
    dialect: Dialect
    clock: AnswerClock
    group: str
    """The limit group of its request."""
    sent_at: float = 0.0
    head_at: float = 0.0
    last_byte_at: float = 0.0
    hints: Hints = _NO_HINTS
    """What its head said of limits."""
    kept: list[bytes] = field(default_factory=list)
    """The pieces of an error that are kept back."""
    looked_bytes: int = 0
    ends_at: float = math.inf
    """Never: how a body ends that nobody reads, only its transport tells."""
    unreadable: str | None = None
    """Nothing is read that could be."""
    answer: Transcript | None = None
    """Nobody says anything in it."""
    phase: Phase | None = None
    """None: no head yet. An error is before its content until it ends, and then has failed."""
    _status: int = 0
    _headers: Mapping[str, str] = _NO_HEADERS

    def sent(self) -> None:
        """Its request is on its way."""
        self.sent_at = self.last_byte_at = self.clock.monotonic()

    def head(self, status: int, headers: Mapping[str, str]) -> bool:
        """Its head came, with headers by lower-case name. True: its body comes in pieces that `look` or `tee` get."""
        self.head_at = self.last_byte_at = self.clock.monotonic()
        self._status, self._headers = status, headers
        self.hints = read_hints(of_group(self.profile, self.group), headers, self.clock.wall())
        self.phase = Phase.CONTENT if status < 400 else Phase.BEFORE_CONTENT
        return True

    def is_channel(self, method: str) -> bool:
        """Whether what follows its head is no answer: a WebSocket, or events for whoever listens to them."""
        if self._status == SWITCHING_PROTOCOLS:
            return True
        media_type = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        return method == "GET" and self._status == 200 and media_type == "text/event-stream"

    def heard(self, _chunk: bytes) -> bool:
        """A piece of it came. False: it is what its head says."""
        self.last_byte_at = self.clock.monotonic()
        return False

    def is_complete(self, _body: bytes) -> bool:
        """False: it does not say that it is."""
        return False

    def look(self, chunk: bytes) -> Phase:
        """A piece of an error came that is kept back."""
        self.kept.append(self.tee(chunk))
        self.looked_bytes += len(chunk)
        assert self.phase is not None
        return self.phase

    def tee(self, chunk: bytes) -> bytes:
        """A piece came that is passed on, as it is."""
        self.last_byte_at = self.clock.monotonic()
        return chunk

    def take_kept(self) -> bytes:
        """Everything that was kept back; from now on nothing is."""
        kept = b"".join(self.kept)
        self.kept.clear()
        return kept

    def finish(self) -> Phase | None:
        """It came to its end."""
        if self.phase is Phase.CONTENT:
            self.phase = Phase.COMPLETE
        elif self.phase is Phase.BEFORE_CONTENT:
            self.phase = Phase.FAILED
        return self.phase

    def judge_stream(self) -> Outcome:
        """How it ended."""
        return self._judge(self._status, b"".join(self.kept))

    def judge_body(self, status: int, body: bytes, _count: Callable[[str], int]) -> tuple[Outcome, Usage | None]:
        """How one without a body ended; it used nothing that is counted."""
        return self._judge(status, body), None

    def _judge(self, status: int, body: bytes) -> Outcome:
        if status < 400:
            return Outcome(OutcomeKind.SUCCESS, str(status), status, retry_after_s=self.hints.retry_after_s)
        wall_now, places = self.clock.wall(), self.dialect.form.error
        read = self._read(body)
        outcome = judge_answer(self.profile, status, self._headers, read, self.hints, wall_now, places=places)
        if outcome.kind is OutcomeKind.IGNORED and not outcome.retryable and status < _SERVERS_FAULT:
            # The service has done its part: whoever looks for what is not there is answered (404), not failed.
            return replace(outcome, kind=OutcomeKind.SUCCESS)
        return outcome

    def _read(self, body: bytes) -> bytes | None:
        """An error's body, where a rule asks for its words."""
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
