"""`hivemind lease …`: named things that only one, or so many, may use at a time."""

import os
import shlex
import sys

import click
import msgspec

from hivemind_addon.api.words import brief
from hivemind_addon.system.clock import SystemClock
from hivemind_addon.tools.commands import lease_run
from hivemind_addon.tools.commands.lease_options import (
    ID_VARIABLE,
    NOT_GRANTED,
    agent_option,
    at_most_option,
    names_argument,
    no_wait_option,
    one_line,
    open_store,
    refused,
    token_of,
    ttl_option,
    value_option,
    variables,
    wait_in_line,
    wait_option,
    watched_holder,
    who,
)
from hivemind_addon.tools.commands.printing import Format, Row, format_option, print_rows
from hivemind_addon.tools.locks.holder import caller
from hivemind_addon.tools.locks.model import Lease, LeaseError, LeaseOver, LeaseState, NotGranted, Request, check_name
from hivemind_addon.tools.locks.sqlite_store import SqliteLeases

_WAIT_S = 30.0
_FALSE = "false"
"""What a shell evaluates where there is no lease: evaluating nothing would be a success."""
_COLUMNS = {
    "name": "name",
    "places": "taken",
    "agent": "holder",
    "pid": "process",
    "token": "token",
    "left": "ends in",
    "value": "value",
    "waiting": "waiting",
}
_SPARED = ("pid", "value", "waiting")


@click.group()
def lease() -> None:
    """Locks, leaders and "at most N", for agents and scripts on this machine.

    A lease ends when it is released, when its time is over, or when the process that holds it is gone. It binds those
    who ask. Exit status 75: somebody else has it.

    \b
    Examples:
      hivemind lease run build -- make             one at a time
      hivemind lease run gpu --at-most 3 -- ./train.sh
      hivemind lease lead planner --value http://127.0.0.1:7000 -- ./planner
      hivemind lease acquire deploy && ./deploy.sh; hivemind lease release deploy
      hivemind lease list
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines


@lease.command()
@names_argument
@ttl_option
@wait_option
@no_wait_option
@at_most_option
@value_option
@agent_option
@click.option(
    "--pid", type=click.IntRange(0), help="The process that it ends with; default: the one that calls; 0: none."
)
@click.option("--export", is_flag=True, help="Print lines for a shell that set the id and the token.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@one_line
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
      eval "$(hivemind lease acquire deploy --export)" && ./deploy.sh "$HIVEMIND_LEASE_TOKEN"
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
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
            holders = [{"agent": one.agent, "pid": one.pid} for one in answer.holders]
            click.echo(msgspec.json.encode({"granted": False, "ahead": answer.ahead, "holders": holders}).decode())
        else:
            click.echo(refused(answer), err=True)
        sys.exit(NOT_GRANTED)
    if as_json:
        click.echo(msgspec.json.encode({"granted": True, **_plain(answer)}).decode())
    elif export:
        click.echo("".join(f"export {key}={shlex.quote(word)}\n" for key, word in variables(answer).items()), nl=False)
    else:
        held = " ".join(grant.name for grant in answer.grants)
        click.echo(f"{answer.id}  token {token_of(answer)}  {brief(answer.left_s)}  {held}")


@lease.command()
@click.argument("lease_id", metavar="ID", envvar=ID_VARIABLE)
@ttl_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@one_line
def renew(lease_id: str, ttl_s: float, *, as_json: bool) -> None:
    """Let a lease's time begin again; the exit status is 1 when it is over.

    Without ID the one that `acquire --export` has set.

    \b
    Examples:
      hivemind lease renew 0f3c9a12b4d5e6f7 --ttl 10m
      hivemind lease renew
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    with open_store() as store:
        renewed = store.renew(lease_id, ttl_s, SystemClock().awake())
    if as_json:
        click.echo(msgspec.json.encode(_plain(renewed)).decode())
    else:
        click.echo(f"{renewed.id}  token {token_of(renewed)}  {brief(renewed.left_s)}")


