"""`hivemind config`: the options of a running proxy, and where files lie."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec

from hivemind_addon.api.command import OptionView, SetConfig, ShowConfig
from hivemind_addon.api.control import control_socket
from hivemind_addon.proxy.journal.file import default_journal
from hivemind_addon.system.folders import runtime_folder, state_folder
from hivemind_addon.tools.commands.group import ListGroup
from hivemind_addon.tools.commands.names import option_names
from hivemind_addon.tools.commands.options import json_option, port_option
from hivemind_addon.tools.commands.printing import Format, format_option, print_rows
from hivemind_addon.tools.commands.proxy import ask, one_line, tell
from hivemind_addon.tools.launch.port import log_file

_PREFIX = "hivemind_"
_COLUMNS = {"name": "option", "value": "value", "default": "default", "settable": "can be set"}
_OFF = "off"


@click.group(cls=ListGroup)
def config() -> None:
    """The options of a running proxy: what each is now, and whether it can be set while it runs.

    Without a subcommand it lists them. Options say which, where and whether; how much is said by profiles. Of a command
    line only the program is shown.

    \b
    Examples:
      hivemind config
      hivemind config get keep
      hivemind config set hivemind_agents ~/agents.yaml
      hivemind config files
    """


@config.command(name="list")
@port_option
@format_option
@one_line
def list_(port: int, form: Format) -> None:
    """List the options of a running proxy: what each is now, and whether it can be set while it runs.

    \b
    Examples:
      hivemind config list
      hivemind config list --json | jq '.[] | select(.value != .default)'
    """
    rows = [msgspec.structs.asdict(view) for view in read_options(port)]
    if form is Format.TABLE:
        rows = [row | {key: _word(row[key]) for key in ("value", "default", "settable")} for row in rows]
    print_rows(rows, _COLUMNS, form)


@config.command()
@click.argument("name", shell_complete=option_names)
@port_option
@click.option("--json", "as_json", is_flag=True, help="Print the option as JSON, with its default and its help.")
@one_line
def get(name: str, port: int, *, as_json: bool) -> None:
    """Print the value of one option, which may be empty. NAME is an option, with or without `hivemind_`.

    \b
    Examples:
      hivemind config get hivemind_keep
      hivemind config get capture --json
    """
    found = {view.name: view for view in read_options(port)}
    view = found.get(name) or found.get(_PREFIX + name)
    if view is None:
        raise click.ClickException(f"no option {name!r}; there are {', '.join(found)}")
    click.echo(msgspec.json.encode(view).decode() if as_json else _word(view.value))


@config.command(name="set")
@click.argument("name", shell_complete=option_names)
@click.argument("value")
@port_option
@json_option
def change(name: str, value: str, port: int, *, as_json: bool) -> None:
    """Set one option of a running proxy, until it ends. A bad value is refused, and the old one stays.

    VALUE is as in `hivemind run --set NAME=VALUE`; several texts of a list are separated by spaces; paths are
    absolute. The empty text '' is the default of most.

    \b
    Examples:
      hivemind config set keep '200 flows'
      hivemind config set hivemind_log ~/night.jsonl
      hivemind config set hivemind_log ''
    """
    tell(SetConfig(name, value), port, as_json=as_json)


@config.command()
@port_option
@format_option
@one_line
def files(port: int, form: Format) -> None:
    """Where files lie: the proxy's own and yours, as its options say; the usual places where none runs.

    \b
    Examples:
      hivemind config files
      hivemind config files --json | jq -r '.[] | select(.there) | .path'
    """
    options: Mapping[str, object] = {}
    try:
        options = {view.name: view.value for view in read_options(port)}
    except click.ClickException as error:
        click.echo(f"{error.format_message()}; these are the usual places", err=True)
    rows = [{"what": what, "path": str(path), "there": path.exists()} for what, path in _files(options, port)]
    if form is not Format.TABLE:
        print_rows(rows, {}, form)
        return
    for row in rows:  # no table: a path that is folded cannot be copied
        click.echo(f"{row['what']:<32} {row['path']}" + ("" if row["there"] else "  (not there)"))


def _files(options: Mapping[str, object], port: int) -> Iterator[tuple[str, Path]]:
    def said(name: str) -> str:
        return str(options.get(_PREFIX + name) or "")

    usual = {"journal": default_journal(), "control": control_socket(port)}
    what = {
        "agents": "agents file (budgets, priorities)",
        "profiles": "your profiles",
        "journal": "journal",
        "control": "control socket",
        "log": "event log",
        "capture": "capture",
    }
    for name, words in what.items():
        chosen = said(name)
        if chosen not in ("", "-", _OFF):
            yield words, Path(chosen).expanduser()
        elif not chosen and name in usual:
            yield words, usual[name]
    for option, value in options.items():
        if option.removeprefix(_PREFIX) not in what and isinstance(value, str) and value.startswith(("/", "~")):
            yield option, Path(value).expanduser()
    yield "background proxy's log", log_file(port)
    yield "state folder", state_folder()
    if state_folder().is_dir():
        told = (default_journal(), log_file(port))
        yield from (("in it", path) for path in sorted(state_folder().iterdir()) if path not in told)
    yield "runtime folder (sockets, locks)", runtime_folder()


def read_options(port: int) -> list[OptionView]:
    """The options of a running proxy. Raises ClickException."""
    said = ask(port, ShowConfig())
    if not said.done:
        raise click.ClickException(said.text)
    return msgspec.convert(said.value, list[OptionView])


def _word(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return " ".join(map(str, value))
        case _:
            return str(value)
