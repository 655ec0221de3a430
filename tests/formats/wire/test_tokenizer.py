import gzip
import sys
import types

import pytest
import tiktoken_ext.openai_public as published
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.wire import tokenizer
from hivemind_addon.formats.wire.tokenizer import PATTERN, SPECIAL_TOKENS, VOCABULARY, Tokenizer

loaded = Tokenizer()
assert loaded.load() is None


def test_it_is_built_as_tiktoken_builds_its_own(monkeypatch):
    asked = []

    def no_download(url, expected_hash):
        asked.append((url, expected_hash))
        return {}

    monkeypatch.setattr(published, "load_tiktoken_bpe", no_download)
    theirs = published.o200k_base()
    assert theirs["pat_str"] == PATTERN
    assert theirs["special_tokens"] == SPECIAL_TOKENS
    assert [sha256 for _, sha256 in asked] == [tokenizer.SHA256]


def test_it_counts_as_published(subtests):
    """The examples of OpenAI's cookbook, o200k_base."""
    cases = [
        ("", 0),
        ("hello world", 2),
        ("tiktoken is great!", 6),
        ("antidisestablishmentarianism", 6),
        ("2 + 2 = 4", 7),
        ("お誕生日おめでとう", 8),
    ]
    for text, tokens in cases:
        with subtests.test(text=text, tokens=tokens):
            assert loaded.count(text) == tokens


def test_special_tokens_in_a_text_are_plain_text():
    assert loaded.count("<|endoftext|>") > 1


def test_a_million_blanks_are_counted_and_do_not_panic():
    assert loaded.count(" " * 1_000_000) > 1000


@given(st.text(st.characters(codec=None), max_size=200))
def test_any_text_is_counted(text):
    assert 0 <= loaded.count(text) <= 4 * len(text)


def test_it_counts_by_bytes_until_it_is_loaded_and_is_loaded_once(monkeypatch):
    counter = Tokenizer()
    assert repr(counter) == "<Tokenizer o200k_base, not loaded>"
    assert counter.count("hello world") == 3
    assert counter.load() is None
    monkeypatch.setattr(tokenizer, "_read_encoding", None)
    assert counter.load() is None
    assert counter.count("hello world") == 2
    assert repr(counter) == "<Tokenizer o200k_base, loaded>"


def test_it_never_asks_the_network(monkeypatch):
    monkeypatch.setitem(sys.modules, "requests", types.SimpleNamespace(get=None))
    monkeypatch.setattr("socket.socket", None)
    assert Tokenizer().load() is None


def broken(tmp_path, content):
    path = tmp_path / "o200k_base.tiktoken.gz"
    path.write_bytes(content)
    return Tokenizer(path)


def whole():
    return VOCABULARY.read_bytes()


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", gzip.compress(b"IQ== 0\n"), whole()[:100_000], whole()[:5000] + b"\x00" * 50 + whole()[5050:]],
    ids=["empty", "no gzip", "other content", "cut", "altered"],
)
def test_a_broken_vocabulary_is_one_line_and_bytes_are_counted_instead(tmp_path, content):
    counter = broken(tmp_path, content)
    problem = counter.load()
    assert problem.startswith(f"{tmp_path}/o200k_base.tiktoken.gz: ")
    assert problem.endswith("tokens are estimated from bytes. Install the package again.")
    assert len(problem.splitlines()) == 1
    assert counter.load() == problem
    assert counter.count("a" * 9) == 3
    assert counter.count("") == 0
    assert counter.count("\ud800") == 1


def test_a_missing_vocabulary_is_one_line_as_well(tmp_path):
    counter = Tokenizer(tmp_path / "gone")
    assert counter.count("a" * 8) == 2
    assert "gone" in counter.load()
