"""The needs of an agent behind the proxy: certificates, an environment, and the words of the proxy password.

A single file has the certificates for all runtimes: the system's roots, the user's own, and the proxy's CA.
"""

import hashlib
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import certifi

from hivemind_addon.formats.profile.upstreams import HELD_KEY
from hivemind_addon.kernel.values.ticket import Delivery
from hivemind_addon.proxy.api.config_file import ALERTS_VARIABLE
from hivemind_addon.proxy.api.report import ProxyView
from hivemind_addon.proxy.api.trust import ca_certificate
from hivemind_addon.proxy.system.engine_url import (
    CLUSTER_NAME_VARIABLE,
    CLUSTER_VARIABLE,
    OFF,
    PASSWORD_VARIABLE,
    BadEngineUrl,
    keep_password,
    parse_engine_url,
)
from hivemind_addon.proxy.system.engine_url import SECRET_VARIABLE as CLUSTER_SECRET_VARIABLE
from hivemind_addon.proxy.system.folders import state_folder
from hivemind_addon.proxy.system.whole_file import write_whole
from hivemind_addon.tools.launch.environment import changes, proxy_url
from hivemind_addon.tools.launch.port import AGENT_VARIABLE, PORT_VARIABLE, SECRET_VARIABLE
from hivemind_addon.tools.launch.programs import ProgramTable

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_PREFIX = "ca-bundle-"


class NoBundle(Exception):
    """The proxy's certificate is missing; a line that names the file and the cure."""


class NamelessSecret(Exception):
    """There is a secret and no name; a line with the cure."""


def certificates(file: Path) -> list[bytes]:
    """The certificates of a PEM file, and nothing else: never a key. Raises OSError."""
    return _CERTIFICATE.findall(file.read_bytes())


def holds_key(file: Path) -> bool:
    """Whether a file holds a private key, too. Raises OSError."""
    return b"PRIVATE KEY-----" in file.read_bytes()


def is_ours(file: str) -> bool:
    """Whether a path is that of a bundle from `write_bundle`."""
    return Path(file).name.startswith(_PREFIX) and Path(file).parent == state_folder()


def write_bundle(confdir: Path, users: Iterable[str]) -> Path:
    """The bundle's path; `users`: paths of bundles that the user's variables name. Raises NoBundle, OSError.

    The name of a bundle depends on the content, so that a bundle never changes while a program reads the file.
    """
    ca = ca_certificate(confdir)
    try:
        own = certificates(ca)
    except FileNotFoundError as error:
        raise NoBundle(f"{ca} is not there yet: mitmproxy makes it at its first start (`hivemind run`)") from error
    except OSError as error:
        raise NoBundle(f"{ca} cannot be read: {error.strerror}") from error
    if not own:
        raise NoBundle(f"{ca} holds no certificate; remove it, and mitmproxy makes it anew")
    found = dict.fromkeys(own)
    for file in (_system_roots(), *map(Path, users)):
        with suppress(OSError):  # a variable that names nothing readable helps nobody without us, either
            found.update(dict.fromkeys(certificates(file)))
    content = b"\n".join(found) + b"\n"
    bundle = state_folder() / f"{_PREFIX}{hashlib.sha256(content).hexdigest()[:12]}.pem"
    if not bundle.is_file() or bundle.read_bytes() != content:
        write_whole(bundle, content)
    return bundle


def _system_roots() -> Path:
    """OpenSSL's default file, whatever the environment says; else certifi's."""
    # `cafile` of get_default_verify_paths obeys SSL_CERT_FILE, which is the user's, or ours.
    places = (ssl.get_default_verify_paths().openssl_cafile, "/etc/ssl/certs/ca-certificates.crt")
    return next((Path(place) for place in places if Path(place).is_file()), Path(certifi.where()))


def environment_changes(
    proxy: ProxyView,
    base: Mapping[str, str],
    *,
    agent: str,
    words: Sequence[str],
    table: ProgramTable,
    patience: bool = True,
) -> dict[str, str]:
    """Variables to set on top of `base` for an agent. Writes the bundle of certificates. Raises NoBundle, OSError."""
    users = {base[name] for name in table.ca_variables if base.get(name)}
    bundle = write_bundle(Path(proxy.confdir), sorted(file for file in users if not is_ours(file)))
    changed = changes(
        base,
        url=proxy_url(proxy.port, agent=agent, words=words),
        bundle=bundle,
        hosts=proxy.hosts,
        tool_hosts=proxy.tool_hosts,
        table=table,
        patience=patience,
    )
    return changed | {AGENT_VARIABLE: agent, PORT_VARIABLE: str(proxy.port)} | _cluster_changes(proxy, base)


def agent_environment(proxy: ProxyView, environment: Mapping[str, str]) -> dict[str, str]:
    """The whole environment for an agent, without variables of the proxy alone.

    Keeps the password of the engine with the agent's leases in a file. Raises FolderNotPrivate, OSError.
    """
    own = {PASSWORD_VARIABLE, CLUSTER_SECRET_VARIABLE, ALERTS_VARIABLE}
    theirs = {name: value for name, value in environment.items() if name not in own}
    theirs.update((name, HELD_KEY) for name in proxy.key_variables if theirs.get(name))
    engine = theirs.get(CLUSTER_VARIABLE, "")
    if engine not in ("", OFF):
        try:
            address = parse_engine_url(engine, environment)
        except BadEngineUrl:  # users of the URL get an error; the URL may still contain a password
            del theirs[CLUSTER_VARIABLE]
        else:
            theirs[CLUSTER_VARIABLE] = address.shown
            if address.password:
                keep_password(address)
    return theirs


def _cluster_changes(proxy: ProxyView, base: Mapping[str, str]) -> dict[str, str]:
    """Variables that put the agent's leases into the proxy's engine, unless `base` names another place."""
    if not proxy.engine or CLUSTER_VARIABLE in base or lacks_password(proxy, base):
        return {}
    return {CLUSTER_VARIABLE: proxy.engine, CLUSTER_NAME_VARIABLE: proxy.cluster}


def lacks_password(proxy: ProxyView, base: Mapping[str, str]) -> str:
    """A line with the cure, if the proxy's engine cannot have an agent's leases; empty: no cure is needed."""
    if not proxy.engine_has_password or base.get(PASSWORD_VARIABLE) or CLUSTER_VARIABLE in base:
        return ""
    return (
        f"leases of this agent stay on this machine, since {proxy.engine} asks for a password; "
        f"set {PASSWORD_VARIABLE}, or {CLUSTER_VARIABLE}={OFF} to mean it"
    )


def proved_name(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The agent whose secret is in an environment, and the secret, as the first word of the proxy password.

    Empty: there is none. Raises NamelessSecret.
    """
    secret, name = environment.get(SECRET_VARIABLE, ""), environment.get(AGENT_VARIABLE, "")
    if secret and not name:
        raise NamelessSecret(f"{SECRET_VARIABLE} is set: say whose secret it is, with --agent NAME or {AGENT_VARIABLE}")
    return (name, [secret]) if secret else ("", [])


def asked_words(delivery: Delivery, *, priority: str | None = None, waits_s: int = 0, task: str = "") -> list[str]:
    """The agent's wishes, as words of the proxy password. `task`: the id under which the requests are kept."""
    return [
        *([delivery.value] if delivery is not Delivery.AUTO else ()),
        *([f"prio-{priority}"] if priority else ()),
        *([f"wait-{waits_s}"] if waits_s else ()),
        *([f"task-{task}"] if task else ()),
    ]
