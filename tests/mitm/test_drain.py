"""Held and running flows at the end of a real process are in tests/e2e/test_stop.py."""

import asyncio
import dataclasses
import os
import signal

import pytest

from hivemind_addon.proxy.mitm.drain import drain, end_on_hangup
from tests.journal.samples import column
from tests.mitm.samples import make_intake
from tests.patience import PATIENCE_S


class Control:
    is_open = True

    def close(self):
        self.is_open = False


@pytest.mark.parametrize("ignored", [False, True])
async def test_a_hangup_ends_as_sigterm_does_unless_nohup_said_otherwise(ignored):
    was = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        ended = asyncio.Event()
        end_on_hangup(ended.set)
        if ignored:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        else:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.wait_for(ended.wait(), PATIENCE_S)
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, was)


async def test_the_end_writes_what_is_left_and_closes_what_is_open(tmp_path):
    intake = make_intake()
    intake.control = Control()
    journal = tmp_path / "journal.db"
    intake.files.follow(dataclasses.replace(intake.settings, journal=journal))
    await drain(intake)
    assert column(journal, "run", "ended") != [None]
    assert not intake.control.is_open
