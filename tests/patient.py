"""Whoever asks a proxy that is in the tests' own process waits for its answer, however busy the machine is."""

import pytest

from hivemind_addon.journal import place
from hivemind_addon.runtime.control import read_report, send_command


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    for ask in (read_report, send_command):
        monkeypatch.setitem(ask.__kwdefaults__, "timeout_s", 120.0)
    monkeypatch.setattr(place, "_PATIENCE_S", 120.0)
