import json
import random

import pytest

from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.events import OddityNoted
from hivemind_addon.proxy.run import event_log
from hivemind_addon.proxy.run.driver import Driver
from hivemind_addon.proxy.run.notifier import Command
from hivemind_addon.proxy.run.sinks import Sinks


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(event_log, "FLUSH_S", 120.0)


class Listener:
    """A sink that remembers."""

    def __init__(self):
        self.heard = []
        self.is_closed = False

    def __call__(self, event):
        self.heard.append(event)

    async def close(self):
        self.is_closed = True


@pytest.fixture
def driver(clock):
    return Driver(scheduler=Scheduler(rng=random.Random(1)), clock=clock)


def happen(driver, what):
    driver.note(OddityNoted(at=driver.clock.monotonic(), pool=None, ticket_id=None, what=what))


def said(path):
    return [json.loads(line)["what"] for line in path.read_text().splitlines()]


async def test_sinks_follow_the_options(driver, tmp_path):
    sinks = Sinks(driver)
    first, second = tmp_path / "1", tmp_path / "2"
    sinks.follow(log=first, notify=Command(["true"]))
    happen(driver, "one")
    notifier = sinks._notifier
    sinks.follow(log=first, notify=Command(["true"]))
    assert sinks._notifier is notifier, "what is as it should be goes on"
    happen(driver, "two")
    sinks.follow(log=second, notify=Command(["true", "x"]))
    assert sinks._notifier.way == Command(["true", "x"])
    happen(driver, "three")
    sinks.follow(log=False, notify=None)
    happen(driver, "four")
    assert not any((sinks._log, sinks._notifier, sinks._traces))
    await sinks.close()
    assert (said(first), said(second)) == (["one", "two"], ["three"])


async def test_traces_are_there_from_the_start_to_the_end(driver):
    traces = Listener()
    sinks = Sinks(driver, traces=traces)
    sinks.follow(log=False, notify=None)
    happen(driver, "one")
    await sinks.close()
    happen(driver, "two")
    assert [event.what for event in traces.heard] == ["one"]
    assert traces.is_closed
    await sinks.close()
