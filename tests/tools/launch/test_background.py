"""Finding a proxy and failing to start one; the whole of it runs in tests/e2e/test_run.py."""

import subprocess
import sys

import pytest

from hivemind_addon.proxy.api.report import ProxyView
from hivemind_addon.tools.launch import background, detached
from hivemind_addon.tools.launch.background import NotServed, find_or_start
from hivemind_addon.tools.launch.detached import ALREADY_THERE

PROXY = ProxyView(pid=7, port=8080, listens=("127.0.0.1:8080",), confdir="", hosts=())


@pytest.fixture
def supervisors(monkeypatch, tmp_path):
    """What is started in the place of a supervisor; the processes that were."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(detached, "_LOOK_EVERY_S", 0.01)
    started = []
    real = subprocess.Popen

    def pretend(script):
        def popen(command, **settings):
            started.append((command, real([sys.executable, "-c", script], **settings)))
            return started[-1][1]

        monkeypatch.setattr(detached.subprocess, "Popen", popen)
        return started

    yield pretend
    for _, process in started:
        process.kill()
        process.wait(120)


class Impatient:
    """Each look at it is a second later."""

    def __init__(self):
        self.now = 0.0

    def awake(self):
        self.now += 1
        return self.now

    def wall(self):
        return self.now


def test_one_that_runs_is_used(monkeypatch, supervisors):
    started = supervisors("")
    monkeypatch.setattr(background, "running", lambda _: PROXY)
    assert find_or_start(8080, clock=Impatient()) is PROXY
    assert started == []


def test_one_is_started_and_waited_for(monkeypatch, supervisors):
    started = supervisors("import time; time.sleep(600)")
    answers = iter([None, None, None, PROXY])
    monkeypatch.setattr(background, "running", lambda _: next(answers))
    assert find_or_start(8080, clock=Impatient()) is PROXY
    assert started[0][0][1:] == ["-P", "-m", "hivemind_addon", "run", "--while-used", "--port", "8080"]
    assert started[0][1].poll() is None


def test_one_that_refuses_says_why_in_its_own_words(monkeypatch, supervisors, clock):
    supervisors("print('hivemind: hivemind_redirect: x is not HOST'); raise SystemExit(1)")
    monkeypatch.setattr(background, "running", lambda _: None)
    with pytest.raises(NotServed, match="hivemind_redirect: x is not HOST"):
        find_or_start(8080, clock=clock)


def test_anothers_proxy_that_never_answers_is_given_up(monkeypatch, supervisors):
    supervisors(f"raise SystemExit({ALREADY_THERE})")
    monkeypatch.setattr(background, "running", lambda _: None)
    with pytest.raises(NotServed, match="hivemind_control=off"):
        find_or_start(8080, clock=Impatient())
