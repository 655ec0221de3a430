"""`hivemind history …`: questions to the journal."""

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from hivemind_addon.formats.wire.proxy_user import given_id
from hivemind_addon.proxy.api.command import MemberAnswer
from hivemind_addon.proxy.api.words import failing, plain
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.proxy.system.terminal import terminal_width
from hivemind_addon.tools.commands import history_view as view
from hivemind_addon.tools.commands.group import ListGroup
from hivemind_addon.tools.commands.options import in_one_line, port_option
from hivemind_addon.tools.commands.printing import Format, format_option, print_json
from hivemind_addon.tools.commands.times import Instant, shown
from hivemind_addon.tools.history import everywhere, incident_history, sums
from hivemind_addon.tools.history import history as requests_of
from hivemind_addon.tools.history.bill import UnreadableBill, compare, read_bill, unknown_columns
from hivemind_addon.tools.history.filters import OPEN, RequestFilter, Span, names_pool
from hivemind_addon.tools.history.incidents import Incident
from hivemind_addon.tools.history.reader import JournalReader, NoJournal, journal_of
from hivemind_addon.tools.history.verdict import verdict
from hivemind_addon.tools.history.views import LOST

_BILLED = ("their_micro_usd", "our_micro_usd")
_DIFFERS = 3
"""The exit status if the provider's bill and ours differ."""
_STORIES = 3
"""Requests of a task that are printed in full."""
_TASK_REQUESTS = 200
_TIMELINE = 40
"""Lines of an incident."""
_ENDS = ("delivered", "gave up", "shed", "refused", "cancelled", LOST, OPEN)
_SINCE = "From then on: today, yesterday, 90s, 2h, 3d, 14:30, 2026-01-31, 2026-01-31T14:30+01:00."
_OPTIONS = {
    "agent": click.option("--agent", default="", metavar="GLOB", help="Only of these agents."),
    "task": click.option("--task", default="", metavar="GLOB", help="Only of these tasks."),
    "pool": click.option("--pool", default="", metavar="GLOB", help="Only of this pool or host."),
    "session": click.option("--session", default="", metavar="GLOB", help="Only of these sessions."),
    "end": click.option("--end", type=click.Choice(_ENDS), help="Only with this end; `open`: not ended yet."),
    "by": click.option(
        "--by",
        type=click.Choice([by.value for by in sums.GroupBy]),
        default=sums.GroupBy.AGENT.value,
        show_default=True,
        help="What sums are made for; a lineage is a session with all its sub-agents.",
    ),
    "since": click.option("--since", type=Instant(), help=_SINCE),
    "since-today": click.option("--since", type=Instant(), default="today", show_default=True, help=_SINCE),
    "until": click.option("--until", type=Instant(), help="Up to then; as --since."),
    "most": click.option(
        "-n", "--most", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many are told."
    ),
    "all": click.option(
        "--all", "everywhere", is_flag=True, help="Of all proxies of the cluster that the port's proxy is in."
    ),
    "journal": click.option(
        "--journal",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Another journal than your proxy's, for example a copy; it is only read.",
    ),
}


@click.group(cls=ListGroup)
def history() -> None:
    """What happened to every request; without a subcommand: the newest ones, as `list`.

    It reads the journal that a proxy writes: while that runs, after it has died, or a copy of it elsewhere.

    \b
    Examples:
      hivemind history
      hivemind history --agent 'review-*' --since 2h --end 'gave up'
      hivemind history --all                 of all machines of the cluster
      hivemind history ticket 3f9c01ab2e     did it run once, twice, never?
      hivemind history agents                what did each agent cost today?
      hivemind history bill usage.csv        does the provider bill the same?
      hivemind history retries               what was tried again, and why?
      hivemind history incident              what did the last incident look like?
    """


