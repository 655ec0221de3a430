"""Who asks: agent, session and account, from what an unmodified agent sends anyway."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hivemind_addon.profile.model import Delivery, Profile
from hivemind_addon.wire.request import RequestFacts

_MAX_CHARS = 80
_HASH_CHARS = 8

ANONYMOUS = "anonymous"
"""The account of requests without a credential, as local servers take them."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Names that are fit for logs: printable, at most 80 characters, never a credential."""

    agent: str
    session: str
    account: str
    """What the request names; else `key-` and a hash of the credential; else `anonymous`."""


@dataclass(frozen=True, slots=True)
class ProxyWords:
    """What an agent asks for in the password of its proxy address: `http://agent-7:whole@host:8080`."""

    delivery: Delivery | None = None
    """None: whatever the profile says."""


def identify(profile: Profile, headers: Mapping[str, str], facts: RequestFacts, proxy_user: str, peer: str) -> Identity:
    """Name the agent behind one request. `headers` has lower-case names; empty `proxy_user`: none was given.

    `peer` is the client's connection (address and port): the last resort of an agent that says nothing.
    """
    named = _first(headers, profile.session_headers) or facts.session_hint
    agent = proxy_user or f"{_product(headers)}-{_hash(named or peer)}"
    return Identity(
        agent=_clean(agent),
        session=_clean(named or proxy_user or f"{agent}@{peer}"),
        account=_account(profile, headers),
    )


def proxy_words(password: str) -> ProxyWords:
    """The words of a proxy password, between `,` `+` `.` and blanks; the last of a kind counts.

    Other words mean nothing: a proxy that demands a password gets its own one there.
    """
    deliveries = {delivery.value: delivery for delivery in Delivery}
    chosen = [deliveries[word] for word in re.split(r"[,+.\s]+", password.lower()) if word in deliveries]
    return ProxyWords(delivery=chosen[-1] if chosen else None)


def _account(profile: Profile, headers: Mapping[str, str]) -> str:
    if named := _first(headers, profile.request_account_headers):
        return _clean(named)
    credential = _first(headers, profile.credential_headers)
    return f"key-{_hash(credential, 12)}" if credential else ANONYMOUS


def _first(headers: Mapping[str, str], names: Iterable[str]) -> str:
    return next((value for name in names if (value := headers.get(name, "").strip())), "")


def _product(headers: Mapping[str, str]) -> str:
    """The user agent's first product without its version: `claude-cli`."""
    return re.split(r"[/\s(]", headers.get("user-agent", "").strip(), maxsplit=1)[0] or "client"


def _hash(text: str, chars: int = _HASH_CHARS) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:chars]


def _clean(text: str) -> str:
    """Fit for logs. What is changed gets a hash of what it was, so that different names stay different."""
    if text.isprintable() and len(text) <= _MAX_CHARS:
        return text
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return f"{printable[: _MAX_CHARS - _HASH_CHARS - 1]}~{_hash(text)}"
