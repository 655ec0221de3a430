"""Endpoints of a profile: other destinations for calls, with their own keys.

    upstreams:
      - {name: own}                                   as the request came
      - name: east
        url: https://east.openai.azure.com
        key: {env: AZURE_EAST_KEY}
        header: api-key
        paths: {/v1: /openai/v1}

Keys are read when the proxy reads the profiles, and are in no profile: printed or compared profiles contain none.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from hivemind_addon.formats.base.patterns import glob_matches, normal_host
from hivemind_addon.formats.base.typed import BadValue, DocumentError
from hivemind_addon.kernel.values.ticket import CallKind

HELD_KEY = "held-by-hivemind"
"""Value of agents' key variable when the proxy has the key: many agents need a value to start. Replaced later."""
_MOST_KEY_BYTES = 16_384
_HERE = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")
"""Hosts on this machine, so that nobody listens on the way."""
_LOGIN = re.compile(r"sk-ant-oat|eyJ[\w-]*\.[\w-]+\.", re.ASCII)
"""Beginnings of login tokens: Anthropic's for subscriptions, and JSON web tokens."""


@dataclass(frozen=True, slots=True)
class KeySource:
    """Source of an endpoint's key: `env` or `file`. The key is never in the profile."""

    env: str = ""
    """Name of the proxy's environment variable that holds the key."""
    file: str = ""
    """Path of a file that holds only the key, and that only the owner may read (mode 0600)."""

    @property
    def is_given(self) -> bool:
        """Whether a source is given."""
        return bool(self.env or self.file)


@dataclass(frozen=True, slots=True)
class EqualUpstream:
    """One of several equal endpoints: each call goes to the endpoint that can take the call soonest. With neither `url`
    nor `key`, the request goes to the original host unchanged.
    """

    name: str
    """Name of the account in views, metrics and the journal."""
    url: str = ""
    """`https://HOST` or `http://HOST:PORT`, without a path; empty: the host that the request was sent to. With a key,
    `http` is for this machine only."""
    key: KeySource = field(default_factory=KeySource)
    """API key that replaces the request's; with a `url` alone, requests are sent without any key. With a key and no
    `url`, the profile's `hosts` are whole names."""
    header: str = ""
    """Request header of the key; in `authorization` the key follows `Bearer`. Empty: the header with the request's own
    key, else the first header of `credentials`."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """Beginning of a request's path → replacement; the first match counts."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Glob of model names → name of the model at this endpoint; the first match counts."""
    serves: tuple[str, ...] = ()
    """Globs of the model names that the endpoint serves; empty: all."""
    calls: tuple[CallKind, ...] = ()
    """Kinds of calls for this endpoint; empty: all."""
    weight: float = 1
    """Share of the new trees of sessions, relative to the other endpoints."""

    @property
    def is_own(self) -> bool:
        """Whether requests go on unchanged."""
        return not self.url and not self.key.is_given

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port; None: the destination of the request."""
        return address_of(self.url) if self.url else None

    @property
    def is_tls(self) -> bool:
        """Whether `url` says https."""
        return self.url.startswith("https:")

    @property
    def host(self) -> str:
        """The host in names of pools, with the port if not the default of the scheme."""
        host, port = address_of(self.url)
        return host if port == (443 if self.is_tls else 80) else f"{host}:{port}"

    def takes(self, model: str, kind: CallKind) -> bool:
        """Whether a call may go to this endpoint."""
        return (not self.calls or kind in self.calls) and (
            not self.serves or any(glob_matches(glob, model) for glob in self.serves)
        )

    def model(self, model: str) -> str:
        """The name of a model at the endpoint."""
        return next((name for glob, name in self.models.items() if glob_matches(glob, model)), model)


class UpstreamKey:
    """A secret. Only the header for the provider contains the text."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "<UpstreamKey>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UpstreamKey) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def in_header(self, name: str) -> str:
        """The value of the header."""
        return f"Bearer {self._value}" if name == "authorization" else self._value


type Keys = Mapping[tuple[str, str], UpstreamKey]
"""By profile and upstream."""


def address_of(url: str) -> tuple[str, int]:
    """Host and port of a checked URL."""
    parts = urlsplit(url)
    return normal_host(parts.hostname or ""), parts.port or (443 if parts.scheme == "https" else 80)


