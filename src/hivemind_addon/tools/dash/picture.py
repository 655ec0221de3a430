"""A report as lines that fit a width, for a fleet of any size: the whole for print, and parts for the live screen.

Pools come first, then agents, then the log. The picture counts lines that do not fit, and never wraps a line.
"""

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from io import TextIOWrapper

from msgspec import Struct
from rich.text import Text

from hivemind_addon.kernel.values.snapshot import BudgetView, PoolView, PriorityView
from hivemind_addon.kernel.values.spend import Scope, Spend
from hivemind_addon.kernel.values.ticket import Reason, Usage
from hivemind_addon.proxy.api.cluster_words import cluster_line
from hivemind_addon.proxy.api.pool_words import troubles
from hivemind_addon.proxy.api.replies import asker, pool_overrides
from hivemind_addon.proxy.api.report import ACTIVE_S, ContextPressure, LogLine, Report
from hivemind_addon.proxy.api.words import amount, conversation, count, dollars, lasting, printable, several, span
from hivemind_addon.proxy.system.terminal import shows_styles, terminal_width
from hivemind_addon.tools.dash.agents import agent_rows, agents_grid
from hivemind_addon.tools.dash.family import Sort, TreeLine, family, lines
from hivemind_addon.tools.dash.glyphs import Tone, bar, cut, padded, sentence
from hivemind_addon.tools.dash.pools import pools

_MOST_BANNERS = 4
_MOST_ROWS = 40
_LOG_ROWS = 8


class PictureLook(Struct, frozen=True):
    """A person's view settings."""

    width: int = 80
    sort: Sort = Sort.PLACE
    pattern: str = ""
    """Show only agents that match this text."""
    opened: frozenset[str] | None = frozenset()
    """Rows with listed requests; None: rows with several requests; other rows show the request's id."""
    gone: str = ""
    """Why the report is old; empty: the report is fresh."""
    zone: tzinfo | None = None
    """Of the log's times; None: this machine's."""
    log: bool = True


def picture(report: Report, look: PictureLook) -> tuple[Text, ...]:
    """The whole picture, for print, with a maximum of rows of each kind."""
    tree = list(lines(family(report, sort=look.sort, pattern=look.pattern), look.opened))
    drawn = [*head_lines(report, look), Text(""), section("pools", look.width)]
    drawn += [line for block in pools(report, look.width) for line in (block.head, *block.more)] or [_NO_CALL]
    drawn += [*budget_lines(report.snapshot.budgets, look.width), *_agent_lines(report, tree, look)]
    log = log_lines(report, look)[-_LOG_ROWS:] if look.log else []
    if log:
        drawn += [Text(""), section("what happened", look.width), *log]
    for line in drawn:
        line.truncate(look.width)
    return tuple(drawn)


def section(words: str, width: int, right: str = "") -> Text:
    """The title line of a part."""
    line = Text(no_wrap=True, overflow="ellipsis", end="")
    line.append(f"{words} ", Tone.TITLE)
    room = width - len(words) - 1 - (len(right) + 1 if right else 0)
    line.append("─" * max(0, room), Tone.FAINT)
    if right:
        line.append(f" {right}", Tone.FAINT)
    line.truncate(width, overflow="ellipsis")
    return line


def head_lines(report: Report, look: PictureLook) -> list[Text]:
    """The proxy, the totals, and the warnings that a person has to read first."""
    return [*_header(report, look), *_cluster(report, look), *_banners(report, look)]


# Header ---------------------------------------------------------------------------------------------------------------


def _header(report: Report, look: PictureLook) -> Iterator[Text]:
    proxy, counters, stats = report.proxy, report.snapshot.counters, report.stats
    up_s = report.told_wall - proxy.began_wall if proxy.began_wall else None
    clock = _clock(report.told_wall, look)
    line = sentence(
        [
            (0, f"hivemind {printable(proxy.version)}".rstrip(), Tone.TITLE),
            (1, printable(", ".join(proxy.listens)) or f"port {proxy.port}", Tone.GOOD),
            (2, f"up {span(up_s)}" if up_s is not None else "", ""),
            (3, printable(proxy.web), Tone.FAINT),
            (4, f"process {proxy.pid}", Tone.FAINT),
        ],
        look.width - len(clock) - 1,
    )
    line.pad_right(look.width - line.cell_len - len(clock))
    line.append(clock, Tone.FAINT)
    yield line
    usage = sum((pool.usage for pool in stats.pools), Usage())
    into, cached, out = usage.total_input_tokens, usage.cache_read_tokens, usage.output_tokens
    absorbed = sum(pool.retries_absorbed for pool in stats.pools)
    usd = sum(pool.micro_usd for pool in stats.pools)
    wasted = sum(pool.wasted_micro_usd for pool in stats.pools)
    lost = counters.gave_up
    yield sentence(
        [
            (0, f"{counters.tickets:,} request{'' if counters.tickets == 1 else 's'}", ""),
            (1, f"{counters.delivered:,} delivered", Tone.GOOD),
            (2, f"{lost:,} lost" if lost else "none lost", Tone.BAD if lost else Tone.FAINT),
            (5, f"{counters.refused:,} refused" if counters.refused else "", ""),
            (5, f"{counters.shed:,} told to come back" if counters.shed else "", ""),
            (9, f"{counters.cancelled:,} cancelled" if counters.cancelled else "", Tone.FAINT),
            (3, f"{absorbed:,} retries absorbed" if absorbed else "", ""),
            (6, f"{counters.throttled:,} refused upstream" if counters.throttled else "", ""),
            (4, f"{count(into)} in ({cached / into:.0%} cached), {count(out)} out" if into or out else "", ""),
            (3, dollars(usd) if usd else "", Tone.TITLE),
            (7, f"{dollars(wasted)} in vain" if wasted else "", Tone.FAINT),
            (8, _trips(counters.guard_trips), Tone.FAINT),
            (
                8,
                f"{several(counters.waits_overruled, 'wait')} overruled" if counters.waits_overruled else "",
                Tone.FAINT,
            ),
        ],
        look.width,
        between=" · ",
    )


