"""A YAML document's plain values → dataclasses, by their type hints: profiles, agents files, scenarios, fleets.

Everything wrong is a `DocumentError` that names file, key path and cure: a document is checked as a whole when it is
read, so that no later code has to doubt its values. What they must be besides their types, `DocumentRules` say.
"""

import difflib
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum, IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

ABSURD = 1e15
"""No number of a profile is meant to be so large."""

INHERITED = "inherited"
"""The list item that stands for the items of the profile that is extended."""


type Signed = float
"""A number that may be below zero."""


class DocumentError(Exception):
    """A document that cannot be used. Its text is one line that names file, key path and cure."""

    def __init__(self, file: Path, key_path: str, problem: str, cure: str) -> None:
        super().__init__(file, key_path, problem, cure)
        self.file = file
        self.key_path = key_path
        self.problem = problem
        self.cure = cure

    def __str__(self) -> str:
        where = f"{self.file}: {self.key_path}" if self.key_path else f"{self.file}"
        text = f"{where}: {self.problem}; {self.cure}"
        return " ".join(text.split())


class BadValue(Exception):
    """A value that breaks its rule; raised by rules, and by dataclasses whose values do not fit together."""

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(problem, cure)
        self.problem = problem
        self.cure = cure


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value stands."""

    file: Path
    path: str = ""

    def key(self, name: str) -> "_Place":
        return _Place(self.file, f"{self.path}.{name}" if self.path else name)

    def item(self, index: int) -> "_Place":
        return _Place(self.file, f"{self.path}[{index}]")

    def error(self, problem: str, cure: str) -> DocumentError:
        return DocumentError(self.file, self.path, problem, cure)


def _keep(value: Any) -> Any:
    return value


type _Field = tuple[type, str]


@dataclass(frozen=True, slots=True)
class DocumentRules:
    """What the values of a kind of document must be besides their types."""

    values: Mapping[_Field, Callable[[Any], Any]] = field(default_factory=dict)
    """For a field's value, or each one of its list or mapping: a rule, which may rewrite it. It raises BadValue."""
    keys: Mapping[_Field, Callable[[str], str]] = field(default_factory=dict)
    """The same for the keys of a mapping."""
    ordered: Mapping[type, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """Pairs of fields of which the first must not be above the second."""
    unwritten: Mapping[type, frozenset[str]] = field(default_factory=dict)
    """Fields that do not come from the document."""
    texts: Mapping[type, Callable[[str], Mapping[str, Any]]] = field(default_factory=dict)
    """For kinds of mappings that may be written as a text: which mapping it stands for. It raises BadValue."""

    def __or__(self, other: "DocumentRules") -> "DocumentRules":
        return DocumentRules(
            values={**self.values, **other.values},
            keys={**self.keys, **other.keys},
            ordered={**self.ordered, **other.ordered},
            unwritten={**self.unwritten, **other.unwritten},
            texts={**self.texts, **other.texts},
        )


_NONE = DocumentRules()


def positive(value: float) -> float:
    """A rule: the value is above zero. Raises BadValue."""
    if value <= 0:
        raise BadValue(f"{value} is not above zero", "write a positive number")
    return value


type Known = dict[tuple[type, str, int, bool], tuple[Any, Any]]
"""Lists and mappings that were typed already: (class, field, identity, partial) → the value itself, what it became."""


def convert(
    cls: type,
    document: Any,
    file: Path,
    *,
    partial: bool = False,
    rules: DocumentRules = _NONE,
    at: str = "",
    known: Known | None = None,
) -> Any:
    """The document as an instance of a dataclass or a Struct. DocumentError where it is none.

    `at`: the key path at which it stands in its file.
    `partial`: the document is one of several layers: `inherited` may stand in lists, and what is only true of
    the whole (a maximum above a minimum that another layer gives) is not checked yet.
    `known`: shared by documents with the same rules that inherit from each other: what they inherit is typed once.
    """
    return _Reader(partial=partial, rules=rules, known=known).dataclass(cls, document, _Place(file, at))


class _Reader:
    """One walk over a document."""

    def __init__(self, *, partial: bool, rules: DocumentRules, known: Known | None) -> None:
        self._partial = partial
        self._rules = rules
        self._known = known

    def dataclass(self, cls: type, value: Any, place: _Place) -> Any:
        try:
            if isinstance(value, str) and cls in self._rules.texts:
                value = self._rules.texts[cls](value)
            return self._made(cls, value, place)
        except BadValue as bad:
            raise place.error(bad.problem, bad.cure) from None

    def _made(self, cls: type, value: Any, place: _Place) -> Any:
        if not isinstance(value, Mapping):
            raise place.error(f"expected a mapping, got {_said(value)}", "write keys with values below it")
        hints = hints_of(cls)
        known = [name for name in required_fields(cls) if name not in self._rules.unwritten.get(cls, ())]
        given: dict[str, Any] = {}
        for key, item in value.items():
            if key not in known:
                raise place.key(str(key)).error("unknown key", _suggest(str(key), known))
            given[key] = self._field(cls, key, hints[key], item, place)
        required = {name for name, is_required in required_fields(cls).items() if is_required} - given.keys()
        if required:
            missing = min(required)
            raise place.error(f"{missing} is missing", f"add {missing}")
        made = cls(**given)
        if not self._partial:
            for low, high in self._rules.ordered.get(cls, ()):
                if getattr(made, low) > getattr(made, high):
                    problem = f"{getattr(made, low)} is above {high}, {getattr(made, high)}"
                    raise place.key(low).error(problem, f"lower {low} or raise {high}")
        return made

    def _field(self, cls: type, name: str, hint: Any, value: Any, place: _Place) -> Any:
        """A field's value, typed; a list or a mapping that is known as it was."""
        rule = self._rules.values.get((cls, name), _keep)
        key_rule = self._rules.keys.get((cls, name), _keep)
        if self._known is None or not isinstance(value, list | dict):
            return self._value(hint, value, place.key(name), rule, key_rule)
        here = (cls, name, id(value), self._partial)
        if here not in self._known:
            self._known[here] = value, self._value(hint, value, place.key(name), rule, key_rule)
        return self._known[here][1]

    def _value(
        self, hint: Any, value: Any, place: _Place, rule: Callable[[Any], Any], key_rule: Callable[[str], str]
    ) -> Any:
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            if value is None:
                return None
            (hint,) = (one for one in get_args(hint) if one is not type(None))
            return self._value(hint, value, place, rule, key_rule)
        if origin is tuple:
            item, *more = get_args(hint)
            listed = self._list(item, value, place, rule)
            return listed if more == [...] else _range(listed, place)
        if origin is Mapping:
            return self._mapping(get_args(hint)[1], value, place, rule, key_rule)
        if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, Struct)):
            return value if isinstance(value, hint) else self.dataclass(hint, value, place)
        return _scalar(hint, value, place, rule)

    def _list(self, hint: Any, value: Any, place: _Place, rule: Callable[[Any], Any]) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise place.error(f"expected a list, got {_said(value)}", "put it in brackets: [ … ]")
        return tuple(
            self._value(hint, item, place.item(index), rule, _keep)
            for index, item in enumerate(value)
            if not (self._partial and item == INHERITED)
        )

    def _mapping(
        self, hint: Any, value: Any, place: _Place, rule: Callable[[Any], Any], key_rule: Callable[[str], str]
    ) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise place.error(f"expected a mapping, got {_said(value)}", "write keys with values below it")
        made: dict[str, Any] = {}
        for key, item in value.items():
            here = place.key(str(key))
            made[_scalar(str, key, here, key_rule)] = self._value(hint, item, here, rule, _keep)
        return made


