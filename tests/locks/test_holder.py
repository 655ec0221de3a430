import os
import subprocess
import sys

import pytest

from hivemind_addon.tools.locks import holder as holders
from hivemind_addon.tools.locks.holder import ProcessFacts, ProcessUnknown, holder_of, is_alive
from hivemind_addon.tools.locks.model import Holder

SAY_CALLER = f"{sys.executable} -c 'from hivemind_addon.tools.locks.holder import caller; print(caller())'"


@pytest.fixture
def child():
    started = subprocess.Popen(["sleep", "600"])
    yield started
    started.kill()
    started.wait()


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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
