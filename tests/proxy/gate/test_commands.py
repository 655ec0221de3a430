"""What is typed, and what the scheduler is asked for then."""

import pytest
from mitmproxy import exceptions
from mitmproxy.addons.view import View
from mitmproxy.test import taddons

from hivemind_addon.kernel.values.command import Cancel, MoveToFront, Pause, Resume, SetLimit, SetPriority
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.api.command import CommandReply
from hivemind_addon.proxy.gate.interfaces.commands import Commands
from tests.proxy.gate.samples import make_flow, make_proxy


class Stage:
    """The command bar, and a scheduler that writes down what it is asked for."""

    def __init__(self, context, proxy, view, commands):
        self.run = context.master.commands.execute
        self.call = context.master.commands.call_strings
        self.proxy = proxy
        self.view = view
        self.commands = commands
        self.asked = []
        self.says = CommandReply(done=True, text="so it is")
        proxy.driver.command = self._command

    def _command(self, command):
        self.asked.append(command)
        return self.says

    def come(self, **headers):
        flow = make_flow(**headers)
        self.view.add([flow])
        exchange = self.proxy.make_exchange(flow)
        exchange.enter()
        return exchange


@pytest.fixture
async def stage(tmp_path):
    (tmp_path / "anthropic.yaml").write_text("extends: anthropic\nconcurrency: {initial: 1, maximum: 1}\n")
    view, commands = View(), Commands()
    commands.proxy = make_proxy(tmp_path)
    with taddons.context(view, commands) as context:
        yield Stage(context, commands.proxy, view, commands)


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("hivemind.pause", Pause("*")),
        ("hivemind.pause */opus", Pause("*/opus")),
        ("hivemind.resume", Resume("*")),
        ("hivemind.resume api.*", Resume("api.*")),
        ("hivemind.limit 4", SetLimit(4, "*")),
        ("hivemind.limit 4 */opus", SetLimit(4, "*/opus")),
        ("hivemind.limit auto", SetLimit(None, "*")),
        ("hivemind.priority agent-7 high", SetPriority("agent-7", Priority.HIGH)),
        ("hivemind.priority agent-* auto", SetPriority("agent-*", None)),
    ],
)
async def test_what_is_typed_is_asked_for(stage, typed, asked):
    assert stage.run(typed) == "so it is"
    assert stage.asked == [asked]


async def test_flows_are_named_as_everywhere_in_mitmproxy(stage):
    first, second = stage.come(), stage.come(x_session_id="b")
    second.flow.comment = "held"
    assert stage.run("hivemind.front '~comment held'") == ["so it is"]
    assert stage.run("hivemind.cancel @all") == ["so it is", "so it is"]
    assert stage.asked == [MoveToFront(second.ticket.id), Cancel(first.ticket.id), Cancel(second.ticket.id)]


async def test_several_flows_go_to_the_front_in_their_order(stage):
    first, second = stage.come(), stage.come(x_session_id="b")
    stage.run("hivemind.front @all")
    assert stage.asked == [MoveToFront(second.ticket.id), MoveToFront(first.ticket.id)]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("hivemind.limit 0", "limit: '0' is neither a number from 1 on nor `auto`"),
        ("hivemind.limit many", "limit: 'many' is neither"),
        ("hivemind.limit", "argument mismatch"),
        ("hivemind.priority agent-7 urgent", "one of critical, high, normal, low, auto"),
        ("hivemind.front @all", "none of these flows is held or running"),
        ("hivemind.cancel '~comment nobody'", "none of these flows is held or running"),
    ],
)
async def test_what_cannot_be_meant_is_told(stage, typed, told):
    with pytest.raises(exceptions.CommandError) as error:
        stage.run(typed)
    assert told in str(error.value)
    assert stage.asked == []


async def test_what_was_not_done_is_an_error(stage):
    stage.says = CommandReply(done=False, text="no pool is called x")
    with pytest.raises(exceptions.CommandError, match="no pool is called x"):
        stage.run("hivemind.pause x")


async def test_status_is_a_line_a_pool(stage):
    assert stage.call("hivemind.status", []) == ["no requests so far"]
    stage.come()
    stage.come(x_session_id="b")
    (line,) = stage.call("hivemind.status", [])
    assert line.startswith("api.anthropic.com/key-")
    assert ": 1 of 1 in flight, " in line
    assert ", 1 queued (concurrency limit" in line


async def test_without_a_scheduler_they_say_so(stage):
    stage.commands.proxy = None
    with pytest.raises(exceptions.CommandError, match="did not start"):
        stage.run("hivemind.status")


async def test_mitmwebs_address_takes_their_names(stage):
    names = [name for name in dir(stage.commands) if hasattr(getattr(stage.commands, name), "command_name")]
    assert len(names) == 7
    assert all(getattr(stage.commands, name).command_name.replace(".", "").isalpha() for name in names)
