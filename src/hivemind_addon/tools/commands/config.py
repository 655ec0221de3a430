"""`hivemind config`: the options of a running proxy, and where files lie."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec

from hivemind_addon.formats.base import json_values
from hivemind_addon.formats.base.resources import schemas_folder
from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.proxy.api.command import OptionView, SetConfig, ShowConfig
from hivemind_addon.proxy.api.config_file import FILE_NAME, RUN_KEYS, check_keys, run_setting, setting, user_file
from hivemind_addon.proxy.api.control import control_socket
from hivemind_addon.proxy.journal.file import default_journal
from hivemind_addon.proxy.system.folders import runtime_folder, state_folder
from hivemind_addon.tools.commands.group import CommandEntry, ListGroup
from hivemind_addon.tools.commands.names import option_names
from hivemind_addon.tools.commands.options import config as here
from hivemind_addon.tools.commands.options import in_one_line, json_option, port_option
from hivemind_addon.tools.commands.printing import Format, format_option, print_rows
from hivemind_addon.tools.commands.proxy import ask, one_line, tell
from hivemind_addon.tools.launch.port import log_file

_PREFIX = "hivemind_"
_COLUMNS = {"name": "option", "value": "value", "default": "default", "settable": "can be set"}
_OFF = "off"


_LATER = (
    CommandEntry("profile", "plugins.captures.commands.profile:profile", "A provider of your own: is it understood?"),
    CommandEntry("schema", "plugins.captures.commands.profile:schema", "The JSON Schema of each file that you write"),
)


@click.group(cls=ListGroup, index={"Commands": _LATER})
def config() -> None:
    """The options of a running proxy: what each is now, and whether it can be set while it runs.

    Without a subcommand it lists them. Options say which, where and whether; how much is said by profiles. Of a command
    line only the program is shown.

    \b
    Examples:
      hivemind config
      hivemind config show --origin
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
@click.option("--origin", "with_origin", is_flag=True, help="Tell for each value who says it; all keys, defaults too.")
@format_option
def show(form: Format, *, with_origin: bool) -> None:
    """Print what a proxy that is started here is told: by variables `HIVEMIND_<OPTION>`, by hivemind.yaml, by default.

    Its command line, which comes first, is not known here; `hivemind config list` has what a running proxy goes by.

    \b
    Examples:
      hivemind config show
      hivemind config show --origin
      hivemind config show --json | jq -r '.[].key'
    """
    found = here()
    keys = json_values.decode((schemas_folder() / "config.json").read_bytes())["properties"]
    with in_one_line(DocumentError):
        check_keys(found, keys)
        said = {key: setting(key, about["default"], os.environ, found) for key, about in keys.items()}
        for key in RUN_KEYS:
            run_setting(key, os.environ, found)
    rows = [
        {"key": key, "value": one.value, **({"origin": one.origin} if with_origin else {})}
        for key, one in said.items()
        if with_origin or not one.is_default
    ]
    if form is Format.TABLE:
        rows = [row | {"value": _word(row["value"])} for row in rows]
        none = f"all values are the defaults; write {FILE_NAME} here, or\n{user_file()}"
        print_rows(rows, {key: key for key in ("key", "value", "origin")[: 2 + with_origin]}, form, none=none)
    else:
        print_rows(rows, {}, form)


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
    yield from ((FILE_NAME, one.path) for one in here())
    if user_file() not in [one.path for one in here()]:
        yield f"your {FILE_NAME}", user_file()
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
