"""`hivemind history incidents | incident`."""

from fnmatch import fnmatchcase

import click
import msgspec

from hivemind_addon.api.words import brief
from hivemind_addon.system.clock import SystemClock
from hivemind_addon.tools.commands import history_rows as rows
from hivemind_addon.tools.commands import history_view as view
from hivemind_addon.tools.commands.history_options import (
    asks,
    most_option,
    pool_option,
    since_option,
    span_of,
    tell,
    until_option,
)
from hivemind_addon.tools.commands.printing import Format, format_option
from hivemind_addon.tools.history import incident_history
from hivemind_addon.tools.history.asked import Span
from hivemind_addon.tools.history.incidents import Incident
from hivemind_addon.tools.history.reader import JournalReader

_TIMELINE = 40
"""Lines."""


@click.command()
@pool_option
@since_option()
@until_option
@most_option
@format_option
@asks
def incidents(
    journal: JournalReader, pool: str, since: float | None, until: float | None, most: int, form: Format
) -> None:
    """Times in which something was wrong: providers that were down, refused or told to wait, deaths of the proxy.

    They are numbered from the newest.

    \b
    Examples:
      hivemind history incidents
      hivemind history incidents --since 7d --pool api.anthropic.com --json
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    now = SystemClock().wall()
    found = _numbered(journal, span_of(since, until), pool, now)[:most]
    columns = {"number": "No", "began": "Began", "lasted_s": "Lasted", "what": "What", "pool": "Pool"}
    rows.print_listing(
        [rows.incident_row(number, one, now) for number, one in found],
        columns | {"ending": "How it ended"},
        form,
        none="no incident is known",
        words={"lasted_s": brief},
        headings=("number", "pool", "what", "began", "began_iso", "ended", "ended_iso", "lasted_s", "ending"),
    )


@click.command()
@click.argument("which", default="last", metavar="[last|N]")
@pool_option
@since_option()
@until_option
@format_option
@asks
def incident(
    journal: JournalReader, which: str, pool: str, since: float | None, until: float | None, form: Format
) -> None:
    """What the last incident looked like: how long, what failed, who waited, what it cost, how it ended, line by line.

    N is a number of `hivemind history incidents` with the same options; 1 is the last one.

    \b
    Examples:
      hivemind history incident
      hivemind history incident 3
      hivemind history incident last --pool api.anthropic.com --json
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    number = 1 if which == "last" else int(which[:9]) if which.isdecimal() else 0
    if number < 1:
        raise click.BadParameter(f"{which!r} is no number and not `last`", param_hint="[last|N]")
    now = SystemClock().wall()
    found = _numbered(journal, span_of(since, until), pool, now)
    if number > len(found):
        known = f"there {'is' if len(found) == 1 else 'are'} {len(found)}" if found else "there is none"
        if found or which != "last" or form is not Format.TABLE:
            raise click.ClickException(f"no incident {which} is known: {known}")
        click.echo("no incident is known")
        return
    _, one = found[number - 1]
    aftermath = incident_history.read_aftermath(journal, one)
    timeline = incident_history.read_timeline(journal, one, _TIMELINE)
    match form:
        case Format.JSON:
            whole = {
                **rows.incident_row(number, one, now),
                "troubles": [rows.dated(msgspec.to_builtins(trouble), "began", "ended") for trouble in one.troubles],
                "aftermath": aftermath,
                "timeline": [rows.dated(msgspec.to_builtins(line), "at") for line in timeline],
            }
            click.echo(msgspec.json.format(msgspec.json.encode(whole)).decode())
        case Format.CSV:
            rows.print_listing(
                [rows.dated(msgspec.to_builtins(line), "at") for line in timeline],
                {},
                form,
                headings=("at", "at_iso", "text"),
            )
        case Format.TABLE:
            tell(view.incident_lines(one, number, aftermath, timeline, now))


def _numbered(journal: JournalReader, span: Span, pool: str, now: float) -> list[tuple[int, Incident]]:
    """The newest first."""
    found = incident_history.read_incidents(journal, span, now)
    kept = [one for one in reversed(found) if not pool or _names_pool(pool, one.pool)]
    return list(enumerate(kept, start=1))


def _names_pool(glob: str, pool: str) -> bool:
    return any(glob == name or fnmatchcase(name, glob) for name in (pool, pool.split("/", maxsplit=1)[0]))


COMMANDS = (incidents, incident)
