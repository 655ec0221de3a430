"""Who knows hivemind-scheduler calls its tools by their names; ours do what they say."""

import pytest

from hivemind_addon.kernel.values.ticket import Demand, Priority
from hivemind_addon.plugins.fleets.tasks import client as tasks
from hivemind_addon.plugins.fleets.tasks.model import NotTaken, State, TaskSpec, TaskView
from hivemind_addon.tools.mcp.session import Permission, ServerScope
from hivemind_addon.tools.mcp.tools import HM_TOOLS, TOOLS
from tests.tools.mcp.stage import ALL, failing, given

NAMES = {f"hm.{word}" for word in ("submit", "batch", "status", "priority", "budget", "metrics", "config", "setup")}


async def names(stage, **more):
    async with stage.client(**more) as client:
        return {tool.name for tool in (await client.list_tools()).tools}


async def test_they_are_listed_where_that_is_asked_for_and_answered_anyway(stage):
    assert {tool.name for tool in HM_TOOLS} == NAMES
    ours = {tool.name for tool in TOOLS}
    assert await names(stage) == ours
    assert await names(stage, hm=True) == ours | NAMES
    assert await names(stage, hm=True, scope=ServerScope()) & NAMES == {"hm.status", "hm.metrics"}
    stage.bench.submit("a", session="one")
    async with stage.client() as client:
        by_ours = await given(client, "status")
        for name in ("hm.status", "hm_status"):
            assert await given(client, name) == {"queue": by_ours, "tasks": None}
        assert await given(client, "hm.metrics") == await given(client, "metrics")
        assert "hm.status" not in await failing(client, "hm.none"), "what is not listed is not offered"
    async with stage.client(scope=ServerScope()) as client:
        assert "`--allow submit`" in await failing(client, "hm.submit", command="true")
        assert "--allow submit" in await failing(client, "hm.status", task_id="f/0")


async def test_a_task_is_a_command_for_a_shell(stage, monkeypatch):
    asked = []
    monkeypatch.setattr(tasks, "submit", lambda specs, **_: asked.extend(specs) or [f"f/{len(asked)}"])
    async with stage.client() as client:
        await given(client, "hm.submit", command="claude -p 'go' | tee out", priority="low", token_budget=900)
        jobs = [{"command": "b", "dependencies": ["f/a", "c"], "estimated_tokens": 7}]
        assert (await given(client, "hm.batch", tasks=jobs))["ids"] == ["f/2"]
    assert asked == [
        TaskSpec(command=("sh", "-c", "claude -p 'go' | tee out"), priority="low", budget_tokens=900),
        TaskSpec(command=("sh", "-c", "b"), depends_on=("a", "c"), estimated_tokens=7),
    ]
    async with stage.client(scope=ServerScope(frozenset(Permission))) as client:
        assert "`--allow-commands`" in await failing(client, "hm.submit", command="true")


async def test_a_task_s_calls_get_its_priority(stage, monkeypatch):
    def task(task_id):
        if task_id != "f/x[1]":
            raise NotTaken(f"no task {task_id}")
        return view

    view = TaskView(id="f/x[1]", state=State.RUNNING, agent_name="f.x[1]", **dict.fromkeys(_NOTHING, 0), **_EMPTY)
    monkeypatch.setattr(tasks, "task", task)
    async with stage.client() as client:
        assert "no task f/y" in await failing(client, "hm.priority", task_id="f/y", priority="high")
        assert (await given(client, "hm.priority", task_id="f/x[1]", priority="critical"))["done"]
        (told,) = (await given(client, "hm.status", task_id="f/x[1]"))["tasks"]["tasks"]
    (ordered,) = stage.snapshot.priorities
    assert (ordered.agent, ordered.priority) == ("f.x[[]1]", Priority.CRITICAL)
    assert (told["id"], told["state"]) == ("f/x[1]", "running")


_NOTHING = ("attempts", "submitted_wall", "began_wall")
_EMPTY = {"priority": "normal", "depends_on": (), "parent": "", "reason": "", "exit_status": None, "ended_wall": None}
_EMPTY |= {"log": "/l", "result": ""}


async def test_budgets_and_options_are_set_and_told(stage):
    stage.options["max_concurrency"] = ""
    stage.guarded.discard("max_concurrency")
    async with stage.client() as client:
        await given(client, "hm.budget", action="set_total", total_budget=5000)
        both = (await given(client, "hm.budget", action="set_agent", agent_id="one", budget=700))["budgets"]
        stage.bench.submit("a", session="one", demand=Demand(input_tokens=100, total_tokens=100))
        every = (await given(client, "hm.budget"))["budgets"]
        assert [(one["holder"], one["tokens"]) for one in both] in ([], [("agent one", 700)])
        assert {(one["holder"], one["tokens"]) for one in every} == {("everyone", 5000), ("agent one", 700)}
        assert "needs agent_id and budget" in await failing(client, "hm.budget", action="set_agent", agent_id="one")
        assert "needs total_budget" in await failing(client, "hm.budget", action="set_total")
        options = (await given(client, "hm.config", max_concurrency=3))["options"]
        assert {one["name"]: one["value"] for one in options}["max_concurrency"] == "3"
        assert "latency_target_ms" in await failing(client, "hm.config", latency_target_ms=5)


@pytest.mark.parametrize("program", ["claude-code", "cursor"])
async def test_what_a_program_needs_is_shown(stage, program, monkeypatch):
    ran = []

    def run(command, **_):
        ran.append(command)
        return type("Ran", (), {"returncode": 0, "stdout": b"so it is"})

    monkeypatch.setattr("hivemind_addon.tools.mcp.steering.subprocess.run", run)
    async with stage.client(scope=ALL) as client:
        assert (await given(client, "hm.setup", tool=program)) == {"done": True, "text": "so it is"}
    assert ran[0][ran[0].index("setup") :] == ["setup", program, "--port", "8080"]
