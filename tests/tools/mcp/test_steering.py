"""What an agent that a person trusts steers, in a real scheduler over a real control socket."""

import json
from typing import get_args

import pytest

from hivemind_addon.kernel.values.events import PersonActed
from hivemind_addon.kernel.values.ticket import Demand, Priority
from hivemind_addon.proxy.api.replies import in_words
from hivemind_addon.tools.mcp.session import Permission, ServerScope
from hivemind_addon.tools.mcp.steering import SetupProgram
from hivemind_addon.tools.setup.tools import TOOLS
from tests.tools.mcp.stage import failing, given


async def test_a_budget_is_given_raised_and_forgiven(stage):
    async with stage.client() as client:
        said = await given(client, "budget_set", holder="agent", name="one", tokens=1000, usd=2.5)
        assert said["done"]
        stage.bench.submit("a", session="one", demand=Demand(input_tokens=100, total_tokens=100))
        (budget,) = (await given(client, "budget_list"))["budgets"]
        assert (budget["holder"], budget["per"], budget["limit_tokens"], budget["limit_usd"]) == (
            "agent one",
            "run",
            1000,
            2.5,
        )
        await given(client, "budget_add", holder="agent", name="one", tokens=500)
        (budget,) = (await given(client, "budget_list"))["budgets"]
        assert budget["limit_tokens"] == 1500
        assert (await given(client, "budget_reset", holder="agent", name="one"))["done"]


async def test_what_the_scheduler_does_not_do_is_an_error_with_its_words(stage):
    async with stage.client() as client:
        assert "nobody" in await failing(client, "budget_add", holder="agent", name="nobody", tokens=5)
        assert "how many" in await failing(client, "budget_add", holder="everyone")
        assert "Invalid enum value 'all'" in await failing(client, "budget_add", holder="all", tokens=5)
        assert ">= 0" in await failing(client, "budget_set", holder="everyone", tokens=-1)


async def test_a_priority_is_set_for_others_for_a_while_and_taken_back(stage):
    async with stage.client() as client:
        await given(client, "set_priority", agent="night-*", priority="critical", seconds=60)
        (view,) = stage.snapshot.priorities
        assert (view.agent, view.priority, view.ends_in_s) == ("night-*", Priority.CRITICAL, 60)
        stage.bench.advance(61)
        await given(client, "set_priority", agent="night-*", priority="low")
        await given(client, "set_priority", agent="night-*", priority="as asked")
        assert stage.snapshot.priorities == ()


async def test_options_are_shown_and_set(stage):
    async with stage.client() as client:
        assert await given(client, "config_set", name="hivemind_trace", value="all") == {
            "done": True,
            "text": "hivemind_trace = all",
        }
        option, _ = (await given(client, "config_list"))["options"]
        assert (option["name"], option["value"], option["settable"]) == ("hivemind_trace", "all", True)
        assert await failing(client, "config_set", name="other", value="1") == "no option other"


@pytest.mark.parametrize("name", ["hivemind_journal", "journal"])
async def test_an_option_that_reaches_beyond_the_scheduler_needs_more_than_the_word_config(stage, name):
    before = stage.options["hivemind_journal"]
    async with stage.client(scope=ServerScope(frozenset({Permission.CONFIG}))) as client:
        assert "`--allow-commands`" in await failing(client, "config_set", name=name, value="/etc/x")
        assert (await given(client, "config_set", name="hivemind_trace", value="all"))["done"]
        listed = {one["name"]: one["guarded"] for one in (await given(client, "config_list"))["options"]}
    assert listed == {"hivemind_trace": False, "hivemind_journal": True}
    assert stage.options["hivemind_journal"] == before
    async with stage.client() as client:
        assert (await given(client, "config_set", name="hivemind_journal", value="/n/j.db"))["done"]


async def test_the_log_says_which_agent_gave_a_priority(stage):
    async with stage.client("lead") as client:
        await given(client, "set_priority", agent="night-*", priority="low")
        await given(client, "yield_turn", seconds=30)
        await given(client, "budget_set", holder="agent", name="lead", tokens=1000)
        await given(client, "budget_add", holder="agent", name="lead", tokens=500)
        await given(client, "budget_reset", holder="agent", name="lead")
        await given(client, "budget_set", holder="group", name="night", tokens=1000)
    stage.bench.events.extend(stage.bench.scheduler.drain_events())
    acted = [event for event in map(in_words, stage.bench.events) if isinstance(event, PersonActed)]
    assert [event.text for event in acted] == [
        "agent night-*: priority low (by agent lead)",
        "agent lead: priority low for 30 s (by lead itself)",
        "budget: agent lead may spend 1,000 tokens for this run (by lead itself)",
        "budget: 500 tokens added to agent lead (by lead itself)",
        "budget: agent lead begins anew (by lead itself)",
        "budget: group night may spend 1,000 tokens for this run (by agent lead)",
    ]
    assert {event.by for event in acted} == {"lead"}


def test_what_can_be_set_up_is_what_the_command_knows():
    assert {*get_args(SetupProgram)} == {*TOOLS, "all"}


@pytest.mark.slow
async def test_it_prints_and_writes_nothing_until_it_is_told_to(stage, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    file = tmp_path / ".cursor" / "mcp.json"
    async with stage.client() as client:
        shown = await given(client, "setup", program="cursor")
        assert shown["done"]
        assert '"mcpServers"' in shown["text"]
        assert not file.exists()
        await given(client, "setup", program="cursor", action="write")
        assert json.loads(file.read_text())["mcpServers"]["hivemind"]["args"] == ["mcp"]
        await given(client, "setup", program="cursor", action="remove")
        assert not file.exists() or "hivemind" not in file.read_text()


@pytest.mark.slow
async def test_what_cannot_be_set_up_is_told(stage, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text("{broken")
    async with stage.client() as client:
        told = await given(client, "setup", program="cursor", action="write")
        assert not told["done"]
        assert "mcp.json" in told["text"]
        assert "Traceback" not in told["text"]
        assert "Invalid enum value 'vim'" in await failing(client, "setup", program="vim")
    assert (tmp_path / ".cursor" / "mcp.json").read_text() == "{broken"
