"""A process that starts a keeper and becomes another; the whole way is in tests/e2e/test_leases.py."""

import subprocess
import sys

import pytest

START = """
import os, sys
from threading import Event
from hivemind_addon.tools.locks.holder import holder_of
from hivemind_addon.tools.locks.keeping import start_keeper
from hivemind_addon.tools.locks.keeping import WatchedProcess
process = WatchedProcess(holder_of("a", os.getpid()), pause=Event().wait)
others = os.open(os.devnull, os.O_RDONLY)
def work():
    {work}
start_keeper(process, work)
os.execvp("sh", ["sh", "-c", "sleep 0.05; echo out; exit 3"])
"""


def start(work, before=""):
    return subprocess.run(
        [sys.executable, "-c", before + START.format(work=work)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_works_beside_until_the_process_ends_and_holds_none_of_its_files():
    done = start(
        "print('nobody hears this'); "
        "ended = process.ends_within(60); "
        "apart = os.getsid(0) == os.getpgid(0) != os.getpid() - 0 * others; "
        "held = [one for one in os.listdir('/dev/fd') if int(one) > 2]; "
        "sys.stderr.write(f'{ended} {len(held) <= 3} {os.read(0, 1)}'); sys.stderr.flush()"
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "True True b''")


def test_what_fails_in_it_is_one_line_and_not_the_commands_business():
    done = start("raise OSError('no')")
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert done.stderr == "hivemind: keeping the lease has failed: OSError: no\n"


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux says it")
def test_it_is_nobodys_child():
    done = start(
        "from pathlib import Path; "
        "sys.stderr.write(str(process._holder.pid != os.getppid())); sys.stderr.flush(); process.ends_within(60)"
    )
    assert done.stderr == "True"


def test_closed_files_are_no_trouble():
    done = start("sys.stderr.write(str(process.ends_within(60))); sys.stderr.flush()", before="import os; os.close(0)")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "True")
