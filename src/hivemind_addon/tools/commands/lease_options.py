"""What the commands of `hivemind lease` share: options, the file, waiting in line, words for who holds what."""

from pathlib import PurePath
from threading import Event

import click

from hivemind_addon.api.words import several
from hivemind_addon.system.clock import SystemClock
from hivemind_addon.tools.commands.one_line import in_one_line
from hivemind_addon.tools.commands.span import SPAN
from hivemind_addon.tools.launch.port import AGENT_VARIABLE
from hivemind_addon.tools.locks.holder import holder_of
from hivemind_addon.tools.locks.model import Holder, Lease, LeaseError, NotGranted, Request
from hivemind_addon.tools.locks.sqlite_store import SqliteLeases, default_lease_file, wait_for_lease

ID_VARIABLE, TOKEN_VARIABLE = "HIVEMIND_LEASE_ID", "HIVEMIND_LEASE_TOKEN"
NOT_GRANTED = 75
"""Exit status: somebody else has it. The sysexits' "try again later"."""
_TTL_S = 60.0
_MOST_NAMED = 4

names_argument = click.argument("names", nargs=-1, required=True, metavar="NAME...")
ttl_option = click.option(
    "--ttl", "ttl_s", type=SPAN, default=f"{_TTL_S:g}s", show_default=True, help="How long, unless it is renewed."
)
at_most_option = click.option(
    "--at-most", "capacity", type=click.IntRange(1), default=1, show_default=True, help="Holders that a name may have."
)
value_option = click.option("--value", default="", help="A word to others, such as an address.")
agent_option = click.option(
    "--agent", metavar="NAME", envvar=AGENT_VARIABLE, help="The holder's name for people; inside of an agent its own."
)
wait_option = click.option("--wait", "wait_s", type=SPAN, help="How long to wait in line.")
no_wait_option = click.option("--no-wait", "wait_s", flag_value=0.0, type=SPAN, help="Take it now or not at all.")

one_line = in_one_line(LeaseError)
"""Around a command: what goes wrong with leases is one line."""


def wait_in_line(store: SqliteLeases, request: Request, wait_s: float | None) -> Lease | NotGranted:
    """Its place is kept while this waits; `wait_s` None: for as long as it takes. Raises LeaseError."""
    return wait_for_lease(
        store,
        request,
        clock=SystemClock(),
        wait_s=wait_s,
        pause=Event().wait,
        tell=lambda answer: click.echo(f"waiting: {refused(answer)}", err=True),
    )


def open_store() -> SqliteLeases:
    """Everybody's; to be closed. Made at its first use."""
    return SqliteLeases(default_lease_file())


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
    return holder.agent if named_by_it else f"{holder.agent} (process {holder.pid})"


def token_of(held: Lease) -> int:
    """Its fencing token: the first name's, where it has several."""
    return held.grants[0].token


def variables(held: Lease) -> dict[str, str]:
    """What a command under a lease knows it by."""
    return {ID_VARIABLE: held.id, TOKEN_VARIABLE: str(token_of(held))}
