"""The words of answers in formats whose data says where they stand."""

from collections.abc import Callable, Iterator, Mapping
from operator import methodcaller

from hivemind_addon.formats.base.pointer import Pointer, Pointers
from hivemind_addon.formats.profile.format import SaysPlace, WireFormat
from hivemind_addon.formats.wire.conversation_parts import Assembly, Part, Values, members_of, pretty, text_of, word_of

_CALL = "tool call"


class PlacesWording:
    """What stands at a format's places; a piece of a tool call without a name goes on with the last one."""

    def __init__(self, form: WireFormat) -> None:
        self._said = tuple(map(_Piece, form.said))
        says = tuple(map(_Piece, form.says))
        self._pointers = Pointers([*(piece.at for piece in says), *map(Pointer.parse, form.stop)])
        places = self._pointers.places
        self._says = tuple(zip(places, says, strict=False))
        self._says_at = {place: tuple(one for one in self._says if one[0] == place) for place in places}
        self._stop = tuple(places[len(says) :])

    def read_answer(self, top: Values, answer: Assembly) -> None:
        """Put together an answer that is one JSON object."""
        self.read_event("", top, answer)

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:  # noqa: ARG002 - the places tell
        """Put the next event of a streamed answer to what came before."""
        out = answer.out
        if not out.model:
            out.model = word_of(top.get("model")) or word_of(top.get("modelVersion"))
        found = self._pointers.find_all(top)
        # In an event of a stream nearly always one place has anything.
        for place, piece in self._says_at[next(iter(found))] if len(found) == 1 else self._says:
            if place in found:
                for heading, text in piece.said_in(found[place]):
                    last = out.parts[-1] if out.parts else None
                    if last is not None and _goes_on(last.heading, heading):
                        last.text += text
                    else:
                        out.parts.append(Part(heading, text))
        for place in self._stop:
            if place in found and (word := word_of(found[place][0])):
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
        self._text = _finder(place.text)
        self._name, self._only, self._unless = (
            _finder(text) if text else None for text in (place.name, place.only, place.unless)
        )
        self._heading = place.heading

    def said_in(self, values: list[object]) -> list[tuple[str, str]]:
        """The headings and texts of what stands there."""
        said = []
        for value in values:
            inner, heading = value, self._heading
            if type(value) is dict or isinstance(value, Mapping):
                if self._only is not None and not self._only(value):
                    continue
                if self._unless is not None and self._unless(value):
                    continue
                inner = self._text(value)
                if self._name is not None and (name := word_of(self._name(value))):
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


def _finder(text: str) -> Callable[[Values], object]:
    """What finds what a pointer means within decoded members."""
    pointer = Pointer.parse(text)
    return methodcaller("get", *pointer.steps) if len(pointer.steps) == 1 and "*" not in pointer.steps else pointer.find


def system_text(value: object) -> str:
    """The text of instructions: of a text, of a list of blocks, of an object with `parts`."""
    members = members_of(value)
    return text_of(members["parts"]) if "parts" in members else text_of(value)
