"""The model's newest answer, as a program would say it again in its next request; and the tools that it called.

An answer that asks for tools is followed by their results in the next request. Where there is no next one, the program
ended in between, and nobody knows how far a tool got: what continues the conversation says that instead of a result,
so that the model looks before it does something twice.
"""

from collections.abc import Iterator

from hivemind_addon.formats.base.json_values import read_value
from hivemind_addon.formats.wire.transcript import dialect_named
from hivemind_addon.plugins.contexts.store import Context

UNKNOWN_RESULT = (
    "The program ended before the result of this call was recorded. The call may have run completely, in part, or not "
    "at all: look at what it would have changed before you make it again."
)
"""In the place of a tool's result."""
_Values = dict[str, object]


def answer_blocks(context: Context) -> list[_Values]:
    """The content blocks of an answer of the Messages API; none where none came whole."""
    said = list(_objects(context))
    if len(said) == 1 and isinstance(content := said[0].get("content"), list):
        return _spoken(block for block in content if isinstance(block, dict))
    return _spoken(_put_together(said))


def answer_items(context: Context) -> list[_Values]:
    """The output items of an answer of the Responses API; none where none came whole."""
    said = list(_objects(context))
    done = [item for one in said if one.get("type") == "response.output_item.done" and (item := _object(one, "item"))]
    if done:
        return done
    whole = next((_object(one, "response") or one for one in reversed(said)), {})
    output = whole.get("output")
    return [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []


def _objects(context: Context) -> Iterator[_Values]:
    """A plain answer is one object, a stream one for each event."""
    if not context.answer:
        return
    if isinstance(plain := read_value(context.answer), dict):
        yield plain
        return
    parser = dialect_named(context.head.dialect).parser()
    for event in (*parser.feed(context.answer), *parser.finish()):
        if isinstance(value := read_value(event.data), dict):
            yield value


def _put_together(events: list[_Values]) -> Iterator[_Values]:
    """The blocks of a stream, each with what its deltas bring."""
    blocks: dict[object, _Values] = {}
    arguments: dict[object, str] = {}
    for event in events:
        index = event.get("index")
        if not isinstance(index, int):
            continue
        if event.get("type") == "content_block_start" and (begun := _object(event, "content_block")):
            blocks[index] = dict(begun)
        elif (delta := _object(event, "delta")) and index in blocks:
            arguments[index] = arguments.get(index, "") + _add(blocks[index], delta)
    for index, block in blocks.items():
        if given := arguments.get(index):
            block["input"] = read_value(given.encode(errors="replace")) or {}
        yield block


def _add(block: _Values, delta: _Values) -> str:
    """Put a delta to its block; answers what it brings of a tool call's arguments."""
    for name, value in delta.items():
        match name, value:
            case "partial_json", str():
                return value
            case "text" | "thinking", str():
                block[name] = f"{block.get(name) or ''}{value}"
            case "signature", str():
                block[name] = value
            case "citation", dict():
                cited = block.get("citations")
                block["citations"] = [*(cited if isinstance(cited, list) else ()), value]
    return ""


def _spoken(blocks: Iterator[_Values]) -> list[_Values]:
    """Without empty texts, which no request may have."""
    return [block for block in blocks if block.get("type") != "text" or block.get("text")]


def _object(values: _Values, name: str) -> _Values | None:
    value = values.get(name)
    return value if isinstance(value, dict) else None
