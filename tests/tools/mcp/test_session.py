import asyncio
from fnmatch import fnmatchcase

import pytest

from hivemind_addon.formats.wire.identity import Names, identify
from hivemind_addon.kernel.values.command import Pause
from hivemind_addon.plugins.fleets.leases.holder import holder_of
from hivemind_addon.plugins.fleets.leases.model import Request
from hivemind_addon.proxy.journal.file import default_journal
from hivemind_addon.tools.mcp.session import (
    Caller,
    Permission,
    ServerScope,
    ToolFailed,
    caller_of,
)


def lease(session, *names):
    return session.leases.acquire(
        Request(names=names, holder=holder_of("one", session.pid), ttl_s=60), session.clock.awake()
    )


def standing(session):
    return [one.name for one in session.leases.standings(session.clock.awake()) if one.leases]


def test_what_it_holds_ends_with_it(stage):
    session, other = stage.session(), stage.session("other")
    mine, theirs = lease(session, "a", "b"), lease(other, "c")
    assert session.hold(mine)
    assert other.hold(theirs)
    session.close()
    session.close()
    assert (standing(session), session.held) == (["c"], {})
    other.let_go(theirs.id)
    other.close()
    assert standing(session) == ["c"], "what it has let go is not its business"


def test_what_was_released_before_is_no_trouble_at_the_end(stage):
    session = stage.session()
    mine = lease(session, "a")
    session.hold(mine)
    session.leases.release(mine.id, session.clock.awake())
    session.close()
    assert standing(session) == []


def test_where_nobody_serves_it_says_what_to_start(runtime, stage):
    stage.close()
    session = stage.session()
    for ask in (session.report, lambda: session.tell(Pause())):
        with pytest.raises(ToolFailed, match="hivemind run -p 8080"):
            ask()
    (runtime / "hivemind").mkdir(exist_ok=True)
    (runtime / "hivemind" / "8080.sock").touch()
    for ask in (session.report, lambda: session.tell(Pause())):
        with pytest.raises(ToolFailed, match="hivemind run"):
            ask()


async def test_where_another_port_is_served_it_says_which(stage):
    session = stage.session()
    session.caller = Caller(agent="one", port=9)
    with pytest.raises(ToolFailed, match=r"serves port 9; .* or this server with `-p 8080`, where one is"):
        await asyncio.to_thread(session.report)


async def test_it_looks_where_the_proxy_keeps_its_journal(stage):
    session = stage.session()
    assert await asyncio.to_thread(session.journal) == stage.journal
    assert (await asyncio.to_thread(session.contexts)).folder == stage.journal.parent / "contexts"
    for said in ("off", ""):
        stage.options["hivemind_journal"] = said
        assert await asyncio.to_thread(session.journal) == default_journal()
    stage.close()
    assert session.journal() == default_journal()


def test_without_a_name_it_says_how_to_get_one(stage):
    with pytest.raises(ToolFailed, match="hivemind mcp --agent NAME"):
        _ = stage.session("").agent
    assert "nobody" in repr(stage.session(""))


def test_what_is_told_counts_more_than_the_environment():
    environment = {"HIVEMIND_AGENT": "env", "HIVEMIND_PORT": "9000"}
    assert caller_of(environment) == Caller(agent="env", port=9000)
    assert caller_of(environment, agent="told", port=1) == Caller(agent="told", port=1)


def test_a_task_is_known_with_its_runner():
    environment = {"HIVEMIND_TASK": "f/t", "HIVEMIND_RUNNER": "/run/r.sock"}
    assert caller_of(environment) == Caller(agent="", port=8080, task="f/t", runner="/run/r.sock")


def test_an_agent_that_was_only_given_a_proxy_is_known_by_its_address():
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        found = caller_of({name: "http://my%20agent:whole.prio-low@127.0.0.1:9090"})
        assert found == Caller(agent="my agent", port=9090)
    for url in ("http://user:pw@proxy.corp.test:3128", "http://127.0.0.1:9090", "no address", "http://a@[::1", ""):
        assert caller_of({"HTTPS_PROXY": url}) == Caller(agent="", port=8080), "that is another one"


def test_a_port_that_is_none_is_not_used():
    assert {caller_of({"HIVEMIND_PORT": port}).port for port in ("0", "70000", "x", "²", "-1")} == {8080}


def test_a_name_full_of_stars_still_means_one_agent():
    for name in ("*", "a[bc]", "who?", "plain", "[", "**"):
        glob = Caller(agent=name, port=1).glob
        assert [one for one in (name, "other", "ab") if fnmatchcase(one, glob)] == [name]


def test_a_name_is_the_one_that_the_proxy_makes_of_it():
    for name in ("two\nlines", "n" * 200, "bell\a", "plain"):
        proxys = identify(Names("", "", ""), "", "", name, "127.0.0.1:1").agent
        assert caller_of({"HIVEMIND_AGENT": name}).agent == caller_of({}, agent=name).agent == proxys


def test_one_of_what_is_needed_is_enough():
    scope = ServerScope(frozenset({Permission.BATCH}))
    assert scope.has(frozenset())
    assert scope.has(frozenset({Permission.SUBMIT, Permission.BATCH}))
    assert not scope.has(frozenset({Permission.SETUP}))
