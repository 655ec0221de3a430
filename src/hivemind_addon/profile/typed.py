"""A YAML document's plain values → the dataclasses of `model.py` (or of scenarios), by their type hints.

Everything wrong is a `ProfileError` that names file, key path and cure: a profile is checked as a whole when
it is read, so that no later code has to doubt its values.
"""

import difflib
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum, IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from hivemind_addon.core.aimd import ConcurrencySettings
from hivemind_addon.core.breaker import BreakerSettings
from hivemind_addon.core.cache import CacheSettings
from hivemind_addon.core.retry import RetryPolicy
from hivemind_addon.profile.grants import AgentGrants, Grants
from hivemind_addon.profile.model import (
    BudgetRefusal,
    CallRule,
    Charge,
    MeterHeaders,
    ModelPrice,
    OutcomeRule,
    Patience,
    Peek,
    Profile,
    Refusal,
    Tokens,
    WallRefusal,
    Watchdog,
    WindowHeaders,
)

_ABSURD = 1e15
"""No number of a profile is meant to be so large."""

INHERITED = "inherited"
"""The list item that stands for the items of the profile that is extended."""


class ProfileError(Exception):
    """A profile that cannot be used. Its text is one line that names file, key path and cure."""

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
    """One value that breaks its rule; raised by rules."""

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

    def error(self, problem: str, cure: str) -> ProfileError:
        return ProfileError(self.file, self.path, problem, cure)


@cache
def host_parts(pattern: str) -> tuple[str, int | None]:
    """`host` or `host:port`, in the spelling in which hosts are compared. ValueError when it is neither."""
    host, colon, port = pattern.rpartition(":")
    if not colon or pattern.endswith("]"):
        host, port = pattern, ""
    elif not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        msg = f"no port: {port!r}"
        raise ValueError(msg)
    name = normal_host(host)
    if not re.fullmatch(r"[\w.*-]+|[0-9a-f:.]+", name):
        msg = f"no host name: {host!r}"
        raise ValueError(msg)
    return name, int(port) if port else None


def normal_host(host: str) -> str:
    """The spelling in which hosts are compared: lower case, IDNA, no trailing dot, no brackets."""
    host = host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return host


def _host(value: str) -> str:
    try:
        host_parts(value)
    except ValueError as error:
        raise BadValue(
            str(error), "write host or host:port, without scheme and path; * matches within the name"
        ) from None
    return value


def _path_glob(value: str) -> str:
    if not value.startswith(("/", "*")) or re.search(r"[\s?#]", value):
        raise BadValue(
            f"no path glob: {value!r}",
            "begin it with / or *; only * is a wildcard, and a query never matches",
        )
    return value


def _model_glob(value: str) -> str:
    if not value.strip():
        raise BadValue("empty glob", "name models, such as gpt-5*")
    return value


def _header(value: str) -> str:
    # Headers are looked up by their lower-case names.
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", value):
        raise BadValue(f"no header name: {value!r}", "write the bare name, such as x-api-key")
    return value.lower()


def _header_or_member(value: str) -> str:
    name, hash_sign, member = value.partition("#")
    if hash_sign and not member:
        raise BadValue(f"no member after #: {value!r}", "write header#member, such as x-turn-metadata#parent_id")
    return f"{_header(name)}{hash_sign}{member}"


def _header_or_none(value: str) -> str:
    return _header(value) if value else value


def _regex(value: str) -> str:
    try:
        re.compile(value, re.IGNORECASE)
    except re.error as error:
        raise BadValue(f"no regular expression: {error}", "escape the special character with a backslash") from None
    return value


def positive(value: float) -> float:
    """A rule: the value is above zero. Raises BadValue."""
    if value <= 0:
        raise BadValue(f"{value} is not above zero", "write a positive number")
    return value


def _price(value: float) -> float:
    if value > 10_000:
        raise BadValue(f"{value} is no price", "write dollars per million tokens")
    return value


