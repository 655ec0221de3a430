"""What keeps one kind of agent from being scheduled, by where its calls go: its own servers, hosts that no profile
claims, base URLs that lead elsewhere. Nothing is tried; the answers are in `agents.yaml`, the environment and the
hosts of the profiles.
"""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from hivemind_addon.formats.base.patterns import glob_matches, host_parts, normal_host
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
    is_led = elsewhere or any(base_urls_to(listens, program, environment=environment, table=table))
    if program is not None and not is_led:
        yield from _own_hosts(program, hosts)


def base_urls_to(
    listens: Sequence[str], program: Program | None, *, environment: Mapping[str, str], table: ProgramTable
) -> Iterator[tuple[str, str]]:
    """What names a base URL that leads to the proxy, and the URL. `listens`: `host:port` of the proxy.

    Of a program whose variables are not known it may be any variable: whether it reads that is not known, either.
    """
    known = program if program and program.base_url_variables else None
    for where, value in _base_urls(environment, known, table):
        if _leads_to(listens, *_place(value)):
            yield where, value


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
    host, port = _place(value)
    if _leads_to(listens, host, port):
        return None
    if host in LOOPBACK:
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


def _place(value: str) -> tuple[str, int]:
    """The host and the port of a base URL, whose scheme may be missing."""
    url = urlsplit(value if "://" in value else f"http://{value}")
    return url.hostname or "", port_of(value) or (443 if url.scheme == "https" else 80)


def _leads_to(listens: Sequence[str], host: str, port: int) -> bool:
    return f"{host}:{port}" in listens or (
        host in LOOPBACK and any(one.rpartition(":")[2] == str(port) for one in listens)
    )


def _is_claimed(host: str, port: int, hosts: Sequence[str]) -> bool:
    name = normal_host(host)
    claimed = map(host_parts, hosts)
    return any(its_port in (None, port) and glob_matches(its_name, name) for its_name, its_port in claimed)
