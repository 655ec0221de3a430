"""`hivemind lab papers`: parse, call, write. Modules are loaded by the call."""

import os
from pathlib import Path

import click

from hivemind_addon.sim.scenario_commands import progress

_SEEDS = 20
_QUICK_SEEDS = 2


@click.command()
@click.option("--quick", is_flag=True, help="A few small scenarios and two seeds: seconds.")
@click.option("--seeds", type=click.IntRange(1, 1000), help=f"Of each run.  [default: {_SEEDS}; with --quick 2]")
@click.option(
    "--overhead",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What the bench wrote with --json: what a request costs, the only figure that is timed.",
)
@click.option(
    "--output", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Write the tables into this page."
)
def papers(*, quick: bool, seeds: int | None, overhead: Path | None, output: Path | None) -> None:
    """The experiments of three papers again, each figure beside theirs, as the tables of docs/papers.md.

    Virtual time, some minutes on two cores; the same command gives the same numbers.

    \b
    Examples:
      hivemind lab papers --quick
      hivemind lab papers --output docs/papers.md
    """  # noqa: D301 - click's own mark: this paragraph keeps its lines
    from lab.markdown import markdown_filled  # noqa: PLC0415
    from lab.papers import plan as plans  # noqa: PLC0415 - loaded when it is needed, as below
    from lab.papers.overhead import BadOverhead, read_overhead  # noqa: PLC0415
    from lab.papers.page import parts  # noqa: PLC0415

    try:
        measured = read_overhead(overhead) if overhead else None
    except BadOverhead as error:
        raise click.ClickException(str(error)) from error
    plan = plans.quick_plan(seeds or _QUICK_SEEDS) if quick else plans.full_plan(seeds or _SEEDS)
    with progress(plans.size(plan)) as done:
        made = plans.run_papers(plan, workers=1 if quick else os.cpu_count() or 1, overhead=measured, done=done)
    found = parts(made)
    if output is None:
        click.echo("\n".join(f"{name}\n\n{text}" for name, text in found.items()), nl=False)
    else:
        output.write_text(markdown_filled(output.read_text(encoding="utf-8"), found), encoding="utf-8")


COMMANDS = (papers,)
