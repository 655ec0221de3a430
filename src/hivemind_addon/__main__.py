"""`python -m hivemind_addon` is the command `hivemind`."""

from hivemind_addon.cli import main

main(prog_name="hivemind")
