"""`hivemind lease …`: named things that only one, or so many, may use at a time."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import PurePath
from threading import Event

import click
import msgspec
from click.core import ParameterSource

from hivemind_addon.plugins.fleets.leases.choice import LeasePlace
from hivemind_addon.plugins.fleets.leases.holder import caller, holder_of
from hivemind_addon.plugins.fleets.leases.lease_keeper import WatchedProcess, keep, start_keeper
from hivemind_addon.plugins.fleets.leases.model import (
    Holder,
    Lease,
    LeaseError,
    LeaseOver,
    LeaseState,
    LeaseStore,
    NotGranted,
    Request,
    check_name,
)
from hivemind_addon.plugins.fleets.leases.waiting import wait_for_lease
from hivemind_addon.proxy.api.words import brief, several
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.engine_url import (
    CLUSTER_NAME_VARIABLE,
    CLUSTER_VARIABLE,
    DEFAULT_CLUSTER,
    PASSWORD_VARIABLE,
)
from hivemind_addon.tools.commands.group import IndexedGroup
from hivemind_addon.tools.commands.options import in_one_line
from hivemind_addon.tools.commands.printing import Format, Row, format_option, json_flag, print_rows
from hivemind_addon.tools.commands.times import SPAN
from hivemind_addon.tools.launch.port import AGENT_VARIABLE
from hivemind_addon.tools.launch.process_replacement import become, insist

ID_VARIABLE, TOKEN_VARIABLE = "HIVEMIND_LEASE_ID", "HIVEMIND_LEASE_TOKEN"
NOT_GRANTED = 75
"""Exit status: somebody else has it. The sysexits' "try again later"."""
_TTL_S = 60.0
_MOST_NAMED = 4

_WAIT_S = 30.0
_FALSE = "false"
"""What a shell evaluates where there is no lease: evaluating nothing would be a success."""
_COLUMNS = {
    "name": "name",
    "places": "taken",
    "agent": "holder",
    "token": "token",
    "left": "ends in",
    "value": "value",
    "waiting": "waiting",
}
_SPARED = ("value", "waiting")
_names = click.argument("names", nargs=-1, required=True, metavar="NAME...")
_ttl = click.option(
    "--ttl", "ttl_s", type=SPAN, default=f"{_TTL_S:g}s", show_default=True, help="How long, unless it is renewed."
)
_at_most = click.option(
    "--at-most", "capacity", type=click.IntRange(1), default=1, show_default=True, help="Holders that a name may have."
)
_one_line = in_one_line(LeaseError)


def _taking[**P, R](command: Callable[P, R]) -> Callable[P, R]:
    """The options of each command that takes a lease."""
    for option in (
        click.option(
            "--agent",
            metavar="NAME",
            envvar=AGENT_VARIABLE,
            help="The holder's name for people; inside of an agent its own.",
        ),
        click.option("--value", default="", help="A word to others, such as an address."),
        click.option("--no-wait", "wait_s", flag_value=0.0, type=SPAN, help="Take it now or not at all."),
        click.option("--wait", "wait_s", type=SPAN, help="How long to wait in line."),
        _ttl,
    ):
        command = option(command)
    return command


_keep_going = click.option(
    "--keep-going", is_flag=True, help="Only say so when the lease is lost, and let the command go on."
)


