"""The runner in the background; a real one runs in tests/e2e/test_tasks.py."""

import socket
import sys
from pathlib import Path

import pytest

from hivemind_addon.tools.launch import detached
from hivemind_addon.tools.tasks import client
from hivemind_addon.tools.tasks.model import NotTaken
from tests.tasks.plain import short_folder


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    with short_folder() as folder:
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder


def test_one_that_answers_is_used():
    place = client.socket_of(8080)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        assert client.find_or_start(8080) == place


def test_one_that_does_not_start_is_told_with_its_last_words(monkeypatch, machine):
    fake = machine / "python"
    fake.write_text('#!/bin/sh\necho "Error: the port is taken, $*" >&2\nexit 1\n')
    fake.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(NotTaken, match=r"of port 8080 does not start; it said:\nError: the port is taken, -P -m hive"):
        client.find_or_start(8080)
    assert client.log_file(8080).stat().st_mode & 0o777 == 0o600


def test_a_large_log_that_another_has_just_removed_is_no_trouble(monkeypatch):
    monkeypatch.setattr(detached, "_MAX_LOG_BYTES", -1)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NotTaken, match="of port 8080 does not start; it said:\nnothing"):
        client.find_or_start(8080)
    unlink = Path.unlink

    def twice(path):
        unlink(path)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", twice)
    with pytest.raises(NotTaken, match="of port 8080 does not start; it said:\nnothing"):
        client.find_or_start(8080)


def test_a_folder_that_cannot_be_used_is_one_line(machine):
    (machine / "hivemind").write_text("a file")
    with pytest.raises(NotTaken, match="hivemind"):
        client.find_or_start(8080)
