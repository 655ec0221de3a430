"""Held and running flows at the end of a real process are in tests/e2e/test_stop.py."""

import dataclasses

from hivemind_addon.mitm.drain import drain
from tests.journal.samples import column
from tests.mitm.samples import make_intake


class Control:
    is_open = True

    def close(self):
        self.is_open = False


async def test_the_end_writes_what_is_left_and_closes_what_is_open(tmp_path):
    intake = make_intake()
    intake.control = Control()
    journal = tmp_path / "journal.db"
    intake.files.follow(dataclasses.replace(intake.settings, journal=journal))
    await drain(intake)
    assert column(journal, "run", "ended") != [None]
    assert not intake.control.is_open
