"""Stores as their tests use them: with processes that live and die as told, at instants that a test chooses."""

from contextlib import suppress

import pytest
from redis.exceptions import RedisError

from hivemind_addon.plugins.fleets.leases.engine_store import EngineLeases
from hivemind_addon.plugins.fleets.leases.model import Holder, Request
from hivemind_addon.plugins.fleets.leases.sqlite_store import SqliteLeases
from hivemind_addon.proxy.system.engine_url import parse_engine_url

TOLD_TIME = "local now = tonumber(redis.call('GET', 'now') or 0)"
"""In the place of the engine's clock."""


class Machine:
    """One machine: its boot, and who lives on it."""

    def __init__(self, path):
        self.path = path
        self.boot = "boot-1"
        self.dead: set[str] = set()

    def store(self) -> SqliteLeases:
        return SqliteLeases(self.path, is_alive=lambda holder: holder.started not in self.dead, boot=lambda: self.boot)


class TimedEngineLeases(EngineLeases):
    """Its engine's clock says what the caller's does."""

    def _set(self, now):
        with suppress(RedisError):  # the operation itself fails as well
            self._redis.set("now", round(now * 1e6))

    def acquire(self, request, now, *, waiter=""):
        self._set(now)
        return super().acquire(request, now, waiter=waiter)

    def renew(self, lease_id, ttl_s, now):
        self._set(now)
        return super().renew(lease_id, ttl_s, now)

    def release(self, lease_id, now):
        self._set(now)
        return super().release(lease_id, now)

    def standings(self, now, names=()):
        self._set(now)
        return super().standings(now, names)


class EngineMachine:
    """One of many machines that share an engine."""

    def __init__(self, engine, host="here"):
        self.engine = engine
        self.host = host
        self.dead: set[str] = set()

    def store(self) -> EngineLeases:
        return TimedEngineLeases(
            parse_engine_url(self.engine.unix_url),
            "test",
            patience_s=1.0,
            is_alive=lambda holder: holder.started not in self.dead,
            host=self.host,
            engine_time=TOLD_TIME,
        )


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