@lease.command()
@click.argument("what", nargs=-1, metavar="[ID|NAME]...", envvar=ID_VARIABLE)
@click.option("--force", is_flag=True, help="A name's leases, whoever holds them.")
@one_line
def release(what: tuple[str, ...], *, force: bool) -> None:
    """End leases, by their ids or by a name that the caller holds.

    Without an argument the one that `acquire --export` has set. All names of a lease end together.

    \b
    Examples:
      hivemind lease release
      hivemind lease release 0f3c9a12b4d5e6f7
      hivemind lease release deploy
      hivemind lease release deploy --force       somebody else's
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    if not what:
        raise click.UsageError(f"say which: an id, or a name ({ID_VARIABLE} is not set)")
    now, ours = SystemClock().awake(), {caller(), os.getppid()}
    ended: list[str] = []
    with open_store() as store:
        for one in what:
            ended += _release(store, one, now, ours, force=force)
    click.echo(f"released {', '.join(ended)}")


def _release(store: SqliteLeases, what: str, now: float, ours: set[int], *, force: bool) -> list[str]:
    """The names that are free now. Raises LeaseError."""
    every = {one.id: one for standing in store.standings(now) for one in standing.leases}
    if what in every:
        chosen = [every[what]]
    else:
        check_name(what)
        holding = [one for one in every.values() if any(grant.name == what for grant in one.grants)]
        if not holding:
            raise LeaseOver(f"{what!r} is not held (any more), as a name or as a lease")
        chosen = [one for one in holding if force or one.holder.pid in ours]
        if not chosen:
            raise LeaseError(f"{what!r} is held by {who(holding[0].holder)}; --force ends it all the same")
    for one in chosen:
        store.release(one.id, now)
    return [grant.name for one in chosen for grant in one.grants]


@lease.command(name="list")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@format_option
@one_line
def list_leases(names: tuple[str, ...], form: Format) -> None:
    """Show who holds and who waits, of some names or of all.

    \b
    Examples:
      hivemind lease list
      hivemind lease list planner --json | jq -r '.[0].holders[0].value'
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    for name in names:
        check_name(name)
    with open_store() as store:
        standings = store.standings(SystemClock().awake(), names)
    if form is Format.JSON:
        print_rows([_standing(one) for one in standings], {}, form)
    else:
        rows = [row for one in standings for row in _rows(one, for_people=form is Format.TABLE)]
        # A terminal is narrow.
        spared = [key for key in _SPARED if not any(row.get(key) for row in rows)] if form is Format.TABLE else []
        columns = {key: heading for key, heading in _COLUMNS.items() if key not in spared}
        print_rows(rows, columns, form, none="nothing is held or waited for", spare=("waiting", "value"))


def _plain(held: Lease) -> dict[str, object]:
    return {
        "id": held.id,
        "token": token_of(held),
        "names": [grant.name for grant in held.grants],
        "holder": {"agent": held.holder.agent, "pid": held.holder.pid},
        "left_s": round(held.left_s, 3),
        "value": held.value,
    }


def _standing(standing: LeaseState) -> Row:
    """Without ids: who only looks is not to end a lease by a slip."""
    return {
        "name": standing.name,
        "capacity": standing.capacity,
        "holders": [{key: word for key, word in _plain(one).items() if key != "id"} for one in standing.leases],
        "waiting": [{"agent": one.agent, "pid": one.pid} for one in standing.waiting],
        "last_token": standing.last_token,
    }


def _rows(standing: LeaseState, *, for_people: bool) -> list[Row]:
    """One for each holder, or one without."""
    places = f"{len(standing.leases)} of {standing.capacity}"
    waiting = ", ".join(one.agent for one in standing.waiting)
    rows: list[Row] = [
        {
            "name": standing.name,
            "places": places,
            "agent": who(one.holder) if for_people else one.holder.agent,
            "pid": str(one.holder.pid) if one.holder.pid and not for_people else "",
            "token": str(token_of(one)),
            "left": brief(one.left_s) if for_people else round(one.left_s, 3),
            "value": one.value,
            "waiting": waiting,
        }
        for one in standing.leases
    ]
    return rows or [{"name": standing.name, "places": places, "waiting": waiting}]


for one in lease_run.COMMANDS:
    lease.add_command(one)
