"""Hooks called inside the layer: listeners only, nothing left to whoever runs the layer; else mitmproxy's own way.

That addons see what they see without us is tested with real ones: tests/e2e/test_hooks.py.
"""

import ast
import asyncio
import gc
import inspect
import sys
from collections import Counter
from pathlib import Path

import mitmproxy.addons
import pytest
from mitmproxy import addonmanager, exceptions, options
from mitmproxy.addons.asgiapp import ASGIApp
from mitmproxy.addons.onboarding import Onboarding
from mitmproxy.flow import Flow
from mitmproxy.hooks import UpdateHook, all_hooks
from mitmproxy.master import Master
from mitmproxy.proxy import mode_servers
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.http._hooks import HttpRequestHeadersHook, HttpRequestHook
from mitmproxy.proxy.server_hooks import ClientConnectedHook
from mitmproxy.test import tflow

from hivemind_addon.proxy.host.hooks import DirectAddonManager, HivemindWaitHook, Hooks
from hivemind_addon.proxy.host.http_layer import SchedulingHttpLayer
from tests.proxy.gate.playbook import Playbook, make_context
from tests.proxy.host.test_stream import WHICH, FakePort, request, response

OF_A_REQUEST = ("requestheaders", "request", "responseheaders", "response")


class Listens:
    """Has all hooks of a request, and notes which are called."""

    def __init__(self):
        self.called = []

    def requestheaders(self, flow):
        self.called.append("requestheaders")

    def request(self, flow):
        self.called.append("request")

    def responseheaders(self, flow):
        self.called.append("responseheaders")

    def response(self, flow):
        self.called.append("response")


class Updated:
    def __init__(self):
        self.flows = []

    def update(self, flows):
        self.flows.extend(flows)


class Waits:
    """Its hook ends when the test says so."""

    def __init__(self):
        self.go = asyncio.Event()
        self.tasks = []

    async def request(self, flow):
        self.tasks.append(asyncio.current_task())
        await self.go.wait()
        self.tasks.append(asyncio.current_task())


class Silent:
    """Has no hook."""

    def __init__(self, number):
        self.name = f"silent {number}"


@pytest.fixture
async def manager():
    """With mitmproxy's own addons."""
    master = Master(options.Options())
    master.addons.add(*mitmproxy.addons.default_addons())
    return master.addons


@pytest.fixture
def hooks(manager):
    hooks = Hooks()
    hooks.take_over(manager)
    return hooks


class Port(FakePort):
    def __init__(self, hooks):
        super().__init__()
        self.call_hook = hooks.call


def play(hooks, **more):
    return Playbook(SchedulingHttpLayer(make_context(), HTTPMode.regular, Port(hooks)), **more)


def calls_of(do):
    """How often each function was called meanwhile."""
    calls = Counter()

    def count(frame, event, _):
        if event == "call":
            calls[frame.f_code.co_qualname] += 1

    gc.disable()  # what it frees may call something
    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


# Listeners only ---------------------------------------------------------------------------------------------------------


async def test_a_request_yields_no_hook_and_calls_each_listener_once(manager, hooks):
    listens, updated = Listens(), Updated()
    manager.add(listens, updated)
    book = play(hooks)
    book.from_client(request())
    book.from_server(response())
    assert book.hooks == []
    assert listens.called == list(OF_A_REQUEST)
    assert [flow.response.content for flow in updated.flows] == [b"answer"] * 4
    assert b"answer" in book.to_client


async def test_addons_without_a_hook_cost_no_call(manager, hooks):
    manager.add(Listens())
    hook = HttpRequestHook(tflow.tflow())
    hooks.call(hook)
    few = calls_of(lambda: hooks.call(hook))
    manager.add(*map(Silent, range(100)))
    hooks.call(hook)
    assert calls_of(lambda: hooks.call(hook)) == few
    assert few["Listens.request"] == 1
    assert few["traverse"] == 0


async def test_a_request_has_no_task_while_nobody_waits(manager, hooks, monkeypatch):
    """mitmproxy's own page is served by a coroutine, and asked about every flow."""
    manager.add(ASGIApp(lambda *_: None, "page.test", 80), Listens())
    monkeypatch.setattr(asyncio, "Task", None)
    assert hooks.call(HttpRequestHook(tflow.tflow())) is None


async def test_hooks_of_connections_and_updates_call_listeners_only(manager, hooks):
    updated = Updated()
    manager.add(updated)
    flow = tflow.tflow()
    assert calls_of(lambda: manager.trigger(UpdateHook([flow])))["AddonManager._iter_hooks"] == 0
    assert updated.flows == [flow]
    hook = ClientConnectedHook(flow.client_conn)
    await manager.handle_lifecycle(hook)
    assert updated.flows == [flow]


class Wakes:
    """In a hook it gives itself `update`, or brings somebody who has it."""

    def __init__(self, manager=None):
        self.manager = manager
        self.updated = Updated()

    def request(self, flow):
        if self.manager:
            self.manager.add(self.updated)
        else:
            self.update = self.updated.update


