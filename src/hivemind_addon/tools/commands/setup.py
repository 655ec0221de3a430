"""`hivemind setup`: what each agent tool needs in its own files, printed or merged."""

import os
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from hivemind_addon.proxy.api.control import UnreadableReport
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.folders import FolderNotPrivate
from hivemind_addon.tools.commands.group import CommandEntry, ListGroup
from hivemind_addon.tools.commands.options import port_option
from hivemind_addon.tools.commands.printing import json_flag, print_json
from hivemind_addon.tools.launch import background
from hivemind_addon.tools.launch.agent_environment import NoBundle, is_ours, write_bundle
from hivemind_addon.tools.launch.programs import load_programs
from hivemind_addon.tools.setup.change import FileChange, Ledger, addition, apply, removal, snippet
from hivemind_addon.tools.setup.model import HasComments, SetupPlan, SetupTrouble
from hivemind_addon.tools.setup.tools import TOOLS, ToolPlace

ALL = "all"
_CONFDIR = Path("~/.mitmproxy")


_SETUP = (
    CommandEntry("env", "tools.commands.execute:env", "What an agent needs, as lines for a shell"),
    CommandEntry("addon", "tools.commands.addon:addon", "The path of the script that mitmproxy loads"),
    CommandEntry("completion", "tools.commands.completion:completion", "Complete commands and names in your shell"),
)


@click.group(cls=ListGroup, index={"Commands": _SETUP}, usual="tool", takes_words=True)
def setup() -> None:
    """What agents' tools, shells and mitmproxy need: printed, or put into their files.

    The word `tool` may be left out: `hivemind setup claude-code`.

    \b
    Examples:
      hivemind setup claude-code
      hivemind setup all --write --mcp-only
      eval "$(hivemind setup env --agent claude-1)"
      hivemind setup completion bash --install
    """


@setup.command(name="tool", short_help="What a tool needs in its own files; `tool` may be left out")
@click.argument("tool", type=click.Choice([*TOOLS, ALL]))
@click.option("--write", is_flag=True, help="Merge it into the tool's files.")
@click.option("--remove", is_flag=True, help="Take out of them what --write has put in, and nothing else.")
@click.option("--project", is_flag=True, help="This folder's files instead of the user's own.")
@click.option("--mcp-only", is_flag=True, help="Only the MCP server; the tool's traffic goes as before.")
@click.option("--agent", metavar="NAME", default="", help="Its name in logs, budgets and tables; default: the tool's.")
@port_option
@json_flag
def setup_tool(
    tool: str, port: int, agent: str, *, write: bool, remove: bool, project: bool, mcp_only: bool, as_json: bool
) -> None:
    """Print what a tool needs in its own files to be behind the proxy and to use its MCP server.

    With --write it is merged: what is in the files stays, what you have set otherwise stays, too, and a backup is kept
    beside each file that changes. `all`: every tool that is found on this machine.

    \b
    Examples:
      hivemind setup claude-code
      hivemind setup codex --write
      hivemind setup all --write --mcp-only
      hivemind setup claude-code --remove
    """
    if write and remove:
        raise click.UsageError("--write or --remove, not both")
    if as_json and (write or remove):
        raise click.UsageError("--json says what is needed; it goes with neither --write nor --remove")
    place = ToolPlace(
        home=Path.home(),
        project=Path.cwd() if project else None,
        environment=os.environ,
        command=_own_command(),
        port=port,
        table=load_programs(),
        bundle=Path if remove else lambda: _bundle(port),
        agent=agent,
        mcp_only=mcp_only,
    )
    troubles = 0
    plans = []
    for name in _chosen(tool, place):
        try:
            plan = TOOLS[name].plan_for(place)
            plans.append(plan)
            if write or remove:
                troubles += _change(plan, remove=remove)
        except (SetupTrouble, NoBundle, UnreadableReport, FolderNotPrivate, OSError) as error:
            troubles += 1
            _complain(name, error)
    if as_json:
        print_json([_plain(plan) for plan in plans])
    elif not (write or remove):
        click.echo("\n".join(_pages(plans)), nl=False)
    if troubles:
        sys.exit(1)


def _chosen(tool: str, place: ToolPlace) -> Iterator[str]:
    if tool != ALL:
        yield tool
        return
    for name, one in TOOLS.items():
        if one.is_found(place.home):
            yield name
        else:
            click.echo(f"{name}: not found on this machine, skipped", err=True)


def _pages(plans: list[SetupPlan]) -> Iterator[str]:
    """What each tool needs, to be put in by hand."""
    for plan in plans:
        files = "".join(f"\n{file.path}:\n\n{snippet(file.format, file.entries)}" for file in plan.files)
        notes = "".join(f"- {note}\n" for note in plan.notes)
        yield f"{plan.tool}\n{files}" + (f"\n{notes}" if notes else "")


def _plain(plan: SetupPlan) -> dict[str, object]:
    files = [
        {"path": str(file.path), "format": file.format.value, "content": snippet(file.format, file.entries)}
        for file in plan.files
    ]
    return {"tool": plan.tool, "files": files, "notes": plan.notes}


def _change(plan: SetupPlan, *, remove: bool) -> int:
    """How many files could not be changed."""
    ledger, troubles, written = Ledger(), 0, 0
    for file in plan.files:
        try:
            change = (removal if remove else addition)(file, ledger)
            written += _carry_out(plan.tool, change, ledger, remove=remove)
        except (SetupTrouble, OSError) as error:
            troubles += 1
            _complain(plan.tool, error)
    if written and not remove:
        for note in plan.notes:
            click.echo(f"{plan.tool}: {note}")
    return troubles


def _carry_out(tool: str, change: FileChange, ledger: Ledger, *, remove: bool) -> bool:
    for entry, there in change.kept:
        # Not what is there: it may be a secret.
        what = "is changed since, and stays" if remove else f"is set otherwise, and stays; for {tool} it would be"
        wanted = "" if remove else f" {msgspec.json.encode(entry.value).decode()}"
        click.echo(f"{tool}: {change.named}: {'.'.join(entry.path)} {what}{wanted}", err=True)
        assert there != entry.value
    if change.is_nothing:
        click.echo(f"{tool}: {change.named}: nothing to do")
        return False
    click.echo(change.diff(), nl=False)
    backup = apply(change, ledger, now=datetime.fromtimestamp(SystemClock().wall(), UTC).astimezone())
    done = "removed" if change.after is None else "written"
    click.echo(f"{tool}: {change.named}: {done}" + (f"; as it was: {backup}" if backup else ""))
    return True


def _complain(tool: str, error: Exception) -> None:
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"Error: {tool}: {where}{error.strerror or error}", err=True)
    else:
        click.echo(f"Error: {tool}: {error}", err=True, nl=not isinstance(error, HasComments))


def _bundle(port: int) -> Path:
    """Raises NoBundle, UnreadableReport, OSError."""
    proxy = background.running(port)
    users = {os.environ[name] for name in load_programs().ca_variables if os.environ.get(name)}
    confdir = Path(proxy.confdir) if proxy else _CONFDIR
    return write_bundle(confdir, sorted(file for file in users if not is_ours(file)))


def _own_command() -> str:
    """As a tool can start it that has another PATH than this shell."""
    beside = (Path(sys.argv[0]), Path(sys.executable).with_name("hivemind"))
    found = next((one for one in beside if one.name == "hivemind" and one.is_file()), None)
    return str(found.absolute()) if found else shutil.which("hivemind") or "hivemind"
