"""What a request says: its model, whose it is, what it is for, and what it will take. Pure: read from its parts."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from msgspec import Struct
from msgspec.structs import replace

from hivemind_addon.api.ticket import CallKind, PoolKey
from hivemind_addon.proxy.profile.load import format_for, model_group, model_of
from hivemind_addon.proxy.profile.model import InputCharge, Profile
from hivemind_addon.proxy.wire.decoding import DecodeError, decode
from hivemind_addon.proxy.wire.dialect import Dialect, dialect_of
from hivemind_addon.proxy.wire.estimate import Estimate, Estimator
from hivemind_addon.proxy.wire.identity import Identity, call_kind, identify
from hivemind_addon.proxy.wire.request import MAX_BODY_BYTES, Fingerprints, RequestFacts, fingerprints, read_request
from hivemind_addon.system.memo import by_thing_and_text
from hivemind_addon.system.patterns import glob_matches, normal_host

_LONGEST_PATIENCE_S = 86_400
_MAX_INSTANT_CHARS = 100


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


class Description(Struct, frozen=True, gc=False):
    """One request, described."""

    dialect: Dialect
    facts: RequestFacts
    who: Identity
    kind: CallKind
    pool: PoolKey
    """With the account as the request tells it."""
    prints: Fingerprints
    size: Size
    known_patience_s: float | None
    """How long its client waits: what it announces, else what the profile knows of its kind; None: neither."""


def describe_request(
    profile: Profile, request: PlainRequest, estimator: Estimator, *, user: str, peer: str, rough: bool = False
) -> Description:
    """Read a model call of this profile. `user`: the proxy's, where one is named; `peer`: the client's address.

    `rough`: its size may be.
    """
    dialect = dialect_of(format_for(profile, request.path))
    facts = read_body(request, dialect)
    if profile.model_paths:
        facts = replace(facts, model=model_of(profile, request.path, facts.model))
    who = identify(profile, request.headers, facts, user, peer, request.path)
    kind = call_kind(profile, request.headers, facts, request.path, has_parent=bool(who.parent_session))
    prints = fingerprints(facts, who.agent)
    host, usual_port = normal_host(request.host), 443 if request.scheme == "https" else 80
    return Description(
        dialect=dialect,
        facts=facts,
        who=who,
        kind=kind,
        pool=PoolKey(
            host=host if request.port == usual_port else f"{host}:{request.port}",
            account=who.account,
            model_group=model_group(profile, facts.model),
        ),
        prints=prints,
        size=size_request(profile, facts, prints, estimator, who.session, rough=rough),
        known_patience_s=_known_patience(request.headers, profile),
    )


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
    )


def read_body(request: PlainRequest, dialect: Dialect) -> RequestFacts:
    """What a request's body says."""
    body, encoding = request.body, request.headers.get("content-encoding", "")
    if encoding:
        with suppress(DecodeError):  # else it is read as it is, and the reader says that it cannot be
            body = decode(body, encoding, MAX_BODY_BYTES)
    return read_request(body, dialect, request.path)


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


def announced_patience_s(profile: Profile, headers: Mapping[str, str]) -> float | None:
    """How long a client says that it waits; None: it does not say."""
    for name in profile.patience.headers:
        if name not in headers:
            continue
        try:
            announced = float(headers[name])
        except ValueError:
            continue
        if 0 < announced < _LONGEST_PATIENCE_S:
            return announced
    return None


def _known_patience(headers: Mapping[str, str], profile: Profile) -> float | None:
    announced_s = announced_patience_s(profile, headers)
    return _patience_of_client(profile, headers.get("user-agent", "")) if announced_s is None else announced_s


@by_thing_and_text
def _patience_of_client(profile: Profile, user_agent: str) -> float | None:
    clients = profile.patience.clients
    return next((seconds for glob, seconds in clients.items() if glob_matches(glob, user_agent)), None)
