"""Reads a streamed answer as the answer passes: phase, error and usage.

Before the first content the reader judges every event with care. Afterwards an event costs a look at the name or a
search for a word. Events are kept unread.
Their text is extracted and counted only if the provider reports no output by the end (a stream that was cut, a chat
without `include_usage`), and is read once at the end, to detect garbage.
"""

from collections import deque
from collections.abc import Callable, Iterable
from copy import deepcopy
from enum import Enum
from typing import Protocol

from hivemind_addon.formats.base.json_values import read_object, read_value
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.wire.conversation_parts import Assembly, word_of
from hivemind_addon.formats.wire.decoding import AnswerDecoder, DecodeError
from hivemind_addon.formats.wire.dialect import Dialect, EventClass, event_name
from hivemind_addon.formats.wire.error import ErrorFacts
from hivemind_addon.formats.wire.hints import CODEX_WINDOWS
from hivemind_addon.formats.wire.sse import SseEvent
from hivemind_addon.formats.wire.transcript import Transcript, answer_of_events
from hivemind_addon.formats.wire.usage import MOST_COUNTED_CHARS, NOTHING_EXPECTED, count_words
from hivemind_addon.kernel.values.ticket import Usage

# With the newest, over a thousand chat chunks: enough to learn how many tokens a byte of the stream is.
_MAX_OLDEST_BYTES = 128 * 1024
_DONE = b"[DONE]"
_EVENT_OVERHEAD_BYTES = 100
_MAX_READ_BYTES = 192 * 1024
"""Of a longer answer only the last part of this size is read at the end: some 3 ms of the event loop."""


class AnswerClock(Protocol):
    """Reads the time of events. Implemented by the proxy's clock."""

    def monotonic(self) -> float: ...  # noqa: D102
    def wall(self) -> float: ...  # noqa: D102


class Phase(Enum):
    """The states of a streamed answer."""

    BEFORE_CONTENT = "before content"
    CONTENT = "content"
    FAILED = "failed"
    """An error event came, before or after content (see `AnswerReader.content_seen`)."""
    COMPLETE = "complete"


LAST = (Phase.COMPLETE, Phase.FAILED)
"""The phases after which nothing more is read."""


def sum_of(values: Iterable[object]) -> int:
    """Sum of the values that are whole numbers."""
    return sum(one for one in values if isinstance(one, int))


