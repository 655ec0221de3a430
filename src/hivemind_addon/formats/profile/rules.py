"""What the values of a profile, and of the agents file, must be besides their types; some are rewritten."""

import math
import re
from collections.abc import Mapping
from typing import Any

from hivemind_addon.formats.base.patterns import host_parts
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.base.typed import BadValue, DocumentRules, positive
from hivemind_addon.formats.profile.format import (
    Envelope,
    ErrorForm,
    ErrorPlaces,
    EventRules,
    RequestPlaces,
    ResultPlace,
    SaysPlace,
    TextPlace,
    UsagePlaces,
    WireFormat,
)
from hivemind_addon.formats.profile.grants import AgentGrants, Grants
from hivemind_addon.formats.profile.model import (
    MODEL_IN_PATH,
    BlockedAccountRefusal,
    BudgetRefusal,
    CallRule,
    Charge,
    ClientRule,
    ContextEditing,
    MeterHeaders,
    ModelPrice,
    OutcomeRule,
    PatienceRule,
    Peek,
    Profile,
    Refusal,
    RequestPlace,
    Signature,
    Tokens,
    Watchdog,
    WindowHeaders,
)
from hivemind_addon.formats.profile.upstreams import EqualUpstream, upstream_url
from hivemind_addon.kernel.limits.breaker import BreakerSettings
from hivemind_addon.kernel.limits.machine import MachineSettings
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.limits.stated_limits import StatedLimit
from hivemind_addon.kernel.order.cache import CacheSettings
from hivemind_addon.kernel.retry import RetryPolicy


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
            f"no path glob: {value!r}", "begin it with / or *; only * is a wildcard, and a query never matches"
        )
    return value


def _model_path(value: str) -> str:
    if value.count(MODEL_IN_PATH) != 1:
        raise BadValue(f"no model in {value!r}", f"write {MODEL_IN_PATH} once, where the path has it")
    return _path_glob(value)


def _model_glob(value: str) -> str:
    if not value.strip():
        raise BadValue("empty glob", "name models, such as gpt-5*")
    return value


def _group_name(value: str) -> str:
    if not re.fullmatch(r"\*|[A-Za-z0-9][A-Za-z0-9._-]{0,40}", value):
        raise BadValue(f"no name of a group: {value!r}", "write letters, digits, dots and dashes, such as search")
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


def _request_place(text: str) -> Mapping[str, str]:
    """`header`, `header#member`, `body#member` or `query#name` as a mapping."""
    name, hash_sign, member = _header_or_member(text).partition("#")
    if hash_sign and name in {"body", "query"}:
        return {name: member}
    return {"header": name, "member": member} if member else {"header": name}


def _header_or_none(value: str) -> str:
    return _header(value) if value else value


def _regex(value: str) -> str:
    try:
        re.compile(value, re.IGNORECASE)
    except re.error as error:
        raise BadValue(f"no regular expression: {error}", "escape the special character with a backslash") from None
    return value


def _pointer(value: str) -> str:
    Pointer.parse(value)
    return value


def _inner_pointer(value: str) -> str:
    if not _pointer(value):
        raise BadValue("an empty pointer is the whole value", "write the members that lead to it, such as /error")
    return value


def _member_pointer(value: str) -> str:
    if not _pointer(value) or "*" in value:
        raise BadValue(
            f"{value!r} leads to no member", "write the members that lead to it, such as /options/num_predict"
        )
    return value


def _group(value: str) -> str:
    if value and not re.compile(_regex(value)).groups:
        raise BadValue(f"no group in {value!r}", "put what counts into ( )")
    return value


_TEMPLATE_NAME = re.compile(r"\{(\w+)\}")
_TEMPLATE_NAMES = ("message", "error", "status", "retry_after_s", "retry_after_ms", "resets_at")


def _template(value: Any) -> Any:
    """A value of JSON in whose texts only known names are to be filled in."""
    match value:
        case str():
            unknown = next((name for name in _TEMPLATE_NAME.findall(value) if name not in _TEMPLATE_NAMES), None)
            if unknown is not None:
                names = ", ".join(f"{{{name}}}" for name in _TEMPLATE_NAMES)
                raise BadValue(f"nothing is known by the name {{{unknown}}}", f"write one of {names}")
        case Mapping():
            for name, one in value.items():
                if not isinstance(name, str):
                    raise BadValue(f"{name!r} is no name of a member", "put it in quotes")
                _template(one)
        case list():
            for one in value:
                _template(one)
        case None | bool() | int():
            pass
        case float() if math.isfinite(value):
            pass
        case _:
            raise BadValue(f"{value!r} is nothing that JSON has", "put it in quotes")
    return value


