"""One attempt's answer as it comes in: when it was last heard, what it says, how it ends and what it used.

It knows nothing of tickets and of the scheduler, and decides nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from hivemind_addon.formats.base.json_values import read_object, read_value
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.format import Framing
from hivemind_addon.formats.wire.answer import LAST, AnswerReader, Phase, sum_of
from hivemind_addon.formats.wire.decoding import BodyDecoder, DecodeError, decode
from hivemind_addon.formats.wire.dialect import UntrueUsageError
from hivemind_addon.formats.wire.hints import read_hints, read_stream_windows
from hivemind_addon.formats.wire.outcome import (
    TransportTrouble,
    is_json,
    judge_answer,
    judge_stream_error,
    judge_transport,
)
from hivemind_addon.formats.wire.sse import SSE
from hivemind_addon.formats.wire.transcript import Transcript, answer_of
from hivemind_addon.kernel.values.ticket import Hints, Outcome, OutcomeKind, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.formats.wire.answer import AnswerClock
    from hivemind_addon.formats.wire.conversation_parts import Values
    from hivemind_addon.formats.wire.dialect import Dialect

JUDGED_BODY_MAX_BYTES = 8 * 1024 * 1024
"""How much of a plain answer is decoded and read; a longer one is judged by its status."""
READ_BODY_MAX_BYTES = 256 * 1024
"""How much of one is read as a conversation, to see whether it is garbage."""
AFTER_END_S = 1.0
"""So long after its last event an answer's transport may take to end."""
AFTER_STOP_S = 3.0
"""So long after the reason for its end, or the last bracket of its JSON, an answer may be silent until it is complete.
Providers send what is left, usage and a last event, within milliseconds (2026-11)."""

