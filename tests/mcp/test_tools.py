from hivemind_addon.tools.mcp.scope import Permission
from hivemind_addon.tools.mcp.tool import Effect
from hivemind_addon.tools.mcp.tools import TOOLS


def test_the_callers_own_affairs_come_first():
    kinds = [bool(tool.needs) for tool in TOOLS]
    assert kinds == sorted(kinds)


def test_names_are_told_apart():
    assert len({tool.name for tool in TOOLS}) == len(TOOLS)


def test_what_needs_no_permission_destroys_nothing():
    assert [tool.name for tool in TOOLS if not tool.needs and tool.effect is Effect.DESTROYS] == []


def test_every_permission_is_good_for_something():
    assert {one for tool in TOOLS for one in tool.needs} == set(Permission)


def test_what_reads_can_be_asked_twice():
    assert [tool.name for tool in TOOLS if tool.effect is Effect.READS and not tool.idempotent] == []
