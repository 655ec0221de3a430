"""Describes a request: model, requester, purpose and expected size. Pure: reads only the parts of the request."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from msgspec import Struct
from msgspec.structs import replace

from hivemind_addon.formats.base.patterns import matching_path, normal_host
from hivemind_addon.formats.profile.load import format_for, limit_group, model_group, model_of
from hivemind_addon.formats.profile.model import InputCharge, Profile
from hivemind_addon.formats.wire.decoding import DecodeError, decode
from hivemind_addon.formats.wire.dialect import Dialect, dialect_of
from hivemind_addon.formats.wire.estimate import Estimate, Estimator
from hivemind_addon.formats.wire.identity import ALONE, Identity, Machine, call_kind, identify, names_in
from hivemind_addon.formats.wire.request import MAX_BODY_BYTES, Fingerprints, RequestFacts, fingerprints, read_request
from hivemind_addon.formats.wire.requester import Requester, read_requester
from hivemind_addon.kernel.values.ticket import CallKind, PoolKey

_MAX_INSTANT_CHARS = 100
_LONG_CACHE_S = 3600.0
"""Cache time that the mark `ttl: 1h` requests (Anthropic)."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_IDEMPOTENT = _SAFE | {"PUT", "DELETE"}
_KEYS = frozenset({"idempotency-key", "x-idempotency-key"})
"""Headers by which a service recognises a call that has run already."""


class PlainRequest(Struct, frozen=True, gc=False):
    """The parts of a request, as text."""

    scheme: str
    host: str
    """The host that the client means; never a resolved address."""
    port: int
    path: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    """The body as sent; the content coding is among the headers."""


class Size(Struct, frozen=True, gc=False):
    """The expected size of a request."""

    estimate: Estimate
    """Estimate for an attempt with a warm prompt cache; `size_request` improves a rough estimate."""
    cold_tokens: int
    """Input expected from the cache: tokens that the limits count once the cache has lapsed."""
    prefix: str
    """Hash of the key of the prompt cache; empty: nothing is shared."""
    prefix_tokens: int
    cache_s: float = 0.0
    """How long the provider caches the prompt, from the start of an attempt; 0: not at all."""


class Description(Struct, frozen=True, gc=False):
    """A request, described."""

    dialect: Dialect
    facts: RequestFacts
    who: Identity
    kind: CallKind
    requester: Requester
    pool: PoolKey
    """With the account that the request names."""
    prints: Fingerprints
    size: Size


def describe_request(
    profile: Profile,
    request: PlainRequest,
    estimator: Estimator,
    *,
    user: str,
    peer: str,
    rough: bool = False,
    machine: Machine = ALONE,
) -> Description:
    """Describe a model call of this profile. `user`: of the proxy, if named; `peer`: the client's address.

    `rough`: a rough size is enough. `machine`: of the proxy.
    """
    dialect = dialect_of(format_for(profile, request.path))
    facts = read_body(request, dialect)
    if profile.model_paths:
        facts = replace(facts, model=model_of(profile, request.path, facts.model))
    requester = read_requester(profile, request.headers, facts.members, request.path, machine)
    names = names_in(profile, request.headers, facts)
    who = identify(names, requester.account, requester.product, user, peer, machine)
    prints = fingerprints(facts, who.agent)
    return Description(
        dialect=dialect,
        facts=facts,
        who=who,
        kind=call_kind(requester.calls, facts, has_parent=bool(who.parent_session)),
        requester=requester,
        pool=_pool_key(request, who.account, model_group(profile, facts.model)),
        prints=prints,
        size=size_request(profile, facts, prints, estimator, who.session, rough=rough),
    )


