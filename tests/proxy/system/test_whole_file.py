import os
import stat
from pathlib import Path

import pytest

from hivemind_addon.proxy.system.whole_file import write_whole


def mode(file):
    return stat.S_IMODE(file.stat().st_mode)


def test_it_is_its_owners_alone_and_so_is_a_folder_that_is_made_for_it(tmp_path):
    file = tmp_path / "state" / "file"
    write_whole(file, b"one\n", b"two\n")
    assert file.read_bytes() == b"one\ntwo\n"
    assert (mode(file), mode(file.parent)) == (0o600, 0o700)


def test_it_takes_the_place_of_another_with_the_mode_that_is_asked_for(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"before")
    write_whole(file, b"after", mode=0o640)
    assert (file.read_bytes(), mode(file)) == (b"after", 0o640)


@pytest.mark.parametrize("step", [(os, "fsync"), (Path, "replace")])
def test_what_fails_leaves_the_one_before_and_nothing_else(tmp_path, monkeypatch, step):
    file = tmp_path / "file"
    write_whole(file, b"one")
    seen = []

    def full(*_):
        seen.extend(path.name for path in tmp_path.iterdir() if path != file)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*step, full)
    with pytest.raises(OSError, match="No space"):
        write_whole(file, b"two")
    assert file.read_bytes() == b"one"
    assert [name.startswith(".file.") for name in seen] == [True]
    assert list(tmp_path.iterdir()) == [file]
