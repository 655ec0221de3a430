"""A flow's state as a capture keeps it: without credentials, and on demand without words.

Works on the state (plain data) and not on the flow, which still lives: `clean_state` runs in another thread.
"""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import msgspec

from hivemind_addon.formats.base.json_values import read_object, read_value
from hivemind_addon.formats.wire.decoding import DecodeError, decode
from hivemind_addon.plugins.captures.hollow import hollow
from hivemind_addon.plugins.captures.secrets import Redactor, clean_stream
from hivemind_addon.proxy.run.append_file import breathe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hivemind_addon.formats.profile.model import Profile

MAX_BODY_BYTES = 64 * 1024 * 1024
_STREAMS = ("text/event-stream", "application/x-ndjson")
_CODED = ("content-encoding", "content-length", "transfer-encoding")
_NO_CERTIFICATES: dict[str, Any] = {"certificate_list": [], "mitmcert": None}


class FlowRedactor:
    """One for each recording. Used in one thread."""

    def __init__(self, profiles: Iterable[Profile], *, content: bool) -> None:
        """`profiles` name the places that tell sessions, and those that tell accounts."""
        self._content = content
        self._redactor = Redactor(secrets.token_hex(2), breathe=breathe)
        self._key = secrets.token_bytes(16)
        profiles = tuple(profiles)
        self._plain = PlainHeaders(profiles)
        places = [place for profile in profiles for place in (*profile.account, *profile.credentials)]
        self._account_paths = [re.compile(place.path, re.IGNORECASE) for place in places if place.path]
        self._account_members = frozenset(tuple(place.body.split(".")) for place in places if place.body)

    def __repr__(self) -> str:
        return f"<FlowRedactor {self._redactor!r}, {'with' if self._content else 'without'} content>"

    def clean_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """A flow's state, ready to be written. What its metadata hold is cleaned too, and kept."""
        request, response = state.get("request"), state.get("response")
        for message in (request, response):
            if message:
                self._learn(message["headers"])
        path = b""
        if request:  # what it names is learned before the bodies are cleaned
            self._learn_path(request["path"].decode("latin-1"))
            path = self._path(request["path"])
        for place in ("client_conn", "server_conn"):
            state[place] = {name: _NO_CERTIFICATES.get(name, value) for name, value in state[place].items()}
        state |= {"backup": None, "websocket": None, "marked": "", "intercepted": False}
        if not self._content:
            state["comment"] = ""
        bodies = {}
        for place, message in (("request", request), ("response", response)):
            if message:
                state[place], bodies[place] = self._message(message)
        if request:
            state["request"]["path"] = path
        cleaned: dict[str, Any] = self._walk(state)
        for place, body in bodies.items():
            cleaned[place]["content"] = body
        return cleaned

    def learn(self, secret: str) -> None:
        """Replace it wherever it turns up."""
        self._redactor.learn(secret.encode("utf-8", "surrogateescape"))

    def _learn(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Credentials and accounts are replaced wherever they turn up."""
        for name, value in headers:
            if name.lower().decode("latin-1") in self._plain.secret:
                self._redactor.learn(value.rpartition(b" ")[2] or value)

    def _learn_path(self, path: str) -> None:
        """The account that it names: of several parts the first, since others may be as common as a region."""
        for pattern in self._account_paths:
            if found := pattern.search(path.partition("?")[0]):
                self._redactor.learn((found[1] if pattern.groups else found[0] or "").encode("latin-1"))

    def _learn_members(self, body: bytes) -> None:
        """Accounts that a body names."""
        top = read_object(body) if self._account_members else None
        for *outer, member in self._account_members if top else ():
            inner: Mapping[str, msgspec.Raw] = top or {}
            for name in outer:
                inner = read_object(inner[name]) or {} if name in inner else {}
            if isinstance(account := read_value(inner.get(member)), str):
                self.learn(account)

    def _message(self, message: dict[str, Any]) -> tuple[dict[str, Any], bytes | None]:
        """All but the body, and the body: a text that is long enough to be cleaned only once."""
        headers, body = list(message["headers"]), message["content"]
        if body:
            headers, body = self._body(headers, body)
        trailers = message.get("trailers")
        told = {"headers": self._headers(headers), "trailers": None if trailers is None else self._headers(trailers)}
        return message | told | {"content": None}, body

    def _body(self, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """The body in plain, where secrets can be seen, and headers that fit it."""
        told = {name.lower(): value.decode("latin-1").lower() for name, value in headers}
        coding = told.get(b"content-encoding", "")
        try:
            plain = decode(body, coding, MAX_BODY_BYTES) if coding else body
        except DecodeError:
            plain = b"(%d bytes that could not be decoded)" % len(body)
        self._learn_members(plain)
        if not self._content:
            plain = hollow(plain, self._key)
        elif told.get(b"content-type", "").startswith(_STREAMS):
            plain = clean_stream(plain, self._redactor)
        if coding:
            headers = [(name, value) for name, value in headers if name.lower().decode("latin-1") not in _CODED]
        cleaned = self._redactor.clean(plain)
        return [
            (name, str(len(cleaned)).encode() if name.lower() == b"content-length" else value)
            for name, value in headers
        ], cleaned

    def _headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        return [(name, self._value(name.lower().decode("latin-1"), value)) for name, value in headers]

    def _value(self, name: str, value: bytes) -> bytes:
        written = self._plain.written(name, value)
        return self._placeholder_of(value) if written is None else written

    def _placeholder_of(self, value: bytes) -> bytes:
        """The same for the same secret, whatever scheme stands before it."""
        return self._redactor.placeholder(value.rpartition(b" ")[2] or value) if value else value

    def _path(self, path: bytes) -> bytes:
        plain, mark, query = path.partition(b"?")
        return plain + mark + b"&".join(self._parameter(one) for one in query.split(b"&")) if mark else plain

    def _parameter(self, parameter: bytes) -> bytes:
        name, equals, value = parameter.partition(b"=")
        if not value:
            # A word alone may be a secret as well as a flag.
            return name if name.decode("latin-1") in PLAIN_QUERY else self._redactor.placeholder(name)
        if name.decode("latin-1") in PLAIN_QUERY:
            return parameter
        placeholder = self._redactor.learn(value)
        if (plain := unquote_to_bytes(value)) != value:
            self._redactor.learn(plain)
        return name + equals + placeholder

    def _walk(self, value: Any) -> Any:
        """Whatever is left: every text of the state."""
        match value:
            case bytes():
                return self._redactor.clean(value)
            case str():
                return self._redactor.clean_text(value)
            case dict():
                return {self._walk(name): self._walk(one) for name, one in value.items()}
            case list() | tuple():
                return [self._walk(one) for one in value]
            case _:
                return value


# What of a call's head may be written: a list of what is kept, which knows no gap.

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
            secret.update(profile.account_headers)
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
    told = read_object(value) or {}
    texts = ((name, read_value(told.get(name))) for name in sorted(members))
    return msgspec.json.encode({name: text for name, text in texts if isinstance(text, str)})
