"""What keeps one kind of agent from being scheduled, by where its calls go: its own servers, hosts that no profile
claims, base URLs that lead elsewhere. Nothing is tried; the answers are in `agents.yaml`, the environment and the
hosts of the profiles.
"""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from hivemind_addon.system.patterns import glob_matches, host_parts, normal_host
from hivemind_addon.tools.launch.finding import Finding, Severity
from hivemind_addon.tools.launch.programs import Program, ProgramTable, base_urls

LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 - what a base URL may name


def hindrances(
    program: Program | None,
    *,
    environment: Mapping[str, str],
    table: ProgramTable,
    hosts: Sequence[str],
    listens: Sequence[str] = (),
) -> Iterator[Finding]:
    """Findings for one program, or for any. `hosts`: what profiles claim; `listens`: `host:port` of the proxy."""
    if program is not None and program.tunnelled:
        yield Finding(Severity.NOTE, "calls.vendor", f"calls: pass unscheduled, {program.tunnelled}")
        return
    elsewhere = list(_base_urls(environment, program, table))
    yield from (found for where, value in elsewhere if (found := _judge(where, value, hosts, listens)))
    if program is not None and not elsewhere:
        yield from _own_hosts(program, hosts)


def port_of(value: str) -> int | None:
    """Of an address, whose scheme may be missing; None: it names none, or no number."""
    try:
        return urlsplit(value if "://" in value else f"http://{value}").port
    except ValueError:
        return None


def _own_hosts(program: Program, hosts: Sequence[str]) -> Iterator[Finding]:
    """Where it goes when it is told nothing. One way of several that is unclaimed need not be the user's."""
    missing = {host: when for host, when in program.hosts.items() if not _is_claimed(host, 443, hosts)}
    severity = Severity.BAD if len(missing) == len(program.hosts) else Severity.NOTE
    for host, when in missing.items():
        yield Finding(
            severity,
            "calls.unclaimed",
            f"calls: {when} they go to {host}, which no profile claims, and pass unscheduled",
            f"write a profile with hosts: [{host}] (docs/profiles.md)",
        )


def _base_urls(
    environment: Mapping[str, str], program: Program | None, table: ProgramTable
) -> Iterator[tuple[str, str]]:
    names = table.base_url_variables if program is None else program.base_url_variables
    yield from ((name, environment[name]) for name in names if environment.get(name))
    if program is not None:
        yield from ((program.config, url) for url in base_urls(program.settings()))


def _judge(where: str, value: str, hosts: Sequence[str], listens: Sequence[str]) -> Finding | None:
    url = urlsplit(value if "://" in value else f"http://{value}")
    host, port = url.hostname or "", port_of(value) or (443 if url.scheme == "https" else 80)
    if host in LOOPBACK:
        if any(one.rpartition(":")[2] == str(port) for one in listens):
            return None
        return Finding(
            Severity.BAD,
            "base-url.local",
            f"base URL: {where} names {host}:{port}, which no proxy variable leads around",
            f"unset it, or put the proxy in front: hivemind run --mode reverse:http://{host}:{port}@PORT",
        )
    if _is_claimed(host, port, hosts):
        return None
    return Finding(
        Severity.BAD,
        "base-url.unclaimed",
        f"base URL: {where} names {host}, which no profile claims",
        f"write a profile with hosts: [{host}]",
    )


def _is_claimed(host: str, port: int, hosts: Sequence[str]) -> bool:
    name = normal_host(host)
    claimed = map(host_parts, hosts)
    return any(its_port in (None, port) and glob_matches(its_name, name) for its_name, its_port in claimed)
