"""`hivemind context recall`: what a compaction took out of a conversation."""

import sys
from pathlib import Path

import click
import msgspec

from hivemind_addon.plugins.contexts.reading.show import without_controls
from hivemind_addon.plugins.contexts.store import FOLDER_NAME, ContextStore, UnknownContext
from hivemind_addon.proxy.system.database import FileUnusable
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.tools.commands.options import in_one_line, port_option
from hivemind_addon.tools.history.reader import journal_of


@click.command()
@click.argument("result_id", metavar="ID")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where contexts are; default: beside your proxy's journal.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as its request had it, with whose it was.")
@port_option
def recall(result_id: str, folder: Path | None, port: int, *, as_json: bool) -> None:
    """Read a tool result that was taken out of a context to keep it short. ID may be its beginning.

    What stands in its place names its id. Agents read it with the MCP tool `recall`.

    \b
    Examples:
      hivemind context recall 3f9c01ab2e77
      hivemind context recall 3f9c | less
      hivemind context recall 3f9c --json | jq -r .agent
    """
    with in_one_line(FileUnusable, FolderNotPrivate, UnknownContext):
        found = ContextStore(folder or journal_of(port).parent / FOLDER_NAME).result(result_id)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)))
    else:  # programs get it as it was
        click.echo(without_controls(found.text) if sys.stdout.isatty() else found.text, color=True)
