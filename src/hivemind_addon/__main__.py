"""`python -m hivemind_addon` is the command `hivemind`."""

from hivemind_addon.tools.cli import main

main(prog_name="hivemind")
