"""Requests that name an earlier answer instead of repeating what was said (`previous_response_id`), put together.

As the provider does it: the input of the earlier request, the items of its answer, then what the request brings.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw

from hivemind_addon.formats.base.json_values import read_list, read_number, read_object, read_value
from hivemind_addon.formats.wire.dialect import Dialect

_NAMES = "previous_response_id"
_INPUT = "input"
_QUOTE = ord('"')
_OF_A_FRAME = ("type", "generate", "stream_id")
"""What a WebSocket's frame has, and a request has not."""
_CHUNK_BYTES = 16 * 1024


def named_answer(body: bytes) -> str:
    """The earlier answer that a request names; empty: none."""
    return _word((read_object(body) or {}).get(_NAMES))


def put_together(body: bytes, earlier: bytes, said: Sequence[Raw] = ()) -> bytes | None:
    """The request with all that was said before in it; None: one of them cannot be read.

    `earlier`: the body of the request whose answer is named, `said`: the items of that answer.
    """
    members, before = read_object(body), read_object(earlier)
    if members is None or before is None:
        return None
    items = [*_items(before.get(_INPUT)), *said, *_items(members.get(_INPUT))]
    whole = {name: raw for name, raw in members.items() if name != _NAMES and name not in _OF_A_FRAME}
    return msgspec.json.encode(whole | {_INPUT: items})


def answer_id(dialect: Dialect, answer: bytes) -> str:
    """What the provider calls an answer that later requests may name; empty: nothing."""
    if not dialect.plan.continues.ways:
        return ""
    if answer.lstrip()[:1] == b"{":
        return _word((read_object(answer) or {}).get("id"))
    return next((name for name in map(_name_in, _events(dialect, answer)) if name), "")


def items_of(dialect: Dialect, answer: bytes) -> list[Raw]:
    """What a whole answer said, as items of a later request's input."""
    if answer.lstrip()[:1] == b"{":
        return _items((read_object(answer) or {}).get("output"))
    done: list[tuple[float, Raw]] = []
    listed: list[Raw] = []
    for event in _events(dialect, answer):
        if "item" in event and _word(event.get("type")).endswith("output_item.done"):
            done.append((read_number(event.get("output_index")) or 0.0, event["item"]))
        elif "response" in event and _word(event.get("type")).endswith((".completed", ".incomplete")):
            listed = _items((read_object(event["response"]) or {}).get("output"))
    return listed or [item for _, item in sorted(done, key=lambda one: one[0])]


def _events(dialect: Dialect, answer: bytes) -> Iterable[dict[str, Raw]]:
    """A piece at a time: who looks for a name finds it at the beginning."""
    parser = dialect.parser()
    for at in range(0, len(answer), _CHUNK_BYTES):
        for event in parser.feed(answer[at : at + _CHUNK_BYTES]):
            yield read_object(event.data) or {}
    for event in parser.finish():
        yield read_object(event.data) or {}


def _name_in(event: dict[str, Raw]) -> str:
    return _word((read_object(event["response"]) or {}).get("id")) if "response" in event else ""


def _items(raw: Raw | None) -> list[Raw]:
    """Of an input or an output; a plain text is what a user says."""
    if raw is None:
        return []
    text = read_value(raw) if memoryview(raw)[0] == _QUOTE else None
    if isinstance(text, str):
        return [Raw(msgspec.json.encode({"role": "user", "content": text}))]
    return read_list(raw) or []


def _word(raw: Raw | None) -> str:
    value = read_value(raw)
    return value if isinstance(value, str) else ""
