"""Follows the answer of an attempt: time of the last byte, content, end and usage.

The module knows no tickets and no scheduler, and decides nothing. The answer of a service that is no model is judged by
the head and passed on unread: only the beginning of an error is kept, and read if a rule of the profile needs the
words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from hivemind_addon.formats.base.json_values import is_json, read_object, read_value, readable
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.format import Framing
from hivemind_addon.formats.profile.load import of_group
from hivemind_addon.formats.wire.answer import LAST, AnswerReader, Phase, sum_of
from hivemind_addon.formats.wire.decoding import AnswerDecoder, DecodeError, decode
from hivemind_addon.formats.wire.hints import read_hints, read_stream_windows
from hivemind_addon.formats.wire.outcome import TransportTrouble, judge_answer, judge_stream_error, judge_transport
from hivemind_addon.formats.wire.sse import SSE
from hivemind_addon.formats.wire.transcript import Transcript, answer_of, one_object
from hivemind_addon.formats.wire.usage import NOTHING_EXPECTED, count_words
from hivemind_addon.kernel.values.ticket import Hints, Outcome, OutcomeKind, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.formats.wire.answer import AnswerClock
    from hivemind_addon.formats.wire.conversation_parts import Values
    from hivemind_addon.formats.wire.dialect import Dialect

JUDGED_BODY_MAX_BYTES = 8 * 1024 * 1024
"""Longest plain answer that is decoded and read; a longer answer is judged by status and head."""
READ_ERROR_MAX_BYTES = 64 * 1024
"""Longest error of a service that is no model that is read."""
READ_BODY_MAX_BYTES = 256 * 1024
"""Longest plain answer that is read as a conversation, to detect garbage."""
AFTER_END_S = 1.0
"""Time that the transport may take to end after the last event of an answer."""
AFTER_STOP_S = 5.0
"""Silence allowed after a stop reason, or after the last bracket of the JSON, until the answer counts as complete.
Providers send the rest, usage and a last event, within milliseconds (2026-11)."""

_JSON = "application/json"
_SWITCHING_PROTOCOLS = 101
_MOST_START_BYTES = 64 * 1024
"""Longest first line that may be the first of several lines."""
_NO_HINTS = Hints()
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class UnreadBody:
    """The body of an answer that is passed on unread. Has the methods of `AnswerReader`."""

    broken: ClassVar = None
    error: ClassVar = None
    windows: ClassVar = None
    may_end: ClassVar = False

    def __init__(self, status: int) -> None:
        self.phase = Phase.CONTENT if status < 400 else Phase.BEFORE_CONTENT

    def feed(self, chunk: bytes) -> bytes:
        """A piece came."""
        return chunk

    def is_complete(self) -> bool:
        """Whether the body came to the end."""
        return self.phase in LAST

    def finish(self) -> None:
        """The body came to the end."""
        if self.phase in (Phase.CONTENT, Phase.BEFORE_CONTENT):
            self.phase = Phase.COMPLETE if self.phase is Phase.CONTENT else Phase.FAILED

    def answer(self) -> None:
        """None: such an answer has no conversation."""

    def usage(self, _counter: Callable[[str], int], _expected: Usage, *, has_run: bool) -> None:
        """None: nothing is counted."""

    def sum_at(self, _pointer: Pointer) -> int:
        """0: no number is read."""
        return 0


@dataclass(eq=False, slots=True)
class AnswerInProgress:
    """An answer. Call the methods in the order of arrival.

    The head decides: a stream, read as it passes; a plain answer, read when it is complete; or, of a service that is no
    model, a body that is not read, which is followed as a stream.
    """

    profile: Profile
    dialect: Dialect
    clock: AnswerClock
    is_stream_asked: bool = False
    """Whether the request asked for a stream. Then an answer that looks plain may be a stream."""
    group: str = ""
    """The limit group of the request, where the service is no model."""
    sent_at: float = 0.0
    head_at: float = 0.0
    last_byte_at: float = 0.0
    longest_silence_s: float = 0.0
    """The longest pause before a piece of the stream, from the head on."""
    has_begun: bool = False
    """Whether the head of a good answer came."""
    hints: Hints = _NO_HINTS
    """The limits that the head states."""
    kept: list[bytes] = field(default_factory=list)
    """The decoded pieces that were read and are kept back."""
    looked_bytes: int = 0
    ends_at: float = math.inf
    """When the answer counts as complete although the transport goes on; infinite: no end was seen."""
    unreadable: str | None = None
    """Why the body cannot be read."""
    mislabelled: str = ""
    """The content of the body, where the label says otherwise; empty: the label is right."""
    answer: Transcript | None = None
    """The content of a complete answer, as far as it was read."""
    _plain: Values | None = None
    """The members of a plain answer that is short enough to be read."""
    _reader: AnswerReader | UnreadBody | None = None
    _status: int = 0
    _headers: Mapping[str, str] = _NO_HEADERS
    _media_type: str = ""
    _start: bytes | None = None
    """The first bytes, until they show the framing of the body; None: they have, or the framing does not matter."""
    _start_decoder: AnswerDecoder | None = None
    _after_s: float = math.inf
    """Time from the sign of completeness to `ends_at`."""

    @property
    def phase(self) -> Phase | None:
        """The phase of a streamed answer; None: the answer is no stream, or nothing has come."""
        return None if self._reader is None else self._reader.phase

    def sent(self) -> None:
        """The request is on the way."""
        self.sent_at = self.last_byte_at = self.clock.monotonic()

    def head(self, status: int, headers: Mapping[str, str]) -> bool:
        """The head came, with headers by lower-case name. True: the answer is a stream."""
        self.head_at = self.last_byte_at = self.clock.monotonic()
        self._status, self._headers = status, headers
        if self.profile.is_plain:
            self.hints = read_hints(of_group(self.profile, self.group), headers, self.clock.wall())
            self._reader = UnreadBody(status)
            return True
        self.hints = read_hints(self.profile, headers, self.clock.wall())
        self._media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        self.has_begun = status == 200
        if not self.has_begun:
            return False
        self._start = b""
        if not self._is_stream(self._media_type):
            return False
        self._reader = AnswerReader(self.dialect, headers.get("content-encoding", ""), self._media_type)
        return True

    def is_channel(self, method: str) -> bool:
        """Whether a channel follows the head instead of an answer: a WebSocket, or events for listeners."""
        if self._status == _SWITCHING_PROTOCOLS:
            return True
        media_type = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        return method == "GET" and self._status == 200 and media_type == SSE

    def _is_stream(self, media_type: str) -> bool:
        usual, *others = self.dialect.media_types
        return media_type == usual or (self.is_stream_asked and media_type in others)

    def heard(self, chunk: bytes) -> bool:
        """A piece of a plain answer came. True: the first bytes show a stream; `look` gets this piece and the next."""
        self.last_byte_at = self.clock.monotonic()
        coding = self._headers.get("content-encoding", "")
        if self._start is not None:
            try:
                if coding and self._start_decoder is None:
                    self._start_decoder = AnswerDecoder(coding)
                media_type = self._told_by(chunk if self._start_decoder is None else self._start_decoder.feed(chunk))
            except DecodeError:
                media_type, self._start = "", None
            if media_type:
                self._reader = AnswerReader(self.dialect, coding, media_type)
                self.mislabelled = media_type if media_type != self._media_type else ""
                return True
        if coding or (end := chunk.rstrip()):
            may_end = coding or end.endswith((b"}", b"]"))
            self.ends_at = self.last_byte_at + AFTER_STOP_S if may_end else math.inf
        return False

    def _told_by(self, piece: bytes) -> str:
        """The media type that the first bytes show, up to this piece; empty: none, or none yet."""
        assert self._start is not None
        start = (self._start + piece).lstrip()
        told = self.dialect.media_type_in(start)
        if told and self.dialect.framing_of(told) is Framing.NDJSON and self._media_type != told:
            told = _if_lines(start, told)
        self._start = start if told is None else None
        return told or ""

    def look(self, chunk: bytes) -> Phase | None:
        """A piece of the stream came and is kept back. None: the label of the answer is wrong, see `heard`."""
        self.kept.append(self.tee(chunk))
        self.looked_bytes += len(chunk)
        return self.phase

    def tee(self, chunk: bytes) -> bytes:
        """A piece of the stream came and is passed on; returns the decoded piece."""
        before_at, self.last_byte_at = self.last_byte_at, self.clock.monotonic()
        reader = self._reader
        if reader is None:
            return chunk
        self.longest_silence_s = max(self.longest_silence_s, self.last_byte_at - before_at)
        decoded = reader.feed(chunk)
        self.unreadable = reader.broken
        if self._start is not None and self._is_mislabelled(decoded):
            self._reader, self._start = None, b""
            self.kept.clear()
            self.mislabelled = _JSON
            return decoded
        after_s = AFTER_END_S if reader.phase in LAST else AFTER_STOP_S if reader.may_end else math.inf
        if after_s != self._after_s:
            self._after_s, self.ends_at = after_s, self.last_byte_at + after_s
        return decoded

    def _is_mislabelled(self, piece: bytes) -> bool:
        """Whether the first bytes have a framing that differs from the label of the stream, and can be read so."""
        begun = (self._start or b"") + piece
        told, by_label = self._told_by(piece), self.dialect.framing_of(self._media_type)
        if told:
            return self.dialect.framing_of(told) is not by_label
        is_json = begun.lstrip().startswith((b"{", b"["))
        return is_json and by_label is Framing.SSE and not self.dialect.form.bare_json

    def read(self, body: bytes) -> bool:
        """Read a whole body of which no piece was read before. True: the body is a stream."""
        return (self._reader is not None and self.look(body) is not None) or (
            self.heard(body) and self.look(body) is not None
        )

    def is_complete(self, body: bytes) -> bool:
        """Whether the answer is complete, whatever the transport does. `body`: the bytes of a plain answer so far."""
        if self._reader is not None:
            is_complete = self._reader.is_complete()
            if not is_complete:
                self.ends_at = self._after_s = math.inf  # asked once for each piece
            return is_complete
        self.ends_at = math.inf
        decoded = self._decoded(body)
        return decoded is not None and decoded.lstrip()[:1] in (b"{", b"[") and is_json(decoded)

    def take_kept(self) -> bytes:
        """Return the decoded bytes of all pieces kept back. Later pieces are not kept."""
        decoded = b"".join(self.kept)
        self.kept.clear()
        return decoded

    def finish(self) -> Phase | None:
        """The stream came to the end."""
        if self._reader is not None:
            if self._reader.phase is not Phase.COMPLETE:  # otherwise the end of the content coding may be missing
                self._reader.finish()
            if self.answer is None and self._reader.phase is Phase.COMPLETE:
                self.answer = self._reader.answer()
        return self.phase

    def judge_stream(self) -> Outcome:
        """How the stream ended, or the meaning of the error event."""
        assert self._reader is not None
        if self.profile.is_plain:
            return self._judge_unread(b"".join(self.kept))
        if self._reader.error is not None:
            return judge_stream_error(self.profile, self._reader.error, self.hints, self.clock.wall())
        if self._reader.phase is Phase.COMPLETE or self._reader.broken:
            return Outcome(OutcomeKind.SUCCESS, "200", status=200)
        return judge_transport(TransportTrouble.CUT)

    def judge_body(
        self, status: int, body: bytes, count: Callable[[str], int], expected: Usage = NOTHING_EXPECTED
    ) -> tuple[Outcome, Usage | None]:
        """The outcome and usage of a plain answer; None: the body shows no work, or cannot be read.

        `count` counts the tokens of a text. `expected`: of the attempt.
        """
        if self.profile.is_plain:
            return self._judge_unread(body), None
        decoded = self._decoded(body)
        # Mended and read once: for the outcome, for the usage, and to detect garbage.
        plain = readable(decoded) if decoded else None
        is_short = decoded is not None and len(decoded) <= READ_BODY_MAX_BYTES
        top: Values | None = None if plain is None else read_value(plain) if is_short else read_object(plain)  # type: ignore[assignment]
        self._plain = top if is_short else None
        wall_now = self.clock.wall()
        outcome = judge_answer(
            self.profile,
            status,
            self._headers,
            decoded,
            self.hints,
            wall_now,
            is_object=plain is not None,
            places=self.dialect.form.error,
        )
        if not decoded:
            return outcome, None
        reader = self.dialect.usage
        report = reader.in_answer(self.dialect.inner(top or {}))
        if outcome.kind is not OutcomeKind.SUCCESS:
            # A broken answer is paid for; what else came is an error, or a page.
            is_broken = status == 200 and top is None and decoded.lstrip()[:1] == b"{"
            return outcome, reader.usage(report, 0, expected) if report else expected if is_broken else None
        if is_short:
            self.answer = answer_of(self.dialect, decoded, top)
        said = ""
        if not reader.output_of(report):
            answer = self.answer or answer_of(self.dialect, plain or decoded)
            said = "".join(part.heading.partition("tool call ")[2] + part.text for part in answer.parts)
            if not report and not said and not answer.stop:  # no known format
                said = decoded.decode(errors="replace")
        return outcome, reader.usage(report, count_words(said, count), expected)

    def _judge_unread(self, body: bytes) -> Outcome:
        """The outcome of an answer from a service that is no model."""
        status, rules = self._status, self.profile.outcomes
        if status < 400:
            return Outcome(OutcomeKind.SUCCESS, str(status), status, retry_after_s=self.hints.retry_after_s)
        read = None
        if len(body) <= READ_ERROR_MAX_BYTES and any(rule.message or rule.error or rule.body for rule in rules):
            read = self._decoded(body)
        wall_now, places = self.clock.wall(), self.dialect.form.error
        outcome = judge_answer(self.profile, status, self._headers, read, self.hints, wall_now, places=places)
        if outcome.kind is OutcomeKind.IGNORED and not outcome.retryable and status < 500:
            # The service has done its part: a request for a missing thing is answered (404), not failed.
            return replace(outcome, kind=OutcomeKind.SUCCESS)
        return outcome

    def _decoded(self, body: bytes) -> bytes | None:
        """The body of a plain answer; None: too long, or not decodable."""
        if len(body) > JUDGED_BODY_MAX_BYTES:
            return None
        try:
            coding = self._headers.get("content-encoding")
            decoded = decode(body, coding, JUDGED_BODY_MAX_BYTES, is_answer=True) if coding else body
        except DecodeError as error:
            self.unreadable = str(error)
            return None
        return one_object(decoded)

    def usage(self, outcome: Outcome, count: Callable[[str], int], expected: Usage = NOTHING_EXPECTED) -> Usage | None:
        """The usage of an attempt that ended so; None: no stream has begun, or nothing shows that work was done."""
        return self._reader.usage(count, expected, has_run=outcome.may_be_billed) if self._reader else None

    def sum_at(self, place: str) -> int:
        """Sum of the numbers at a place of a complete answer, or of the newest event with numbers there; 0: none."""
        pointer = Pointer.parse(place)
        return self._reader.sum_at(pointer) if self._reader else sum_of(pointer.find_all(self._plain))

    def stream_windows(self) -> Hints | None:
        """The subscription windows that events of the stream stated; None: no event did."""
        if self._reader is None or self._reader.windows is None:
            return None
        return Hints(windows=read_stream_windows(self._reader.windows.data, self.clock.wall()))


def _if_lines(start: bytes, media_type: str) -> str | None:
    """Whether text labelled JSON is really lines: an object, then another; empty: one object; None: not known yet."""
    first, newline, rest = start.lstrip().partition(b"\n")
    if not newline:
        return None if len(first) <= _MOST_START_BYTES else ""
    if not is_json(first):
        return ""
    return (media_type if rest.lstrip().startswith(b"{") else "") if rest.strip() else None