@pytest.mark.parametrize("brings", [False, True])
async def test_who_begins_to_listen_in_a_hook_hears_of_its_update(manager, hooks, brings):
    wakes = Wakes(manager if brings else None)
    manager.add(wakes)
    flow = tflow.tflow()
    hooks.call(HttpRequestHeadersHook(flow))
    assert wakes.updated.flows == []
    hooks.call(HttpRequestHook(flow))
    assert wakes.updated.flows == [flow]


# Waiting ----------------------------------------------------------------------------------------------------------------


async def test_a_listener_that_waits_has_one_task_and_the_layer_waits_for_it(manager, hooks):
    waits, listens = Waits(), Listens()
    manager.add(waits, listens)
    book = play(hooks, on_hook=lambda hook: False)
    book.from_client(request())
    [wait] = book.hooks
    assert isinstance(wait, HivemindWaitHook)
    assert listens.called == ["requestheaders"]
    waits.go.set()
    await manager.handle_lifecycle(wait)  # as mitmproxy's connection handler does
    assert listens.called == ["requestheaders", "request"]
    assert len(set(waits.tasks)) == 1
    assert waits.tasks[0] is not asyncio.current_task()
    book.answer(wait)
    assert len(book.opened) == 1


async def test_an_intercepted_flow_waits_until_it_is_resumed(hooks, manager):
    flow = tflow.tflow()
    flow.intercept()
    wait = hooks.call(HttpRequestHook(flow))
    waiting = asyncio.ensure_future(manager.handle_lifecycle(wait))
    ended, _ = await asyncio.wait([waiting], timeout=0)
    assert not ended
    flow.resume()
    await waiting


async def test_a_bad_option_in_a_hook_ends_it_as_in_mitmproxy(hooks, manager):
    class Bad:
        def request(self, flow):
            raise exceptions.OptionsError("bad")

    manager.add(Bad())
    with pytest.raises(exceptions.OptionsError, match="bad"):
        await manager.handle_lifecycle(hooks.call(HttpRequestHook(tflow.tflow())))


async def test_no_listener_may_be_async_where_nobody_can_wait(hooks, manager, caplog):
    class Async:
        name = "async"

        async def update(self, flows):
            """Never called."""

    updated = Updated()
    manager.add(Async(), updated)
    manager.trigger(UpdateHook([tflow.tflow()]))
    assert "cannot be called from sync context" in caplog.text
    assert len(updated.flows) == 1


# Mitmproxy's own way -----------------------------------------------------------------------------------------------------


class OtherManager(addonmanager.AddonManager):
    """Of a later mitmproxy."""


async def test_a_manager_that_we_do_not_know_is_left_alone(manager, caplog):
    manager.__class__ = OtherManager
    goes_mitmproxys_own_way(manager, caplog)


async def test_where_a_name_has_moved_the_manager_is_left_alone(manager, caplog, monkeypatch):
    monkeypatch.delattr(addonmanager, "traverse")
    goes_mitmproxys_own_way(manager, caplog)


def goes_mitmproxys_own_way(manager, caplog):
    kind = type(manager)
    hooks = Hooks()
    hooks.take_over(manager)
    assert type(manager) is kind
    [warning] = caplog.records
    assert "in a way of its own" in warning.message
    book = play(hooks)
    book.from_client(request())
    book.from_server(response())
    assert [hook.name for hook in book.hooks] == list(OF_A_REQUEST)


async def test_without_the_addon_mitmproxy_calls_its_hooks_itself(manager, hooks):
    hooks.give_back()
    assert type(manager) is addonmanager.AddonManager
    hook = HttpRequestHook(tflow.tflow())
    assert hooks.call(hook) is hook
    hooks.take_over(manager)
    assert type(manager) is DirectAddonManager


# What we believe of mitmproxy ------------------------------------------------------------------------------------------


def test_mitmproxys_own_addons_give_themselves_no_hooks():
    """So that it is enough to count their attributes."""
    given = {
        (path.name, node.attr)
        for path in Path(mitmproxy.addons.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in all_hooks
    }
    assert given == {("clientplayback.py", "done")}, WHICH  # of a replay's handler, which is no addon


def test_mitmproxy_calls_hooks_as_we_do():
    """Whoever changes these must look at proxy/host/hooks.py."""
    manager = addonmanager.AddonManager
    parts = (manager.handle_lifecycle, manager.trigger_event, manager.invoke_addon, manager._iter_hooks)
    assert "UpdateHook([message])" in inspect.getsource(manager.handle_lifecycle), WHICH
    assert [list(inspect.signature(part).parameters) for part in parts] == [
        ["self", "event"],
        ["self", "event"],
        ["self", "addon", "event"],
        ["self", "addon", "event"],
    ], WHICH
    assert "await self.master.addons.handle_lifecycle(hook)" in inspect.getsource(mode_servers), WHICH
    assert inspect.iscoroutinefunction(Flow.wait_for_resume), WHICH
    assert "if self.should_serve(flow)" in inspect.getsource(ASGIApp.request), WHICH
    assert "await super().request(f)" in inspect.getsource(Onboarding.request), WHICH
    assert list(inspect.signature(ASGIApp.should_serve).parameters) == ["self", "flow"], WHICH
