"""`make pictures`: every picture of docs/images anew, from a real run of what is installed from this checkout."""

import asyncio
import tempfile
from pathlib import Path

import click

from lab.bench.newcomer.house import ROOT, borrowed, built_wheel
from lab.bench.newcomer.views import all_views
from tests.tools.dash.record import IMAGE, image

IMAGES = ROOT / "docs" / "images"


@click.command()
@click.option("--seconds", type=click.IntRange(5, 120), default=24, show_default=True, help="Of the film.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="[default: docs/images]")
def main(seconds: int, out: Path | None) -> None:
    """Write the film of the demo and the pictures of status, page and mitmweb; and `top` of a recorded night."""
    images = out or IMAGES
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hivemind-pictures-") as name:
        folder = Path(name)
        for picture, content in all_views(borrowed(folder, built_wheel(folder / "wheel")), seconds=seconds):
            (images / picture).write_bytes(content)
            click.echo(f"{picture}: {len(content) / 1000:.0f} KB")
    if out is None:
        IMAGE.write_text(asyncio.run(image()), encoding="utf-8")


if __name__ == "__main__":
    main()
