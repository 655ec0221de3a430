"""`hivemind history …`: ask the journal."""

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from click.core import ParameterSource

from hivemind_addon.api.proxy_user import given_id
from hivemind_addon.api.words import plain
from hivemind_addon.system.clock import SystemClock
from hivemind_addon.tools.commands import history_accounts, history_incidents
from hivemind_addon.tools.commands import history_rows as rows
from hivemind_addon.tools.commands import history_view as view
from hivemind_addon.tools.commands.history_options import (
    asks,
    journal_option,
    most_option,
    pool_option,
    since_option,
    since_when,
    span_of,
    tell,
    until_option,
)
from hivemind_addon.tools.commands.printing import Format, format_option
from hivemind_addon.tools.commands.proxy import port_option
from hivemind_addon.tools.history import history as requests_of
from hivemind_addon.tools.history import sums
from hivemind_addon.tools.history.asked import OPEN, RequestFilter
from hivemind_addon.tools.history.reader import JournalReader
from hivemind_addon.tools.history.records import LOST
from hivemind_addon.tools.history.verdict import verdict

_STORIES = 3
"""So many requests of a task are told in full."""
_TASK_REQUESTS = 200
_ENDED = {
    "gave_up": "Gave up",
    "refused": "Refused",
    "lost": "Lost",
    "shed": "Shed",
    "cancelled": "Cancelled",
    "unfinished": "Open",
}
"""Ends of requests by their field; a table has those that there are."""
_ENDS = ("delivered", "gave up", "shed", "refused", "cancelled", LOST, OPEN)


@click.group(invoke_without_command=True)
@click.option("--agent", default="", metavar="GLOB", help="Only of these agents.")
@click.option("--task", default="", metavar="GLOB", help="Only of these tasks.")
@pool_option
@click.option("--session", default="", metavar="GLOB", help="Only of these sessions.")
@click.option("--end", type=click.Choice(_ENDS), help="Only with this end; `open`: not ended yet.")
@since_option()
@until_option
@most_option
@format_option
@journal_option
@port_option
@click.pass_context
def history(
    context: click.Context,
    agent: str,
    task: str,
    pool: str,
    session: str,
    end: str | None,
    since: float | None,
    until: float | None,
    most: int,
    form: Format,
    journal: Path | None,  # noqa: ARG001 - `asks` takes both from here
    port: int,  # noqa: ARG001
) -> None:
    """What happened to every request; without a subcommand: the newest ones.

    It reads the journal that a proxy writes: while that runs, after it has died, or a copy of it elsewhere.

    \b
    Examples:
      hivemind history
      hivemind history --agent 'review-*' --since 2h --end 'gave up'
      hivemind history ticket 3f9c01ab2e     did it run once, twice, never?
      hivemind history agents                what did each agent cost today?
      hivemind history retries               which requests were tried again, and why?
      hivemind history incident              what did the last incident look like?
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    if context.invoked_subcommand is not None:
        for name in context.params:
            if name not in ("journal", "port") and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                option = {"form": "json` or `--csv", "most": "most"}.get(name, name)
                raise click.UsageError(f"write `--{option}` behind `{context.invoked_subcommand}`")
        return
    asked = RequestFilter(span_of(since, until), agent=agent, task=task, pool=pool, session=session, end=end or "")
    context.invoke(_newest, asked=asked, most=most, form=form)


@click.command()
@asks
def _newest(journal: JournalReader, asked: RequestFilter, most: int, form: Format) -> None:
    """The newest requests."""
    found = requests_of.requests(journal, asked, most + 1)
    rows.print_requests(
        [msgspec.structs.asdict(one) for one in found[:most]],
        form,
        none="no request is known yet" if asked == RequestFilter() else "no such request is known",
    )
    if len(found) > most and form is Format.TABLE:
        click.echo(f"There are older ones: -n {most * 5}")


@history.command()
@click.argument("name", metavar="ID|TASK|KEY")
@format_option
@asks
def ticket(journal: JournalReader, name: str, form: Format) -> None:
    """What happened to a request: did it run once, twice, never; and its story.

    It is named by its id (the beginning is enough), by the task that its client named (`x-hivemind-task-id`), or by the
    client's own Idempotency-Key.

    \b
    Examples:
      hivemind history ticket 3f9c01ab2e
      hivemind history ticket nightly-review-17
      hivemind history ticket 3f9c --json | jq .verdict
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    name = plain(name)
    found = requests_of.find(journal, given_id(name), _TASK_REQUESTS)  # as the proxy has kept it, however long it is
    if not found.what:
        raise click.ClickException(_unknown(journal, name, found.alike))
    stories = list(requests_of.biographies(journal, found.tickets))
    tickets, attempts = [one.ticket for one in stories], [one for story in stories for one in story.attempts]
    # Requests of one Idempotency-Key are one request that its client has made again; those of a task are several.
    answer = verdict(tickets, attempts) if found.what != "task" else view.task_verdict(stories, has_more=found.has_more)
    match form:
        case Format.JSON:
            whole = {"what": found.what, "name": found.name, "verdict": answer, "requests": [*map(rows.whole, stories)]}
            click.echo(msgspec.json.format(msgspec.json.encode(whole)).decode())
        case Format.CSV:
            moments = [
                {"request": one.ticket.id, **rows.dated(msgspec.structs.asdict(moment), "at")}
                for one in stories
                for moment in view.story(one)
            ]
            rows.print_listing(moments, {}, form, headings=("request", "at", "at_iso", "after_s", "text"))
        case Format.TABLE:
            now = SystemClock().wall()
            if found.what != "request":
                click.echo(f"{found.what} {found.name}: {answer}")
            if len(stories) > _STORIES:
                rows.print_requests([rows.summed(one) for one in reversed(stories)], form)
                click.echo(f"Each one's story: hivemind history ticket {tickets[-1].id}")
                return
            for one in stories:
                if found.what != "request":
                    click.echo()
                tell(view.biography_lines(one, now))


