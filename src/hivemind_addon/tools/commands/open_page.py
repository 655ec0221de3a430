"""`hivemind open`: the page in a browser, with the right to steer."""

import getpass
import html
import os
import sys
import webbrowser
from pathlib import Path

import click
import msgspec

from hivemind_addon.proxy.api.command import OpenPage, PageKey
from hivemind_addon.proxy.system.folders import runtime_folder
from hivemind_addon.proxy.system.whole_file import write_whole
from hivemind_addon.tools.commands.options import port_option
from hivemind_addon.tools.commands.proxy import ask, one_line, typed

_DOCUMENT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>hivemind</title>
<meta http-equiv="refresh" content="0; url={url}"></head>
<body><p><a href="{url}">The page of hivemind</a> opens within a minute of <code>hivemind open</code>, once.</p></body>
</html>
"""


@click.command(name="open")
@click.option("--print", "only_print", is_flag=True, help="Print the address instead of starting a browser.")
@port_option
@one_line
def open_page(port: int, *, only_print: bool) -> None:
    """Open the proxy's page in your browser, with the right to pause, cap, cancel and set budgets.

    The address has a key that is good once, for a minute, and only on this machine; the tab that used it steers until
    the proxy ends. Without a key the page only shows. Where there is no browser the address is printed.

    \b
    Examples:
      hivemind open
      hivemind open --print
      hivemind open -p 8090
    """
    said = ask(port, OpenPage(user=_user()))
    if not said.done:
        raise click.ClickException(said.text)
    key = msgspec.convert(said.value, PageKey)
    if only_print or not _has_browser():
        click.echo(key.url)
        click.echo(f"good once, within {key.lasts_s:g} s, in a browser on this machine", err=True)
        if os.environ.get("SSH_CONNECTION"):
            click.echo(f"from elsewhere: ssh -L {port}:127.0.0.1:{port} here first, and open it there", err=True)
        return
    # The address would be in the browser's command line, which everybody on this machine may read; a file is not.
    file = runtime_folder() / f"open-{port}.html"
    write_whole(file, _DOCUMENT.format(url=html.escape(key.url)).encode())
    if not webbrowser.open(file.as_uri()):
        file.unlink(missing_ok=True)
        raise click.ClickException(f"no browser could be started: `{typed('open', port)} --print` prints the address")
    click.echo(f"opened in your browser; if it cannot read {_short(file)}: `{typed('open', port)} --print`")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _has_browser() -> bool:
    """Whether a window can be opened where this runs; one in a terminal runs no scripts."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform == "darwin" or os.environ.get("BROWSER"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _short(file: Path) -> str:
    return str(file).replace(str(Path.home()), "~", 1)
