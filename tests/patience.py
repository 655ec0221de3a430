"""How long tests wait for what must come, however busy the machine is."""

import pytest

from hivemind_addon.proxy.api.control import read_report, send_command
from hivemind_addon.tools.history import reader

PATIENCE_S = 120
"""A test that waits longer hangs."""


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Commands wait for the answer of a proxy in the tests' own process longer than a user would."""
    for ask in (read_report, send_command):
        monkeypatch.setitem(ask.__kwdefaults__, "timeout_s", PATIENCE_S)
    monkeypatch.setattr(reader, "_PROXY_PATIENCE_S", PATIENCE_S)