@history.command()
@click.argument("agent", metavar="[AGENT]", default="")
@click.option(
    "--by",
    type=click.Choice([by.value for by in sums.By]),
    default=sums.By.AGENT.value,
    show_default=True,
    help="What sums are made for; a lineage is a session with all its sub-agents.",
)
@click.option("--task", default="", metavar="GLOB", help="Only of these tasks.")
@pool_option
@since_option("today")
@until_option
@format_option
@asks
def agents(
    journal: JournalReader, agent: str, by: str, task: str, pool: str, since: float, until: float | None, form: Format
) -> None:
    """What agents cost: requests and how they ended, tokens, money, waiting. Of today, unless told otherwise.

    AGENT is a name or a glob; all agents without one. Requests count where they came, tokens and money where they were
    spent. The ends are those of `hivemind history --end`.

    \b
    Examples:
      hivemind history agents
      hivemind history agents reviewer-1
      hivemind history agents --by model --since 7d
      hivemind history agents 'ci-*' --by day --since 30d --csv > costs.csv
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    asked = RequestFilter(span_of(since, until), agent=agent, task=task, pool=pool)
    found = sums.costs(journal, asked, sums.By(by))
    told = [*found, sums.total(found)] if form is Format.TABLE and len(found) > 1 else found
    columns = {"name": by.capitalize(), "requests": "Requests", "delivered": "Delivered"}
    columns |= {key: heading for key, heading in _ENDED.items() if any(getattr(one, key) for one in found)}
    columns |= {"attempts": "Attempts", "retries": "Retries"}
    columns |= {"waited_s": "Waited", "tokens_in": "In", "tokens_cached": "Cached", "tokens_out": "Out"}
    rows.print_listing(
        [msgspec.structs.asdict(one) for one in told],
        columns | {"micro_usd": "Cost", "wasted_micro_usd": "In vain"},
        form,
        title=since_when(since, until),
        none=f"nothing was asked for {since_when(since, until)}; --since 7d looks further back",
        words={"name": lambda name: name or "(none)"},
        headings=sums.Cost.__struct_fields__,
        spare=("attempts", "delivered", "tokens_cached", "tokens_out", "tokens_in", "retries", "cancelled", "shed"),
    )


@history.command()
@click.option("--agent", default="", metavar="GLOB", help="Only of these agents.")
@pool_option
@since_option("today")
@until_option
@most_option
@format_option
@asks
def retries(
    journal: JournalReader, agent: str, pool: str, since: float, until: float | None, most: int, form: Format
) -> None:
    """Which requests were tried again, and why: reasons with their numbers, then the newest requests.

    CSV has the requests.

    \b
    Examples:
      hivemind history retries
      hivemind history retries --since 7d --pool api.openai.com
      hivemind history retries --json | jq .reasons
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    asked = RequestFilter(span_of(since, until), agent=agent, pool=pool)
    reasons = [msgspec.structs.asdict(one) for one in sums.retry_reasons(journal, asked)]
    found = [rows.dated(msgspec.structs.asdict(one), "arrived") for one in sums.retried(journal, asked, most)]
    if form is Format.JSON:
        click.echo(msgspec.json.format(msgspec.json.encode({"reasons": reasons, "requests": found})).decode())
        return
    none = f"no request was tried again {since_when(since, until)}; --since 7d looks further back"
    if form is Format.TABLE:
        columns = {"reason": "Reason", "retries": "Retries", "requests": "Requests", "delivered": "Delivered after all"}
        rows.print_listing(reasons, columns, form, title=f"tried again {since_when(since, until)}", none=none)
    if found or form is Format.CSV:
        columns = {"arrived": "Came", "id": "Request", "agent": "Agent", "end": "End", "attempts": "Tries"}
        columns |= {"model": "Model", "waited_s": "Backed off", "micro_usd": "Cost", "reasons": "Reasons"}
        rows.print_listing(
            found,
            columns,
            form,
            title="the newest",
            words={"reasons": view.reasons_counted},
            headings=rows.fields(sums.Retried, "arrived"),
            spare=("model", "micro_usd", "waited_s"),
        )


def _unknown(journal: JournalReader, name: str, alike: Sequence[str]) -> str:
    if alike:
        be = "is" if len(alike) == 1 else "are"
        return f"no request, task or Idempotency-Key is {name!r}; there {be} {', '.join(alike)}"
    return f"no request, task or Idempotency-Key of {journal.path} is or begins with {name!r}"


for _command in (*history_incidents.COMMANDS, *history_accounts.COMMANDS):
    history.add_command(_command)