def describe_plain(
    profile: Profile, request: PlainRequest, *, user: str, peer: str, machine: Machine = ALONE
) -> Description:
    """Describe a call of a plain profile from the head alone. `user`, `peer`, `machine`: as above."""
    facts = RequestFacts(model=profile.name)
    requester = read_requester(profile, request.headers, facts.members, request.path, machine)
    names = names_in(profile, request.headers, facts)
    who = identify(names, requester.account, requester.product, user, peer, machine)
    return Description(
        dialect=dialect_of(format_for(profile, request.path)),
        facts=facts,
        who=who,
        kind=CallKind.TOOL,
        requester=requester,
        pool=_pool_key(request, who.account, limit_group(profile, request.path)),
        prints=Fingerprints(prefix="", prefix_bytes=0, is_marked=False, is_marked_long=False, whole=""),
        size=Size(estimate=Estimate(), cold_tokens=0, prefix="", prefix_tokens=0),
    )


def _pool_key(request: PlainRequest, account: str, group: str) -> PoolKey:
    host, usual_port = normal_host(request.host), 443 if request.scheme == "https" else 80
    return PoolKey(host if request.port == usual_port else f"{host}:{request.port}", account, group)


def may_repeat(profile: Profile, method: str, headers: Mapping[str, str], path: str) -> bool:
    """Whether a call of a plain profile may be repeated although the service may have run it (RFC 9110, 9.2.2)."""
    return (
        method.upper() in _IDEMPOTENT
        or not _KEYS.isdisjoint(headers)
        or matching_path(profile.safe_paths, path) is not None
    )


def only_reads(profile: Profile, method: str, path: str) -> bool:
    """Whether a call of a plain profile changes nothing at the service."""
    return method.upper() in _SAFE or matching_path(profile.safe_paths, path) is not None


def size_request(
    profile: Profile,
    facts: RequestFacts,
    prints: Fingerprints,
    estimator: Estimator,
    session: str,
    *,
    rough: bool = False,
) -> Size:
    """The expected size of a request of a session."""
    estimate = estimator.estimate(profile, facts, session, rough=rough)
    expected = estimate.expected
    if prints.is_marked_long and expected.cache_write_tokens:
        expected = replace(expected, cache_write_1h_tokens=expected.cache_write_tokens)
        estimate = replace(estimate, expected=expected)
    input_tokens = expected.total_input_tokens
    prefix_tokens = round(input_tokens * prints.prefix_bytes / max(1, facts.prompt_bytes))
    is_kept = prints.is_marked or not profile.cache_needs_marks
    is_shared = is_kept and prefix_tokens >= profile.cache.least_tokens
    return Size(
        estimate=estimate,
        cold_tokens=expected.cache_read_tokens if profile.charge.input is InputCharge.UNCACHED else 0,
        prefix=prints.prefix if is_shared else "",
        prefix_tokens=min(prefix_tokens, input_tokens) if is_shared else 0,
        cache_s=_kept_s(profile, prints) if is_kept and input_tokens >= profile.cache.least_tokens else 0.0,
    )


def _kept_s(profile: Profile, prints: Fingerprints) -> float:
    return max(_LONG_CACHE_S, profile.cache.ttl_s) if prints.is_marked_long else profile.cache.ttl_s


def read_body(request: PlainRequest, dialect: Dialect) -> RequestFacts:
    """The facts in a request's body."""
    body, encoding = request.body, request.headers.get("content-encoding", "")
    if encoding:
        with suppress(DecodeError):  # else the body is read undecoded, and the reader reports an oddity
            body = decode(body, encoding, MAX_BODY_BYTES)
    return read_request(body, dialect.plan, request.path)


def signed_for_s(profile: Profile, headers: Mapping[str, str], wall_now: float) -> float | None:
    """Seconds for which a request may still be sent as the client signed it; below 0: too late.

    None: unsigned, or without the time of signing. `wall_now` in epoch seconds.
    """
    sign = profile.sign
    written = headers.get(sign.header, "") if sign is not None else ""
    if sign is None or not written:
        return None
    signed_at = _instant(written.strip()[:_MAX_INSTANT_CHARS])
    return None if signed_at is None else signed_at + sign.valid_s - wall_now


def _instant(written: str) -> float | None:
    """Epoch seconds of `20250130T203827Z`, or of an HTTP date."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(ValueError, TypeError, IndexError, OverflowError):
            instant = parse(written)
            return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
    return None
