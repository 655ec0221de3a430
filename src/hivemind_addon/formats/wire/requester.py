"""The client of a request, by the head and by names in the body: account, purpose, and how long the client waits.

Most of an agent's requests say the same, so the result is kept for the texts at the places that a profile asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from hivemind_addon.formats.base.memo import by_thing, by_thing_and_text
from hivemind_addon.formats.base.patterns import glob_matches
from hivemind_addon.formats.wire.identity import ALONE, Machine, account_of, calls_of, is_headless, places_of, product

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.formats.wire.identity import CallTest

_LONGEST_PATIENCE_S = 86_400
_MOST_REQUESTERS = 256
"""So many are remembered for each profile."""
_REMEMBERED_CHARS = 4096
"""Of a head: a token of a subscription's has some 2,000."""


class Requester(Struct, frozen=True, gc=False):
    """The client of a request, as far as the request says."""

    account: str
    """As the request names the account; else `key-` and a hash of the credential; else `anonymous`."""
    product: str
    """The client's product: `claude-cli`."""
    calls: tuple[CallTest, ...]
    """Rules for the purpose of a request that may fit, by the head and the path."""
    is_headless: bool
    """Whether the client says that nobody watches."""
    announced_s: float | None
    """How long the client says that it waits; None: nothing is said."""
    known_patience_s: float | None
    """The same, or the profile's assumption for the user agent; None: neither."""
    reads_interim: bool
    """Whether an interim response renews the client's time-out."""


class _Requesters:
    """Of one profile."""

    def __init__(self, profile: Profile) -> None:
        headers, members = places_of(profile)
        self.headers = sorted({*headers, *profile.patience.headers, "user-agent"})
        self.members = sorted(members)
        self.known: dict[tuple[object, ...], Requester] = {}
        """By all texts that matter, also credentials: never shown."""


_requesters_of = by_thing(_Requesters)


def read_requester(
    profile: Profile, headers: Mapping[str, str], members: Mapping[str, str], path: str = "", machine: Machine = ALONE
) -> Requester:
    """The client of a request, worked out once for the same texts. `headers` has lower-case names."""
    requesters = _requesters_of(profile)
    said = (path, machine, *map(headers.get, requesters.headers), *map(members.get, requesters.members))
    requester = requesters.known.get(said)
    if requester is None:
        announced_s = _announced_patience_s(profile, headers)
        known_s = _patience_of_client(profile, headers.get("user-agent", "")) if announced_s is None else announced_s
        requester = Requester(
            account=account_of(profile, headers, members, path, machine),
            product=product(headers),
            calls=calls_of(profile, headers, members, path),
            is_headless=is_headless(profile, headers),
            announced_s=announced_s,
            known_patience_s=known_s,
            reads_interim=any(glob_matches(glob, headers.get("user-agent", "")) for glob in profile.patience.interim),
        )
        if sum([len(one) for one in said if isinstance(one, str)]) <= _REMEMBERED_CHARS:
            if len(requesters.known) >= _MOST_REQUESTERS:
                requesters.known.clear()
            requesters.known[said] = requester
    return requester


def _announced_patience_s(profile: Profile, headers: Mapping[str, str]) -> float | None:
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


@by_thing_and_text
def _patience_of_client(profile: Profile, user_agent: str) -> float | None:
    clients = profile.patience.clients
    return next((seconds for glob, seconds in clients.items() if glob_matches(glob, user_agent)), None)
