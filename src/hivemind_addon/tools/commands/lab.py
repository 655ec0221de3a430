"""`hivemind lab`: what tries and measures the scheduler. Each command is loaded when it is asked for."""

import click

from hivemind_addon.tools.commands.group import CommandEntry, IndexedGroup

_COMMANDS = (
    CommandEntry("scenario", "lab.commands:scenario", "Simulated load: list it, read it, run it"),
    CommandEntry("prove", "lab.commands:prove", "Every scenario against what it expects"),
    CommandEntry("evaluate", "lab.evaluate.commands:evaluate", "Scenarios by policies by seeds, with charts"),
    CommandEntry("papers", "lab.papers.commands:papers", "What three papers claim, run again beside theirs"),
    CommandEntry("docs", "tools.commands.checkout:docs", "Write the generated pages of docs/"),
)


@click.group(cls=IndexedGroup, index={"Commands": _COMMANDS})
def lab() -> None:
    """Try and measure the scheduler in virtual time: an hour takes a second, and nothing is sent.

    \b
    Examples:
      hivemind lab scenario run stress incident
      hivemind lab prove --seeds 3 --only stress
      hivemind lab evaluate --quick
    """
