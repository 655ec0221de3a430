"""What a request says: its model, whose it is, what it is for, and what it will take. Pure: read from its parts."""

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
"""What the mark `ttl: 1h` asks for (Anthropic)."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_IDEMPOTENT = _SAFE | {"PUT", "DELETE"}
_KEYS = frozenset({"idempotency-key", "x-idempotency-key"})
"""Headers by which a service knows a call that it has run already."""


class PlainRequest(Struct, frozen=True, gc=False):
    """The parts of a request, as text."""

    scheme: str
    host: str
    """That the client means; never a resolved address."""
    port: int
    path: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    """As it is sent; its content coding is among the headers."""


class Size(Struct, frozen=True, gc=False):
    """What one request will take."""

    estimate: Estimate
    """Of an attempt that finds the prompt cache warm; where it is rough, `size_request` can tell more."""
    cold_tokens: int
    """Of the input that is expected in the cache, what the limits count once it has lapsed."""
    prefix: str
    """Hash of what the prompt cache keys on; empty: nothing is shared."""
    prefix_tokens: int
    cache_s: float = 0.0
    """How long the provider keeps it, from the beginning of an attempt; 0: it keeps nothing."""


class Description(Struct, frozen=True, gc=False):
    """One request, described."""

    dialect: Dialect
    facts: RequestFacts
    who: Identity
    kind: CallKind
    requester: Requester
    pool: PoolKey
    """With the account as the request tells it."""
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
    """Read a model call of this profile. `user`: the proxy's, where one is named; `peer`: the client's address.

    `rough`: its size may be. `machine`: of the proxy.
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
    profile: Profile,
    request: PlainRequest,
    *,
    user: str,
    peer: str,
    machine: Machine = ALONE,
) -> Description:
    """A call of a plain profile, of which nothing but the head is read. `user`, `peer`, `machine`: as above."""
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
    """Whether a call of a plain profile may be sent again though its service may have run it (RFC 9110, 9.2.2)."""
    return (
        method.upper() in _IDEMPOTENT
        or not _KEYS.isdisjoint(headers)
        or matching_path(profile.safe_paths, path) is not None
    )


def only_reads(profile: Profile, method: str, path: str) -> bool:
    """Whether a call of a plain profile changes nothing where it goes."""
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
    """What a request of a session's will take."""
    estimate = estimator.estimate(profile, facts, session, rough=rough)
    expected = estimate.expected
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
    """What a request's body says."""
    body, encoding = request.body, request.headers.get("content-encoding", "")
    if encoding:
        with suppress(DecodeError):  # else it is read as it is, and the reader says that it cannot be
            body = decode(body, encoding, MAX_BODY_BYTES)
    return read_request(body, dialect.plan, request.path)


def signed_for_s(profile: Profile, headers: Mapping[str, str], wall_now: float) -> float | None:
    """How much longer a request may be sent as its client signed it, in seconds; below 0: it came too late.

    None: it is not signed, or does not say when it was. `wall_now` in epoch seconds.
    """
    sign = profile.sign
    written = headers.get(sign.header, "") if sign is not None else ""
    if sign is None or not written:
        return None
    signed_at = _instant(written.strip()[:_MAX_INSTANT_CHARS])
    return None if signed_at is None else signed_at + sign.valid_s - wall_now


def _instant(written: str) -> float | None:
    """`20250130T203827Z`, or as HTTP dates are written, in epoch seconds."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(ValueError, TypeError, IndexError, OverflowError):
            instant = parse(written)
            return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
    return None
