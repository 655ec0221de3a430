"""Where the engine of a cluster is (a Valkey or Redis server): its URL, read once, and shown without its secrets.

    valkey://[USER[:PASSWORD]@]HOST[:PORT][/DB]       valkeys:// with TLS
    unix://[USER[:PASSWORD]@]/PATH[?db=DB]

`redis://` and `rediss://` mean the same. A password is better not in the URL, which others see in a list of processes:
the variable HIVEMIND_CLUSTER_PASSWORD has it where the URL has none, as HIVEMIND_CLUSTER_USERNAME has the user's name.
"""

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from hivemind_addon.proxy.system.folders import FolderNotPrivate, runtime_folder
from hivemind_addon.proxy.system.whole_file import write_whole

CLUSTER_VARIABLE = "HIVEMIND_CLUSTER"
"""The engine's URL where no option says one; `off`: none."""
CLUSTER_NAME_VARIABLE = "HIVEMIND_CLUSTER_NAME"
USERNAME_VARIABLE = "HIVEMIND_CLUSTER_USERNAME"
PASSWORD_VARIABLE = "HIVEMIND_CLUSTER_PASSWORD"  # noqa: S105 - the variable's name
SECRET_VARIABLE = "HIVEMIND_CLUSTER_SECRET"  # noqa: S105 - the variable's name
"""What the members of a cluster tell accounts apart by."""
DEFAULT_CLUSTER = "default"
"""A cluster's name where nothing says one."""
OFF = "off"

_PORT = 6379
_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis": "redis", "rediss": "rediss", "unix": "unix"}
"""As the client library calls them."""
_FORM = "write valkey://HOST:PORT/DB, valkeys:// for TLS, or unix:///PATH"
_SPECIAL = f"write what is special in a password as %XX, or set {PASSWORD_VARIABLE} instead"
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_WORDS = {"ssl_cert_reqs": ("required", "optional", "none"), "ssl_check_hostname": ("true", "false")}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HIDDEN = "…"


