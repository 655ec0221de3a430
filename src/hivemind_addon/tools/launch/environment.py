"""The environment that puts an agent behind the proxy: pure, from one set of variables to the ones that change."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote

from hivemind_addon.formats.base.patterns import glob_matches, host_parts
from hivemind_addon.tools.launch.programs import ProgramTable

PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
"""Each in both spellings: curl reads only the small http_proxy, others only the capital ones."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Never through the proxy: agents talk to servers of their own there."""


def proxy_url(port: int, *, agent: str, words: Sequence[str], host: str = "127.0.0.1") -> str:
    """The proxy's address with the agent's name, and what it asks for as the password."""
    address = f"[{host}]" if ":" in host else host
    # Without a password some clients (Python's requests) send no name either.
    return f"http://{quote(agent, safe='')}:{quote('.'.join(words) or 'x', safe='.-')}@{address}:{port}"


def changes(
    base: Mapping[str, str],
    *,
    url: str,
    bundle: Path,
    hosts: Sequence[str],
    tool_hosts: Sequence[str] = (),
    table: ProgramTable,
    patience: bool,
) -> dict[str, str]:
    """The variables to set on top of `base`. `hosts`: globs of what has to go through the proxy.

    `tool_hosts`: those of them whose service a person has named, on this machine, too.
    """
    changed: dict[str, str] = {}
    for name in PROXY_VARIABLES:
        changed[name] = changed[name.lower()] = url
    bypass = ",".join(_bypass(base, hosts, tool_hosts))
    changed["NO_PROXY"] = changed["no_proxy"] = bypass
    changed.update(dict.fromkeys(table.ca_variables, str(bundle)))
    wanted = dict(table.variables)
    if patience:
        for program in table.programs.values():
            wanted.update(program.patience)
    changed.update({name: value for name, value in wanted.items() if name not in base})
    return changed


def bypass_entries(variables: Mapping[str, str]) -> list[str]:
    """What NO_PROXY names, in either spelling."""
    text = f"{variables.get('NO_PROXY', '')},{variables.get('no_proxy', '')}"
    return list(dict.fromkeys(entry for entry in re.split(r"[\s,]+", text) if entry))


def bypasses(entry: str, hosts: Iterable[str]) -> bool:
    """Whether an entry of NO_PROXY lets a host of a profile go past the proxy."""
    name, _, port = entry.lower().rpartition(":")
    if not port.isdecimal() or ":" in name:
        name = entry.lower()
    pattern = name.removeprefix("*").lstrip(".")
    for claimed in (host_parts(host)[0] for host in hosts):
        if _is_loopback(claimed):
            continue
        if name == "*" or (pattern and (claimed == pattern or claimed.endswith(f".{pattern}"))):
            return True
        if "*" in claimed and glob_matches(claimed, pattern):
            return True
    return False


def exports(changed: Mapping[str, str]) -> str:
    """The same as lines for a POSIX shell."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in changed.items())


def _bypass(base: Mapping[str, str], hosts: Sequence[str], tool_hosts: Sequence[str]) -> list[str]:
    # NO_PROXY names no ports to every program: with one server here everything here goes through the proxy.
    named = {host_parts(host)[0] for host in tool_hosts}
    kept = [entry for entry in bypass_entries(base) if entry not in named and not bypasses(entry, hosts)]
    return [*kept, *(name for name in LOOPBACK if name not in kept and name not in named)]


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
