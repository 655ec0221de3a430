"""JSON Schema (draft 2020-12) of a kind of YAML file, from the classes that `typed.py` reads it into: for editors.

It refuses what `typed.py` refuses for its type: unknown keys, missing ones, wrong kinds of values, unknown words. What
only a rule knows (a regular expression, a path glob) it lets pass.
"""

import inspect
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum, IntEnum
from typing import Any, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from hivemind_addon.formats.base.typed import (
    ABSURD,
    INHERITED,
    DocumentRules,
    Signed,
    hints_of,
    positive,
    required_fields,
)
from lab.generators.docstrings import field_docstrings

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_EXTENDS = "extends"

type Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A kind of YAML file."""

    title: str
    cls: type
    rules: DocumentRules = field(default_factory=DocumentRules)
    is_list: bool = False
    """It is a list of them."""
    extends: str = ""
    """What its key `extends` means; empty: it has none. Where it stands, `inherited` may stand in lists of settings."""
    named: Mapping[type, tuple[str, ...]] = field(default_factory=dict)
    """Class → names that may stand for a value of it, or that such a mapping may extend."""
    also: Mapping[tuple[type, str], type] = field(default_factory=dict)
    """Field → what may stand there besides, and is rewritten before it is typed."""


def json_schema(kind: DocumentKind) -> Schema:
    """The schema, ready to be written as JSON."""
    return _Writer(kind).whole()


class _Writer:
    """Writes a schema."""

    def __init__(self, kind: DocumentKind) -> None:
        self._kind = kind
        self._defs: dict[str, Schema] = {}

    def whole(self) -> Schema:
        kind = self._kind
        head: Schema = {"$schema": _DRAFT, "title": kind.title}
        if kind.is_list:
            head |= {"type": "array", "items": self._of(kind.cls), "minItems": 1}
        else:
            head |= self._settings(kind.cls)
        if kind.extends:
            known = kind.named.get(kind.cls)
            words: Schema = {"enum": list(known)} if known else {"type": "string"}
            head["properties"][_EXTENDS] = words | {"description": kind.extends}
            lists = [name for name, one in head["properties"].items() if _may_inherit(one)]
            refused = {name: {"items": {"not": {"const": INHERITED}}} for name in lists}
            head |= {"if": {"required": [_EXTENDS]}, "else": {"properties": refused}}
        return head | ({"$defs": dict(sorted(self._defs.items()))} if self._defs else {})

    def _settings(self, cls: type) -> Schema:
        """A mapping with the fields of a class as keys."""
        hints, said, required = hints_of(cls), _documentation(cls), required_fields(cls)
        unwritten = self._kind.rules.unwritten.get(cls, ())
        properties: dict[str, Schema] = {}
        for name in required:
            if name in unwritten:
                continue
            one = self._of(hints[name], self._kind.rules.values.get((cls, name)))
            if (cls, name) in self._kind.also:
                one = {"anyOf": [self._of(self._kind.also[cls, name]), one]}
            if name in said:
                one = one | {"description": said[name]}
            properties[name] = one | _default(cls, name)
        if cls in self._kind.named and cls is not self._kind.cls:
            names = list(self._kind.named[cls])
            properties[_EXTENDS] = {"enum": names, "description": "The one whose keys it changes."}
        must = [name for name, is_required in required.items() if is_required and name not in unwritten]
        return {
            "description": _plain(inspect.getdoc(cls) or ""),
            "type": "object",
            "properties": properties,
            **({"required": must} if must else {}),
            "additionalProperties": False,
        }

    def _of(self, hint: Any, rule: object = None) -> Schema:
        """The schema of a value; `rule`: of the value, or of each value in a list or mapping."""
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            (inner,) = (one for one in get_args(hint) if one is not type(None))
            return {"anyOf": [self._of(inner, rule), {"type": "null"}]}
        if origin is tuple:
            item, *more = get_args(hint)
            if more == [...]:
                return {"type": "array", "items": self._item(item, rule)}
            ends = self._of(item, rule)
            return {"type": "array", "prefixItems": [ends, ends], "minItems": 2, "maxItems": 2}
        if origin is Mapping:
            return {"type": "object", "additionalProperties": self._of(get_args(hint)[1], rule)}
        if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, Struct)):
            settings = self._defined(hint, self._settings)
            if hint in self._kind.rules.texts:
                return {"anyOf": [{"type": "string"}, settings]}
            names = self._kind.named.get(hint)
            return {"anyOf": [{"enum": list(names)}, settings]} if names else settings
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self._defined(hint, _words)
        return _scalar(hint, is_positive=rule is positive)

    def _item(self, hint: Any, rule: object) -> Schema:
        one = self._of(hint, rule)
        inherits = self._kind.extends or self._kind.named
        return {"anyOf": [one, {"const": INHERITED}]} if inherits and "$ref" in one else one

    def _defined(self, cls: type, write: Any) -> Schema:
        name = cls.__name__
        if name not in self._defs:
            self._defs[name] = {}  # a class that holds itself refers to itself
            self._defs[name] = write(cls)
        return {"$ref": f"#/$defs/{name}"}


def _may_inherit(one: Schema) -> bool:
    return {"const": INHERITED} in one.get("items", {}).get("anyOf", ())


def _scalar(hint: Any, *, is_positive: bool) -> Schema:
    if hint is Any:
        return {}
    if hint is bool:
        return {"type": "boolean"}
    if hint is str:
        return {"type": "string"}
    least = {"exclusiveMinimum": 0} if is_positive else {} if hint is Signed else {"minimum": 0}
    return {"type": "integer" if hint is int else "number", **least, "exclusiveMaximum": ABSURD}


def _words(cls: type[Enum]) -> Schema:
    said = field_docstrings(cls)
    is_ordered = issubclass(cls, IntEnum)
    words = {one.name.lower() if is_ordered else str(one.value): said.get(one.name, "") for one in cls}
    lines = [f"- `{word}`: {_plain(text)}" for word, text in words.items() if text]
    about = _plain(inspect.getdoc(cls) or "")
    return {"description": "\n".join([about, "", *lines] if lines else [about]), "enum": list(words)}


def _documentation(cls: type) -> Mapping[str, str]:
    """The docstring of each field, inherited ones too."""
    said: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if is_dataclass(one) or (issubclass(one, Struct) and one is not Struct):
            said |= {name: _plain(text) for name, text in field_docstrings(one).items()}
    return said


def _default(cls: type, name: str) -> Schema:
    """What holds where nothing is written, as far as it is a plain value."""
    if issubclass(cls, Struct):
        value = next(one.default for one in msgspec.structs.fields(cls) if one.name == name)
    else:
        value = next(one.default for one in fields(cls) if one.name == name)  # type: ignore[arg-type]  # a dataclass
    if isinstance(value, tuple):
        value = [*value]
    told = value.name.lower() if isinstance(value, IntEnum) else value.value if isinstance(value, Enum) else value
    is_plain = all(
        isinstance(one, bool | int | str) or (isinstance(one, float) and math.isfinite(one))
        for one in (told if isinstance(told, list) else [told])
    )
    return {"default": told} if is_plain and told not in ("", []) and told is not MISSING else {}


def _plain(text: str) -> str:
    return " ".join(text.split())
