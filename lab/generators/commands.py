"""`hivemind lab docs`."""

import click

from lab.generators import docs as pages


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; the exit status is 1 when a page is stale.")
def docs(*, check: bool) -> None:
    """Write the generated pages of docs/ and the schemas, in a checkout.

    \b
    Examples:
      hivemind lab docs
      hivemind lab docs --check
    """
    if check:
        if stale := pages.check():
            raise click.ClickException(f"stale, run `make docs`: {', '.join(stale)}")
        return
    for page in pages.write():
        click.echo(page)