def _one_line(value: str) -> str:
    if not value.isprintable():
        raise BadValue(f"{value!r} is not one line of text", "write it without line breaks")
    return value


def _usual_status(value: str) -> str:
    if value not in {"4xx", "5xx"} and not re.fullmatch("[45][0-9][0-9]", value, re.ASCII):
        raise BadValue(f"{value!r} is no status of an error", 'write one such as "429", or 4xx or 5xx for the rest')
    return value


def _media_type(value: str) -> str:
    if not re.fullmatch(r"[\w.+-]+/[\w.+-]+", value):
        raise BadValue(f"no media type: {value!r}", "write one such as text/event-stream")
    return value.lower()


def _price(value: float) -> float:
    if value > 10_000:
        raise BadValue(f"{value} is no price", "write dollars per million tokens")
    return value


def _upstream_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", value):
        raise BadValue(f"no name of an endpoint: {value!r}", "write letters, digits, dots and dashes, such as east")
    return value


def _path_beginning(value: str) -> str:
    if not value.startswith("/") or re.search(r"[\s?#*]", value):
        raise BadValue(f"no beginning of a path: {value!r}", "begin it with /, without wildcards, such as /v1")
    return value


def _model_name(value: str) -> str:
    if not re.fullmatch(r"[^\s/?#][^\s?#]*", value):
        raise BadValue(f"no name of a model: {value!r}", "write the name as the endpoint has it")
    return value


def _hard_status(value: int) -> int:
    if not 400 <= value <= 499 or value in {408, 409, 425, 429}:
        raise BadValue(f"{value} is retried by clients", "write 400, 402 or 403")
    return value


def _status(value: int) -> int:
    if not 200 <= value <= 599:
        raise BadValue(f"{value} is no HTTP status of an answer", "write one from 200 to 599")
    return value


def error_status(value: int) -> int:
    """A rule: the value is the status of a refusal. Raises BadValue."""
    if not 400 <= value <= 599:
        raise BadValue(f"{value} is no status of a refusal", "write one from 400 to 599")
    return value


FORMAT_RULES = DocumentRules(
    values={
        (WireFormat, "stop"): _pointer,
        (Envelope, "at"): _member_pointer,
        (TextPlace, "at"): _member_pointer,
        (TextPlace, "match"): _group,
        **{
            (RequestPlaces, name): _member_pointer for name in ("model", "stream", "max_output", "messages", "preamble")
        },
        **{
            (RequestPlaces, name): _member_pointer for name in ("tools", "media", "continues", "edits", "names", "tier")
        },
        (RequestPlaces, "stream_paths"): _path_glob,
        (ResultPlace, "at"): _pointer,
        **{(EventRules, name): _inner_pointer for name in ("done_if", "content", "complete_if")},
        **{(UsagePlaces, name): _pointer for name in ("at", "in_events", "tier")},
        **{
            (UsagePlaces, name): _member_pointer
            for name in ("input", "output", "cache_read", "cache_write", "cache_write_1h", "total")
        },
        (ErrorPlaces, "at"): _inner_pointer,
        **{(ErrorPlaces, name): _pointer for name in ("names", "message")},
        (ErrorPlaces, "name_headers"): _header,
        (ErrorPlaces, "unless"): _regex,
        (ErrorForm, "body"): _template,
        (ErrorForm, "event"): _template,
        (ErrorForm, "headers"): _template,
        (ErrorForm, "event_name"): _one_line,
        **{(SaysPlace, name): _pointer for name in ("at", "text", "name", "only", "unless")},
    },
    keys={
        (WireFormat, "framing"): _media_type,
        (ErrorPlaces, "unless"): _pointer,
        (ErrorForm, "headers"): _header,
        (ErrorForm, "usual"): _usual_status,
    },
)
"""Of a wire format."""

