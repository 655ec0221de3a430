import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from hivemind_addon.formats.wire.dialect import dialect_named
from hivemind_addon.formats.wire.request import read_request
from hivemind_addon.plugins.contexts.body_pieces import MOST_ITEMS, join, split
from hivemind_addon.plugins.contexts.from_request import conversation_in
from tests.cases import each
from tests.plugins.contexts.samples import BODIES

MESSAGES = ("messages",)
TEXT = st.text(max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)
MARK = {"cache_control": {"type": "ephemeral"}}


def rejoined(body, messages=MESSAGES):
    parts = split(body, messages)
    return join(parts.frame, parts.pieces)


@each("dialect", BODIES)
@pytest.mark.parametrize("form", [{}, {"indent": 1}, {"separators": (",", ":")}])
def test_a_body_is_put_together_again_byte_by_byte(dialect, form):
    body = json.dumps({**BODIES[dialect], "tools": [{"name": f"t{at}", "about": "x" * 99} for at in range(9)]}, **form)
    assert rejoined(body.encode()) == body.encode()


@given(
    top=st.dictionaries(st.sampled_from(["messages", "system", "input", "a"]) | TEXT, VALUES, max_size=5),
    messages=st.lists(VALUES | st.just(MARK) | st.just({"role": "user", "content": "y" * 300, **MARK}), max_size=6),
    indent=st.sampled_from([None, 0, 3]),
)
def test_whatever_is_in_a_body_comes_back(top, messages, indent):
    body = json.dumps({**top, "messages": messages}, indent=indent).encode()
    assert rejoined(body) == body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"no JSON",
        b'{"messages": 1}',
        b'{"messages": [], "x": [1,2]}',
        b'{"a": "%b", "messages": [1], "messages": ["two", "three"]}' % (b"z" * 300),
        b'{"x": {"messages": [5]}, "messages": [5, 5,\n5]}',
        b'{"messages": ["a\\"cache_control\\": null", {"cache_control" : null }]}',
    ],
)
def test_odd_bodies_come_back_too(body):
    assert rejoined(body) == body


def test_a_body_that_grows_shares_all_but_what_is_new():
    first = {**BODIES["anthropic"], "system": "s" * 400}
    grown = {**first, "messages": [*first["messages"], {"role": "assistant", "content": "new"}]}
    one, two = (split(json.dumps(body).encode(), MESSAGES) for body in (first, grown))
    new = {place: piece for place, piece in two.pieces.items() if one.pieces.get(place) != piece}
    assert [json.loads(piece) for piece in new.values()] == [{"role": "assistant", "content": "new"}]
    assert list(new) == [len(first["messages"])]


def test_marks_of_a_cache_that_move_on_change_no_piece():
    def marked(at):
        messages = [{"role": "user", "content": [{"type": "text", "text": f"m{n}"}]} for n in range(4)]
        messages[at]["content"][0] |= MARK
        return json.dumps({"messages": messages}).encode()

    parts = [split(marked(at), MESSAGES) for at in range(4)]
    assert all(part.pieces == parts[0].pieces for part in parts)
    assert [join(part.frame, part.pieces) for part in parts] == [marked(at) for at in range(4)]
    assert all(json.loads(piece) for piece in parts[0].pieces.values())


def test_long_values_beside_the_messages_are_pieces_of_places_of_their_own():
    body = {"system": "s" * 300, "input": [{"n": "x" * 90}] * 4, "tools": [{"name": "t" * 90}] * 4, "ids": [1] * 400}
    pieces = split(json.dumps(body).encode(), ("input",)).pieces
    assert len(pieces) == 4 + 4 + 1 + 1
    assert sorted(place for place in pieces if place < MOST_ITEMS) == [0, 1, 2, 3]


@each("dialect", BODIES)
def test_a_conversation_that_was_read_already_is_taken_apart_alike(dialect):
    body = json.dumps({**BODIES[dialect], "about": "x" * 300, "tools": [{"name": f"t{at}" * 40} for at in range(9)]})
    facts = read_request(body.encode(), dialect_named(dialect).plan)
    way = conversation_in(dialect_named(dialect))
    assert split(body.encode(), way, facts.messages) == split(body.encode(), way)


@given(
    items=st.lists(VALUES, min_size=1, max_size=5),
    before=st.dictionaries(TEXT, st.lists(VALUES, max_size=5) | st.text(min_size=300, max_size=400), max_size=3),
    indent=st.sampled_from([None, 0, 3]),
)
def test_wherever_what_was_read_stands_all_comes_back(items, before, indent):
    body = json.dumps({**before, "copy": items, "messages": items, "last": items[:1]}, indent=indent).encode()
    parts = split(body, MESSAGES, [Raw(json.dumps(item, indent=indent).encode()) for item in items])
    assert join(parts.frame, parts.pieces) == body


def test_a_body_that_strict_readers_cannot_read_says_so():
    good, bad = (b'{"about": "%b", "messages": ["said"]}' % text for text in (b"whole", rb"half \ud83d"))
    for body, is_object in ((good, True), (bad, False), (b"[]", False)):
        assert split(body, MESSAGES, [Raw(b'"said"')]).is_object is split(body, MESSAGES).is_object is is_object
