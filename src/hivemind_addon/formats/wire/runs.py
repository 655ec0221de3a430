"""Runs: pieces of a streamed answer that are nothing but whole events of content, told by a look at their bytes.

After the first content nearly every piece is one. What is in it matters to nobody before the answer's end, so that it
is neither cut into events nor decoded as it passes. In doubt a piece is none, and is read.
"""

import re
from collections.abc import Callable, Collection

from hivemind_addon.formats.profile.format import EventRules, Framing
from hivemind_addon.formats.wire.aws_eventstream import name_of_message

LEAST_BYTES = 16
"""Of an event without a name that surely is content: what is shorter may be `[DONE]`."""

# An event as nearly all come: in two lines, or in one where it has no name. Its data is an object, and so no `[DONE]`.
_NAMED = re.compile(rb"(?:event: ?[^\r\n]*+\r?\ndata: ?\{[^\r\n]*+\r?\n\r?\n)++")
_NAMES = re.compile(rb"^event: ?([^\r\n]*+)", re.MULTILINE)
_NAMELESS = re.compile(rb"(?:data: ?\{[^\r\n]{%d,}+\r?\n\r?\n)++" % LEAST_BYTES)
_LINE = re.compile(rb"\{[^\r\n]{%d,}+\r?\n" % LEAST_BYTES)

type IsRun = Callable[[bytes], bool]


class ContentMarks:
    """What tells by its bytes that an event without a name surely is content."""

    def __init__(self, rules: EventRules) -> None:
        self._with = tuple(one.encode() for one in rules.surely_content_with)
        stops = [f'"{one.rpartition("/")[2]}"' for one in rules.complete_if] if rules.surely_content_without else ()
        without = dict.fromkeys((*rules.surely_content_without, *stops))
        self._without = tuple((mark := one.encode(), mark + b":null") for one in without)

    @property
    def tell(self) -> bool:
        """Whether any event is told so."""
        return bool(self._without)

    @property
    def tell_several(self) -> bool:
        """Whether they tell it of several events in one look."""
        return bool(self._without) and not self._with

    def fit(self, data: bytes) -> bool:
        """Whether the event surely is content: of one that is long enough not to be `[DONE]`."""
        # Loops, for generators would cost as much as all of it.
        for mark, null in self._without:
            if mark in data and data.count(mark) != data.count(null):
                return False
        for mark in self._with:  # noqa: SIM110
            if mark not in data:
                return False
        return True


def run_test(framing: Framing, rules: EventRules, marks: ContentMarks, names: Collection[bytes]) -> IsRun | None:
    """What tells the runs of a format's streams; None: they have none that could be told.

    `names`: of events that surely are content, as far as some were seen; it grows.
    """
    if rules.done.startswith("{"):
        return None
    match framing:
        case Framing.SSE:
            return _run_of_events(marks, names)
        case Framing.NDJSON if marks.tell:
            return lambda piece: _LINE.fullmatch(piece) is not None and marks.fit(piece)
        case Framing.AWS_EVENTSTREAM:
            return lambda piece: name_of_message(piece) in names
    return None


def _run_of_events(marks: ContentMarks, names: Collection[bytes]) -> IsRun:
    def is_run(piece: bytes) -> bool:
        if piece.startswith(b"event:"):
            if _NAMED.fullmatch(piece) is None:
                return False
            for name in _NAMES.findall(piece):  # noqa: SIM110 - as above
                if name not in names:
                    return False
            return True
        if not marks.tell or _NAMELESS.fullmatch(piece) is None or not marks.fit(piece):
            return False
        return marks.tell_several or piece.count(b"data:") == 1

    return is_run
