import stat
from pathlib import Path

import pytest

from hivemind_addon.tools.setup.change import Ledger, OwnEntries
from hivemind_addon.tools.setup.model import FileEntry, SetupTrouble

WRITTEN = OwnEntries((FileEntry(("a", "b"), {"c": ["d"]}),), (("a",),), created=True)


def test_it_remembers_and_forgets(tmp_path):
    ledger = Ledger(tmp_path / "state" / "setup.json")
    file = Path("/home/me/.claude.json")
    assert ledger.of(file) == OwnEntries()
    ledger.note(file, WRITTEN)
    assert Ledger(tmp_path / "state" / "setup.json").of(file) == WRITTEN
    assert stat.S_IMODE((tmp_path / "state" / "setup.json").stat().st_mode) == 0o600
    ledger.note(file, OwnEntries())
    assert ledger.of(file) == OwnEntries()


def test_a_damaged_one_is_named_with_the_cure(tmp_path):
    (tmp_path / "setup.json").write_text("{")
    with pytest.raises(SetupTrouble, match=r"setup\.json is damaged; remove it"):
        Ledger(tmp_path / "setup.json").of(Path("x"))
