"""The command `hivemind`. `tools/commands/index.py` lists the subcommands, which are loaded when called."""

import click

from hivemind_addon import __version__
from hivemind_addon.tools.commands.group import CalmGroup
from hivemind_addon.tools.commands.index import SECTIONS

_HELP = {"help_option_names": ["-h", "--help"]}


@click.group(cls=CalmGroup, index=SECTIONS, context_settings=_HELP)
@click.version_option(__version__, prog_name="hivemind")
def main() -> None:
    """A scheduler for LLM agents that share one API key, inside mitmproxy.

    \b
    Examples:
      hivemind demo                          see it work, without network or key
      hivemind exec -- claude                run an agent through it
      hivemind run                           the proxy alone, for all agents
    """


if __name__ == "__main__":
    main()
