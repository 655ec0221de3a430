"""Which journal is meant where nobody names one: the one that the proxy on a port keeps, else the usual one."""

from pathlib import Path

from msgspec import convert

from hivemind_addon.api.command import OptionView, ShowConfig
from hivemind_addon.api.control import NotSaid, control_socket, send_command
from hivemind_addon.proxy.journal.file import default_journal

_OPTION = "hivemind_journal"
_NO_FILE = ("", "off")
_PATIENCE_S = 2.0


def journal_of(port: int) -> Path:
    """The file of the proxy on a port; the usual one where none answers, or it keeps none.

    Raises FolderNotPrivate, OSError.
    """
    try:
        said = send_command(control_socket(port), ShowConfig(), timeout_s=_PATIENCE_S)
    except NotSaid:
        return default_journal()
    options = convert(said.value or (), tuple[OptionView, ...])
    chosen = next((str(one.value) for one in options if one.name == _OPTION), "")
    return default_journal() if chosen in _NO_FILE else Path(chosen).expanduser()