def _hard_status(value: int) -> int:
    if not 400 <= value <= 499 or value in {408, 409, 425, 429}:
        raise BadValue(f"{value} is retried by clients", "write 400, 402 or 403")
    return value


def _fraction(value: float) -> float:
    if not 0 < value < 1:
        raise BadValue(f"{value} is not between 0 and 1", "write a factor such as 0.7")
    return value


def _status(value: int) -> int:
    if not 200 <= value <= 599:
        raise BadValue(f"{value} is no HTTP status of an answer", "write one from 200 to 599")
    return value


def _error_status(value: int) -> int:
    if not 400 <= value <= 599:
        raise BadValue(f"{value} is no status of a refusal", "write one from 400 to 599")
    return value


RULES: Mapping[tuple[type, str], Callable[[Any], Any]] = {
    (Profile, "hosts"): _host,
    (Profile, "paths"): _path_glob,
    (Profile, "exclude_paths"): _path_glob,
    (Profile, "reverse_paths"): _path_glob,
    (Profile, "model_groups"): _model_glob,
    (Profile, "credential_headers"): _header,
    (Profile, "request_account_headers"): _header,
    (Profile, "response_account_headers"): _header,
    (Profile, "session_headers"): _header_or_member,
    (Profile, "subagent_headers"): _header_or_member,
    (Profile, "parent_headers"): _header_or_member,
    (Profile, "parent_beside"): _header_or_member,
    (CallRule, "headers"): _regex,
    (CallRule, "paths"): _path_glob,
    (CallRule, "models"): _model_glob,
    (CallRule, "max_messages"): positive,
    (ModelPrice, "input"): _price,
    (ModelPrice, "output"): _price,
    (ModelPrice, "cache_write"): _price,
    (ModelPrice, "cache_read"): _price,
    (CacheSettings, "ttl_s"): positive,
    (Grants, "weight"): positive,
    (Grants, "max_fan_out"): positive,
    (AgentGrants, "weight"): positive,
    (AgentGrants, "max_fan_out"): positive,
    (Watchdog, "silent_s"): positive,
    (Watchdog, "factor"): positive,
    (BudgetRefusal, "status"): _hard_status,
    (MeterHeaders, "limit"): _header,
    (MeterHeaders, "remaining"): _header,
    (MeterHeaders, "reset"): _header_or_none,
    (MeterHeaders, "window_s"): positive,
    (WindowHeaders, "used"): _header_or_none,
    (WindowHeaders, "status"): _header_or_none,
    (WindowHeaders, "reset"): _header_or_none,
    (WindowHeaders, "minutes"): _header_or_none,
    (WindowHeaders, "full"): positive,
    (WallRefusal, "status"): _error_status,
    (OutcomeRule, "status"): _status,
    (OutcomeRule, "message"): _regex,
    (OutcomeRule, "headers"): _regex,
    (Charge, "default_output_tokens"): positive,
    (Tokens, "scale"): positive,
    (Tokens, "bytes_per_token"): positive,
    (Patience, "default_s"): positive,
    (Patience, "headers"): _header,
    (Refusal, "status"): _error_status,
    (Peek, "max_bytes"): positive,
    (Peek, "max_s"): positive,
    (Peek, "whole_max_bytes"): positive,
    (Peek, "stall_s"): positive,
    (ConcurrencySettings, "initial"): positive,
    (ConcurrencySettings, "maximum"): positive,
    (ConcurrencySettings, "decrease"): _fraction,
    (BreakerSettings, "failures_to_open"): positive,
    (BreakerSettings, "first_probe_s"): positive,
    (BreakerSettings, "max_probe_s"): positive,
    (RetryPolicy, "first_backoff_s"): positive,
    (RetryPolicy, "max_backoff_s"): positive,
}
"""What a field's value, or each one of its list or mapping, must be besides its type; some are rewritten."""