class AnswerReader:
    """Reads one streamed answer with status 200. Call `finish` when the body has ended without a cut."""

    def __init__(self, dialect: Dialect, content_encoding: str, media_type: str = "") -> None:
        """`media_type`: the media type of the answer."""
        self._dialect = dialect
        self._unwrapper = dialect.unwrapper
        self._parser = dialect.parser(media_type)
        self._report: dict[str, int] = {}
        """The parts of the usage that were reported."""
        self._reported_at = 0
        """The content bytes before the last report of an output."""
        self._last: SseEvent | None = None
        """The last content event."""
        self._oldest: list[SseEvent] = []
        """The content events before the newest; of a long answer only the beginning."""
        self._oldest_bytes = 0
        self._newest: deque[SseEvent] = deque()
        """The last content events, to be read when the answer ends."""
        self._newest_bytes = 0
        self._content_bytes = 0
        """Data of all content events."""
        self._ended = False
        self._terminal: SseEvent | None = None
        self.phase = Phase.BEFORE_CONTENT
        self.content_seen = False
        """Whether a client has got something to act on."""
        self.has_stopped = False
        """Whether a stop reason came and no content followed."""
        self.may_end = False
        """Whether nothing is missing, as far as the last bytes show: ask `is_complete` once no more comes."""
        self.windows: SseEvent | None = None
        """The last event with the windows of a subscription, for `hints.read_stream_windows`."""
        self.error: ErrorFacts | None = None
        """The facts of the error event; set when the phase is FAILED."""
        self.broken: str | None = None
        """Why the body cannot be read. Pass the body through: the phase is CONTENT, unless decided before."""
        self._decoder: AnswerDecoder | None = None
        """None: the body has no content coding."""
        self._is_lost = False
        """Whether the body cannot be decoded any more."""
        if content_encoding:
            try:
                self._decoder = AnswerDecoder(content_encoding)
            except DecodeError as error:
                self._lose(str(error))

    def feed(self, chunk: bytes) -> bytes:
        """Read the next bytes of the body; returns them decoded (empty once the body is broken)."""
        if self._decoder is not None:
            try:
                chunk = self._decoder.feed(chunk)
            except DecodeError as error:
                self._lose(str(error))
        if self._is_lost:
            return b""
        if self._ended:
            return chunk
        for event in self._unwrapped(self._parser.feed(chunk)):
            if self._ended:
                self._note_report(event)  # some gateways report the usage after the end
            elif self.content_seen and self._dialect.is_only_content(event):
                self.has_stopped = False
                self._keep_event(event)
            else:
                self._read(event)
        if self._parser.broken is not None and self.broken is None:
            self.broken = self._parser.broken
            self._pass_on()
        self.may_end = self.has_stopped or (not self._parser.is_between and chunk.rstrip().endswith((b"}", b"]")))
        return chunk

    def _unwrapped(self, events: list[SseEvent]) -> list[SseEvent]:
        return events if self._unwrapper is None else list(map(self._unwrapper.unwrap, events))

    def finish(self) -> bytes:
        """End a body that ended properly; returns the last decoded bytes. Decides between CONTENT and COMPLETE."""
        decoded = b""
        if self._decoder is not None:
            try:
                decoded = self._decoder.finish()
            except DecodeError as error:
                self._lose(str(error))
        for event in self._unwrapped(self._parser.finish()):
            # An event that ends without the blank line may be half an event.
            if not self._ended and (event.data.strip() == _DONE or read_object(event.data) is not None):
                self._read(event)
        if not self._ended:
            last = self._last
            if self.has_stopped or (last is not None and self._dialect.ends_without_terminal(last)):
                self._end(Phase.COMPLETE)
        return decoded

    def is_complete(self) -> bool:
        """Whether the answer is complete although its transport has not ended or was cut."""
        if self.phase in LAST or self.has_stopped:
            return True
        begun = [] if self.broken else self._unwrapped(deepcopy(self._parser).finish())
        return any(
            self._dialect.classify(event) is EventClass.TERMINAL or self._dialect.ends_without_terminal(event)
            for event in begun
            if read_object(event.data) is not None
        )

    def answer(self) -> Transcript | None:
        """The transcript, of a long answer only the end; None: unreadable."""
        if self.broken:
            return None
        last = () if self._terminal is None else (self._terminal,)
        answer = answer_of_events(self._dialect, (*self._newest, *last))
        answer.is_tail = self._newest_bytes < self._content_bytes
        return answer

    def sum_at(self, pointer: Pointer) -> int:
        """The sum of the numbers at a place of the newest event with numbers there; 0: no event has any."""
        for event in reversed(self._newest):
            found = sum_of(pointer.find_all(read_object(event.data)))
            if found:
                return found
        return 0

    def usage(
        self, counter: Callable[[str], int], expected: Usage = NOTHING_EXPECTED, *, has_run: bool = False
    ) -> Usage | None:
        """The usage of the answer so far; None: nothing shows that work was done.

        `expected`: of the attempt. `has_run`: whether work may have been done although nothing shows that. A long
        answer is counted in part, and the rest estimated in proportion.
        """
        counted_tokens = self._count_output(counter) if self._must_count() else 0
        if self.broken and self.phase is not Phase.COMPLETE:
            counted_tokens = max(counted_tokens, expected.output_tokens)
        if not (self._report or counted_tokens or has_run):
            return None
        return self._dialect.usage.usage(self._report, counted_tokens, expected)

    def _must_count(self) -> bool:
        """Whether no output is reported, or words came after the last report. Reads the newest events."""
        usage, unseen_bytes = self._dialect.usage, self._content_bytes - self._reported_at
        for event in reversed(self._newest):
            if unseen_bytes <= 0:
                break
            unseen_bytes -= len(event.data)
            if self._note_report(event):
                return not usage.output_of(self._report)
            if any(part.text for part in answer_of_events(self._dialect, (event,)).parts):
                if not self._report:  # some gateways send a whole answer as an event
                    self._report |= usage.in_answer(self._dialect.inner(read_object(event.data) or {}))
                    return not usage.output_of(self._report)
                return True
        return unseen_bytes > 0 or not usage.output_of(self._report)

    def _note_report(self, event: SseEvent) -> bool:
        """Take the report of an event; True: an output is reported."""
        report = self._dialect.usage.in_event(event)
        self._report |= report
        if has_output := "output" in report or "total" in report:
            self._reported_at = self._content_bytes
        return has_output

    def _read(self, event: SseEvent) -> None:
        if (event.event if self.content_seen else event_name(event)) == CODEX_WINDOWS:
            self.windows = event
        kind = self._dialect.classify_after_content(event) if self.content_seen else self._dialect.classify(event)
        match kind:
            case EventClass.CONTENT:
                self.content_seen = True
                if self.phase is Phase.BEFORE_CONTENT:
                    self.phase = Phase.CONTENT
                self._keep_event(event)
                if self._dialect.stops(event):
                    self.has_stopped = True
                elif self.has_stopped:  # pings, usage, and the end of another format may follow
                    is_done = event.data.strip() == _DONE
                    self.has_stopped = is_done or self._dialect.classify(event) is EventClass.BOOKKEEPING
            case EventClass.ERROR:
                self.error = self._dialect.error_of(event) or ErrorFacts()
                self._end(Phase.FAILED)
            case EventClass.TERMINAL:
                self._terminal = event
                self._end(Phase.COMPLETE)
            case EventClass.BOOKKEEPING if self._dialect.opens(event):
                self._keep_event(event)
            case EventClass.BOOKKEEPING:
                pass
        self._note_report(event)

    def _keep_event(self, event: SseEvent) -> None:
        self._last = event
        size = len(event.data)
        if not size:  # without data the event says nothing, and the length bounds nothing
            return
        self._content_bytes += size
        self._newest.append(event)
        self._newest_bytes += size
        while self._newest_bytes > _MAX_READ_BYTES:
            old = self._newest.popleft()
            self._newest_bytes -= len(old.data)
            if self._oldest_bytes < _MAX_OLDEST_BYTES:
                self._oldest.append(old)
                self._oldest_bytes += len(old.data) + _EVENT_OVERHEAD_BYTES

    def _end(self, phase: Phase) -> None:
        self._ended, self.has_stopped = True, False
        self.phase = phase

    def _lose(self, why: str) -> None:
        self.broken = why
        self._decoder = None
        self._is_lost = True
        self._pass_on()

    def _pass_on(self) -> None:
        """Treat an unreadable body as content."""
        if self.phase is Phase.BEFORE_CONTENT:
            self.phase = Phase.CONTENT

    def _count_output(self, counter: Callable[[str], int]) -> int:
        answer = Assembly()
        read_bytes = 0
        for event in (*self._oldest, *self._newest):
            top = read_value(event.data)
            if isinstance(top, dict):
                self._dialect.wording.read_event(event.event or word_of(top.get("type")), top, answer)
            read_bytes += len(event.data)
            if sum(len(part.text) for part in answer.out.parts) >= MOST_COUNTED_CHARS:
                break
        if not (tokens := count_words(answer.said(), counter)):
            return 0
        return round(tokens * (self._content_bytes / read_bytes))
