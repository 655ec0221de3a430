"""`hivemind addon`: the path of the script that mitmproxy loads."""

import click

from hivemind_addon.formats.base.resources import script_path


@click.command()
def addon() -> None:
    """Print the path of the script that mitmproxy loads. `hivemind addon` is short for it.

    \b
    Examples:
      mitmdump -s "$(hivemind addon)"
      mitmweb -s "$(hivemind addon)"
    """
    click.echo(script_path())
