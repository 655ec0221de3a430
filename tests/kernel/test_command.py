import msgspec
import pytest

from hivemind_addon.kernel.values.command import (
    Cancel,
    MoveToFront,
    Pause,
    Resume,
    SetLimit,
    SetPriority,
    names_agent,
    names_pool,
    nearest,
)
from hivemind_addon.kernel.values.ticket import PoolKey, Priority
from hivemind_addon.proxy.api.command import BadCommand, read_command

KEY = PoolKey("api.test", "key-1", "claude-sonnet-4*")


def test_each_command_survives_its_way_through_json():
    for command in (
        Pause(),
        Resume(pool="x"),
        SetLimit(limit=3),
        SetLimit(limit=None, pool="x"),
        SetPriority("a", Priority.LOW),
        SetPriority("a", None),
        MoveToFront("t1"),
        Cancel("t1"),
    ):
        assert read_command(msgspec.json.decode(msgspec.json.encode(command))) == command


def test_a_priority_may_be_named():
    for name in ("critical", "Critical", "CRITICAL"):
        value = {"type": "priority", "agent": "a", "priority": name}
        assert read_command(value) == SetPriority("a", Priority.CRITICAL)


def test_a_slip_is_named_and_does_nothing():
    for value, names in (
        ({"type": "pause", "pools": "x"}, "pools"),
        ({"type": "halt"}, "halt"),
        ({"pool": "*"}, "type"),
        ({"type": "limit"}, "limit"),
        ({"type": "limit", "limit": True}, "limit"),
        ({"type": "priority", "agent": "a", "priority": "top"}, "'top'"),
        ({"type": "priority", "agent": "a", "priority": 7}, "priority"),
        ("pause", "str"),
        (None, "null"),
    ):
        with pytest.raises(BadCommand, match=names):
            read_command(value)


def test_a_pool_is_meant_by_its_name_or_host():
    same = ("*", "api.test", "api.*", "api.test/*", "*/claude-sonnet-4*", "api.test/key-1/claude-sonnet-4*")
    others = ("", "api", "other.test", "api.test/key-2/*", "api.test/")
    assert [glob for glob in (*same, *others) if names_pool(glob, KEY)] == list(same)


def test_a_name_that_looks_like_a_glob_means_itself():
    assert names_pool("[::1]:11434", PoolKey("[::1]:11434", "key-1", "m"))
    assert names_agent("team[1]", "team[1]")
    assert not names_agent("Team*", "team-1")


def test_the_nearest_name_is_offered_where_one_is_near():
    assert nearest("agnet-1", ["agent-1", "agent-2", "night"]) == "agent-1"
    assert nearest("x", ["agent-1"]) == nearest("x", []) == ""