def upstream_url(value: str) -> str:
    """A rule: the value is a URL without a path. Raises BadValue."""
    cure = "write https://HOST or http://HOST:PORT"
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise BadValue(f"no URL: {value!r}", cure) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise BadValue(f"no URL: {value!r}", cure)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadValue("a URL with a user, a query or a fragment", f"{cure}; a key goes into `key`")
    if parts.path not in ("", "/"):
        raise BadValue(f"{value!r} has a path", f"{cure}, and say by `paths` what stands in a request's path instead")
    return value


def check_upstreams(upstreams: Iterable[EqualUpstream], hosts: Iterable[str], file: Path) -> None:
    """Check the upstreams together. `hosts`: the profile's. Raises DocumentError."""
    wild = next((host for host in hosts if "*" in host), None)
    seen: set[str] = set()
    for index, one in enumerate(upstreams):
        place = f"upstreams[{index}]"
        if one.name in seen:
            raise DocumentError(file, f"{place}.name", f"{one.name} stands twice", "give each endpoint its own name")
        seen.add(one.name)
        if one.key.env and one.key.file:
            cure = "write key: {env: NAME} or key: {file: PATH}"
            raise DocumentError(file, f"{place}.key", "it is in the environment or in a file, one of them", cure)
        if one.key.is_given and one.address is None and wild is not None:
            problem = f"clients would choose where it goes, for the profile's hosts have {wild}"
            raise DocumentError(file, f"{place}.key", problem, f"add url: https://HOST to {one.name}")
        if one.key.is_given and one.address is not None and not (one.is_tls or _HERE.fullmatch(one.address[0])):
            problem = "the key would go in clear text to another machine"
            raise DocumentError(
                file, f"{place}.url", problem, f"write https://{one.address[0]}, or name a tunnel's end here"
            )


def read_keys(profile: str, upstreams: Iterable[EqualUpstream], file: Path) -> dict[tuple[str, str], UpstreamKey]:
    """The keys of a profile's endpoints. `file`: the profile's, for errors. DocumentError quotes no key."""
    keys: dict[tuple[str, str], UpstreamKey] = {}
    seen: dict[object, str] = {}
    for index, one in enumerate(upstreams):
        if one.key.is_given:
            place = f"upstreams[{index}].key"
            value = _from_env(one.key.env, file, place) if one.key.env else _from_file(one.key.file, file, place)
            if _LOGIN.match(value):
                problem = "this is the token of a login, not an API key"
                cure = "make an API key; logins of subscriptions are nobody's to pool (docs/upstreams.md)"
                raise DocumentError(file, place, problem, cure)
            if not value.isascii() or not value.isprintable() or " " in value:
                raise DocumentError(file, place, "no key: it has blanks or control characters", "store the bare key")
            alike = (one.address, tuple(one.paths.items()), tuple(one.models.items()), value)
            if (other := seen.setdefault(alike, one.name)) != one.name:
                problem = f"{other} has the same key, and its limits are one"
                raise DocumentError(file, place, problem, "remove one of them, or give it a key of another account")
            keys[profile, one.name] = UpstreamKey(value)
    return keys


def _from_env(name: str, file: Path, place: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        cure = f"export {name}=… before the proxy starts"
        raise DocumentError(file, f"{place}.env", f"{name} is not set in the proxy's environment", cure)
    if value == HELD_KEY:
        problem = f"{name} has what `hivemind exec` gives agents in its place"
        raise DocumentError(file, f"{place}.env", problem, "start the proxy outside of `hivemind exec`")
    return value


def _from_file(name: str, file: Path, place: str) -> str:
    path = Path(name).expanduser()
    path = path if path.is_absolute() else file.parent / path
    try:
        with path.open("rb") as opened:
            state = os.fstat(opened.fileno())
            data = opened.read(_MOST_KEY_BYTES + 1)
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise DocumentError(file, f"{place}.file", problem, "name a file that holds the key") from None
    if not stat.S_ISREG(state.st_mode):
        raise DocumentError(file, f"{place}.file", f"{path} is no file", "name a file that holds the key")
    if os.name == "posix" and (stat.S_IMODE(state.st_mode) & 0o077 or state.st_uid != os.getuid()):
        problem = f"{path} is not its owner's alone (mode {stat.S_IMODE(state.st_mode):04o})"
        raise DocumentError(file, f"{place}.file", problem, f"own it, and run: chmod 600 {path}")
    value = data.decode("ascii", "replace").strip()
    if not value or len(data) > _MOST_KEY_BYTES:
        raise DocumentError(file, f"{place}.file", f"{path} holds no key", "write the key into it, and nothing else")
    return value
