import os
import stat
import subprocess
import sys
from threading import Event, Thread

import pytest

from hivemind_addon.proxy.system.file_lock import holder_of, is_free, name_holder, take_lock
from tests.cases import each


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


def test_one_has_it_until_it_is_closed(path):
    first = take_lock(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert take_lock(path) is None
    assert take_lock(path, shared=True) is None
    assert not is_free(path)
    os.close(first)
    assert is_free(path)
    os.close(take_lock(path))


def test_many_share_it_and_nobody_has_it_alone_meanwhile(path):
    both = [take_lock(path, shared=True), take_lock(path, shared=True)]
    os.close(both[0])
    assert take_lock(path) is None
    os.close(both[1])
    os.close(take_lock(path))


@each("wait_s", [120.0, None])
def test_it_is_waited_for(path, wait_s):
    first = take_lock(path)
    taken, begun = [], Event()

    def wait():
        begun.set()
        taken.append(take_lock(path, wait_s=wait_s))

    waiting = Thread(target=wait, daemon=True)
    waiting.start()
    assert begun.wait(120)
    os.close(first)
    waiting.join(120)
    assert taken[0] is not None
    os.close(taken[0])


def test_a_wait_has_an_end(path):
    first = take_lock(path)
    assert take_lock(path, wait_s=0.1) is None
    os.close(first)


def test_its_holder_is_named(path):
    first = take_lock(path)
    name_holder(first, "a name that is longer than the next")
    name_holder(first, "port 8080")
    assert holder_of(path) == "port 8080"
    os.close(first)


def test_whoever_only_looks_makes_nothing(path):
    assert not is_free(path)
    assert holder_of(path) == ""
    assert not path.exists()


HOLDER = """
import sys
from pathlib import Path
from hivemind_addon.proxy.system.file_lock import take_lock
held = take_lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_process(path):
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        assert take_lock(path) is None
        holder.kill()
    os.close(take_lock(path))


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        take_lock(tmp_path / "nowhere" / "lock")