class RunsCommand(click.Command):
    """What stands behind `--` is a command, and not one of the names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The command is the parameter `command`."""
        here, there = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        rest = super().parse_args(ctx, here)
        if not there and not ctx.resilient_parsing:  # a shell asks what could come next
            raise click.UsageError("say what to run: NAME -- COMMAND", ctx)
        ctx.params["command"] = tuple(there)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """With the command."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


@click.group(cls=IndexedGroup)
@click.option(
    "--cluster",
    metavar="URL",
    envvar=CLUSTER_VARIABLE,
    default="",
    help="A Valkey or Redis server that keeps the leases, for many machines; `off`: this machine's file.",
)
@click.option(
    "--cluster-name",
    metavar="NAME",
    envvar=CLUSTER_NAME_VARIABLE,
    default=DEFAULT_CLUSTER,
    show_default=True,
    help="The cluster whose leases they are.",
)
@click.pass_context
def lease(ctx: click.Context, cluster: str, cluster_name: str) -> None:
    """Locks, leaders and "at most N", for agents and scripts on this machine, or on many.

    A lease ends when it is released, when its time is over, or when the process that holds it is gone. It binds those
    who ask. Exit status 75: somebody else has it. With --cluster all who name the same server and cluster share them.

    \b
    Examples:
      hivemind lease run build -- make             one at a time
      hivemind lease run gpu --at-most 3 -- ./train.sh
      hivemind lease lead planner --value http://127.0.0.1:7000 -- ./planner
      hivemind lease acquire deploy && ./deploy.sh; hivemind lease release deploy
      hivemind lease list
      hivemind lease --cluster valkey://10.0.0.5 run deploy -- ./deploy.sh
    """
    by_option, name_by_option = (
        ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ("cluster", "cluster_name")
    )
    ctx.obj = LeasePlace(cluster, cluster_name, by_option=by_option, name_by_option=name_by_option)


@lease.command()
@_names
@_taking
@_at_most
@click.option(
    "--pid", type=click.IntRange(0), help="The process that it ends with; default: the one that calls; 0: none."
)
@click.option("--export", is_flag=True, help="Print lines for a shell that set the id and the token.")
@json_flag
@_one_line
def acquire(
    names: tuple[str, ...],
    ttl_s: float,
    wait_s: float | None,
    capacity: int,
    value: str,
    agent: str | None,
    pid: int | None,
    *,
    export: bool,
    as_json: bool,
) -> None:
    """Take all of the names or none; waits in line for half a minute unless told otherwise.

    It ends with the shell or agent that calls, too. Prints the lease's id, which renews and releases it, and its
    fencing token, which is greater than all that were given before.

    \b
    Examples:
      hivemind lease acquire deploy --ttl 5m
      hivemind lease acquire main-branch changelog --wait 2m
      hivemind lease acquire phase-2 --at-most 4 --no-wait --json
      eval "$(hivemind lease acquire deploy --export)" && ./deploy.sh
    """
    if export and as_json:
        raise click.UsageError("--export or --json, not both")
    request = Request(names, watched_holder(agent, caller() if pid is None else pid), ttl_s, capacity, value)
    try:
        with open_store() as store:
            answer = wait_in_line(store, request, _WAIT_S if wait_s is None else wait_s)
    except LeaseError:
        if export:
            click.echo(_FALSE)
        raise
    if isinstance(answer, NotGranted):
        if export:
            click.echo(_FALSE)
        if as_json:
            holders = [_plain_holder(one) for one in answer.holders]
            click.echo(msgspec.json.encode({"granted": False, "ahead": answer.ahead, "holders": holders}).decode())
        else:
            click.echo(refused(answer), err=True)
        sys.exit(NOT_GRANTED)
    if as_json:
        click.echo(msgspec.json.encode({"granted": True, **_plain(answer)}).decode())
    elif export:
        exported = variables(answer) | _place_for_children()
        click.echo("".join(f"export {key}={shlex.quote(word)}\n" for key, word in exported.items()), nl=False)
    else:
        held = " ".join(grant.name for grant in answer.grants)
        click.echo(f"{answer.id}  token {token_of(answer)}  {brief(answer.left_s)}  {held}")


@lease.command()
@click.argument("lease_id", metavar="ID", envvar=ID_VARIABLE)
@_ttl
@json_flag
@_one_line
def renew(lease_id: str, ttl_s: float, *, as_json: bool) -> None:
    """Let a lease's time begin again; the exit status is 1 when it is over.

    Without ID the one that `acquire --export` has set.

    \b
    Examples:
      hivemind lease renew 0f3c9a12b4d5e6f7 --ttl 10m
      hivemind lease renew
    """
    with open_store() as store:
        renewed = store.renew(lease_id, ttl_s, store.instant(SystemClock()))
    if as_json:
        click.echo(msgspec.json.encode(_plain(renewed)).decode())
    else:
        click.echo(f"{renewed.id}  token {token_of(renewed)}  {brief(renewed.left_s)}")


@lease.command()
@click.argument("what", nargs=-1, metavar="[ID|NAME]...", envvar=ID_VARIABLE)
@click.option("--force", is_flag=True, help="A name's leases, whoever holds them.")
@_one_line
def release(what: tuple[str, ...], *, force: bool) -> None:
    """End leases, by their ids or by a name that the caller holds.

    Without an argument the one that `acquire --export` has set. All names of a lease end together.

    \b
    Examples:
      hivemind lease release
      hivemind lease release 0f3c9a12b4d5e6f7
      hivemind lease release deploy
      hivemind lease release deploy --force       somebody else's
    """
    if not what:
        raise click.UsageError(f"say which: an id, or a name ({ID_VARIABLE} is not set)")
    ours = {(one.pid, one.started) for one in (watched_holder("", pid) for pid in {caller(), os.getppid()})}
    ended: list[str] = []
    with open_store() as store:
        for one in what:
            ended += _release(store, one, ours, force=force)
    click.echo(f"released {', '.join(ended)}")


def _release(store: LeaseStore, what: str, ours: set[tuple[int, str]], *, force: bool) -> list[str]:
    """The names that are free now; `ours`: processes, by id and start. Raises LeaseError."""
    now = store.instant(SystemClock())
    every = {one.id: one for standing in store.standings(now) for one in standing.leases}
    if what in every:
        chosen = [every[what]]
    else:
        check_name(what)
        holding = [one for one in every.values() if any(grant.name == what for grant in one.grants)]
        if not holding:
            raise LeaseOver(f"{what!r} is not held (any more), as a name or as a lease")
        chosen = [one for one in holding if force or (one.holder.pid, one.holder.started) in ours]
        if not chosen:
            raise LeaseError(f"{what!r} is held by {who(holding[0].holder)}; --force ends it all the same")
    for one in chosen:
        store.release(one.id, now)
    return [grant.name for one in chosen for grant in one.grants]


@lease.command(name="list")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@format_option
@_one_line
def list_leases(names: tuple[str, ...], form: Format) -> None:
    """Show who holds and who waits, of some names or of all.

    \b
    Examples:
      hivemind lease list
      hivemind lease list planner --json | jq -r '.[0].holders[0].value'
    """
    for name in names:
        check_name(name)
    with open_store() as store:
        standings = store.standings(store.instant(SystemClock()), names)
    if form is not Format.TABLE:
        print_rows([_standing(one) for one in standings], {}, form)
        return
    rows = [row for one in standings for row in _rows(one)]
    # A terminal is narrow.
    spared = [key for key in _SPARED if not any(row.get(key) for row in rows)]
    columns = {key: heading for key, heading in _COLUMNS.items() if key not in spared}
    print_rows(rows, columns, form, none="nothing is held or waited for", spare=("waiting", "value"))


def _plain(held: Lease) -> dict[str, object]:
    return {
        "id": held.id,
        "token": token_of(held),
        "names": [grant.name for grant in held.grants],
        "holder": _plain_holder(held.holder),
        "left_s": round(held.left_s, 3),
        "value": held.value,
    }


def _plain_holder(holder: Holder) -> dict[str, object]:
    elsewhere = {"host": holder.host} if holder.host else {}
    return {"agent": holder.agent, "pid": holder.pid, **elsewhere}


def _standing(standing: LeaseState) -> Row:
    """Without ids: who only looks is not to end a lease by a slip."""
    return {
        "name": standing.name,
        "capacity": standing.capacity,
        "holders": [{key: word for key, word in _plain(one).items() if key != "id"} for one in standing.leases],
        "waiting": [_plain_holder(one) for one in standing.waiting],
        "last_token": standing.last_token,
    }


def _rows(standing: LeaseState) -> list[Row]:
    """One for each holder, or one without."""
    places = f"{len(standing.leases)} of {standing.capacity}"
    waiting = ", ".join(one.agent for one in standing.waiting)
    rows: list[Row] = [
        {
            "name": standing.name,
            "places": places,
            "agent": who(one.holder),
            "token": str(token_of(one)),
            "left": brief(one.left_s),
            "value": one.value,
            "waiting": waiting,
        }
        for one in standing.leases
    ]
    return rows or [{"name": standing.name, "places": places, "waiting": waiting}]


@lease.command(cls=RunsCommand)
@_names
@_taking
@_at_most
@_keep_going
@_one_line
def run(
    names: tuple[str, ...],
    ttl_s: float,
    wait_s: float | None,
    capacity: int,
    value: str,
    agent: str | None,
    command: tuple[str, ...],
    *,
    keep_going: bool,
) -> None:
    """Run a command that holds the names while it runs; its exit status is the command's.

    The lease is renewed until the command ends. Should it be lost before (the machine stood still for longer than its
    time, somebody released it), the command gets SIGTERM. HIVEMIND_LEASE_TOKEN and HIVEMIND_LEASE_ID are set for it.

    \b
    Examples:
      hivemind lease run build -- make -j4
      hivemind lease run left-fork right-fork -- ./eat.sh
      hivemind lease run phase-2 --at-most 3 --wait 10m -- pytest
    """
    _run(Request(names, _runner(agent, command), ttl_s, capacity, value), wait_s, command, keep_going=keep_going)


@lease.command(cls=RunsCommand)
@click.argument("name")
@_taking
@_keep_going
@_one_line
def lead(
    name: str,
    ttl_s: float,
    wait_s: float | None,
    value: str,
    agent: str | None,
    command: tuple[str, ...],
    *,
    keep_going: bool,
) -> None:
    """Wait until nobody else leads, then run a command that leads while it runs.

    `hivemind lease list NAME` shows who leads and its value. A leader that is no more (its process ended, or it did
    not renew in time) is followed by the one that has waited longest; it gets SIGTERM itself, should it still run.

    \b
    Examples:
      hivemind lease lead planner --value http://127.0.0.1:7000 -- ./planner
      hivemind lease list planner
    """
    _run(Request((name,), _runner(agent, command), ttl_s, 1, value), wait_s, command, keep_going=keep_going)


def _runner(agent: str | None, command: tuple[str, ...]) -> Holder:
    """Our process, which becomes the command; it ends with 127 where there is no such command."""
    insist(command)
    return watched_holder(agent, os.getpid(), command[0])


def _run(request: Request, wait_s: float | None, command: tuple[str, ...], *, keep_going: bool) -> None:
    shared = _place_for_children()
    with open_store(request.ttl_s) as store:
        held = wait_in_line(store, request, wait_s)
    if isinstance(held, NotGranted):
        click.echo(refused(held), err=True)
        sys.exit(NOT_GRANTED)
    process = WatchedProcess(request.holder, pause=Event().wait)

    def lost(why: str) -> None:
        then = "it goes on without" if keep_going else f"{command[0]} is asked to end"
        click.echo(f"hivemind: {why}; {then}", err=True)
        if not keep_going:
            process.terminate()

    def work() -> None:
        with open_store(request.ttl_s) as store:
            keep(store, held, process, ttl_s=request.ttl_s, clock=SystemClock(), lost=lost)

    start_keeper(process, work)
    # The command takes our place, so that the lease's holder is the command itself.
    become(command, {**os.environ, **variables(held), **shared})


def wait_in_line(store: LeaseStore, request: Request, wait_s: float | None) -> Lease | NotGranted:
    """Its place is kept while this waits; `wait_s` None: for as long as it takes. Raises LeaseError."""
    return wait_for_lease(
        store,
        request,
        clock=SystemClock(),
        wait_s=wait_s,
        pause=Event().wait,
        tell=lambda answer: click.echo(f"waiting: {refused(answer)}", err=True),
        tell_gone=lambda error: click.echo(f"waiting: {error}", err=True),
    )


def open_store(ttl_s: float | None = None) -> LeaseStore:
    """Everybody's; to be closed. `ttl_s`: of the lease that it is to keep. Made at its first use. Raises LeaseError."""
    return _place().open(os.environ, ttl_s)


