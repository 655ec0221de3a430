"""`hivemind lab`: commands that try and measure the scheduler. Each is loaded when a user calls it."""

import sys
from importlib import import_module
from typing import override

import click

from hivemind_addon.formats.base.resources import checkout_folder
from hivemind_addon.tools.commands.group import CommandEntry, IndexedGroup


class CheckoutEntry(CommandEntry):
    """A command whose module is in the checkout's `lab` folder, which a wheel does not bring."""

    @override
    def load(self) -> click.Command:
        """Import the command. ClickException: this installation is not a checkout."""
        if (folder := checkout_folder()) is None:
            raise click.ClickException(
                f"`hivemind lab {self.name}` needs a checkout of hivemind_addon, and this is an installed package: "
                "clone the repository, run `make demo` there once, and use its .venv/bin/hivemind"
            )
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        module, _, attribute = self.place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


_COMMANDS = (
    CommandEntry("scenario", "sim.scenario_commands:scenario", "Simulated load: list it, read it, run it"),
    CommandEntry("trace", "sim.trace_commands:trace", "Recorded refusals: which limits explain them"),
    CheckoutEntry("prove", "lab.prove:prove", "Judge policies on many worlds, with intervals"),
    CheckoutEntry("digest", "lab.digest:digest", "Whether the scheduler decides as before"),
    CheckoutEntry("docs", "lab.generators.commands:docs", "Write the generated pages of docs/"),
)


@click.group(cls=IndexedGroup, index={"Commands": _COMMANDS})
def lab() -> None:
    """Try and measure the scheduler in virtual time: an hour takes a second, and nothing is sent.

    \b
    Examples:
      hivemind lab scenario run stress incident
      hivemind lab prove --seeds 3 --worlds stress
      hivemind lab prove --quick
    """
