import fcntl
import os
import tempfile
from pathlib import Path
from threading import Event, Thread

import pytest

from hivemind_addon.tools.launch import claim


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="hm") as made:
        monkeypatch.setenv("XDG_RUNTIME_DIR", made)
        yield


def test_many_use_a_port_and_the_end_of_the_last_is_heard():
    users = [claim.use(8080), claim.use(8080)]
    heard = Event()
    taken = []

    def wait():
        taken.append(claim.wait_until_unused(8080))
        heard.set()

    Thread(target=wait, daemon=True).start()
    os.close(users[0])
    assert not heard.wait(0.1)
    os.close(users[1])
    assert heard.wait(120)
    users_file = Path(os.environ["XDG_RUNTIME_DIR"]) / "hivemind" / "8080.users"
    with pytest.raises(BlockingIOError), users_file.open() as late:
        fcntl.flock(late, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(taken[0])
    os.close(claim.use(8080))


def test_the_supervisor_is_named_while_it_is_there():
    assert claim.supervisor_of(8080) is None
    lock = claim.supervise(8080)
    assert claim.supervisor_of(8080) == os.getpid()
    assert claim.is_supervised(8080)
    os.close(lock)
    assert claim.supervisor_of(8080) is None
    assert not claim.is_supervised(8080)


def test_whether_a_command_uses_it_is_known():
    assert not claim.is_used(8080)
    user = claim.use(8080)
    assert claim.is_used(8080)
    os.close(user)
    assert not claim.is_used(8080)