def _cluster(report: Report, look: PictureLook) -> Iterator[Text]:
    if report.cluster is not None:
        alone = report.cluster.role == "alone"
        line = printable(cluster_line(report.cluster))
        yield Text(cut(line, look.width), Tone.BAD if alone else Tone.FAINT, end="", no_wrap=True)


def _trips(number: int) -> str:
    return "no guard trips" if not number else f"{number:,} guard trips"


def _banners(report: Report, look: PictureLook) -> Iterator[Text]:
    """The warnings that a person has to read first."""
    said = list(_alarms(report, look))
    for words in said[:_MOST_BANNERS]:
        line = Text(end="", no_wrap=True)
        line.append(padded(f" ! {words}", look.width), Tone.BANNER)
        yield line
    if len(said) > _MOST_BANNERS:
        yield Text(f"   and {len(said) - _MOST_BANNERS} more", Tone.FAINT, end="")


def _alarms(report: Report, look: PictureLook) -> Iterator[str]:
    snapshot = report.snapshot
    if look.gone:
        yield printable(look.gone)
    if snapshot.stopping:
        yield "stopping: nothing new is admitted, what runs may finish"
    if snapshot.counters.guard_trips:
        yield f"{_trips(snapshot.counters.guard_trips)}: requests went past the scheduler, which failed; see the log"
    if waiting := report.proxy.waiting_clients:
        files = report.proxy.open_files
        yield f"{waiting:,} connections wait: {files:,} open files let no more be served (raise ulimit -n)"
    yield from _troubles(snapshot.pools, Reason.ACCOUNT_BLOCK)
    yield from _pauses(snapshot.pools)
    yield from _troubles(snapshot.pools, Reason.BREAKER)
    for view in snapshot.budgets:
        if view.spent_share >= 1:
            yield f"budget of {printable(view.budget.holder)} is spent, {_renews(view)}"
    # An agent's budget and everyone's count the same tokens: the largest number, not the sum.
    if unpriced := max((view.spent.unpriced_tokens for view in snapshot.budgets), default=0):
        yield f"budgets do not count {amount('tokens', unpriced)} without a price: `hivemind budget`"
    if guessed := sorted({model for view in snapshot.budgets for model in view.guesses}):
        yield f"budgets guess the price of {printable(', '.join(guessed))}: `hivemind budget`"
    if full := [one for one in report.contexts if one.is_full and one.seen_ago_s <= ACTIVE_S]:
        yield f"nearly full contexts: {'; '.join(map(_full, reversed(full)))}"
    if snapshot.priorities:
        set_by = ", ".join(map(_priority, snapshot.priorities))
        yield f"priorities: {set_by}"
    standing = pool_overrides(snapshot)
    if snapshot.given:
        standing.append(f"budgets: {', '.join(dict.fromkeys(one.budget.holder for one in snapshot.given))}")
    if standing:
        yield f"orders: {printable('; '.join(standing))}"


def _priority(view: PriorityView) -> str:
    ends = "" if view.ends_in_s is None else f" for {lasting(view.ends_in_s)}"
    return printable(f"{view.agent} {view.priority.name.lower()}{ends} ({asker(view.by, view.agent)})")


def _full(context: ContextPressure) -> str:
    left = context.turns_left
    room = "" if left is None else f", about {several(round(left), 'turn')} left"
    return f"{conversation(context.agent, context.session)} {context.share or 0:.0%}{room}"


