"""Where something stands in a JSON value: RFC 6901's pointers, and `*` for every item or member."""

from collections.abc import Iterator, Mapping

import msgspec

from hivemind_addon.system.json_values import read_value


def steps(pointer: str) -> tuple[str, ...]:
    """The members that a pointer leads through; none: it is the value itself."""
    return tuple(one.replace("~1", "/").replace("~0", "~") for one in pointer.split("/")[1:])


class Pointer:
    """One way into a value. Members that are still JSON are read when it leads through them; it never raises."""

    __slots__ = ("_steps", "first")

    def __init__(self, way: tuple[str, ...]) -> None:
        self._steps = way
        self.first = way[0] if way else ""
        """The top member that it leads through; empty: any, or none."""

    @classmethod
    def parse(cls, text: str) -> "Pointer":
        """From its text, which profiles and formats have checked."""
        return cls(steps(text))

    def __repr__(self) -> str:
        return f"<Pointer {'/'.join(('', *self._steps))}>"

    def find(self, top: object) -> object:
        """The first value there, read; None: there is none, or it is null."""
        return next(self.find_all(top), None)

    def find_all(self, top: object) -> Iterator[object]:
        """All values there, read, in their order; null is none."""
        return _walk(top, self._steps, 0)


def _walk(value: object, way: tuple[str, ...], at: int) -> Iterator[object]:
    if isinstance(value, msgspec.Raw):
        value = read_value(value)
    if at == len(way):
        if value is not None:
            yield _whole(value)
        return
    name = way[at]
    if isinstance(value, Mapping):
        if name == "*":
            for one in value.values():
                yield from _walk(one, way, at + 1)
        elif name in value:
            yield from _walk(value[name], way, at + 1)
    elif isinstance(value, list):
        if name == "*":
            for one in value:
                yield from _walk(one, way, at + 1)
        elif name.isascii() and name.isdigit() and len(name) < 6 and int(name) < len(value):
            yield from _walk(value[int(name)], way, at + 1)


def _whole(value: object) -> object:
    """With its own members read, which may be JSON still."""
    if isinstance(value, dict) and any(isinstance(one, msgspec.Raw) for one in value.values()):
        return {key: read_value(one) if isinstance(one, msgspec.Raw) else one for key, one in value.items()}
    return value
