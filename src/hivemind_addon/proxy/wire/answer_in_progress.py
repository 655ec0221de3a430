"""One attempt's answer as it comes in: when it was last heard, what it says, how it ends and what it used.

It knows nothing of tickets and of the scheduler, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from hivemind_addon.api.ticket import Hints, Outcome, OutcomeKind, Usage
from hivemind_addon.proxy.wire.answer import AnswerReader, Phase, sum_of
from hivemind_addon.proxy.wire.decoding import DecodeError, decode
from hivemind_addon.proxy.wire.dialect import UntrueUsageError
from hivemind_addon.proxy.wire.hints import read_hints, read_stream_windows
from hivemind_addon.proxy.wire.outcome import TransportTrouble, judge_answer, judge_stream_error, judge_transport
from hivemind_addon.proxy.wire.transcript import Transcript, answer_of
from hivemind_addon.system.json_values import read_object, read_value
from hivemind_addon.system.pointer import Pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hivemind_addon.proxy.profile.model import Profile
    from hivemind_addon.proxy.wire.dialect import Dialect
    from hivemind_addon.proxy.wire.parts import Values
    from hivemind_addon.system.clock import Clock

JUDGED_BODY_MAX_BYTES = 8 * 1024 * 1024
"""How much of a plain answer is decoded and read; a longer one is judged by its status."""
READ_BODY_MAX_BYTES = 256 * 1024
"""How much of one is read as a conversation, to see whether it is garbage."""

_NO_HINTS = Hints()
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(eq=False, slots=True)
class AnswerInProgress:
    """Tell it what comes, in order. Its head makes it a stream, which is read as it passes, or a plain answer."""

    profile: Profile
    dialect: Dialect
    clock: Clock
    is_stream_asked: bool = False
    """Whether its request asked for a stream: then one that looks like a plain answer may be one."""
    sent_at: float = 0.0
    head_at: float = 0.0
    last_byte_at: float = 0.0
    hints: Hints = _NO_HINTS
    """What its head said of limits."""
    kept: list[bytes] = field(default_factory=list)
    """The decoded pieces of what was looked at and is kept back."""
    looked_bytes: int = 0
    unreadable: str | None = None
    """Why its body cannot be read."""
    answer: Transcript | None = None
    """What a complete answer says, as far as it is read."""
    _plain: Values | None = None
    """A whole answer's members, where they are few enough to be read."""
    _reader: AnswerReader | None = None
    _headers: Mapping[str, str] = _NO_HEADERS

    @property
    def phase(self) -> Phase | None:
        """Where a streamed answer is; None: it is none, or nothing has come."""
        return None if self._reader is None else self._reader.phase

    def sent(self) -> None:
        """Its request is on its way."""
        self.sent_at = self.last_byte_at = self.clock.monotonic()

    def head(self, status: int, headers: Mapping[str, str]) -> bool:
        """Its head came, with headers by lower-case name. True: it is a stream."""
        self.head_at = self.last_byte_at = self.clock.monotonic()
        self._headers = headers
        self.hints = read_hints(self.profile, headers, self.clock.wall())
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if status != 200 or not self._is_stream(media_type):
            return False
        self._reader = AnswerReader(self.dialect, headers.get("content-encoding", ""), media_type)
        return True

    def _is_stream(self, media_type: str) -> bool:
        usual, *others = self.dialect.media_types
        return media_type == usual or (self.is_stream_asked and media_type in others)

    def heard(self) -> None:
        """A piece of a plain answer came."""
        self.last_byte_at = self.clock.monotonic()

    def look(self, chunk: bytes) -> Phase:
        """A piece of the stream came that is kept back."""
        self.kept.append(self.tee(chunk))
        self.looked_bytes += len(chunk)
        assert self._reader is not None
        return self._reader.phase

    def tee(self, chunk: bytes) -> bytes:
        """A piece of the stream came that is passed on; answers it decoded."""
        reader = self._reader
        assert reader is not None
        self.last_byte_at = self.clock.monotonic()
        decoded = reader.feed(chunk)
        self.unreadable = reader.broken
        return decoded

    def take_kept(self) -> bytes:
        """The decoded bytes of everything that was kept back; from now on nothing is."""
        decoded = b"".join(self.kept)
        self.kept.clear()
        return decoded

    def finish(self) -> Phase | None:
        """The stream came to its end."""
        if self._reader is not None:
            self._reader.finish()
            if self.answer is None and self._reader.phase is Phase.COMPLETE:
                self.answer = self._reader.answer()
        return self.phase

    def judge_stream(self) -> Outcome:
        """How the stream ended, or what its error event says."""
        assert self._reader is not None
        if self._reader.error is not None:
            return judge_stream_error(self.profile, self._reader.error, self.hints, self.clock.wall())
        if self._reader.phase is Phase.COMPLETE or self._reader.broken:
            return Outcome(OutcomeKind.SUCCESS, "200", status=200)
        return judge_transport(TransportTrouble.CUT)

    def judge_body(self, status: int, body: bytes, count: Callable[[str], int]) -> tuple[Outcome, Usage | None]:
        """How a plain answer ended, and what it used; `count`: tokens of a text, where it does not say."""
        decoded: bytes | None = None
        if len(body) <= JUDGED_BODY_MAX_BYTES:
            try:
                coding = self._headers.get("content-encoding")
                decoded = decode(body, coding, JUDGED_BODY_MAX_BYTES) if coding else body
            except DecodeError as error:
                self.unreadable = str(error)
        # Read once: for the outcome, for the usage, and to see whether it is garbage.
        plain = read_value(decoded) if decoded and len(decoded) <= READ_BODY_MAX_BYTES else None
        top = plain if isinstance(plain, dict) else None
        self._plain = top
        wall_now = self.clock.wall()
        outcome = judge_answer(
            self.profile,
            status,
            self._headers,
            decoded,
            self.hints,
            wall_now,
            is_object=top is not None,
            places=self.dialect.form.error,
        )
        if not decoded:
            return outcome, None
        usage = usage_in(self.dialect, read_object(decoded) if top is None else top)
        if outcome.kind is not OutcomeKind.SUCCESS:
            return outcome, usage
        if len(decoded) <= READ_BODY_MAX_BYTES:
            self.answer = answer_of(self.dialect, decoded, top)
        if usage is None or not usage.output_tokens:
            answer = self.answer or answer_of(self.dialect, decoded)
            said = "".join(part.text for part in answer.parts)
            if usage is None and not said and not answer.stop:  # no shape that is known here
                said = decoded.decode(errors="replace")
            if usage is None or said:  # where something was said, a usage without output cannot be true
                usage = Usage(output_tokens=count(said))
        return outcome, usage

    def usage(self, count: Callable[[str], int]) -> Usage | None:
        """What the stream used so far; None: it is none."""
        return self._reader.usage(count) if self._reader else None

    def sum_at(self, place: str) -> int:
        """The numbers at a place of a complete answer, or of the newest event that has any there; 0: there are none."""
        pointer = Pointer.parse(place)
        return self._reader.sum_at(pointer) if self._reader else sum_of(pointer.find_all(self._plain))

    def stream_windows(self) -> Hints | None:
        """What events of the stream told of a subscription's windows; None: none did."""
        if self._reader is None or self._reader.windows is None:
            return None
        return Hints(windows=read_stream_windows(self._reader.windows.data, self.clock.wall()))


def usage_in(dialect: Dialect, top: Values | None) -> Usage | None:
    """The usage that a whole answer's JSON tells; None when it tells none that can be true."""
    try:
        usage = None if top is None else dialect.usage_of(dialect.inner(top))
    except UntrueUsageError:
        return None
    return usage if usage is not None and dialect.had_input(usage) else None