class BadEngineUrl(ValueError):
    """One line that names the option and the cure, and no password."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """One engine, and who we are there. Its repr and its `shown` hold no password."""

    host: str
    """Empty: it is a socket of this machine."""
    port: int
    path: str
    """Of the socket, absolute; empty: it is a host."""
    db: int
    username: str
    """Empty: the engine's default user."""
    password: str = field(repr=False)
    """Empty: none."""
    tls: bool
    tls_options: tuple[tuple[str, str], ...]
    """As the client library calls them."""

    @property
    def shown(self) -> str:
        """For people and for other processes, which get the password by a variable, or not at all."""
        return self._url("valkey", f"{quote(self.username, safe='')}@" if self.username else "", self.tls_options)

    @property
    def redis_url(self) -> str:
        """What the client library reads (`from_url`). A secret."""
        secret = f":{quote(self.password, safe='')}" if self.password else ""
        user = f"{quote(self.username, safe='')}{secret}@" if self.username or secret else ""
        # Before version 6 the library did not check it unless it was told to.
        checks = {"ssl_check_hostname": "true"} if self.tls else {}
        return self._url("redis", user, tuple((checks | dict(self.tls_options)).items()))

    def _url(self, scheme: str, user: str, options: tuple[tuple[str, str], ...]) -> str:
        if self.path:
            return f"unix://{user}{quote(self.path)}" + (f"?db={self.db}" if self.db else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        query = f"?{urlencode(options, safe='/')}" if options else ""
        return f"{scheme}{'s' if self.tls else ''}://{user}{host}:{self.port}/{self.db}{query}"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """An engine, and the name of the cluster there."""

    address: EngineAddress
    name: str
    identity: str = ""
    """How this proxy tells agents and accounts apart: all members have to do it alike."""


def read_cluster(url: str, name: str, environment: Mapping[str, str]) -> ClusterSettings:
    """The cluster that a proxy's options name. Raises BadEngineUrl, also where the client library is missing."""
    name = check_cluster_name(name, option="hivemind_cluster_name")
    address = parse_engine_url(url, environment, option="hivemind_cluster")
    try:
        import redis.asyncio.connection  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        missing = error.name or "redis"
        raise BadEngineUrl(
            f"hivemind_cluster needs {missing}: {sys.executable} -m pip install 'hivemind-addon[cluster]'"
        ) from error
    return ClusterSettings(address, name)


def parse_engine_url(
    text: str, environment: Mapping[str, str] | None = None, *, option: str = "--cluster"
) -> EngineAddress:
    """The address. `environment` may hold a name and a password; `option` is what errors name. Raises BadEngineUrl."""
    try:
        return _parsed(text.strip(), environment or {})
    except BadEngineUrl as error:
        raise BadEngineUrl(f"{option}: {error}") from None


def keep_password(address: EngineAddress) -> None:
    """For processes of the same user that are not to have it in their environment. Raises FolderNotPrivate, OSError."""
    write_whole(_password_file(address), address.password.encode())


def kept_password(address: EngineAddress) -> str:
    """What `keep_password` has kept; empty: nothing."""
    try:
        return _password_file(address).read_text(encoding="utf-8")
    except (OSError, ValueError, FolderNotPrivate):
        return ""


def _password_file(address: EngineAddress) -> Path:
    return runtime_folder() / f"engine-{hashlib.sha256(address.shown.encode()).hexdigest()[:16]}"


def check_cluster_name(name: str, *, option: str = "--cluster-name") -> str:
    """The name. Raises BadEngineUrl: it is part of keys and channels, and has to be plain."""
    if not _NAME.fullmatch(name):
        raise BadEngineUrl(
            f"{option}: {name[:80]!r} is no name; take 1 to 64 letters, digits, dots, dashes and underscores"
        )
    return name


def _parsed(text: str, environment: Mapping[str, str]) -> EngineAddress:
    shown = repr(_without_secrets(text))
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError:
        raise BadEngineUrl(f"{shown} has no port that is a number, or no host; {_FORM}; {_SPECIAL}") from None
    scheme = _SCHEMES.get(url.scheme)
    if scheme is None or "://" not in text:
        raise BadEngineUrl(f"{shown} is no engine's URL; {_FORM}")
    if url.fragment or "@" in url.path + url.query:
        raise BadEngineUrl(f"{shown} has a `/`, `?` or `#` where none belongs; {_SPECIAL}")
    options = _options(url.query, shown, tls=scheme == "rediss", socket=scheme == "unix")
    if scheme == "unix":
        if host or not url.path.strip("/"):
            raise BadEngineUrl(f"{shown} names no socket by its whole path; write unix:///run/valkey/valkey.sock")
        path, database = unquote(url.path), options.pop("db", "")
    else:
        if not host:
            raise BadEngineUrl(f"{shown} has no host; {_FORM}")
        path, database = "", url.path.strip("/")
    if not (database.isascii() and database.isdecimal()) and database:
        raise BadEngineUrl(f"{shown}: its database is no number; {_FORM}")
    if port == 0:
        raise BadEngineUrl(f"{shown}: nothing can be at port 0; {_FORM}")
    return EngineAddress(
        host=host,
        port=0 if path else port or _PORT,
        path=path,
        db=int(database or 0),
        username=unquote(url.username or "") or environment.get(USERNAME_VARIABLE, ""),
        password=unquote(url.password or "") or environment.get(PASSWORD_VARIABLE, ""),
        tls=scheme == "rediss",
        tls_options=tuple(sorted(options.items())),
    )


def _options(query: str, shown: str, *, tls: bool, socket: bool) -> dict[str, str]:
    """What stands behind the `?`. Raises BadEngineUrl."""
    found = dict(parse_qsl(query, keep_blank_values=True))
    known = ("db",) if socket else (*_FILES, *_WORDS) if tls else ()
    for name, value in found.items():
        if name in ("username", "password"):
            raise BadEngineUrl(f"{shown}: write USER:PASSWORD@ before the host, or set {PASSWORD_VARIABLE}")
        if name not in known:
            raise BadEngineUrl(f"{shown}: {_unknown(name, known, tls=tls)}")
        if name in _FILES:
            if not Path(value).is_file():
                raise BadEngineUrl(f"{shown}: {name}: there is no file {value!r}")
            found[name] = str(Path(value).absolute())  # for processes in other folders, too
        elif name in _WORDS and value not in _WORDS[name]:
            raise BadEngineUrl(f"{shown}: {name} is one of {', '.join(_WORDS[name])}, not {value!r}")
    return found


def _unknown(name: str, known: tuple[str, ...], *, tls: bool) -> str:
    if not tls and name in (*_FILES, *_WORDS):
        return f"{name} is for TLS; write valkeys://"
    near = get_close_matches(name, known, n=1)
    there = f"there is {', '.join(known)}" if known else "there is none without TLS"
    return f"{name!r} is no option; {there}" + (f"; did you mean {near[0]}?" if near else "")


def _without_secrets(text: str) -> str:
    """For errors: no password, however it is spelled."""
    # A password that holds `/`, `?` or `#` as it is ends somewhere before the last `@`.
    head, at, tail = text.rpartition("@")
    if at:
        scheme, slashes, user = head.partition("://")
        name = user.partition(":")[0] if ":" in user else user
        text = f"{scheme}{slashes}{name}{f':{_HIDDEN}' if ':' in user else ''}@{tail}"
    return re.sub(r"(password=)[^&]*", rf"\1{_HIDDEN}", text)[:200]