_JSON = "application/json"
_MOST_START_BYTES = 64 * 1024
"""Of a first line that may be the first of several."""
_NO_HINTS = Hints()
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(eq=False, slots=True)
class AnswerInProgress:
    """Tell it what comes, in order. Its head makes it a stream, which is read as it passes, or a plain answer."""

    profile: Profile
    dialect: Dialect
    clock: AnswerClock
    is_stream_asked: bool = False
    """Whether its request asked for a stream: then one that looks like a plain answer may be one."""
    sent_at: float = 0.0
    head_at: float = 0.0
    last_byte_at: float = 0.0
    longest_silence_s: float = 0.0
    """From one piece of its stream to the next, after its first words."""
    hints: Hints = _NO_HINTS
    """What its head said of limits."""
    kept: list[bytes] = field(default_factory=list)
    """The decoded pieces of what was looked at and is kept back."""
    looked_bytes: int = 0
    ends_at: float = math.inf
    """When it is complete, although its transport goes on; infinite: it has not said that it is."""
    unreadable: str | None = None
    """Why its body cannot be read."""
    answer: Transcript | None = None
    """What a complete answer says, as far as it is read."""
    _plain: Values | None = None
    """A whole answer's members, where they are few enough to be read."""
    _reader: AnswerReader | None = None
    _headers: Mapping[str, str] = _NO_HEADERS
    _media_type: str = ""
    _start: bytes | None = None
    """What has come while the first bytes do not tell how its body is framed; None: they have, or do not matter."""
    _start_decoder: BodyDecoder | None = None
    _after_s: float = math.inf
    """How long it has from the instant at which it said that it is complete."""

    @property
    def phase(self) -> Phase | None:
        """Where a streamed answer is; None: it is none, or nothing has come."""
        return None if self._reader is None else self._reader.phase

    @property
    def is_thinking(self) -> bool:
        """Whether a stream has begun, and none of its words came."""
        return self._reader is not None and self._reader.has_begun and not self._reader.has_said

    def sent(self) -> None:
        """Its request is on its way."""
        self.sent_at = self.last_byte_at = self.clock.monotonic()

    def head(self, status: int, headers: Mapping[str, str]) -> bool:
        """Its head came, with headers by lower-case name. True: it is a stream."""
        self.head_at = self.last_byte_at = self.clock.monotonic()
        self._headers = headers
        self.hints = read_hints(self.profile, headers, self.clock.wall())
        self._media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if status != 200:
            return False
        self._start = b""
        if not self._is_stream(self._media_type):
            return False
        self._reader = AnswerReader(self.dialect, headers.get("content-encoding", ""), self._media_type)
        return True

    def _is_stream(self, media_type: str) -> bool:
        usual, *others = self.dialect.media_types
        return media_type == usual or (self.is_stream_asked and media_type in others)

    def heard(self, chunk: bytes) -> bool:
        """A piece of a plain answer came. True: its first bytes say that it is a stream, to be looked at from there."""
        self.last_byte_at = self.clock.monotonic()
        coding = self._headers.get("content-encoding", "")
        if self._start is not None:
            try:
                if coding and self._start_decoder is None:
                    self._start_decoder = BodyDecoder(coding)
                media_type = self._told_by(chunk if self._start_decoder is None else self._start_decoder.feed(chunk))
            except DecodeError:
                media_type, self._start = "", None
            if media_type:
                self._reader = AnswerReader(self.dialect, coding, media_type)
                return True
        if coding or (end := chunk.rstrip()):
            may_end = coding or end.endswith((b"}", b"]"))
            self.ends_at = self.last_byte_at + AFTER_STOP_S if may_end else math.inf
        return False

    def _told_by(self, piece: bytes) -> str:
        """The media type that the first bytes tell, of which this is the next piece; empty: none, or not yet."""
        assert self._start is not None
        start = self._start + piece
        told = self.dialect.media_type_in(start, is_stream_asked=self.is_stream_asked)
        if told and self._media_type == _JSON and self.dialect.framing_of(told) is Framing.NDJSON:
            told = _if_lines(start, told)
        self._start = start if told is None else None
        return told or ""

    def look(self, chunk: bytes) -> Phase | None:
        """A piece of the stream came that is kept back. None: it is another thing than its label says: see `heard`."""
        self.kept.append(self.tee(chunk))
        self.looked_bytes += len(chunk)
        return self.phase

    def tee(self, chunk: bytes) -> bytes:
        """A piece of the stream came that is passed on; answers it decoded."""
        before_at, self.last_byte_at = self.last_byte_at, self.clock.monotonic()
        reader = self._reader
        if reader is None:
            return chunk
        if reader.has_said and self.last_byte_at - before_at > self.longest_silence_s:
            self.longest_silence_s = self.last_byte_at - before_at
        decoded = reader.feed(chunk)
        self.unreadable = reader.broken
        if self._start is not None and self._is_mislabelled(decoded):
            self._reader, self._start = None, b""
            self.kept.clear()
            return decoded
        after_s = AFTER_END_S if reader.phase in LAST else AFTER_STOP_S if reader.has_stopped else math.inf
        if after_s != self._after_s:
            self._after_s, self.ends_at = after_s, self.last_byte_at + after_s
        return decoded

    def _is_mislabelled(self, piece: bytes) -> bool:
        """Whether the first bytes are framed in another way than the stream's label says, and can be read so."""
        begun = (self._start or b"") + piece
        told, by_label = self._told_by(piece), self.dialect.framing_of(self._media_type)
        if told:
            return self.dialect.framing_of(told) is not by_label
        is_json = begun.lstrip().startswith((b"{", b"["))
        return is_json and by_label is Framing.SSE and not self.dialect.form.bare_json

    def read(self, body: bytes) -> bool:
        """All of its body is here, of which nothing was seen. True: it is a stream."""
        return (self._reader is not None and self.look(body) is not None) or (
            self.heard(body) and self.look(body) is not None
        )

    def is_complete(self, body: bytes) -> bool:
        """Whether it has told its end, whatever its transport does. `body`: what came of a plain answer."""
        if self._reader is not None:
            return self._reader.phase in LAST or self._reader.has_stopped
        self.ends_at = math.inf  # asked once for each piece
        decoded = self._decoded(body)
        return decoded is not None and decoded.lstrip()[:1] in (b"{", b"[") and is_json(decoded)

    def take_kept(self) -> bytes:
        """The decoded bytes of everything that was kept back; from now on nothing is."""
        decoded = b"".join(self.kept)
        self.kept.clear()
        return decoded

    def finish(self) -> Phase | None:
        """The stream came to its end."""
        if self._reader is not None:
            if self._reader.phase is not Phase.COMPLETE:  # else its coding may lack its end
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
        decoded = self._decoded(body)
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

    def _decoded(self, body: bytes) -> bytes | None:
        """A plain answer's body; None: it cannot be decoded, or is too long to look at."""
        if len(body) > JUDGED_BODY_MAX_BYTES:
            return None
        try:
            coding = self._headers.get("content-encoding")
            decoded = decode(body, coding, JUDGED_BODY_MAX_BYTES) if coding else body
        except DecodeError as error:
            self.unreadable = str(error)
            return None
        if self._media_type == SSE and decoded.startswith(b"{"):
            # Behind one object in the place of events some gateways send `data: [DONE]` (2026-11).
            return decoded.partition(b"\ndata:")[0]
        return decoded

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


def _if_lines(start: bytes, media_type: str) -> str | None:
    """Whether what is called JSON is lines of it: an object and another one; empty: it is one object; None: not yet."""
    first, newline, rest = start.lstrip().partition(b"\n")
    if not newline:
        return None if len(first) <= _MOST_START_BYTES else ""
    if not is_json(first):
        return ""
    return (media_type if rest.lstrip().startswith(b"{") else "") if rest.strip() else None
