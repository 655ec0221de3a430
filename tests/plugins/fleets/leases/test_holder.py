"""What the system says of real processes, and whom a lease ends with."""

import os
import signal
import subprocess
import sys

import pytest

from hivemind_addon.plugins.fleets.leases import holder as holders
from hivemind_addon.plugins.fleets.leases import holder as process
from hivemind_addon.plugins.fleets.leases.holder import (
    ProcessFacts,
    ProcessUnknown,
    ancestors,
    holder_of,
    is_alive,
    look,
)
from hivemind_addon.plugins.fleets.leases.model import Holder
from tests.cases import each


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


SAY_CALLER = f"{sys.executable} -c 'from hivemind_addon.plugins.fleets.leases.holder import caller; print(caller())'"


def test_a_holder_lives_as_long_as_its_process(child):
    holder = holder_of("a", child.pid)
    assert (holder.agent, holder.pid) == ("a", child.pid)
    assert is_alive(holder)
    child.kill()
    child.wait()
    assert not is_alive(holder)
    with pytest.raises(ProcessLookupError):
        holder_of("a", child.pid)


def test_a_later_process_of_the_same_id_is_another():
    ours = holder_of("a", os.getpid())
    started, boot, namespace = ours.started.split("/")
    assert is_alive(ours)
    assert not is_alive(Holder("a", ours.pid, f"1{started}/{boot}/{namespace}"))
    assert not is_alive(Holder("a", ours.pid, f"{started}/another/{namespace}"))


def test_what_counts_its_processes_apart_may_live():
    assert is_alive(Holder("a", 2**31 - 1, f"1/{holders.boot()}/pid:[1]"))


def test_who_is_not_watched_lives():
    assert is_alive(holder_of("a", 0))


def test_what_the_system_does_not_tell_ends_nothing(monkeypatch):
    ours = holder_of("a", os.getpid())

    def look(pid):
        raise ProcessUnknown("no")

    monkeypatch.setattr(holders, "look", look)
    assert is_alive(ours)
    assert holder_of("a", os.getpid()).pid == 0


@each(
    "script",
    [
        "echo $$; {say}",
        "echo $$; x=$({say}); echo $x",
        "echo $$; x=$(true; {say}; true); echo $x",
        "echo $$; sh -c '{quoted}; true'",
        "echo $$; env {say}",
    ],
)
def test_a_script_is_the_caller_and_not_its_shells_for_one_command(tmp_path, script):
    file = tmp_path / "script.sh"
    file.write_text(script.format(say=SAY_CALLER, quoted=SAY_CALLER.replace("'", "'\\''")) + "\ntrue\n")
    done = subprocess.run(["bash", file], capture_output=True, text=True, check=True)
    shell, said = done.stdout.split()
    assert shell == said


def line(*commands):
    """From the caller's parent up."""
    return [ProcessFacts(100 - index, 99 - index, "1", tuple(words.split())) for index, words in enumerate(commands)]


@each(
    ("commands", "which"),
    [
        (["bash -lc hivemind", "codex exec"], 1),
        (["/bin/zsh -c -l hivemind", "claude"], 1),
        (["-zsh", "sshd: me"], 0),
        (["bash --norc", "xterm"], 0),
        (["sh -e script.sh", "make"], 0),
        (["bash script.sh", "bash script.sh", "bash script.sh", "zsh"], 2),
        (["uv run hivemind", "bash build.sh"], 1),
        (["sh -c hivemind"], 0),
        (["python loop.py", "bash"], 0),
        ([""], 0),
    ],
)
def test_shells_that_end_with_the_command_hold_nothing(monkeypatch, commands, which):
    monkeypatch.setattr(holders, "ancestors", lambda pid: iter(line(*commands)))
    assert holders.caller() == 100 - which


def test_where_nothing_is_known_it_is_the_parent(monkeypatch):
    monkeypatch.setattr(holders, "ancestors", lambda pid: iter(()))
    assert holders.caller() == os.getppid()
