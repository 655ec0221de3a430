"""The folders of a user's own files: files that outlive a process, and files of a running process."""

import os
import stat
import sys
from pathlib import Path

LONGEST_SOCKET_PATH = 100
"""Bytes. Unix knows 108 (Linux) or 104 (macOS), the closing zero included; a name of ours fits into the rest."""


class FolderNotPrivate(Exception):
    """A folder that another user could write to; the text is a line with the folder and the cure."""


def state_folder() -> Path:
    """The user's folder for files that outlive a process. May not exist yet."""
    home = Path.home()
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support"
    else:
        chosen = os.environ.get("XDG_STATE_HOME", "")
        # A relative one is to be ignored, says its specification; it would end up in a user's repository.
        folder = Path(chosen) if Path(chosen).is_absolute() else home / ".local" / "state"
    return folder / "hivemind_addon"


def config_folder() -> Path:
    """The user's folder for files that a person writes. May not exist."""
    chosen = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(chosen) if Path(chosen).is_absolute() else Path.home() / ".config"
    return folder / "hivemind"


def runtime_folder() -> Path:
    """The user's folder for sockets and locks; made with mode 0700 if missing. Raises FolderNotPrivate, OSError."""
    chosen = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(chosen) / "hivemind" if chosen and Path(chosen).is_dir() else state_folder() / "run"
    if len(os.fsencode(folder)) + len("/65535.sock") > LONGEST_SOCKET_PATH:
        import tempfile  # noqa: PLC0415 - for few, and it loads much

        folder = Path(tempfile.gettempdir()) / f"hivemind-{os.getuid()}"
    make_private(folder, cure="set XDG_RUNTIME_DIR to a private one")
    return folder


def make_private(folder: Path, *, cure: str) -> None:
    """Make the folder if missing; only the owner may enter. Raises FolderNotPrivate, OSError."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise FolderNotPrivate(f"{folder} is not your own folder; remove it, or {cure}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
