import pytest

from hivemind_addon.plugins.fleets.tasks import session
from hivemind_addon.plugins.fleets.tasks.model import NotTaken, State
from hivemind_addon.plugins.fleets.tasks.process import TaskNotStarted
from hivemind_addon.plugins.fleets.tasks.session import new_plan, resumed_plan, run_plan
from hivemind_addon.plugins.fleets.tasks.store import TaskLine
from hivemind_addon.plugins.fleets.tasks.task_table import FleetRules
from hivemind_addon.proxy.system.clock import SystemClock
from tests.plugins.fleets.tasks.plain import PlainLauncher, shell, short_folder
from tests.plugins.fleets.tasks.test_store import owned, view


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """No proxy is needed on it."""

    class Launcher(PlainLauncher):
        def __init__(self, *_, **__):
            pass

        async def proxy(self):
            return None

    monkeypatch.setattr(session, "Launcher", Launcher)
    with short_folder() as folder:
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder


def kept():
    """An earlier fleet: a and its child done, b failed, c never begun."""
    one = owned()
    one.write(TaskLine(view("a", State.DONE), shell("a", "true")))
    one.write(TaskLine(view("a-1", State.DONE, parent="night-1/a"), shell("a-1", "true")))
    one.write(TaskLine(view("b", State.FAILED), shell("b", "true", ["a"])))
    one.write(TaskLine(view("b-1", State.CANCELLED, parent="night-1/b"), shell("b-1", "true")))
    one.write(TaskLine(view("c", State.SKIPPED), shell("c", "true", ["b"])))
    one.close()


def test_an_id_has_the_files_name_in_it_and_is_new(clock):
    plan = new_plan(FleetRules(2), [shell("a", "true")], source="/x/My Night.yaml", port=1, clock=clock)
    assert plan.fleet.id.startswith("my-night-")
    assert new_plan(FleetRules(2), [], source="", port=1, clock=clock).fleet.id.startswith("tasks-")


def test_what_is_not_done_is_resumed_but_not_what_others_submitted():
    kept()
    plan = resumed_plan("night-1", port=9090, changed=None)
    assert [one.name for one in plan.tasks] == ["b", "c"]
    assert [one.view.id for one in plan.done] == ["night-1/a"]
    assert (plan.fleet.port, plan.fleet.rules.at_most) == (9090, 2)


def test_a_file_that_has_changed_says_what_is_left():
    kept()
    changed = (FleetRules(9), [shell("a", "false"), shell("b", "true"), shell("new", "true")])
    plan = resumed_plan("night-1", port=1, changed=changed)
    assert [one.name for one in plan.tasks] == ["b", "new"]
    assert plan.fleet.rules.at_most == 9


def test_there_is_nothing_to_resume():
    kept()
    with pytest.raises(NotTaken, match="all of night-1 is done"):
        resumed_plan("night-1", port=1, changed=(FleetRules(1), [shell("a", "true")]))
    with pytest.raises(NotTaken, match="there is no fleet 'x'"):
        resumed_plan("x", port=1, changed=None)


async def test_a_plan_is_run_and_resumed_to_its_end():
    kept()
    clock = SystemClock()
    outcome = await run_plan(resumed_plan("night-1", port=1, changed=None), clock=clock, tell=print, warn=print)
    assert outcome.signal is None
    assert {task.id.partition("/")[2]: task.state.value for task in outcome.fleet.tasks} == dict.fromkeys("abc", "done")
    with pytest.raises(NotTaken, match="all of night-1 is done"):
        resumed_plan("night-1", port=1, changed=None)


async def test_without_a_proxy_nothing_begins_and_nothing_is_kept(clock, monkeypatch, machine):
    async def refuse(_):
        raise TaskNotStarted("the proxy does not start")

    monkeypatch.setattr(session.Launcher, "proxy", refuse)
    plan = new_plan(FleetRules(1), [shell("a", "true")], source="", port=1, clock=clock)
    with pytest.raises(NotTaken, match="the proxy does not start"):
        await run_plan(plan, clock=clock, tell=print, warn=print)
    assert not (machine / "hivemind_addon" / "fleets").exists()
