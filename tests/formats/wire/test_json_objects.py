import itertools

from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.wire.json_objects import JsonObjects
from tests.cpu_time import least_cpu_s


def byte_by_byte(text):
    """The rule, said once more, slowly."""
    objects, start, depth, in_string, escaped = [], 0, 0, False, False
    for at, byte in enumerate(text):
        char = chr(byte)
        if not depth:
            if char == "{":
                start, depth = at, 1
        elif in_string:
            in_string = escaped or char != '"'
            escaped = not escaped and char == "\\"
        elif char == '"':
            in_string = True
        elif char in "{}":
            depth += 1 if char == "{" else -1
            if not depth:
                objects.append(text[start : at + 1])
    return objects, depth


@given(st.lists(st.sampled_from([b"{", b"}", b'"', b"\\", b"x", b"\n"]), max_size=60), st.lists(st.integers(0, 60)))
def test_braces_outside_strings_are_balanced(bytes_, cuts):
    text = b"".join(bytes_)
    cutter = JsonObjects(1000)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    found = [one for a, b in itertools.pairwise(edges) for one in cutter.feed(text[a:b])]
    expected, depth = byte_by_byte(text)
    assert found == expected
    assert cutter.is_open == (depth > 0)


def test_a_long_object_is_cut_and_the_next_is_whole():
    text = b'{"a":"' + b"x" * 100 + b'"}{"b":1}'
    for size in (len(text), 3):
        cutter = JsonObjects(20)
        found = [one for at in range(0, len(text), size) for one in cutter.feed(text[at : at + size])]
        assert found == [text[:20], b'{"b":1}']


def test_nothing_makes_it_look_twice():
    """Text after which a careless pattern would try every other way to read it."""
    for word in (b"\\", b'"', b'\\"', b'"x', b"{", b'{"'):
        text = b'{"' + word * 100_000
        assert least_cpu_s(lambda text=text: JsonObjects(10**6).feed(text), tries=1) < 2
