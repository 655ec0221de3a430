import asyncio

import pytest

from hivemind_addon.api.command import Pause
from hivemind_addon.proxy.journal.file import default_journal
from hivemind_addon.tools.locks.holder import holder_of
from hivemind_addon.tools.locks.model import Request
from hivemind_addon.tools.mcp.caller import Caller
from hivemind_addon.tools.mcp.session import NoName, NoProxy


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
        with pytest.raises(NoProxy, match="hivemind run -p 8080"):
            ask()
    (runtime / "hivemind").mkdir(exist_ok=True)
    (runtime / "hivemind" / "8080.sock").touch()
    for ask in (session.report, lambda: session.tell(Pause())):
        with pytest.raises(NoProxy, match="hivemind run"):
            ask()


async def test_where_another_port_is_served_it_says_which(stage):
    session = stage.session()
    session.caller = Caller(agent="one", port=9)
    with pytest.raises(NoProxy, match=r"serves port 9; .* or this server with `-p 8080`, where one is"):
        await asyncio.to_thread(session.report)


async def test_it_looks_where_the_proxy_keeps_its_journal(stage):
    session = stage.session()
    assert await asyncio.to_thread(session.journal) == stage.journal
    assert (await asyncio.to_thread(session.checkpoints)).folder == stage.journal.parent / "checkpoints"
    for said in ("off", ""):
        stage.options["hivemind_journal"] = said
        assert await asyncio.to_thread(session.journal) == default_journal()
    stage.close()
    assert session.journal() == default_journal()


def test_without_a_name_it_says_how_to_get_one(stage):
    with pytest.raises(NoName, match="hivemind mcp --agent NAME"):
        _ = stage.session("").agent
    assert "nobody" in repr(stage.session(""))
