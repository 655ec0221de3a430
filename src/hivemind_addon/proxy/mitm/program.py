"""mitmdump and mitmweb as `hivemind run` starts them: loaded faster, and on the event loop that was asked for.

`python -m hivemind_addon.proxy.mitm.program LOOP PROGRAM ARGUMENTS…`; LOOP is `asyncio` or `uvloop`.
"""

import asyncio
import gc
import sys
from functools import partial
from importlib import import_module


def main() -> int | None:
    """Be that program; its exit status."""
    _, loop, program, *arguments = sys.argv
    sys.argv = [program, *arguments]  # what it looks at itself
    # What modules make stays: to look through it again and again takes a sixth of the time of loading it.
    gc.disable()
    programs = import_module("mitmproxy.tools.main")
    import_module(f"mitmproxy.tools.{program.removeprefix('mitm')}")
    gc.freeze()
    gc.enable()
    if loop == "uvloop":
        # mitmproxy leaves no other choice; a policy for all loops would do, too, but Python 3.16 has none any more.
        asyncio.run = partial(asyncio.run, loop_factory=import_module("uvloop").new_event_loop)
    status: int | None = getattr(programs, program)()
    return status


if __name__ == "__main__":
    sys.exit(main())
