import tempfile

import pytest

from tests.patience import patient  # noqa: F401 - for all tests of this room


@pytest.fixture
def folders(monkeypatch, tmp_path):
    """The user's folders are the test's; the one for sockets is short, for pytest's own are too deep for one."""
    with tempfile.TemporaryDirectory(prefix="hm") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.delenv("HIVEMIND_PORT", raising=False)
        monkeypatch.delenv("HIVEMIND_AGENT", raising=False)
        yield tmp_path
