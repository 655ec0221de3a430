"""What may be asked for: sizes and counts, so that a slip fills no disk."""

from hivemind_addon.tools.lease.model import LeaseError, Request

MAX_TTL_S = 30 * 86_400.0
MAX_NAMES = 64
MAX_NAME_CHARS = 200
MAX_VALUE_CHARS = 4096
MAX_PLACES = 1_000_000
MAX_LEASES = 10_000
"""In one file."""


def checked_names(request: Request) -> tuple[str, ...]:
    """A request's names, once each, in canonical order. Raises LeaseError for whatever is wrong with the request."""
    names = tuple(sorted(set(request.names)))
    if not names:
        raise LeaseError("a lease needs a name")
    if len(names) > MAX_NAMES:
        raise LeaseError(f"{len(names)} names at once; at most {MAX_NAMES} can be had")
    for name in names:
        check_name(name)
    check_ttl(request.ttl_s)
    if not 1 <= request.capacity <= MAX_PLACES:
        raise LeaseError(f"at most {request.capacity} holders: it takes 1 to {MAX_PLACES:,}")
    if len(request.value) > MAX_VALUE_CHARS:
        raise LeaseError(f"a value of {len(request.value):,} characters; at most {MAX_VALUE_CHARS:,} can be kept")
    for text in (request.value, request.holder.agent):
        if not _is_text(text):
            raise LeaseError(f"{text[:40]!r} is no text")
    return names


def check_name(name: str) -> None:
    """Raises LeaseError: a name is one line of text that can be printed."""
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
        raise LeaseError(f"{name[:40]!r} is no name: it takes 1 to {MAX_NAME_CHARS} printable characters")


def check_ttl(ttl_s: float) -> None:
    """Raises LeaseError."""
    if not 0 < ttl_s <= MAX_TTL_S:
        raise LeaseError(f"a lease for {ttl_s:g} s: it takes more than 0 and at most {MAX_TTL_S:,.0f} s")


def _is_text(text: str) -> bool:
    """Whether it can be written; an argument may hold bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
