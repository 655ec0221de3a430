"""`hivemind addon | docs`: where this package's own files are."""

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


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; the exit status is 1 when a page is stale.")
def docs(*, check: bool) -> None:
    """Write the generated pages of docs/, and schemas/, in a checkout.

    \b
    Examples:
      hivemind lab docs
      hivemind lab docs --check
    """
    from lab.generators import docs as pages  # noqa: PLC0415 - it loads mitmproxy, which takes a second

    if not pages.in_checkout():
        raise click.ClickException("this is an installed package: only a checkout has docs/")
    if check:
        if stale := pages.check():
            raise click.ClickException(f"stale, run `make docs`: {', '.join(stale)}")
        return
    for page in pages.write():
        click.echo(page)
