"""What the questions of `hivemind history` have in common: which journal, of which time, how many."""

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from hivemind_addon.api.words import failing
from hivemind_addon.system.clock import SystemClock
from hivemind_addon.system.folders import FolderNotPrivate
from hivemind_addon.tools.commands import history_view as view
from hivemind_addon.tools.commands.instants import Instant, shown
from hivemind_addon.tools.commands.one_line import in_one_line
from hivemind_addon.tools.commands.proxy import port_option
from hivemind_addon.tools.history.asked import Span
from hivemind_addon.tools.history.place import journal_of
from hivemind_addon.tools.history.reader import JournalReader, NoJournal

journal_option = click.option(
    "--journal",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Another journal than your proxy's, for example a copy; it is only read.",
)
until_option = click.option("--until", type=Instant(), help="Up to then; as --since.")
most_option = click.option(
    "-n", "--most", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many are told."
)
pool_option = click.option("--pool", default="", metavar="GLOB", help="Only of this pool or host.")


def since_option(default: str | None = None) -> Callable[..., Any]:
    """From when on; without a default: from the journal's beginning."""
    return click.option(
        "--since",
        type=Instant(),
        default=default,
        show_default=default is not None,
        help="From then on: today, yesterday, 90s, 2h, 3d, 14:30, 2026-01-31, 2026-01-31T14:30+01:00.",
    )


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Give it the journal that is meant, also by what stands before a subcommand; what cannot be read is one line."""

    @journal_option
    @port_option
    @click.pass_context
    @wraps(command)
    def called(context: click.Context, /, *, journal: Path | None, port: int, **values: Any) -> None:
        before = context.parent.params if context.parent is not None else {}
        if journal is None:
            journal = before.get("journal")
        if context.get_parameter_source("port") is not ParameterSource.COMMANDLINE:
            port = before.get("port", port)
        with in_one_line(NoJournal, FolderNotPrivate), JournalReader(journal or journal_of(port)) as reader:
            try:
                command(reader, **values)
            except (
                ArithmeticError,
                LookupError,
                TypeError,
                ValueError,
            ) as error:  # any column takes anything
                raise click.ClickException(
                    f"{reader.path} holds what nobody can have written ({failing(error)}); --since may leave it out"
                ) from error

    return called


def span_of(since: float | None, until: float | None) -> Span:
    """Raises a usage error."""
    span = Span()
    span = Span(span.since if since is None else since, span.until if until is None else until)
    if span.since >= span.until:
        raise click.UsageError("--since is not before --until")
    return span


def since_when(since: float, until: float | None) -> str:
    """In words."""
    now = SystemClock().wall()
    return f"since {shown(since, now)}" + ("" if until is None else f" until {shown(until, now)}")


def tell(lines: Iterable[str]) -> None:
    """Print lines, folded where the terminal ends."""
    for line in view.folded(lines, Console().width):
        click.echo(line)
