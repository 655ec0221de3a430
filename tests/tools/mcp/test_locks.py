"""Leases of agents, in the real store."""

import asyncio
from pathlib import Path

from hivemind_addon.plugins.fleets.leases.engine_store import EngineLeases
from hivemind_addon.plugins.fleets.leases.holder import holder_of
from hivemind_addon.plugins.fleets.leases.model import Lease, Request
from hivemind_addon.plugins.fleets.leases.sqlite_store import SqliteLeases
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.engine_url import parse_engine_url
from tests.tools.mcp.stage import failing, given


def held(stage):
    """Name → agents that hold it."""
    standings = stage.leases.standings(SystemClock().awake())
    return {one.name: [lease.holder.agent for lease in one.leases] for one in standings if one.leases}


async def test_all_names_are_taken_at_once_and_given_back(stage):
    async with stage.client("one") as one, stage.client("two") as two:
        mine = await given(one, "lease_acquire", names=["b", "a"], ttl_s=60, value="editing")
        assert mine["granted"]
        assert [granted["name"] for granted in mine["names"]] == ["a", "b"]
        assert mine["ends_in_s"] == 60
        refused = await given(two, "lease_acquire", names=["c", "b"], wait_s=0)
        assert (refused["granted"], refused["taken"], refused["holders"]) == (False, ["b"], ["one"])
        assert held(stage) == {"a": ["one"], "b": ["one"]}
        assert await given(one, "lease_release", lease=mine["lease"]) == {"done": True, "text": "free again: a, b"}
        theirs = await given(two, "lease_acquire", names=["c", "b"], wait_s=0)
        assert theirs["names"][0]["token"] > mine["names"][0]["token"]


async def test_who_waits_gets_it_when_it_is_free(stage):
    told = asyncio.Event()

    async def hear(done, total, text):
        assert (done, total, text) == (0, 600, "waiting for a")
        told.set()

    async with stage.client("one") as one, stage.client("two") as two, asyncio.timeout(120):
        mine = await given(one, "lease_acquire", names=["a"])
        arguments = {"names": ["a"], "wait_s": 600}
        waiting = asyncio.ensure_future(two.call_tool("lease_acquire", arguments, progress_callback=hear))
        await told.wait()
        while (await given(one, "lease_list"))["names"][0]["waiting"] != ["two"]:
            pass  # on a busy machine it may have asked too long ago; it asks again
        await given(one, "lease_release", lease=mine["lease"])
        assert (await waiting).structuredContent["granted"]


async def test_at_most_n_hold_a_name(stage):
    async with stage.client("one") as one, stage.client("two") as two:
        for client in (one, two):
            assert (await given(client, "lease_acquire", names=["phase"], at_most=2))["granted"]
        assert not (await given(one, "lease_acquire", names=["phase"], at_most=2, wait_s=0))["granted"]
        assert "at most 2" in await failing(one, "lease_acquire", names=["phase"], at_most=5, wait_s=0)


async def test_only_its_holder_renews_and_releases_a_lease_and_sees_its_id(stage):
    async with stage.client("one") as one, stage.client("two") as two:
        mine = await given(one, "lease_acquire", names=["a"], ttl_s=600)
        assert (await given(one, "lease_renew", lease=mine["lease"], ttl_s=3600))["ends_in_s"] == 3600
        for name in ("lease_renew", "lease_release"):
            assert "not yours" in await failing(two, name, lease=mine["lease"])
        views = [(await given(client, "lease_list", names=["a"]))["names"][0] for client in (one, two)]
        assert [view["holders"][0]["lease"] for view in views] == [mine["lease"], ""]
        assert views[1]["holders"][0]["agent"] == "one"


async def test_a_lease_that_is_over_is_told_and_is_not_renewed(stage):
    async with stage.client("one") as one:
        mine = await given(one, "lease_acquire", names=["a"])
        stage.leases.release(mine["lease"], SystemClock().awake())
        assert "is over" in await failing(one, "lease_renew", lease=mine["lease"])
        assert "not yours" in await failing(one, "lease_release", lease=mine["lease"])


async def test_leases_end_with_the_client_that_holds_them(stage):
    async with stage.client("one") as one:
        await given(one, "lease_acquire", names=["a", "b"])
        async with stage.client("two") as two:
            await given(two, "lease_acquire", names=["c"])
        assert held(stage) == {"a": ["one"], "b": ["one"]}
    assert held(stage) == {}


async def test_a_client_that_goes_while_it_waits_leaves_the_line(stage):
    async with stage.client("one") as one:
        mine = await given(one, "lease_acquire", names=["a"])
        async with stage.client("two") as two:
            told = asyncio.Event()

            async def hear(*_):
                told.set()

            waiting = asyncio.ensure_future(
                two.call_tool("lease_acquire", {"names": ["a"], "wait_s": 600}, progress_callback=hear)
            )
            async with asyncio.timeout(120):
                await told.wait()
        waiting.cancel()
        async with asyncio.timeout(120):
            while (await given(one, "lease_list"))["names"][0]["waiting"]:
                pass
        await given(one, "lease_release", lease=mine["lease"])
        assert held(stage) == {}


async def test_what_cannot_be_a_lease_is_told(stage):
    wrong = [
        ({"names": []}, "length >= 1"),
        ({"names": ["x"] * 33}, "length <= 32"),
        ({"names": [""]}, "length >= 1"),
        ({"names": ["x" * 201]}, "length <= 200"),
        ({"names": ["a"], "ttl_s": 0}, ">= 1"),
        ({"names": ["a"], "wait_s": 10_000}, "<= 600"),
        ({"names": ["a"], "at_most": 0}, ">= 1"),
        ({}, "missing required field `names`"),
    ]
    async with stage.client() as client:
        for arguments, words in wrong:
            assert words in await failing(client, "lease_acquire", **arguments), arguments


async def test_a_folder_that_cannot_be_written_is_one_line(stage):
    stage.leases = SqliteLeases(Path("/proc/nowhere/leases.db"))
    async with stage.client() as client:
        assert await failing(client, "lease_acquire", names=["a"])


async def test_agents_of_two_machines_share_what_is_in_an_engine(stage, engine):
    address = parse_engine_url(engine.unix_url)
    with EngineLeases(address, "team", host="far") as far, EngineLeases(address, "team", host="near") as near:
        stage.leases = far
        async with stage.client("one") as one:
            mine = await given(one, "lease_acquire", names=["a"], value="editing")
            stage.leases = near
            async with stage.client("two") as two:
                refused = await given(two, "lease_acquire", names=["a"], wait_s=0)
                assert (refused["granted"], refused["holders"]) == (False, ["one on far"])
                assert (await given(two, "lease_list"))["names"][0]["holders"][0]["value"] == "editing"
                await given(one, "lease_renew", lease=mine["lease"], ttl_s=3600)
                await given(one, "lease_release", lease=mine["lease"])
                assert (await given(two, "lease_acquire", names=["a"], wait_s=0))["granted"]
            assert held(stage) == {}, "its client is gone"


async def test_a_session_that_closes_while_it_gets_a_lease_does_not_keep_it(stage):
    session = stage.session()
    session.close()
    request = Request(names=("a",), holder=holder_of("one", session.pid), ttl_s=60)
    lease = session.leases.acquire(request, SystemClock().awake())
    assert isinstance(lease, Lease)
    assert session.hold(lease) is False
    assert held(stage) == {}
