"""A YAML file as a mapping; whatever is wrong with it is a `DocumentError`."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from hivemind_addon.formats.base.typed import DocumentError


def read_document(file: Path, *, cure_when_empty: str, packaged: bool = False) -> Mapping[str, Any]:
    """The top level of a file. DocumentError where there is none. `packaged`: it is one of ours."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DocumentError(file, "", f"cannot be read: {error.strerror}", "make it a readable file") from None
    document = _read_fast(data, file) if packaged else read_yaml(data, file)
    if document is None:
        raise DocumentError(file, "", "it is empty", cure_when_empty)
    if not isinstance(document, dict):
        problem = f"expected a mapping of settings, got a {type(document).__name__}"
        raise DocumentError(file, "", problem, "write keys with values below them")
    return document


def read_yaml(data: bytes | str, file: Path) -> Any:
    """Whatever YAML holds; `file` is where it comes from, for people. DocumentError where it is none."""
    try:
        return yaml.load(data, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise DocumentError(file, "", f"{where}{error.problem or error.context}", "correct the YAML") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        # ValueError: a value that looks like a date or a number and is none, such as 2026-13-45.
        raise DocumentError(file, "", f"no YAML: {error or type(error).__name__}", "correct the YAML") from None


class _Loader(yaml.SafeLoader):
    """YAML's safe types; a key that stands twice is an error, not a silent loss of the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As the parent does; MarkedYAMLError at a key that was there before."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value} stands twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_fast(data: bytes, file: Path) -> Any:
    """As `read_yaml`, ten times as fast where there is libyaml, which dies of a file that is nested too deeply."""
    with suppress(yaml.YAMLError):
        return yaml.load(data, getattr(yaml, "CSafeLoader", _Loader))  # noqa: S506 - a SafeLoader
    return read_yaml(data, file)  # it says best what is wrong
