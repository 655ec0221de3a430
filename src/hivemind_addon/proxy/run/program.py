"""mitmdump and mitmweb as `hivemind run` starts them: loaded faster, and on the event loop that was asked for.

`python -m hivemind_addon.proxy.run.program LOOP PROGRAM ARGUMENTS…`; LOOP is `auto`, `asyncio` or `uvloop`.
"""

import asyncio
import gc
import sys
from functools import partial
from importlib import import_module
from io import TextIOWrapper

from hivemind_addon.proxy.system.stop_signals import START_REFUSED


def main() -> int | None:
    """Be that program; its exit status."""
    _, loop, program, *arguments = sys.argv
    sys.argv = [program, *arguments]  # what it looks at itself
    if isinstance(sys.stdout, TextIOWrapper):
        # A service's log is a file or a pipe, and read while it runs: each line is there when it is written.
        sys.stdout.reconfigure(line_buffering=True)
    # What modules make stays: to look through it again and again takes a sixth of the time of loading it.
    gc.disable()
    programs = import_module("mitmproxy.tools.main")
    import_module(f"mitmproxy.tools.{program.removeprefix('mitm')}")
    gc.freeze()
    gc.enable()
    take_loop(loop)
    try:
        status: int | None = getattr(programs, program)()
    except SystemExit as refused:
        # What it exits with in its own words is told before it serves: a bad option, a port that is taken.
        if refused.code == 1:
            return START_REFUSED
        raise
    return status


def take_loop(loop: str) -> None:
    """Run mitmproxy on it from now on. `auto`: uvloop where it is installed, else asyncio.

    Raises ImportError for `uvloop` where that is not there.
    """
    if loop == "asyncio":
        return
    try:
        factory = import_module("uvloop").new_event_loop
    except ImportError as error:
        if loop == "uvloop":
            raise
        if not isinstance(error, ModuleNotFoundError):  # one that is not installed is no news
            print(f"hivemind: uvloop does not load, so the proxy runs on asyncio: {error}", file=sys.stderr)  # noqa: T201
        return
    # mitmproxy leaves no other choice; a policy for all loops would do, too, but Python 3.16 has none any more.
    asyncio.run = partial(asyncio.run, loop_factory=factory)


if __name__ == "__main__":
    sys.exit(main())
