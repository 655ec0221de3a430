"""A store on a real file with processes that live and die as told."""

import pytest

from hivemind_addon.tools.locks.model import Holder, Request
from hivemind_addon.tools.locks.sqlite_store import SqliteLeases


class Machine:
    """One machine: its boot, and who lives on it."""

    def __init__(self, path):
        self.path = path
        self.boot = "boot-1"
        self.dead: set[str] = set()

    def store(self) -> SqliteLeases:
        return SqliteLeases(self.path, is_alive=lambda holder: holder.started not in self.dead, boot=lambda: self.boot)


def holder(agent: str) -> Holder:
    return Holder(agent, 1 + sum(agent.encode()), agent)


def asks(agent: str, *names: str, ttl_s: float = 60, capacity: int = 1, value: str = "") -> Request:
    return Request(names, holder(agent), ttl_s, capacity, value)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "leases.db")


@pytest.fixture
def store(machine):
    with machine.store() as made:
        yield made
