"""What the system says of real processes."""

import os
import signal
import subprocess
import sys

import pytest

from hivemind_addon.tools.locks import holder as process
from hivemind_addon.tools.locks.holder import ProcessUnknown, ancestors, look


@pytest.fixture
def child():
    with subprocess.Popen(["cat", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        started.stdin.write(b"?")  # its words are the system's only after its start
        started.stdin.flush()
        started.stdout.read(1)
        yield started
        started.kill()


def test_a_process_is_told_by_its_start_its_parent_and_its_words(child):
    found = look(child.pid)
    assert (found.pid, found.parent) == (child.pid, os.getpid())
    assert found == look(child.pid)
    assert found.started != look(os.getpid()).started


def test_a_killed_process_is_gone_before_its_parent_asks_for_it(child):
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert look(child.pid) is None


def test_there_is_nothing_where_no_process_is(child):
    child.kill()
    child.wait()
    assert look(child.pid) is None
    assert look(2**31 - 1) is None


def test_ancestors_begin_with_the_process_itself_and_end_somewhere():
    line = list(ancestors(os.getpid()))
    assert line[0].pid == os.getpid()
    assert [one.parent for one in line[:-1]] == [one.pid for one in line[1:]]


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux says it")
@pytest.mark.parametrize(
    ("stat", "lives"),
    [
        ("7 (a) b) (c) S 1 " + "0 " * 15 + "1 0 99 0", True),
        ("7 (x) Z 1 " + "0 " * 15 + "1 0 99 0", False),
        ("7 (x) Z 1 " + "0 " * 15 + "4 0 99 0", True),
        ("7 (x) X 1 " + "0 " * 15 + "1 0 99 0", False),
    ],
)
def test_names_with_brackets_and_zombies_are_read_as_they_are(tmp_path, monkeypatch, stat, lives):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(stat)
    monkeypatch.setattr(process, "_PROC", tmp_path)
    monkeypatch.setattr(process, "_reads_proc", lambda: True)
    found = look(7)
    assert (found is not None) == lives
    if found:
        assert (found.started, found.parent) == ("99", 1)


def test_a_hidden_process_may_live(tmp_path, monkeypatch, child):
    monkeypatch.setattr(process, "_PROC", tmp_path)
    monkeypatch.setattr(process, "_reads_proc", lambda: True)
    with pytest.raises(ProcessUnknown):
        look(child.pid)


def test_ps_says_the_same(child):
    found = process._from_ps(child.pid) if _has_ps() else pytest.skip("no ps here")
    assert (found.pid, found.parent, found.words) == (child.pid, os.getpid(), ("cat", "-"))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process._from_ps(child.pid) is None
    child.wait()
    assert process._from_ps(child.pid) is None


def _has_ps() -> bool:
    try:
        return (
            subprocess.run(["ps", "-o", "lstart=", "-p", str(os.getpid())], capture_output=True, check=False).returncode
            == 0
        )
    except FileNotFoundError:
        return False


def test_the_boot_and_the_namespace_stay_the_same():
    assert process.boot() == process.boot()
    if sys.platform == "linux":
        assert len(process.boot()) == 36
        assert process.namespace().startswith("pid:")
