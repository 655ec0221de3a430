import tempfile
from pathlib import Path

import pytest

from tests.patience import patient  # noqa: F401 - for all tests of this room
from tests.tools.mcp.stage import Stage


@pytest.fixture
def runtime(monkeypatch):
    """A folder for sockets that nobody else uses; a short one: pytest's own are too deep for a socket."""
    with tempfile.TemporaryDirectory(prefix="hm") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv("XDG_STATE_HOME", folder)
        yield Path(folder)


@pytest.fixture
async def stage(runtime, tmp_path):
    made = Stage(tmp_path)
    await made.start()
    yield made
    made.close()
