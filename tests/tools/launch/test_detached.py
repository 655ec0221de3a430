"""Programs in the background; what is started instead of ours is a script."""

import os
import select
import sys

import pytest

from hivemind_addon.tools.launch import detached
from hivemind_addon.tools.launch.detached import ALREADY_THERE, NotStarted


@pytest.fixture
def start(monkeypatch, tmp_path, clock):
    """Start a shell script in the place of Python, which gets what was asked for as its arguments."""

    def run(script, look, patience_s=600.0):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        return detached.start(["task", "7"], log=tmp_path / "log", look=look, patience_s=patience_s, clock=clock)

    return run


def test_it_is_waited_for_until_it_answers_and_its_log_is_its_owners(start, tmp_path):
    log = tmp_path / "log"
    said = start(f'echo "$*"; until [ -e {tmp_path}/seen ]; do sleep 0.01; done', lambda: log.read_text() or None)
    (tmp_path / "seen").touch()
    assert said == "-P -m hivemind_addon task 7\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_what_ends_before_it_answers_is_told_by_its_newest_lines_only(start, tmp_path):
    (tmp_path / "log").write_text("an older line\n")
    with pytest.raises(NotStarted) as said:
        start("seq 7; echo; exit 1", lambda: None)
    assert str(said.value) == "3\n4\n5\n6\n7"


def test_a_large_log_begins_anew_under_those_who_write_it_and_the_one_before_is_kept(start, tmp_path, monkeypatch):
    monkeypatch.setattr(detached, "_MAX_LOG_BYTES", 10)
    log = tmp_path / "log"
    log.write_text("x" * 11)
    with log.open("ab") as writer:
        assert start("sleep 1", lambda: "there") == "there"
        assert (log.stat().st_size, detached.old_log(log).read_text()) == (0, "x" * 11)
        assert detached.old_log(log).stat().st_mode & 0o777 == 0o600
        writer.write(b"next\n")
    assert log.read_text() == "next\n"
    detached.bound_log(log)
    assert log.read_text() == "next\n"


def test_one_that_found_another_in_its_place_is_waited_for_nevertheless(start):
    answers = iter([None, None, "there"])
    assert start(f"exit {ALREADY_THERE}", lambda: next(answers)) == "there"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="its end is seen by a handle")
def test_one_that_never_answers_is_ended(start, tmp_path, clock):
    handles = []

    def look():
        pid = (tmp_path / "log").read_text()
        if pid.endswith("\n"):
            handles.append(os.pidfd_open(int(pid)))
            clock.advance(601)

    assert start("echo $$; exec sleep 600", look) is None
    assert select.select(handles, [], [], 120)[0] == handles
    os.close(*handles)