def _range(ends: tuple[Any, ...], place: _Place) -> tuple[Any, ...]:
    """A tuple of two, and of no more: the ends of a range."""
    if len(ends) != 2 or ends[0] > ends[1]:
        raise place.error(f"{list(ends)} is no range", "write its two ends, the smaller one first: [1, 5]")
    return ends


def _scalar(hint: Any, value: Any, place: _Place, rule: Callable[[Any], Any]) -> Any:
    try:
        return rule(_typed(hint, value))
    except BadValue as bad:
        raise place.error(bad.problem, bad.cure) from None


def _typed(hint: Any, value: Any) -> Any:
    if hint is Any:
        return value
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        names = {one.name.lower(): one for one in hint}
        if not isinstance(value, str) or value not in names:
            raise BadValue(f"{_said(value)} is not known here", f"write one of {', '.join(names)}")
        return names[value]
    if isinstance(hint, type) and issubclass(hint, Enum):
        allowed = [str(one.value) for one in hint]
        if value not in allowed:
            raise BadValue(f"{_said(value)} is not known here", f"write one of {', '.join(allowed)}")
        return hint(value)
    if hint is bool:
        if not isinstance(value, bool):
            raise BadValue(f"expected true or false, got {_said(value)}", "write true or false")
        return value
    if hint is str:
        if not isinstance(value, str):
            raise BadValue(f"expected a text, got {_said(value)}", "put it in quotes")
        return value
    # YAML's `true` is an int of Python's; its `.nan` and `.inf` are floats.
    number = isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    if not number or not -ABSURD < value < ABSURD:  # NaN is neither
        wanted = "a whole number" if hint is int else "a number"
        raise BadValue(f"expected {wanted}, got {_said(value)}", "write it in digits, without a unit")
    if value < 0 and hint is not Signed:
        raise BadValue(f"{value} is negative", "write a number that is not below zero")
    return value


hints_of = cache(get_type_hints)
"""Field → type, of a class."""


@cache
def required_fields(cls: type) -> Mapping[str, bool]:
    """Field → whether it has to be given."""
    if issubclass(cls, Struct):
        return {one.name: one.required for one in msgspec.structs.fields(cls)}
    return {one.name: one.default is MISSING and one.default_factory is MISSING for one in fields(cls)}  # type: ignore[arg-type]  # a dataclass


def _suggest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"


def _said(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case Mapping():
            return "a mapping"
        case list():
            return "a list"
        case _:
            text = repr(value)
            return text if len(text) <= 40 else f"{text[:37]}…"
