"""`hivemind history budgets | limits | runs`: what outlives requests."""

import click
import msgspec

from hivemind_addon.api.words import brief
from hivemind_addon.proxy.journal.tables import LimitRow
from hivemind_addon.tools.commands import history_rows as rows
from hivemind_addon.tools.commands.history_options import (
    asks,
    most_option,
    pool_option,
    since_option,
    span_of,
    until_option,
)
from hivemind_addon.tools.commands.printing import Format, format_option
from hivemind_addon.tools.history import history as requests_of
from hivemind_addon.tools.history.asked import RequestFilter
from hivemind_addon.tools.history.reader import JournalReader
from hivemind_addon.tools.history.records import RunRecord


@click.command()
@since_option()
@until_option
@most_option
@format_option
@asks
def budgets(journal: JournalReader, since: float | None, until: float | None, most: int, form: Format) -> None:
    """How every budget stands, who has spent one when, and what persons changed.

    Of a budget that is over only its last period is known. CSV has how they stand.

    \b
    Examples:
      hivemind history budgets
      hivemind history budgets --since yesterday --json
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    accounts = [rows.account_row(one) for one in requests_of.accounts(journal)]
    changes = [
        rows.dated(msgspec.to_builtins(one), "at") for one in requests_of.budget_changes(journal, span_of(since, until))
    ]
    changes = changes[-most:]
    if form is Format.JSON:
        click.echo(msgspec.json.format(msgspec.json.encode({"budgets": accounts, "changes": changes})).decode())
        return
    columns = {"holder": "Whose", "per": "Per", "spent": "Spent", "limit": "Of"}
    columns |= {
        key: heading
        for key, heading in (("port", "Port"), ("added", "Added"), ("reserved", "In flight"))
        if any(account[key] for account in accounts)
    }
    rows.print_listing(
        accounts,
        columns | {"began": "Since"},
        form,
        none="no budget was ever booked",
        headings=("scope", "name", "per", "port", "began", "began_iso", *rows.AMOUNTS),
    )
    if changes and form is Format.TABLE:
        rows.print_listing(changes, {"at": "When", "text": "What"}, form, title="what happened to them")


@click.command()
@pool_option
@since_option()
@until_option
@most_option
@format_option
@asks
def limits(
    journal: JournalReader, pool: str, since: float | None, until: float | None, most: int, form: Format
) -> None:
    """Limits as they were learned of providers, the newest last.

    \b
    Examples:
      hivemind history limits
      hivemind history limits --pool api.openai.com --since 7d --csv
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    found = requests_of.limits(journal, RequestFilter(span_of(since, until), pool=pool))[-most:]
    columns = {"at": "When", "pool": "Pool", "meter": "Meter", "limit": "Limit", "window_s": "Per", "kind": "Kind"}
    rows.print_listing(
        [rows.dated(msgspec.structs.asdict(one), "at") for one in found],
        columns,
        form,
        none="no limit was learned",
        words={"limit": lambda limit: f"{limit:,.0f}" if limit >= 10 else f"{limit:.3g}", "window_s": brief},
        headings=rows.fields(LimitRow, "at"),
    )


@click.command()
@since_option()
@until_option
@most_option
@format_option
@asks
def runs(journal: JournalReader, since: float | None, until: float | None, most: int, form: Format) -> None:
    """Starts, stops and deaths of the proxy, the newest last.

    \b
    Examples:
      hivemind history runs
      hivemind history runs --since 7d --json
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    found = requests_of.runs(journal, span_of(since, until))[-most:]
    told = [
        rows.dated(msgspec.structs.asdict(one), "began", "seen", "ended")
        | {"fate": rows.fate(journal, one), "lasted_s": (one.ended or one.seen) - one.began}
        for one in found
    ]
    columns = {
        "began": "Began",
        "lasted_s": "Lasted",
        "fate": "What became of it",
        "port": "Port",
        "pid": "Process",
        "version": "Version",
    }
    rows.print_listing(
        told,
        columns,
        form,
        none="no proxy ran",
        words={"lasted_s": brief},
        headings=(*rows.fields(RunRecord, "began", "seen", "ended"), "lasted_s", "fate"),
    )


COMMANDS = (budgets, limits, runs)
