"""The words of answers in formats whose data says where they stand."""

from collections.abc import Iterator, Mapping

from hivemind_addon.proxy.profile.format import SaysPlace, WireFormat
from hivemind_addon.proxy.wire.parts import Assembly, Part, Values, members_of, pretty, text_of, word_of
from hivemind_addon.system.pointer import Pointer


class PlacesWording:
    """What stands at a format's places; a piece of a tool call without a name goes on with the last one."""

    def __init__(self, form: WireFormat) -> None:
        self._says = tuple(map(_Piece, form.says))
        self._said = tuple(map(_Piece, form.said))
        self._stop = tuple(map(Pointer.parse, form.stop))
        self._model = tuple(map(Pointer.parse, ("/model", "/modelVersion")))

    def read_answer(self, top: Values, answer: Assembly) -> None:
        """Put together an answer that is one JSON object."""
        self.read_event("", top, answer)

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:  # noqa: ARG002 - the places tell
        """Put the next event of a streamed answer to what came before."""
        answer.out.model = answer.out.model or _first_word(self._model, top)
        for piece in self._says:
            for heading, text in piece.found_in(top):
                if heading == "tool call" and answer.out.parts and answer.out.parts[-1].heading.startswith(heading):
                    answer.out.parts[-1].text += text
                elif heading.startswith("tool call"):
                    answer.out.parts.append(Part(heading, text))
                else:
                    last = answer.out.parts[-1] if answer.out.parts else None
                    if last is None or last.heading != heading:
                        last = Part(heading)
                        answer.out.parts.append(last)
                    last.text += text
        answer.out.stop = _first_word(self._stop, top) or answer.out.stop

    def message_parts(self, message: Values) -> Iterator[Part]:
        """The pieces of one message of a request."""
        role = word_of(message.get("role")) or "message"
        for piece in self._said:
            for heading, text in piece.found_in(message):
                yield Part(role if heading == "text" else heading, text)


class _Piece:
    def __init__(self, place: SaysPlace) -> None:
        self._at = Pointer.parse(place.at)
        self._text, self._name = Pointer.parse(place.text), Pointer.parse(place.name) if place.name else None
        self._only = Pointer.parse(place.only) if place.only else None
        self._unless = Pointer.parse(place.unless) if place.unless else None
        self._heading = place.heading

    def found_in(self, top: Values) -> Iterator[tuple[str, str]]:
        for value in self._at.find_all(top):
            inner: object = value
            heading = self._heading
            if type(value) is dict or isinstance(value, Mapping):
                if self._only is not None and not self._only.find(value):
                    continue
                if self._unless is not None and self._unless.find(value):
                    continue
                inner = self._text.find(value)
                if self._name is not None and (name := word_of(self._name.find(value))):
                    heading = f"{heading} {name}"
            if isinstance(inner, str):
                text = inner
            elif heading.startswith("tool"):
                text = text_of(inner) if isinstance(inner, list) else pretty(inner)
            else:
                text = ""
            if text or heading != self._heading:
                yield heading, text


def _first_word(pointers: tuple[Pointer, ...], top: Values) -> str:
    return next((word for one in pointers if (word := word_of(one.find(top)))), "")


def system_text(value: object) -> str:
    """The text of instructions: of a text, of a list of blocks, of an object with `parts`."""
    members = members_of(value)
    return text_of(members["parts"]) if "parts" in members else text_of(value)
