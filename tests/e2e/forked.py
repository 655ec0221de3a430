"""mitmdump as a fork of a server that has imported mitmproxy and the addon already: a start without its three quarters.

Python's own fork server does it. A fork has its own process id, folder, environment and log, and ends by itself; what a
start from nothing does is the matter of tests that name an executable (tests/e2e/test_start.py).
"""

import atexit
import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["__main__", "tests.e2e.imported", __name__])

LOOP_VARIABLE = "HIVEMIND_TEST_LOOP"
"""`HIVEMIND_TEST_LOOP=uvloop make test`: the same tests on the loop that `hivemind run` takes."""


class Forked:
    """What of `subprocess.Popen` tests use."""

    def __init__(self, command, log, cwd, environment):
        self._process = _SERVER.Process(target=_mitmdump, args=(command, str(log), str(cwd), environment), daemon=True)
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("mitmdump", timeout)
        return self._process.exitcode

    def send_signal(self, how):
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, how)

    def kill(self):
        self._process.kill()


def _mitmdump(command, log, cwd, environment):
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(out), "w", buffering=1, errors="replace") for _ in range(2))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = command
    from mitmproxy.tools.main import mitmdump

    from hivemind_addon.proxy.run.program import take_loop

    take_loop(os.environ.get(LOOP_VARIABLE, "asyncio"))
    try:
        mitmdump()
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing leaves them out