def _place() -> LeasePlace:
    ctx = click.get_current_context(silent=True)
    return (ctx and ctx.find_object(LeasePlace)) or LeasePlace()


def _place_for_children() -> dict[str, str]:
    """The variables by which a command under a lease finds it. Raises LeaseError."""
    place = _place()
    if place.has_secret:
        click.echo(
            f"hivemind: commands under this lease do not know its server, since --cluster holds a password; set "
            f"{PASSWORD_VARIABLE} instead",
            err=True,
        )
    return place.variables(os.environ)


def watched_holder(agent: str | None, pid: int, what: str = "shell") -> Holder:
    """Raises BadParameter: there is no such process."""
    try:
        return holder_of(agent or f"{PurePath(what).name}-{pid}", pid)
    except (ProcessLookupError, OverflowError) as error:
        raise click.BadParameter(f"there is no process {pid}", param_hint="--pid") from error


def refused(answer: NotGranted) -> str:
    """Why, in words."""
    names = ", ".join(answer.ahead)
    if not answer.holders:
        return f"{names}: others have waited for longer"
    more = len(answer.holders) - _MOST_NAMED
    named = [who(one) for one in answer.holders[:_MOST_NAMED]] + ([several(more, "other")] if more > 0 else [])
    return f"{names}: held by {', '.join(named)}"


def who(holder: Holder) -> str:
    """A holder, for people."""
    named_by_it = not holder.pid or holder.agent.endswith(f"-{holder.pid}")
    facts = [*(() if named_by_it else (f"process {holder.pid}",)), *((f"on {holder.host}",) if holder.host else ())]
    return f"{holder.agent} ({' '.join(facts)})" if facts else holder.agent


def token_of(held: Lease) -> int:
    """Its fencing token: the first name's, where it has several."""
    return held.grants[0].token


def variables(held: Lease) -> dict[str, str]:
    """What a command under a lease knows it by."""
    return {ID_VARIABLE: held.id, TOKEN_VARIABLE: str(token_of(held))}
