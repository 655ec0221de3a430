import socket
import threading
from typing import Annotated

import pytest
from jsonschema import Draft202012Validator
from msgspec import Meta, Struct

from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.mcp.session import Caller, Permission, ServerScope, Session
from hivemind_addon.tools.mcp.tool import Call, Effect, McpTool, ToolFailed, schema_of, tool
from hivemind_addon.tools.mcp.tools import TOOLS


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    """Something inside."""

    title: Annotated[str, Meta(max_length=3)]


class Sample(Struct, frozen=True, forbid_unknown_fields=True):
    """A sample."""

    inner: Inner
    more: tuple[Inner, ...] = ()
    maybe: Inner | None = None
    number: Annotated[int, Meta(ge=0, description="How many")] = 0


@pytest.fixture
def call():
    return Call(Session(caller=Caller("one", 1), scope=ServerScope(), clock=SystemClock(), leases=None))


def echo(_: Call, sample: Sample) -> Sample:
    return sample


TOOL = McpTool(name="echo", title="Echo", description="Echoes.", takes=Sample, gives=Sample, run=echo)


def test_a_function_becomes_a_tool_by_its_name_words_and_types():
    @tool("Echo", effect=Effect.CHANGES)
    def repeat(call: Call, sample: Sample) -> Inner:
        """Say it
        again.
        """
        return sample.inner

    assert (repeat.name, repeat.title, repeat.description) == ("repeat", "Echo", "Say it again.")
    assert (repeat.takes, repeat.gives, repeat.idempotent) == (Sample, Inner, False)


def test_a_schema_has_no_references_and_keeps_a_field_that_is_called_title():
    schema = schema_of(Sample)
    assert "$" not in str(schema)
    inner = {
        "type": "object",
        "description": "Something inside.",
        "properties": {"title": {"type": "string", "maxLength": 3}},
        "required": ["title"],
        "additionalProperties": False,
    }
    assert schema["properties"]["inner"] == inner
    assert schema["properties"]["more"]["items"] == inner
    assert inner in schema["properties"]["maybe"]["anyOf"]
    assert schema["properties"]["number"]["description"] == "How many"
    assert schema["required"] == ["inner"]


def test_each_tool_can_be_understood_by_itself():
    for one in TOOLS:
        for cls in (one.takes, one.gives):
            schema = schema_of(cls)
            Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object", one.name
            assert "$ref" not in str(schema), one.name
        taken = schema_of(one.takes)
        assert taken["additionalProperties"] is False, f"{one.name}: a slip is an error"
        assert list(unbounded(taken)) == [], f"{one.name}: each text and list that an agent gives is bounded"
        assert one.description.endswith(".")
        assert 40 < len(one.description) < 700, one.name
        assert one.name == one.name.lower()
        assert one.name.isidentifier()


def unbounded(schema, path="$"):
    if schema.get("type") == "string" and "enum" not in schema and "maxLength" not in schema:
        yield path
    if schema.get("type") == "array" and "maxItems" not in schema:
        yield path
    for key, inner in schema.get("properties", {}).items():
        yield from unbounded(inner, f"{path}.{key}")
    for inner in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())):
        yield from unbounded(inner, f"{path}[]")


def test_numbers_that_a_model_writes_as_texts_are_numbers(call):
    assert TOOL.called(call, {"inner": {"title": "abc"}, "number": "7"}).number == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "missing required field `inner`"),
        ({"inner": {"title": "x" * 1_000_000}}, "length <= 3"),
        ({"inner": {"title": "a"}, "number": -1}, ">= 0"),
        ({"inner": {"title": "a"}, "typo": 1}, "unknown field `typo`"),
        ([], "Expected `object`"),
    ],
)
def test_what_it_does_not_take_is_told_in_one_short_line(call, arguments, words):
    with pytest.raises(ToolFailed, match=r"^echo: ") as error:
        TOOL.called(call, arguments)
    assert words in str(error.value)
    assert len(str(error.value)) < 200


def test_a_call_that_is_stopped_waits_no_more(call):
    assert not call.pause(0.001)
    threading.Timer(0.02, call.stop).start()
    assert call.pause(60)
    assert call.is_stopped


def test_progress_is_told_while_somebody_waits(call):
    told = []
    asked = Call(call.session, lambda *one: told.append(one))
    asked.progress(1, 2, "half")
    asked.stop()
    asked.progress(2, 2, "done")
    assert told == [(1, 2, "half")]
    call.progress(1, 2, "nobody asked")


def test_who_reads_from_a_connection_wakes_when_the_call_is_stopped(call):
    ours, theirs = socket.socketpair()
    late, others = socket.socketpair()
    with ours, theirs, late, others:
        call.ends(ours)
        threading.Timer(0.02, call.stop).start()
        ours.settimeout(120)
        assert ours.recv(1) == b""
        call.ends(late)
        late.settimeout(120)
        assert late.recv(1) == b"", "too late: it ends at once"
    call.stop()


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