KEY_RULES: Mapping[tuple[type, str], Callable[[str], str]] = {
    (Profile, "dialects"): _path_glob,
    (Profile, "prices"): _model_glob,
    (Profile, "parent_beside"): _header_or_member,
    (OutcomeRule, "headers"): _header,
    (CallRule, "headers"): _header_or_member,
    (WallRefusal, "headers"): _header,
}
"""The same for the keys of a mapping."""

ORDERED: Mapping[type, tuple[tuple[str, str], ...]] = {
    ConcurrencySettings: (("initial", "maximum"),),
    BreakerSettings: (("first_probe_s", "max_probe_s"),),
    RetryPolicy: (("first_backoff_s", "max_backoff_s"),),
}
"""Pairs of fields of which the first must not be above the second."""

UNWRITTEN: Mapping[type, frozenset[str]] = {Profile: frozenset({"name"})}
"""Fields that do not come from the document."""


def _keep(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Rules:
    """What documents of another kind add to `RULES`, `KEY_RULES` and `UNWRITTEN`."""

    values: Mapping[tuple[type, str], Callable[[Any], Any]] = field(default_factory=dict)
    keys: Mapping[tuple[type, str], Callable[[str], str]] = field(default_factory=dict)
    unwritten: Mapping[type, frozenset[str]] = field(default_factory=dict)


_PROFILE = Rules()


def convert(
    cls: type, document: Any, file: Path, *, partial: bool = False, rules: Rules = _PROFILE, at: str = ""
) -> Any:
    """The document as an instance of a dataclass or a Struct. ProfileError where it is none.

    `at`: the key path at which it stands in its file.
    `partial`: the document is one of several layers: `inherited` may stand in lists, and what is only true of
    the whole (a maximum above a minimum that another layer gives) is not checked yet.
    """
    return _Reader(partial=partial, rules=rules).dataclass(cls, document, _Place(file, at))


class _Reader:
    """One walk over a document."""

    def __init__(self, *, partial: bool, rules: Rules) -> None:
        self._partial = partial
        self._rules: Mapping[tuple[type, str], Callable[[Any], Any]] = {**RULES, **rules.values}
        self._key_rules: Mapping[tuple[type, str], Callable[[str], str]] = {**KEY_RULES, **rules.keys}
        self._unwritten = {**UNWRITTEN, **rules.unwritten}

    def dataclass(self, cls: type, value: Any, place: _Place) -> Any:
        if not isinstance(value, Mapping):
            raise place.error(f"expected a mapping, got {_said(value)}", "write keys with values below it")
        hints = get_type_hints(cls)
        known = [name for name in _required(cls) if name not in self._unwritten.get(cls, ())]
        given: dict[str, Any] = {}
        for key, item in value.items():
            if key not in known:
                raise place.key(str(key)).error("unknown key", _suggest(str(key), known))
            rule = self._rules.get((cls, key), _keep)
            key_rule = self._key_rules.get((cls, key), _keep)
            given[key] = self._value(hints[key], item, place.key(key), rule, key_rule)
        required = {name for name, is_required in _required(cls).items() if is_required} - given.keys()
        if required:
            missing = min(required)
            raise place.error(f"{missing} is missing", f"add {missing}")
        made = cls(**given)
        if not self._partial:
            for low, high in ORDERED.get(cls, ()):
                if getattr(made, low) > getattr(made, high):
                    problem = f"{getattr(made, low)} is above {high}, {getattr(made, high)}"
                    raise place.key(low).error(problem, f"lower {low} or raise {high}")
        return made

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
            return self.dataclass(hint, value, place)
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
    if not number or not -_ABSURD < value < _ABSURD:  # NaN is neither
        wanted = "a whole number" if hint is int else "a number"
        raise BadValue(f"expected {wanted}, got {_said(value)}", "write it in digits, without a unit")
    if value < 0:
        raise BadValue(f"{value} is negative", "write a number that is not below zero")
    return value


def _required(cls: type) -> dict[str, bool]:
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
