from pathlib import Path

import pytest

from hivemind_addon.formats.base.document import read_document
from hivemind_addon.formats.base.resources import profiles_folder
from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.tools.launch import programs
from tests.cases import each


def read(tmp_path, text):
    file = tmp_path / "one.yaml"
    file.write_bytes(text)
    return read_document(file, cure_when_empty="write something")


def test_a_mapping_is_read(tmp_path):
    assert read(tmp_path, b"a: {b: [1, two]}") == {"a": {"b": [1, "two"]}}


@each(
    ("text", "says"),
    [
        (b"", "it is empty; write something"),
        (b"- a", "expected a mapping of settings, got a list"),
        (b"a: 1\na: 2", "line 2, column 1: the key a stands twice"),
        (b"a: [", "line 1"),
        (b"\xff\xfe\xfa", "no YAML"),
        (b"a: 2026-13-45", "no YAML"),
    ],
)
def test_anything_else_is_an_error_with_a_cure(tmp_path, text, says):
    with pytest.raises(DocumentError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)


def test_a_packaged_file_is_read_as_any_other():
    table = Path(programs.__file__).with_name("agents.yaml")
    for file in (*profiles_folder().glob("*.yaml"), table):
        assert read_document(file, cure_when_empty="", packaged=True) == read_document(file, cure_when_empty="")


def test_a_packaged_file_that_is_damaged_is_named(tmp_path):
    file = tmp_path / "one.yaml"
    file.write_text("a: [")
    with pytest.raises(DocumentError, match=r"one\.yaml: line 1"):
        read_document(file, cure_when_empty="", packaged=True)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DocumentError, match=r"none\.yaml: cannot be read"):
        read_document(tmp_path / "none.yaml", cure_when_empty="")
