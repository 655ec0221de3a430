"""The words of answers in formats whose data says where they stand."""

from collections.abc import Iterator, Mapping

from hivemind_addon.proxy.profile.format import SaysPlace, WireFormat
from hivemind_addon.proxy.wire.parts import Assembly, Part, Values, members_of, pretty, text_of, word_of
from hivemind_addon.system.pointer import Pointer

_CALL = "tool call"


class PlacesWording:
    """What stands at a format's places; a piece of a tool call without a name goes on with the last one."""

    def __init__(self, form: WireFormat) -> None:
        self._says = tuple(map(_Piece, form.says))
        self._said = tuple(map(_Piece, form.said))
        self._stop = tuple((_first_member(stop), stop) for stop in map(Pointer.parse, form.stop))

    def read_answer(self, top: Values, answer: Assembly) -> None:
        """Put together an answer that is one JSON object."""
        self.read_event("", top, answer)

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:  # noqa: ARG002 - the places tell
        """Put the next event of a streamed answer to what came before."""
        out = answer.out
        if not out.model:
            out.model = word_of(top.get("model")) or word_of(top.get("modelVersion"))
        found: dict[str, list[object]] = {}  # several pieces may stand at one place
        for piece in self._says:
            if piece.first is not None and piece.first not in top:
                continue  # most of them, in an event of a stream
            values = found.get(piece.at.text)
            if values is None:
                values = found[piece.at.text] = piece.at.find_all(top)
            for heading, text in piece.said_in(values):
                last = out.parts[-1] if out.parts else None
                if last is not None and _goes_on(last.heading, heading):
                    last.text += text
                else:
                    out.parts.append(Part(heading, text))
        for first, stop in self._stop:
            if (first is None or first in top) and (word := word_of(stop.find(top))):
                out.stop = word
                break

    def message_parts(self, message: Values) -> Iterator[Part]:
        """The pieces of one message of a request."""
        role = word_of(message.get("role")) or "message"
        for piece in self._said:
            for heading, text in piece.said_in(piece.at.find_all(message)):
                yield Part(role if heading == "text" else heading, text)


def _goes_on(last: str, heading: str) -> bool:
    """Whether a piece belongs to the one before it."""
    return last.startswith(_CALL) if heading == _CALL else last == heading and not heading.startswith(_CALL)


class _Piece:
    def __init__(self, place: SaysPlace) -> None:
        self.at = Pointer.parse(place.at)
        self.first = _first_member(self.at)
        self._text, self._name = Pointer.parse(place.text), Pointer.parse(place.name) if place.name else None
        self._only = Pointer.parse(place.only) if place.only else None
        self._unless = Pointer.parse(place.unless) if place.unless else None
        self._heading = place.heading

    def said_in(self, values: list[object]) -> list[tuple[str, str]]:
        """The headings and texts of what stands there."""
        said = []
        for value in values:
            inner, heading = value, self._heading
            if type(value) is dict or isinstance(value, Mapping):
                if self._only is not None and not self._only.find(value):
                    continue
                if self._unless is not None and self._unless.find(value):
                    continue
                inner = self._text.find(value)
                if self._name is not None and (name := word_of(self._name.find(value))):
                    heading = f"{heading} {name}"
            if type(inner) is str:
                text = inner
            elif heading.startswith("tool"):
                text = text_of(inner) if isinstance(inner, list) else pretty(inner)
            else:
                text = ""
            if text or heading != self._heading:
                said.append((heading, text))
        return said


def _first_member(pointer: Pointer) -> str | None:
    """The member that an object has where anything stands there; None: it may have any."""
    return pointer.steps[0] if pointer.steps and pointer.steps[0] != "*" else None


def system_text(value: object) -> str:
    """The text of instructions: of a text, of a list of blocks, of an object with `parts`."""
    members = members_of(value)
    return text_of(members["parts"]) if "parts" in members else text_of(value)
