"""What of a call's head may be written to a file: a list of what is kept, which knows no gap."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hivemind_addon.proxy.profile.model import Profile

PLAIN_QUERY = frozenset(("beta", "api-version", "alt", "stream"))
"""Parameters that hold no secret."""
_PLAIN = frozenset(
    (
        *("accept", "accept-encoding", "accept-language", "cache-control", "connection", "date", "host", "keep-alive"),
        *("content-encoding", "content-length", "content-type", "transfer-encoding", "te", "upgrade", "vary", "via"),
        *("server", "user-agent", "originator", "version", "x-app", "x-initiator", "request-id", "x-request-id"),
        *("retry-after", "retry-after-ms", "x-should-retry", "anthropic-version", "anthropic-beta"),
        *("openai-beta", "openai-model", "openai-processing-ms", "openai-version"),
        *("x-openai-subagent", "x-openai-memgen-request"),
        # Without these a body of Codex's means something else (seen 2026-11).
        *("x-openai-internal-codex-responses-lite", "x-codex-beta-features"),
    )
)
_PLAIN_BEGINNINGS = ("x-stainless-", "anthropic-ratelimit-", "x-ratelimit-", "ratelimit-", "x-sim-")
_CREDENTIALS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie")


class PlainHeaders:
    """Which headers are written, of calls to these providers."""

    def __init__(self, profiles: Iterable[Profile]) -> None:
        """`profiles` name the headers that tell sessions, and those that tell accounts."""
        kept, secret = set(_PLAIN), set(_CREDENTIALS)
        members: defaultdict[str, set[str]] = defaultdict(set)
        for profile in profiles:
            for told in (
                *profile.session_headers,
                *profile.subagent_headers,
                *profile.parent_headers,
                *_asked(profile),
            ):
                name, _, member = told.partition("#")
                if member:
                    members[name].add(member)
                else:
                    kept.add(name)
            kept.update(profile.patience.headers)
            secret.update(profile.credential_headers)
            secret.update(profile.request_account_headers)
            secret.update(profile.response_account_headers)
        self.secret = frozenset(secret)
        """Those whose values are credentials, or name whose they are."""
        self._kept = frozenset(kept - secret)
        self._members = {name: frozenset(told) for name, told in members.items()}
        """Header that holds a JSON object → the members that are kept."""

    def __repr__(self) -> str:
        return f"<PlainHeaders, {len(self._kept)} kept, {len(self.secret)} secret>"

    def written(self, name: str, value: bytes) -> bytes | None:
        """What is written of a value; None: nothing. `name`: in lower case."""
        if name not in self.secret and (name in self._kept or name.startswith(_PLAIN_BEGINNINGS)):
            return value
        if name in self._members:
            return _only(value, self._members[name])
        return None


def _asked(profile: Profile) -> Iterable[str]:
    """Headers that tell what a call is for."""
    return (name for rule in profile.calls for name in rule.headers)


def _only(value: bytes, members: Iterable[str]) -> bytes:
    """A header's JSON object with these texts alone."""
    try:
        told = msgspec.json.decode(value, type=dict[str, object])
    except msgspec.DecodeError:
        return b"{}"
    return msgspec.json.encode({name: told[name] for name in sorted(members) if isinstance(told.get(name), str)})
