"""A request's body as others send it: its outer layer, whose values stay raw until one of them is asked for."""

import msgspec
from msgspec import Raw

NO_RAW = Raw()
_NULL = b"null"
_QUOTE = b'"'
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Body(msgspec.Struct):
    """The outer layer. Every value is raw, so that one of a wrong type spoils no other."""

    model: Raw = NO_RAW
    stream: Raw = NO_RAW
    max_tokens: Raw = NO_RAW
    max_completion_tokens: Raw = NO_RAW
    max_output_tokens: Raw = NO_RAW
    messages: Raw = NO_RAW
    input: Raw = NO_RAW
    system: Raw = NO_RAW
    instructions: Raw = NO_RAW
    tools: Raw = NO_RAW
    functions: Raw = NO_RAW
    metadata: Raw = NO_RAW
    prompt_cache_key: Raw = NO_RAW
    user: Raw = NO_RAW
    previous_response_id: Raw = NO_RAW
    prompt: Raw = NO_RAW
    options: Raw = NO_RAW
    images: Raw = NO_RAW
    client_metadata: Raw = NO_RAW
    request: Raw = NO_RAW
    user_prompt_id: Raw = NO_RAW


class _UsualBody(Body):
    """The outer layer of nearly every body: reading the messages with it saves a second pass over all of them."""

    messages: list[Raw] = []  # type: ignore[assignment]  # instead of Raw


# Decoders hold no state between calls; building one costs more than most calls.
_BODY = msgspec.json.Decoder(Body)
_USUAL_BODY = msgspec.json.Decoder(_UsualBody)
_RAWS = msgspec.json.Decoder(list[Raw])
_STR = msgspec.json.Decoder(str)
_INT = msgspec.json.Decoder(int)
_BOOL = msgspec.json.Decoder(bool)


class RequestBody:
    """Reads one body that is a JSON object, value by value; what cannot be read is None, and an oddity."""

    def __init__(self, data: bytes) -> None:
        """One of UNREADABLE, where the whole is no JSON object."""
        self.outer: Body
        try:
            self.outer = _USUAL_BODY.decode(data)
        except msgspec.ValidationError:
            self.outer = _BODY.decode(data)
        self.oddities: list[str] = []

    def __repr__(self) -> str:
        return f"<RequestBody {len(self.oddities)} oddities>"

    def read[T](self, name: str, decoder: msgspec.json.Decoder[T], raw: Raw) -> T | None:
        """The value; `name` is for the oddity."""
        if not len(raw) or (len(raw) == len(_NULL) and memoryview(raw) == _NULL):
            return None
        try:
            return decoder.decode(raw)
        except UNREADABLE as error:
            self.note(f"{name}: {short(error)}")
            return None

    def text(self, name: str) -> str | None:
        """The text of that name."""
        return self.read(name, _STR, getattr(self.outer, name))

    def number(self, name: str, raw: Raw | None = None) -> int | None:
        """The whole number of that name, or of that value."""
        return self.read(name, _INT, getattr(self.outer, name) if raw is None else raw)

    def flag(self, name: str) -> bool | None:
        """True or false."""
        return self.read(name, _BOOL, getattr(self.outer, name))

    def count(self, name: str) -> int:
        """How many items the list of that name has."""
        items = self.read(name, _RAWS, getattr(self.outer, name))
        return len(items) if items else 0

    def items(self, name: str) -> tuple[Raw, ...]:
        """The items of that name; a plain text is one."""
        raw = getattr(self.outer, name)
        if isinstance(raw, list):
            return tuple(raw)
        if len(raw) and memoryview(raw)[:1] == _QUOTE:
            return (raw,)  # Responses takes a plain text as well
        raws = self.read(name, _RAWS, raw)
        return tuple(raws) if raws else ()

    def note(self, oddity: str) -> None:
        """Something that could not be understood, in words."""
        self.oddities.append(f"request body: {oddity}")


def short_text(raw: Raw, max_chars: int) -> str:
    """The text where it is one, and not much longer than so many characters."""
    if not 2 < len(raw) <= max_chars * 4 or memoryview(raw)[:1] != _QUOTE:
        return ""
    try:
        return _STR.decode(raw)
    except UNREADABLE:
        return ""


def short(error: Exception) -> str:
    """What an exception says, in a line."""
    return " ".join(str(error).split())[:80]
