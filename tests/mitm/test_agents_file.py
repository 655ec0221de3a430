import os

import pytest

from hivemind_addon.api.ticket import Priority
from hivemind_addon.proxy.mitm.agents_file import LOOK_EVERY_S, AgentsFile
from hivemind_addon.system.typed import DocumentError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "agents.yaml"
    path.write_text("everyone: {max_priority: high}")
    return path


def change(file, text, mtime_ns):
    file.write_text(text)
    os.utime(file, ns=(mtime_ns, mtime_ns))


def highest(agents, now):
    return agents.rules(now).granted("any").max_priority


def test_without_a_file_there_are_no_rules():
    assert highest(AgentsFile(None), 0.0) is Priority.NORMAL


def test_a_bad_file_is_refused_at_the_start(file):
    file.write_text("everyone: {max_priority: urgent}")
    with pytest.raises(DocumentError):
        AgentsFile(file)


def test_a_change_is_read_again_without_a_restart(file):
    agents = AgentsFile(file)
    assert highest(agents, 0.0) is Priority.HIGH
    change(file, "everyone: {max_priority: critical}", 1)
    assert highest(agents, LOOK_EVERY_S / 2) is Priority.HIGH
    assert highest(agents, LOOK_EVERY_S) is Priority.CRITICAL


def test_a_change_for_the_worse_is_told_once_and_changes_nothing(file):
    agents = AgentsFile(file)
    change(file, "everyone: {max_priority: urgent}", 1)
    told = []
    for step in range(5):
        rules = agents.rules(step * LOOK_EVERY_S, log=lambda *words: told.append(words))
        assert rules.granted("any").max_priority is Priority.HIGH
    assert len(told) == 1


def test_a_file_that_is_gone_for_a_moment_changes_nothing(file):
    agents = AgentsFile(file)
    file.unlink()
    assert agents.rules(0.0, log=lambda *_: None).granted("any").max_priority is Priority.HIGH
    change(file, "everyone: {max_priority: low}", 1)
    assert highest(agents, LOOK_EVERY_S) is Priority.LOW
