"""Entries into a file's text and out of it again: pure.

What the user has set stays as it is, whatever we would set; what we have set before and nobody has changed since is
ours to change and to take out.
"""

from collections.abc import Sequence
from types import ModuleType

from hivemind_addon.tools.setup import dotenv_text, json_text, toml_text
from hivemind_addon.tools.setup.model import FileEntry, FileFormat, MergedText, SetupTrouble, Value, lookup

_TEXTS: dict[FileFormat, ModuleType] = {
    FileFormat.JSON: json_text,
    FileFormat.TOML: toml_text,
    FileFormat.DOTENV: dotenv_text,
}


def merge(
    text: str,
    form: FileFormat,
    wanted: Sequence[FileEntry],
    *,
    ours: Sequence[FileEntry] = (),
    made: Sequence[tuple[str, ...]] = (),
) -> MergedText:
    """`ours`, `made`: what earlier merges have put in, or may have. Raises SetupTrouble (without the file's name)."""
    is_wanted = {entry.path for entry in wanted}
    stale = [entry for entry in ours if entry.path not in is_wanted]
    cleared = remove(text, form, stale, ()).text if stale else text
    put: list[FileEntry] = []
    kept: list[tuple[FileEntry, Value]] = []
    objects = list(made)
    text = cleared
    # In JSON the last that is put in stands first.
    for entry in reversed(wanted) if form is FileFormat.JSON else wanted:
        there = _lookup(text, form, entry.path)
        if there == entry.value:
            if entry in ours:
                put.append(entry)
            continue
        if there is not None and FileEntry(entry.path, there) not in ours:
            kept.append((entry, there))
            continue
        if there is not None:
            text = _TEXTS[form].take(text, entry.path)
        objects += [
            entry.path[:depth]
            for depth in range(1, len(entry.path))
            if _lookup(text, form, entry.path[:depth]) is None and entry.path[:depth] not in objects
        ]
        text = _TEXTS[form].put(text, entry.path, entry.value)
        if _lookup(text, form, entry.path) != entry.value:
            raise SetupTrouble(f"cannot be changed at {'.'.join(entry.path)}; add it by hand")
        put.append(entry)
    return MergedText(text, tuple(put), tuple(objects), tuple(kept))


def remove(text: str, form: FileFormat, ours: Sequence[FileEntry], made: Sequence[tuple[str, ...]]) -> MergedText:
    """Without what an earlier merge has put in, as far as nobody has changed it, and the objects that it had made."""
    kept: list[tuple[FileEntry, Value]] = []
    for entry in reversed(ours):
        there = _lookup(text, form, entry.path)
        if there == entry.value:
            text = _TEXTS[form].take(text, entry.path)
        elif there is not None and FileEntry(entry.path, there) not in ours:
            kept.append((entry, there))
    for path in sorted(made, key=len, reverse=True):
        if _lookup(text, form, path) == {}:
            text = _TEXTS[form].take(text, path)
    return MergedText(text, (), (), tuple(kept))


def is_empty(text: str, form: FileFormat) -> bool:
    """Whether a file says nothing, not even a comment."""
    return not text.strip() or (form is FileFormat.JSON and json_text.read(text) == {})


def _lookup(text: str, form: FileFormat, path: Sequence[str]) -> Value | None:
    try:
        found: Value | None = lookup(_TEXTS[form].read(text), path)
    except KeyError as error:
        raise SetupTrouble(f"has something else than an object at {error.args[0]}; mend it first") from error
    return found
