import json
import re

import msgspec
import pytest
import zstandard
from msgspec.structs import replace

from hivemind_addon.kernel.values.spend import Spend
from hivemind_addon.plugins.contexts.reading.bundle import BadBundle, bundle, new_versions, read_bundle
from tests.plugins.contexts.samples import context, conversation

HEADERS = {
    "user-agent": "claude-cli/2",
    "anthropic-version": "2023-06-01",
    "x-made-up": "k",
    "authorization": "Bearer s",
}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "b.contexts"


def lines_of(content):
    head, _, packed = content.partition(b"\n")
    return head, zstandard.ZstdDecompressor().stream_reader(packed).read().splitlines(keepends=True)


def test_what_is_read_is_what_was_written_but_for_headers_that_say_no_more_than_needed(file):
    given = [conversation("a", answer=b"whole"), conversation("a", "b", "c"), context(dialect="openai-responses")]
    file.write_bytes(bundle(replace(one, headers=HEADERS) for one in given))
    read = list(read_bundle(file))
    assert [one.body for one in read] == [one.body for one in given]
    assert [one.head for one in read] == [one.head for one in given]
    assert read[0].answer == b"whole"
    assert read[0].headers == {"user-agent": "claude-cli/2", "anthropic-version": "2023-06-01"}
    assert b"Bearer" not in b"".join(lines_of(file.read_bytes())[1])


def test_a_hundred_versions_take_little_more_than_one():
    texts = [f"{number} says {hash((number, 7))} and {hash((7, number))}" for number in range(400)]
    one, many = len(bundle([conversation(*texts)])), len(bundle(conversation(*texts[:at]) for at in range(300, 400)))
    assert many < 8 * one


def test_damage_is_found_wherever_it_is(file):
    whole = bundle([conversation("a"), conversation("a", "b")])
    head, lines = lines_of(whole)

    def packed(*parts):
        return head + b"\n" + zstandard.compress(b"".join(parts))

    bad = {
        "is no bundle": [b"", b"{}", b"hivemind contexts x\n", b"\x28\xb5\x2f\xfd" * 9],
        "of version 2": [b"hivemind contexts 2\n"],
        "damaged|cut off": [whole[:cut] for cut in range(20, len(whole) - 12, 7)],
        "another SHA-256": [packed(lines[0], lines[2]), packed(lines[0].replace(b"api", b"apx"), *lines[1:])],
        "cut off": [packed(), packed(lines[0], lines[1][:-9])],
    }
    for said, contents in bad.items():
        for content in contents:
            file.write_bytes(content)
            with pytest.raises(BadBundle, match=f"^{re.escape(str(file))}.*({said})"):
                list(read_bundle(file))


def test_what_nobody_would_have_kept_is_refused(file):
    good = conversation("a")
    odd = [
        replace(good, head=replace(good.head, id="../../x")),
        replace(good, url="https://user@evil.test/v1"),
        replace(good, url="file:///etc/passwd"),
        replace(good, body=msgspec.Raw(b"[]")),
        replace(good, head=replace(good.head, agent="a\0")),
    ]
    for one in odd:
        file.write_bytes(bundle([one]))
        with pytest.raises(BadBundle, match=re.escape(str(file))):
            list(read_bundle(file))


def test_what_a_store_has_is_not_new_and_costs_are_counted_once():
    def version(number, spent):
        made = conversation(*"abcdef"[:number], wall=1000.0 + number)
        return replace(made, head=replace(made.head, id="aaa111", version=number, spent=Spend(spent, spent * 10)))

    given = [version(1, 5), version(2, 9), version(3, 20)]
    fresh = list(new_versions(given, {}))
    assert [(one.head.version, one.head.spent.tokens) for one in fresh] == [(0, 5), (0, 4), (0, 11)]
    later = list(new_versions(given, {"aaa111": [given[0].head, given[1].head]}))
    assert [json.loads(bytes(one.body))["messages"][-1]["content"] for one in later] == ["c"]
    assert later[0].head.spent == Spend(11, 110)
    assert not list(new_versions(given, {"aaa111": [one.head for one in given]}))