def _question(options: str = "", **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of `hivemind history` with these options, and `settings` of click.

    The function gets the `journal`, the `form` of the answer, and a `span` if there is `--until`. With `--all` the
    journal is the port of the proxy that asks the others. An error while reading is one line.
    """

    def decorate(command: Callable[..., None]) -> click.Command:
        @wraps(command)
        def called(*, journal: Path | None, port: int, everywhere: bool = False, **values: Any) -> None:
            if "until" in values:
                ends = {name: at for name in ("since", "until") if (at := values.pop(name)) is not None}
                values["span"] = span = Span(**ends)
                if span.since >= span.until:
                    raise click.UsageError("--since is not before --until")
            if everywhere and journal is not None:
                raise click.UsageError("--all asks running proxies; --journal names a file: give one of them")
            with in_one_line(NoJournal, FolderNotPrivate):
                if everywhere:
                    command(journal=port, **values)
                    return
                with JournalReader(journal or journal_of(port)) as reader:
                    try:
                        command(journal=reader, **values)
                    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # any column takes anything
                        raise click.ClickException(
                            f"{reader.path} holds what nobody can have written ({failing(error)}); "
                            "--since may leave it out"
                        ) from error

        decorated = format_option(_OPTIONS["journal"](port_option(called)))
        for name in reversed(options.split()):
            decorated = _OPTIONS[name](decorated)
        return history.command(**settings)(decorated)

    return decorate


@_question("agent task pool session end since until most all", name="list")
def list_(journal: JournalReader | int, span: Span, end: str | None, most: int, form: Format, **wanted: str) -> None:
    """List the newest requests.

    \b
    Examples:
      hivemind history list -n 50
      hivemind history list --task nightly-17 --json | jq '.[].end'
    """
    chosen = RequestFilter(span, end=end or "", **wanted)
    if isinstance(journal, int):
        answers = _ask_members(journal, everywhere.make_question(chosen, most=most))
        rows = [{**view.dated(row), "proxy": member} for member, row in everywhere.newest(answers, most)]
        view.print_requests(rows, form, "no such request is known to any of them")
        return
    found = requests_of.requests(journal, chosen, most + 1)
    none = "no request is known yet" if chosen == RequestFilter() else "no such request is known"
    view.print_requests(found[:most], form, none)
    if len(found) > most and form is Format.TABLE:
        click.echo(f"There are older ones: -n {most * 5}")


@_question()
@click.argument("name", metavar="ID|TASK|KEY")
def ticket(journal: JournalReader, name: str, form: Format) -> None:
    """What happened to a request: did it run once, twice, never; and its story.

    It is named by its id (the beginning is enough), by the task that its client named (`x-hivemind-task-id`), or by the
    client's own Idempotency-Key.

    \b
    Examples:
      hivemind history ticket 3f9c01ab2e
      hivemind history ticket nightly-review-17
      hivemind history ticket 3f9c --json | jq .verdict
    """
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
            requests = list(map(view.whole, stories))
            print_json({"what": found.what, "name": found.name, "verdict": answer, "requests": requests})
        case Format.CSV:
            lines = [
                {"request": one.ticket.id, **view.dated(line), "after_s": round(line.at - one.ticket.arrived, 3)}
                for one in stories
                for line in view.story(one)
            ]
            view.print_listing(lines, "", form)
        case Format.TABLE:
            now = SystemClock().wall()
            if found.what != "request":
                click.echo(f"{found.what} {found.name}: {answer}")
            if len(stories) > _STORIES:
                view.print_requests(reversed(tickets), form)
                click.echo(f"Each one's story: hivemind history ticket {tickets[-1].id}")
                return
            for one in stories:
                if found.what != "request":
                    click.echo()
                _tell(view.biography_lines(one, now))


@_question("by task pool since-today until all")
@click.argument("agent", metavar="[AGENT]", default="")
def agents(journal: JournalReader | int, by: str, span: Span, form: Format, **wanted: str) -> None:
    """What agents cost: requests and how they ended, tokens, money, waiting. Of today by default.

    AGENT is a name or a glob; all agents without one. Requests count where they came, tokens and money where they were
    spent. The ends are those of `hivemind history --end`.

    \b
    Examples:
      hivemind history agents
      hivemind history agents reviewer-1
      hivemind history agents --by model --since 7d
      hivemind history agents 'ci-*' --by day --since 30d --csv > costs.csv
    """
    chosen, group = RequestFilter(span, **wanted), sums.GroupBy(by)
    if isinstance(journal, int):
        answers = _ask_members(journal, everywhere.make_question(chosen, by=group))
        found = everywhere.together(answers, group)
    else:
        found = sums.costs(journal, chosen, group)
    view.print_listing(
        [*found, sums.total(found)] if form is Format.TABLE and len(found) > 1 else found,
        f"name={by} requests delivered gave_up? refused? lost? shed? cancelled? unfinished?=open attempts retries"
        " waited_s=waited tokens_in=in tokens_cached=cached tokens_out=out micro_usd=cost wasted_micro_usd=in_vain",
        form,
        title=_when(span),
        none=f"nothing was asked for {_when(span)}; --since 7d looks further back",
        words={"name": lambda name: name or "(none)"},
        spare="attempts delivered tokens_cached tokens_out tokens_in retries cancelled shed",
    )


@_question("pool")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 100),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Smaller differences are none.",
)
def bill(journal: JournalReader, files: Sequence[Path], pool: str, tolerance: float, form: Format) -> None:
    """Compare with a usage report that a provider exported, by day (UTC) and model.

    FILES are reports of one provider: JSON of the usage or cost API of Anthropic or OpenAI, or CSV of the console. Ours
    are the calls at the hosts that served a model of the report, or at --pool. Exits with 3 if something differs.

    \b
    Examples:
      hivemind history bill claude_api_tokens_2026_01.csv
      hivemind history bill usage.json costs.json --tolerance 0.5
      hivemind history bill usage.csv --pool api.openai.com --json
    """
    with in_one_line(UnreadableBill):
        theirs = read_bill(files)
    if line := unknown_columns(theirs):
        click.echo(line, err=True)
    found = compare(theirs, journal, pool, tolerance / 100)
    view.print_listing(
        found,
        "day model their_input?=in_theirs our_input?=in_ours their_output?=out_theirs our_output?=out_ours"
        " tokens_difference?=difference percent=%_off their_micro_usd?=billed our_micro_usd?=booked differs",
        form,
        words={"differs": lambda differs: "differs" if differs else "", **dict.fromkeys(_BILLED, view.dollars)},
    )
    if any(row["differs"] for row in found):
        raise click.exceptions.Exit(_DIFFERS)


@_question("agent pool since-today until most")
def retries(journal: JournalReader, span: Span, most: int, form: Format, **wanted: str) -> None:
    """Which requests were tried again, and why: reasons with their numbers, then the newest requests.

    CSV has the requests.

    \b
    Examples:
      hivemind history retries
      hivemind history retries --since 7d --pool api.openai.com
      hivemind history retries --json | jq .reasons
    """
    chosen = RequestFilter(span, **wanted)
    reasons, found = sums.retry_reasons(journal, chosen), sums.retried(journal, chosen, most)
    if form is Format.JSON:
        print_json({"reasons": reasons, "requests": list(map(view.dated, found))})
        return
    if form is Format.TABLE:
        none = f"no request was tried again {_when(span)}; --since 7d looks further back"
        columns = "reason retries requests delivered=delivered_after_all"
        view.print_listing(reasons, columns, form, title=f"tried again {_when(span)}", none=none)
    if found or form is Format.CSV:
        view.print_listing(
            found,
            "arrived=came id=request agent end attempts=tries model waited_s=backed_off micro_usd=cost reasons",
            form,
            title="the newest",
            words={"reasons": view.reasons_counted},
            spare="model micro_usd waited_s",
        )


@_question("pool since until most")
def incidents(journal: JournalReader, pool: str, span: Span, most: int, form: Format) -> None:
    """Times in which something was wrong: providers that were down, refused or told to wait, deaths of the proxy.

    They are numbered from the newest.

    \b
    Examples:
      hivemind history incidents
      hivemind history incidents --since 7d --pool api.anthropic.com --json
    """
    now = SystemClock().wall()
    view.print_listing(
        (view.incident_row(number, one, now) for number, one in _numbered(journal, span, pool, now)[:most]),
        "number=no began lasted_s=lasted what pool ending=how_it_ended",
        form,
        none="no incident is known",
    )


@_question("pool since until")
@click.argument("which", default="last", metavar="[last|N]")
def incident(journal: JournalReader, which: str, pool: str, span: Span, form: Format) -> None:
    """What the last incident looked like: how long, what failed, who waited, what it cost, how it ended, line by line.

    N is a number of `hivemind history incidents` with the same options; 1 is the last one.

    \b
    Examples:
      hivemind history incident
      hivemind history incident 3
      hivemind history incident last --pool api.anthropic.com --json
    """
    number = 1 if which == "last" else int(which[:9]) if which.isdecimal() else 0
    if number < 1:
        raise click.BadParameter(f"{which!r} is no number and not `last`", param_hint="[last|N]")
    now = SystemClock().wall()
    found = _numbered(journal, span, pool, now)
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
            beside = {"troubles": list(map(view.dated, one.troubles)), "aftermath": aftermath}
            row = view.incident_row(number, one, now)
            print_json({**row, **beside, "timeline": list(map(view.dated, timeline))})
        case Format.CSV:
            view.print_listing(timeline, "", form)
        case Format.TABLE:
            _tell(view.incident_lines(one, number, aftermath, timeline, now))


@_question("since until most")
def budgets(journal: JournalReader, span: Span, most: int, form: Format) -> None:
    """How every budget stands, who has spent one when, and what persons changed.

    Of a budget that is over only its last period is known. CSV has how they stand.

    \b
    Examples:
      hivemind history budgets
      hivemind history budgets --since yesterday --json
    """
    accounts = [view.account_row(one) for one in requests_of.accounts(journal)]
    changes = [view.dated(one) for one in requests_of.budget_changes(journal, span)[-most:]]
    if form is Format.JSON:
        print_json({"budgets": accounts, "changes": changes})
        return
    columns = "holder=whose per spent limit=of port? added? reserved?=in_flight began=since"
    view.print_listing(accounts, columns, form, none="no budget was ever booked")
    if changes and form is Format.TABLE:
        view.print_listing(changes, "at=when text=what", form, title="what happened to them")


@_question("pool since until most")
def limits(journal: JournalReader, pool: str, span: Span, most: int, form: Format) -> None:
    """Limits as they were learned of providers, the newest last.

    \b
    Examples:
      hivemind history limits
      hivemind history limits --pool api.openai.com --since 7d --csv
    """
    view.print_listing(
        requests_of.limits(journal, pool, span)[-most:],
        "at=when pool meter limit window_s=per kind",
        form,
        none="no limit was learned",
        words={"limit": lambda limit: f"{limit:,.0f}" if limit >= 10 else f"{limit:.3g}"},
    )


@_question("since until most")
def runs(journal: JournalReader, span: Span, most: int, form: Format) -> None:
    """Starts, stops and deaths of the proxy, the newest last.

    \b
    Examples:
      hivemind history runs
      hivemind history runs --since 7d --json
    """
    columns = "began lasted_s=lasted fate=what_became_of_it port pid=process version"
    view.print_listing(requests_of.runs(journal, span)[-most:], columns, form, none="no proxy ran")


@_question(hidden=True)
def answer(journal: JournalReader, form: Format) -> None:  # noqa: ARG001
    """Answer another proxy of the cluster; the question is on the standard input.

    \b
    Examples:
      hivemind history answer < question.json
    """
    try:
        click.echo(everywhere.answer(journal, sys.stdin.read()), nl=False)
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"this version does not understand the question: {error}") from error


@history.command(hidden=True)
@click.option("--journal", type=click.Path(path_type=Path), required=True, help="The proxy's.")
def page(journal: Path) -> None:
    """Answer the page of a proxy; the question is on the standard input.

    \b
    Examples:
      hivemind history page --journal journal.db < question.json
    """
    from hivemind_addon.tools.commands import page_answer  # noqa: PLC0415 - it reads fleets, too

    try:
        with in_one_line(NoJournal, FolderNotPrivate):
            click.echo(page_answer.answer(journal, sys.stdin.read()), nl=False)
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"this version does not understand the question: {error}") from error


def _ask_members(port: int, question: str) -> list[MemberAnswer]:
    who, answers = everywhere.ask_members(port, question)
    click.echo(f"{who}.", err=True)
    for unanswered in (member for member in answers if member.problem):
        click.echo(f"{unanswered.member}: {unanswered.problem}", err=True)
    return answers


def _numbered(journal: JournalReader, span: Span, pool: str, now: float) -> list[tuple[int, Incident]]:
    """The newest first."""
    found = incident_history.read_incidents(journal, span, now)
    kept = [one for one in reversed(found) if not pool or names_pool(pool, one.pool)]
    return list(enumerate(kept, start=1))


def _when(span: Span) -> str:
    """A span with a beginning, in words."""
    now = SystemClock().wall()
    return f"since {shown(span.since, now)}" + (
        "" if span.until == Span().until else f" until {shown(span.until, now)}"
    )


def _tell(lines: Iterable[str]) -> None:
    """Print lines, folded where the terminal ends."""
    for line in view.folded(lines, terminal_width()):
        click.echo(line)


def _unknown(journal: JournalReader, name: str, alike: Sequence[str]) -> str:
    if alike:
        be = "is" if len(alike) == 1 else "are"
        return f"no request, task or Idempotency-Key is {name!r}; there {be} {', '.join(alike)}"
    return f"no request, task or Idempotency-Key of {journal.path} is or begins with {name!r}"
