"""The server with the SDK's own client: what is listed, what is refused, and that nothing brings it down."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable

import jsonschema
import pytest
from mcp import types
from mcp.shared.exceptions import McpError
from msgspec import Struct

from hivemind_addon.tools.mcp.session import Permission, ServerScope, ToolFailed
from hivemind_addon.tools.mcp.tool import Call, McpTool, ToolCancelled, tool
from hivemind_addon.tools.mcp.tools import TOOLS
from tests.tools.mcp.stage import failing, given

OWN = {tool.shown.name for tool in TOOLS if not tool.needs}


class Word(Struct, frozen=True):
    word: str


def named(name: str, run: Callable[[Call], Word]) -> McpTool:
    run.__name__, run.__annotations__ = name, {"return": Word}
    return tool(name)(run)


def raising(error: BaseException) -> Callable[[Call], Word]:
    def run(_: Call) -> Word:
        raise error

    return run


async def test_nothing_but_the_callers_own_affairs_is_listed_by_default(stage):
    async with stage.client(scope=ServerScope()) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
    assert listed == OWN
    assert {"status", "metrics", "wait_estimate", "yield_turn", "lower_priority", "lease_acquire"} <= OWN


async def test_each_permission_adds_its_own_tools_and_no_others(stage):
    for permission in Permission:
        async with stage.client(scope=ServerScope(frozenset({permission}))) as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
        assert listed == OWN | {tool.shown.name for tool in TOOLS if permission in tool.needs}
        assert listed > OWN


async def test_a_call_of_what_is_not_allowed_says_which_flag_a_person_has_to_set(stage):
    async with stage.client(scope=ServerScope()) as client:
        for tool in TOOLS:
            if tool.needs:
                text = await failing(client, tool.shown.name)
                assert f"`--allow {tool.needs[0].value}`" in text, tool.shown.name
    assert stage.snapshot.priorities == ()
    assert stage.options["hivemind_trace"] == "none"


async def test_a_tool_that_is_none_is_named_with_those_there_are(stage):
    async with stage.client(scope=ServerScope()) as client:
        text = await failing(client, "x" * 5000)
    assert "there is no tool" in text
    assert "wait_estimate" in text
    assert "set_priority" not in text
    assert len(text) < 1000


async def test_clients_learn_what_a_tool_may_change(stage):
    async with stage.client() as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert listed["status"].annotations.readOnlyHint
    assert not listed["yield_turn"].annotations.readOnlyHint
    assert not listed["yield_turn"].annotations.destructiveHint
    assert listed["budget_reset"].annotations.destructiveHint
    assert listed["budget_reset"].title == "Forgive what was spent"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ToolFailed("so it is"), "so it is"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (sqlite3.OperationalError("disk I/O error"), "disk I/O error"),
        (ZeroDivisionError("x\ny" * 500), "hivemind failed: ZeroDivisionError"),
        (ToolCancelled(), "cancelled"),
    ],
)
async def test_what_goes_wrong_is_one_line_and_the_server_stays_up(stage, error, words, caplog):
    tools = (named("bad", raising(error)), named("good", lambda _: Word("fine")))
    async with stage.client(tools=tools) as client:
        assert words in await failing(client, "bad")
        assert await given(client, "good") == {"word": "fine"}
    assert ("Traceback" in caplog.text) is isinstance(error, ZeroDivisionError)


async def test_where_no_proxy_runs_tools_say_the_cure_and_others_go_on(stage):
    stage.close()
    async with stage.client() as client:
        for name in ("status", "metrics", "wait_estimate", "yield_turn", "budget_list", "config_list"):
            assert "no hivemind proxy serves port 8080; a person starts one with `hivemind run -p 8080`" in (
                await failing(client, name)
            )
        assert (await given(client, "lease_acquire", names=["a"]))["granted"]
        await stage.start()
        assert (await given(client, "status"))["agent"] == "one"


async def test_what_tools_give_is_as_their_schema_says(stage):
    stage.bench.submit("a", "b", session="one")
    async with stage.client() as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name in ("status", "metrics", "wait_estimate", "budget_list", "config_list", "lease_list"):
            jsonschema.validate(await given(client, name), listed[name].outputSchema)


async def test_calls_run_side_by_side(stage):
    both = threading.Barrier(2, timeout=120)

    def meet(_: Call) -> Word:
        both.wait()
        return Word("met")

    async with stage.client(tools=(named("meet", meet),)) as client:
        assert await asyncio.gather(given(client, "meet"), given(client, "meet")) == [{"word": "met"}] * 2


async def test_a_call_that_its_client_cancels_ends(stage):
    ended = threading.Event()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(call: Call) -> Word:
        loop.call_soon_threadsafe(begun.set)
        if call.pause(600):
            ended.set()
        return Word("too late")

    async with stage.client(tools=(named("wait", wait), named("good", lambda _: Word("fine")))) as client:
        number = client._request_id
        asked = asyncio.ensure_future(client.call_tool("wait", {}))
        async with asyncio.timeout(120):
            await begun.wait()
            await cancel(client, number)
            with pytest.raises(McpError, match="cancelled"):
                await asked
            assert await asyncio.to_thread(ended.wait, 120)
            assert await given(client, "good") == {"word": "fine"}


async def cancel(client, number):
    note = types.CancelledNotification(params=types.CancelledNotificationParams(requestId=number))
    await client.send_notification(types.ClientNotification(note))


async def test_progress_is_told_to_a_client_that_wants_it(stage):
    told = []

    async def hear(*one):
        told.append(one)

    def work(call: Call) -> Word:
        call.progress(1, 2, "half")
        return Word("done")

    async with stage.client(tools=(named("work", work),)) as client:
        await client.call_tool("work", {}, progress_callback=hear)
        assert told == [(1, 2, "half")]
        await given(client, "work")
        assert len(told) == 1


async def test_a_client_that_goes_ends_what_it_asked_for(stage):
    begun, ended = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait(call: Call) -> Word:
        loop.call_soon_threadsafe(begun.set)
        if call.pause(600):
            ended.set()
        return Word("nobody hears it")

    async with stage.client(tools=(named("wait", wait),)) as client, asyncio.timeout(120):
        asked = asyncio.ensure_future(client.call_tool("wait", {}))
        await begun.wait()
    asked.cancel()
    assert await asyncio.to_thread(ended.wait, 120)
