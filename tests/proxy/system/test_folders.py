import os
import stat

import pytest

from hivemind_addon.proxy.system import folders
from hivemind_addon.proxy.system.folders import FolderNotPrivate, make_private, runtime_folder, state_folder


def test_the_runtime_folder_is_private_and_in_the_sessions_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = runtime_folder()
    assert folder == tmp_path / "hivemind"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    assert stat.S_IMODE(runtime_folder().stat().st_mode) == 0o700


@pytest.mark.parametrize("session", [None, "/nonexistent/run"])
def test_without_a_sessions_folder_it_is_below_the_state_folder(monkeypatch, tmp_path, session):
    state = tmp_path / "s"
    monkeypatch.setattr(folders, "LONGEST_SOCKET_PATH", 1000)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if session:
        monkeypatch.setenv("XDG_RUNTIME_DIR", session)
    assert runtime_folder() == state_folder() / "run"
    assert state_folder() == state / "hivemind_addon"


def test_a_path_too_long_for_a_socket_gives_way_to_a_short_one(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert runtime_folder() == tmp_path / f"hivemind-{os.getuid()}"


def test_somebody_elses_link_is_not_followed(monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "hivemind").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(FolderNotPrivate, match="XDG_RUNTIME_DIR"):
        runtime_folder()


def test_a_folder_is_made_private_or_refused_with_its_cure(tmp_path):
    folder = tmp_path / "new" / "kept"
    make_private(folder, cure="name another")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    make_private(folder, cure="name another")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(FolderNotPrivate, match="remove it, or name another"):
        make_private(tmp_path / "link", cure="name another")
