"""The packaged wire formats, and what a profile makes of them."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hivemind_addon.formats.base.document import read_document
from hivemind_addon.formats.base.resources import formats_folder
from hivemind_addon.formats.base.typed import INHERITED, DocumentError, convert
from hivemind_addon.formats.profile.format import WireFormat
from hivemind_addon.formats.profile.rules import FORMAT_RULES

USUAL = "openai-chat"
"""What most servers speak."""
_EXTENDS = "extends"
_CURE = "write keys of a wire format, such as framing: {text/event-stream: sse}"
_REPLACED = frozenset({"framing", "body", "event"})
"""Mappings that are one value: what is written replaces them."""


@cache
def packaged_formats() -> Mapping[str, WireFormat]:
    """The wire formats that come with the package, by name. DocumentError: one cannot be read."""
    return {name: _packaged(name) for name in _names()}


def format_named(name: str) -> WireFormat:
    """The packaged wire format of a recorded name; OpenAI's chat where none has it."""
    return _packaged(name if name in _names() else USUAL)


def whole_format(written: Any, file: Path, key_path: str) -> Any:
    """A format as a profile writes it, a name or changes to a named one → the format, or all of its keys untyped.

    `file`, `key_path`: where it stands. DocumentError: it names no packaged format.
    """
    if isinstance(written, str):
        written = {_EXTENDS: written}
    if not isinstance(written, Mapping):
        return written  # what is wrong with it, the typing says
    own = dict(written)
    wanted = own.pop(_EXTENDS, None)
    if wanted is None:
        return own
    if not isinstance(wanted, str) or wanted not in _names():
        known = ", ".join(_names())
        raise DocumentError(file, key_path, f"there is no format {wanted!r}", f"write one of {known}")
    return change(_document(wanted), own) if own else _packaged(wanted)


def change(base: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Own keys replace the base's; mappings key by key, own ones first. `inherited` in a list stands for the base's."""
    merged = {key: value if key in _REPLACED else _change_value(base.get(key), value) for key, value in own.items()}
    return merged | {key: value for key, value in base.items() if key not in own}


def _change_value(base: Any, own: Any) -> Any:
    if isinstance(own, Mapping) and isinstance(base, Mapping):
        return change(base, own)
    if isinstance(own, list) and INHERITED in own:
        place = own.index(INHERITED)
        return [*own[:place], *(base or ()), *(one for one in own[place:] if one != INHERITED)]
    return own


@cache
def _names() -> Mapping[str, Path]:
    """The packaged ones, in alphabetical order; the file of each."""
    return {file.stem: file for file in sorted(formats_folder().glob("*.yaml"))}


@cache
def _packaged(name: str) -> WireFormat:
    """Each is read when it is first asked for: a start needs none of them."""
    made: WireFormat = convert(WireFormat, _document(name), _names()[name], rules=FORMAT_RULES)
    return made


@cache
def _document(name: str) -> Mapping[str, Any]:
    """All keys of one, those of the format that it changes, too."""
    own = dict(read_document(_names()[name], cure_when_empty=_CURE, packaged=True))
    wanted = own.pop(_EXTENDS, None)
    return {**(own if wanted is None else change(_document(wanted), own)), "name": name}
