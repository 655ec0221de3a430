"""How long a busy machine's disk takes is tested where a test says so, and nowhere else."""

import pytest

from hivemind_addon.formats.profile import prices
from hivemind_addon.plugins.contexts import keeper
from hivemind_addon.proxy.journal import journal
from tests.patience import PATIENCE_S


@pytest.fixture(scope="session", autouse=True)
def _priced():
    """No first call waits for the prices."""
    prices.load()


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Whoever waits for the disk waits to the end."""
    for module, name in ((keeper, "PATIENCE_S"), (keeper, "CLOSING_S"), (journal, "START_S"), (journal, "FLUSH_S")):
        monkeypatch.setattr(module, name, PATIENCE_S)