def _pauses(every: tuple[PoolView, ...]) -> Iterator[str]:
    paused = [pool for pool in every if pool.paused]
    if paused:
        held = sum(pool.queued for pool in paused)
        which = "all pools" if len(paused) == len(every) else ", ".join(printable(str(pool.key)) for pool in paused)
        yield f"{Reason.PAUSED.value}: {which}; {held:,} wait"


def _troubles(every: tuple[PoolView, ...], why: Reason) -> Iterator[str]:
    for pool in every:
        if text := troubles(pool).get(why):
            yield printable(f"{pool.key}: {text}")


# Pools and budgets ----------------------------------------------------------------------------------------------------


_NO_CALL = Text("no model call yet", Tone.FAINT, end="")


def budget_lines(views: tuple[BudgetView, ...], width: int) -> Iterator[Text]:
    """The budgets of groups and of everyone; an agent's row shows the agent's own budget."""
    for view in views:
        if view.budget.scope is Scope.AGENT:
            continue
        share = view.spent_share
        limits = Spend(*(limit or 0 for _, limit in view.budget.by_unit))
        yield sentence(
            [
                (0, f"budget of {printable(view.budget.holder)}", ""),
                (1, bar(share, 12), Tone.WAITS if share >= 0.85 else Tone.GOOD),
                (0, f"{share:.0%}", ""),
                (2, f"{_amounts(view.spent)} of {_amounts(limits)} per {view.budget.per.value}", Tone.FAINT),
                (3, f"{_amounts(view.reserved)} set aside" if view.reserved != Spend() else "", Tone.FAINT),
                (4, _renews(view), Tone.FAINT),
                (5, f"{_amounts(view.added)} added" if view.added != Spend() else "", Tone.FAINT),
            ],
            width,
        )


def _amounts(spend: Spend) -> str:
    """Tokens, money and calls above zero."""
    said = [amount(unit, value) for unit, value in spend.by_unit if value]
    return ", ".join(said) or "nothing"


def _renews(view: BudgetView) -> str:
    when = "with the next run" if view.renews_in_s is None else f"in {lasting(view.renews_in_s)}"
    return f"renews {when}"


# Agents ---------------------------------------------------------------------------------------------------------------


def _agent_lines(report: Report, tree: list[TreeLine], look: PictureLook) -> Iterator[Text]:
    budgets = report.snapshot.budgets
    grid = agents_grid(look.width, tree, budgets, requests=look.opened is None)
    yield Text("")
    yield agents_title(tree, look, hidden=max(0, len(tree) - _MOST_ROWS))
    yield grid.heading()
    yield from agent_rows(grid, tree[:_MOST_ROWS], budgets)


def agents_title(tree: list[TreeLine], look: PictureLook, *, hidden: int = 0) -> Text:
    """The number of agents, the pattern and the order; `hidden`: number of rows without room."""
    agents = sum(line.depth == 0 for line in tree)
    found = f" with “{printable(look.pattern)}”" if look.pattern else ""
    more = f"{hidden:,} more row{'' if hidden == 1 else 's'}, " if hidden else ""
    return section(f"{several(agents, 'agent')}{found}", look.width, f"{more}by {look.sort.value}")


# Log ------------------------------------------------------------------------------------------------------------------


def log_lines(report: Report, look: PictureLook) -> list[Text]:
    """The latest log lines, the newest at the end."""
    return list(_log(report, look))


def _log(report: Report, look: PictureLook) -> Iterator[Text]:
    for one in report.stats.log:
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        line.append(f"{_clock(report.told_wall - one.ago_s, look)} ", Tone.FAINT)
        line.append(_worded(one), Tone.WAITS if one.level == "WARNING" else None)
        line.truncate(look.width, overflow="ellipsis")
        yield line


def _worded(line: LogLine) -> str:
    """The line, after the agent's name if the line is about a ticket."""
    return f"{printable(line.agent)}: {printable(line.text)}" if line.agent else printable(line.text)


def _clock(wall: float, look: PictureLook) -> str:
    return datetime.fromtimestamp(wall, tz=UTC).astimezone(look.zone).strftime("%H:%M:%S")


# Where nothing moves: printed or piped --------------------------------------------------------------------------------


def print_picture(report: Report, *, requests: bool = False) -> None:
    """Print the report, as wide as the terminal or COLUMNS; `requests`: every request by id, instead of the log."""
    look = PictureLook(width=terminal_width(), log=not requests, opened=None if requests else frozenset())
    print_lines(picture(report, look))


def print_lines(lines: Iterable[Text]) -> None:
    """Print lines that were drawn for this terminal."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal of another age gets `?` for what it cannot show
    if not shows_styles():
        for line in lines:
            print(line.plain)  # noqa: T201 - as the console below would
        return
    from rich.console import Console  # noqa: PLC0415 - a pipe need not wait for it

    console = Console(highlight=False)
    for line in lines:
        console.print(line, end="\n", soft_wrap=True)
