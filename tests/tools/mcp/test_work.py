"""What an agent's words become for the runner, which is real in tests/e2e/test_tasks.py."""

import pytest

from hivemind_addon.plugins.fleets.tasks import client as tasks
from hivemind_addon.plugins.fleets.tasks.model import NotTaken, State, TaskSpec, TaskView
from hivemind_addon.tools.mcp.session import Permission, ServerScope
from tests.tools.mcp.stage import failing, given

TASKS = ServerScope(frozenset({Permission.SUBMIT, Permission.BATCH}))


def view(task_id: str, state: State = State.DONE, **more) -> TaskView:
    known = {"priority": "normal", "agent_name": task_id, "attempts": 1, "depends_on": (), "parent": "", "reason": ""}
    known |= {"exit_status": 0, "submitted_wall": 1.0, "began_wall": 1.0, "ended_wall": 2.0, "log": "/l", "result": ""}
    return TaskView(id=task_id, state=state, **(known | more))


@pytest.fixture
def runner(monkeypatch):
    """What the runner is told; it has these tasks."""

    class Runner:
        def __init__(self):
            self.asked = []
            self.views = {}

        def submit(self, specs, **more):
            self.asked.append((list(specs), more))
            ids = [f"f/{number}" for number in range(len(specs))]
            self.views.update({one: view(one, State.RUNNING) for one in ids})
            return ids

        def wait(self, ids, *, connected, **more):
            self.asked.append((ids, more))
            return [self.views[one] for one in ids]

        def task(self, task_id):
            if task_id not in self.views:
                raise NotTaken(f"no task {task_id}")
            return self.views[task_id]

        def cancel(self, task_id):
            return f"{task_id} ended"

        def status(self, *, fleet=None):
            from hivemind_addon.plugins.fleets.tasks.model import FleetView

            return [FleetView(fleet, "", 1, 1.0, None, 1, tuple(self.views.values()))]

    made = Runner()
    for name in ("submit", "wait", "task", "cancel", "status"):
        monkeypatch.setattr(tasks, name, getattr(made, name))
    return made


async def test_a_task_is_submitted_as_the_callers_child(stage, runner):
    async with stage.client(scope=TASKS, task="f/lead", runner="/run/r.sock") as client:
        given_ids = await given(client, "submit", agent="claude-code", prompt="Review it.", budget_usd=0.5, name="r")
    assert given_ids["ids"] == ["f/0"]
    ((specs, more),) = runner.asked
    assert specs == [TaskSpec(agent="claude-code", prompt="Review it.", budget_usd=0.5, name="r")]
    assert (more["parent"], str(more["runner"]), more["port"]) == ("f/lead", "/run/r.sock", 8080)


async def test_who_is_no_task_submits_to_the_runner_in_the_background(stage, runner):
    async with stage.client(scope=TASKS) as client:
        await given(
            client,
            "batch",
            tasks=[
                {"agent": "codex", "prompt": "a", "name": "a"},
                {"agent": "codex", "prompt": "b", "depends_on": ["a"]},
            ],
        )
    ((specs, more),) = runner.asked
    assert [spec.depends_on for spec in specs] == [(), ("a",)]
    assert (more["parent"], more["runner"]) == ("", None)


async def test_raw_commands_need_a_flag_of_their_own(stage, runner):
    async with stage.client(scope=ServerScope(frozenset(Permission))) as client:
        assert "`--allow-commands`" in await failing(client, "submit", command=["rm", "-rf", "/"])
        jobs = [{"agent": "codex", "prompt": "x"}, {"command": ["true"], "name": "raw"}]
        assert "task raw: raw commands" in await failing(client, "batch", tasks=jobs)
    assert runner.asked == []
    async with stage.client(scope=ServerScope(TASKS.allowed, commands=True)) as client:
        await given(client, "submit", command=["echo", "$HOME; rm *"])
    assert runner.asked[0][0][0].command == ("echo", "$HOME; rm *"), "word by word: there is no shell"


@pytest.mark.parametrize("level", ["critical", "high"])
async def test_no_task_goes_before_others_unless_priorities_are_allowed(stage, runner, level):
    job = {"agent": "codex", "prompt": "x", "priority": level}
    async with stage.client(scope=TASKS) as client:
        assert "`--allow priority`" in await failing(client, "submit", **job)
    async with stage.client(scope=ServerScope(TASKS.allowed | {Permission.PRIORITY})) as client:
        await given(client, "submit", **job)
    assert [specs[0].priority for specs, _ in runner.asked] == [level]


async def test_what_is_no_task_is_told(stage, runner):
    wrong = [
        ({}, "it needs an agent and a prompt"),
        ({"agent": "codex"}, "it needs an agent and a prompt"),
        ({"agent": "codex", "prompt": "x", "command": ["true"]}, "instead of both a command"),
        ({"agent": "codex", "prompt": "x" * 30_001}, "length <= 30000"),
        ({"agent": "codex", "prompt": "x", "retries": 21}, "<= 20"),
        ({"agent": "codex", "prompt": "x", "environment": {"LD_PRELOAD": "/x"}}, "unknown field `environment`"),
    ]
    async with stage.client() as client:
        for arguments, words in wrong:
            assert words in await failing(client, "submit", **arguments), arguments
    assert runner.asked == []


async def test_its_own_tasks_are_meant_where_none_is_named(stage, runner):
    async with stage.client(task="f/lead") as client:
        assert "you have submitted no task" in await failing(client, "task_status")
        await given(client, "submit", agent="codex", prompt="x")
        runner.views["f/old"] = view("f/old", parent="f/lead")
        runner.views["f/other"] = view("f/other", parent="f/else")
        told = await given(client, "task_status")
        assert [one["id"] for one in told["tasks"]] == ["f/0", "f/old"]
        assert (told["over"], told["text"]) == (False, "1 of 2 tasks over")


async def test_a_wait_lends_the_callers_place_and_tells_what_came_of_each(stage, runner):
    runner.views = {"f/a": view("f/a", result="x" * 9000), "f/b": view("f/b", State.FAILED, exit_status=3)}
    async with stage.client(task="f/lead", runner="/r") as client:
        told = await given(client, "task_wait", ids=["f/a", "f/b", "f/a"], seconds=7)
    assert (told["over"], told["text"]) == (True, "2 of 2 tasks over, 1 of them not done")
    assert len(told["tasks"][0]["result"]) == 4000
    assert told["tasks"][1]["exit_status"] == 3
    ((ids, more),) = runner.asked
    assert (ids, more["waiter"], more["timeout_s"]) == (["f/a", "f/b"], "f/lead", 7)


async def test_only_ones_own_tasks_are_ended(stage, runner):
    async with stage.client(task="f/lead") as client:
        runner.views = {"f/child": view("f/child", parent="f/lead"), "f/other": view("f/other")}
        assert "hivemind task cancel f/other" in await failing(client, "task_cancel", id="f/other")
        assert await given(client, "task_cancel", id="f/child") == {"done": True, "text": "f/child ended"}
        (mine,) = (await given(client, "submit", agent="codex", prompt="x"))["ids"]
        assert await given(client, "task_cancel", id=mine) == {"done": True, "text": f"{mine} ended"}
        assert await failing(client, "task_status", ids=["f/none"]) == "no task f/none"
    async with stage.client() as client:
        assert "no task that you submitted" in await failing(client, "task_cancel", id="f/other")
