import socket
import threading
from typing import Annotated

import pytest
from jsonschema import Draft202012Validator
from msgspec import Meta, Struct

from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.tools.mcp.session import Caller, Permission, ServerScope, Session, ToolFailed
from hivemind_addon.tools.mcp.tool import ActionResult, Call, Effect, schema_of, tool
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


@tool("Echo", effect=Effect.CHANGES, takes=Sample)
def echo(_: Call, **sample: object) -> Sample:
    """Say it
    again.
    """
    return Sample(**sample)


def test_a_function_becomes_a_tool_by_its_name_words_and_types(call):
    @tool("Half")
    def half(call: Call, number: Annotated[int, Meta(ge=0)], by: int = 2) -> ActionResult:
        """Divide."""
        return ActionResult(done=True, text=str(number // by))

    assert (echo.shown.name, echo.shown.title, echo.shown.description) == ("echo", "Echo", "Say it again.")
    assert (echo.takes, echo.shown.annotations.idempotentHint) == (Sample, False)
    assert half.called(call, {"number": 7}) == {"done": True, "text": "3"}
    assert half.shown.inputSchema["properties"]["number"] == {"type": "integer", "minimum": 0}
    assert (half.shown.inputSchema["required"], half.shown.annotations.idempotentHint) == (["number"], True)


def test_a_model_reads_dollars_and_tenths_of_seconds(call):
    class Cost(Struct):
        micro_usd: int
        left_micro_usd: int | None
        waited_s: float

    @tool("Cost")
    def cost(call: Call) -> Cost:
        return Cost(2_500_000, None, 0.123)

    given = cost.called(call, {})
    assert given == {"usd": 2.5, "left_usd": None, "waited_s": 0.1}
    Draft202012Validator(cost.shown.outputSchema).validate(given)
    assert cost.shown.outputSchema["required"] == list(given)


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
        name, taken = one.shown.name, one.shown.inputSchema
        for schema in (taken, one.shown.outputSchema):
            Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object", name
            assert "$ref" not in str(schema), name
        assert taken["additionalProperties"] is False, f"{name}: a slip is an error"
        assert list(unbounded(taken)) == [], f"{name}: each text and list that an agent gives is bounded"
        assert one.shown.description.endswith(".")
        assert 40 < len(one.shown.description) < 700, name
        assert name == name.lower()
        assert name.isidentifier()


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
    assert echo.called(call, {"inner": {"title": "abc"}, "number": "7"})["number"] == 7


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
        echo.called(call, arguments)
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
    assert len({tool.shown.name for tool in TOOLS}) == len(TOOLS)


def test_what_needs_no_permission_destroys_nothing():
    assert not any(tool.shown.annotations.destructiveHint for tool in TOOLS if not tool.needs)


def test_every_permission_is_good_for_something():
    assert {one for tool in TOOLS for one in tool.needs} == set(Permission)
