"""`hivemind config profile | schema`: what a profile of your own says, and whether it understands its provider."""

import sys
from pathlib import Path

import click

from hivemind_addon.formats.base.resources import schemas_folder
from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.plugins.captures.model import NotACapture
from hivemind_addon.tools.commands.group import IndexedGroup
from hivemind_addon.tools.commands.options import in_one_line
from hivemind_addon.tools.commands.printing import json_flag, print_json

_FILE = click.Path(dir_okay=False, path_type=Path)
_SUFFIX = ".json"


@click.group(cls=IndexedGroup)
def profile() -> None:
    """Write a profile for a provider of your own, and try whether it is understood.

    \b
    Examples:
      hivemind config profile check my-provider.yaml
      hivemind config profile check my-provider.yaml --sample recorded.har
    """


@profile.command()
@click.argument("file", type=_FILE)
@click.option("--sample", type=_FILE, help="Recorded exchanges: HAR, a flow file, or a capture.")
@json_flag
def check(file: Path, sample: Path | None, *, as_json: bool) -> None:
    """Say what a profile means, and what it understands of recorded exchanges.

    FILE is read as if it lay in the folder that `hivemind_profiles` names. Of a sample each exchange is read as the
    proxy would read it; credentials and words are not shown. The exit status is 1 where a model call with the status
    200 has no usage, no content or no end that is found, and where no exchange of the sample is a model call of FILE's.

    \b
    Examples:
      hivemind config profile check my-provider.yaml
      mitmdump --set hardump=recorded.har      record some exchanges
      hivemind config profile check my-provider.yaml --sample recorded.har
      hivemind config profile check my.yaml --sample a.har --json | jq .understood
    """
    from hivemind_addon.plugins.captures.profile_check import ProfileCheck  # noqa: PLC0415 - the readers take a while to load

    with in_one_line(DocumentError, NotACapture):
        checked = ProfileCheck(file)
        exchanges, damage = checked.read(sample) if sample is not None else ([], ())
    claimed = [one for one in exchanges if one.claimed]
    faulty = [one for one in claimed if one.faults]
    is_bad = bool(faulty) or (sample is not None and not claimed)
    if as_json:
        told = {"profile": checked.told, "understood": not is_bad, "exchanges": exchanges, "damage": damage}
        print_json(told if sample is not None else {"profile": checked.told})
    else:
        from hivemind_addon.plugins.captures.commands import profile_view  # noqa: PLC0415 - rich takes a while to load

        profile_view.print_profile(checked.told)
        if sample is not None:
            profile_view.print_exchanges(exchanges, damage)
    if is_bad:
        sys.exit(1)


@click.command()
@click.argument("kind", required=False)
@click.option("--path", "only_path", is_flag=True, help="Print where the schema is, instead of the schema itself.")
def schema(kind: str | None, *, only_path: bool) -> None:
    """Print the JSON Schema of a kind of YAML file, for editors; without KIND the kinds that there are.

    An editor finds it by a first line in the file: `# yaml-language-server: $schema=PATH`.

    \b
    Examples:
      hivemind config schema
      hivemind config schema fleet --path
      hivemind config schema profile > profile.schema.json
    """
    kinds = sorted(one.stem for one in schemas_folder().glob(f"*{_SUFFIX}"))
    if kind is None:
        click.echo("\n".join(kinds))
        return
    if kind not in kinds:
        raise click.BadParameter(f"no kind {kind!r}; there are {', '.join(kinds)}", param_hint="KIND")
    file = schemas_folder() / f"{kind}{_SUFFIX}"
    click.echo(f"{file}\n" if only_path else file.read_text(encoding="utf-8"), nl=False)
