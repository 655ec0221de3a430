import json

import pytest
from click.testing import CliRunner

from hivemind_addon.sim import demo
from hivemind_addon.sim.demo import DemoResult, DemoSettings
from hivemind_addon.sim.mitmdump import MitmdumpNotStarted
from hivemind_addon.tools.cli import main
from tests.sim.test_demo import run_of


def run(*arguments):
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def pretended(monkeypatch):
    """A demo that takes no time; the settings that it was asked for."""
    asked = []

    def pretend(**hivemind):
        async def run_demo(settings, _screen):
            asked.append(settings)
            return DemoResult(settings, run_of(4), run_of(**hivemind))

        monkeypatch.setattr(demo, "run_demo", run_demo)
        monkeypatch.setattr("signal.signal", lambda *_: None)
        return asked

    return pretend


def test_demo_prints_its_table_and_succeeds_when_nobody_was_lost(pretended):
    asked = pretended()
    result = run("demo", "--agents", "3", "--turns", "2", "--seed", "5", "--provider", "window")
    assert result.exit_code == 0
    assert "one fleet, two ways" in result.output
    assert result.output.rstrip().endswith("hivemind exec -- claude")
    assert asked == [DemoSettings(agents=3, turns=2, seed=5, kind=demo.LimitKind.WINDOW)]


@pytest.mark.parametrize("broken", [{"finished": 10}, {"guard_trips": 1}])
def test_demo_fails_when_the_scheduler_broke_its_promise(pretended, broken):
    pretended(**broken)
    assert run("demo").exit_code == 1


def test_demo_prints_nothing_but_json_where_that_is_asked_for(pretended):
    pretended()
    result = json.loads(run("demo", "--json").stdout)
    assert (result["direct"]["alive"], result["hivemind"]["alive"]) == (4, 11)
    assert result["hivemind"]["bound"] == {"bound_s": 30.0, "why": "8 slots"}


def test_a_mitmdump_that_does_not_start_is_one_line(monkeypatch):
    async def run_demo(_settings, _screen):
        raise MitmdumpNotStarted("mitmdump does not listen")

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    result = run("demo")
    assert (result.exit_code, result.stderr) == (1, "Error: mitmdump does not listen\n")