PROFILE_RULES = FORMAT_RULES | DocumentRules(
    values={
        (Profile, "hosts"): _host,
        (Profile, "paths"): _path_glob,
        (Profile, "exclude_paths"): _path_glob,
        (Profile, "reverse_paths"): _path_glob,
        (Profile, "model_groups"): _model_glob,
        (Profile, "groups"): _path_glob,
        (Profile, "safe_paths"): _path_glob,
        (StatedLimit, "limit"): _one_line,
        (StatedLimit, "amount"): positive,
        (StatedLimit, "per_s"): positive,
        (Profile, "model_paths"): _model_path,
        (RequestPlace, "header"): _header,
        (RequestPlace, "path"): _regex,
        (RequestPlace, "match"): _regex,
        (Profile, "response_account_headers"): _header,
        (Profile, "session_headers"): _header_or_member,
        (Profile, "subagent_headers"): _header_or_member,
        (Profile, "parent_headers"): _header_or_member,
        (Profile, "parent_beside"): _header_or_member,
        (CallRule, "headers"): _regex,
        (CallRule, "paths"): _path_glob,
        (ClientRule, "headers"): _regex,
        (CallRule, "models"): _model_glob,
        (CallRule, "max_messages"): positive,
        (ModelPrice, "input"): _price,
        (ModelPrice, "output"): _price,
        (ModelPrice, "cache_write"): _price,
        (ModelPrice, "cache_read"): _price,
        (ModelPrice, "cache_write_1h"): _price,
        (CacheSettings, "ttl_s"): positive,
        (Grants, "weight"): positive,
        (Grants, "max_fan_out"): positive,
        (AgentGrants, "weight"): positive,
        (AgentGrants, "max_fan_out"): positive,
        (Watchdog, "silent_s"): positive,
        (Watchdog, "factor"): positive,
        (BudgetRefusal, "status"): _hard_status,
        (EqualUpstream, "name"): _upstream_name,
        (EqualUpstream, "url"): upstream_url,
        (EqualUpstream, "header"): _header_or_none,
        (EqualUpstream, "paths"): _path_beginning,
        (EqualUpstream, "models"): _model_name,
        (EqualUpstream, "serves"): _model_glob,
        (EqualUpstream, "weight"): positive,
        (MeterHeaders, "limit"): _header,
        (MeterHeaders, "remaining"): _header,
        (MeterHeaders, "reset"): _header_or_none,
        (MeterHeaders, "window_s"): positive,
        (WindowHeaders, "used"): _header_or_none,
        (WindowHeaders, "status"): _header_or_none,
        (WindowHeaders, "reset"): _header_or_none,
        (WindowHeaders, "minutes"): _header_or_none,
        (WindowHeaders, "full"): positive,
        (BlockedAccountRefusal, "status"): error_status,
        (OutcomeRule, "status"): _status,
        (OutcomeRule, "message"): _regex,
        (OutcomeRule, "headers"): _regex,
        (OutcomeRule, "body"): _regex,
        (Charge, "default_output_tokens"): positive,
        (Tokens, "scale"): positive,
        (Tokens, "bytes_per_token"): positive,
        (PatienceRule, "default_s"): positive,
        (PatienceRule, "headers"): _header,
        (ContextEditing, "at"): _member_pointer,
        (ContextEditing, "header"): _header_or_none,
        (ContextEditing, "results"): _pointer,
        (ContextEditing, "tokens"): _pointer,
        (ContextEditing, "models"): _model_glob,
        (Signature, "header"): _header,
        (Signature, "valid_s"): positive,
        (Refusal, "status"): error_status,
        (Peek, "max_bytes"): positive,
        (Peek, "max_s"): positive,
        (Peek, "whole_max_bytes"): positive,
        (Peek, "whole_max_s"): positive,
        (ConcurrencySettings, "initial"): positive,
        (ConcurrencySettings, "maximum"): positive,
        (MachineSettings, "models"): positive,
        (MachineSettings, "load_s"): positive,
        (BreakerSettings, "failures_to_open"): positive,
        (BreakerSettings, "first_probe_s"): positive,
        (BreakerSettings, "max_probe_s"): positive,
        (RetryPolicy, "first_backoff_s"): positive,
        (RetryPolicy, "max_backoff_s"): positive,
    },
    keys={
        (Profile, "formats"): _path_glob,
        (Profile, "groups"): _group_name,
        (Profile, "prices"): _model_glob,
        (Profile, "context_windows"): _model_glob,
        (Profile, "parent_beside"): _header_or_member,
        (OutcomeRule, "headers"): _header,
        (OutcomeRule, "body"): _pointer,
        (EqualUpstream, "paths"): _path_beginning,
        (EqualUpstream, "models"): _model_glob,
        (CallRule, "headers"): _header_or_member,
        (ClientRule, "headers"): _header,
        (BlockedAccountRefusal, "headers"): _header,
    },
    ordered={
        ConcurrencySettings: (("initial", "maximum"),),
        BreakerSettings: (("first_probe_s", "max_probe_s"),),
        RetryPolicy: (("first_backoff_s", "max_backoff_s"),),
    },
    unwritten={Profile: frozenset({"name"}), ConcurrencySettings: frozenset({"maximum_from"})},
    texts={RequestPlace: _request_place},
)
