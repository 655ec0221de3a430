import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hivemind_addon.proxy.system.whole_file import write_whole
from hivemind_addon.tools.setup.change import Ledger, OwnEntries, addition, apply, removal, snippet
from hivemind_addon.tools.setup.model import FileEntry, FileFormat, FilePlan, HasComments, SetupTrouble
from tests.cases import each

NOW = datetime(2026, 11, 22, 10, 0, tzinfo=UTC)
ENTRIES = (FileEntry(("mcpServers", "hivemind"), {"command": "hivemind", "args": ["mcp"]}),)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "setup.json")


@pytest.fixture
def plan(tmp_path):
    return FilePlan(tmp_path / "home" / "settings.json", FileFormat.JSON, ENTRIES)


def write(plan, text, mode=0o644):
    plan.path.parent.mkdir(exist_ok=True)
    plan.path.write_text(text)
    plan.path.chmod(mode)


def test_a_file_is_made_private_and_taken_away_again(plan, ledger):
    assert apply(addition(plan, ledger), ledger, now=NOW) is None
    assert json.loads(plan.path.read_text()) == {"mcpServers": {"hivemind": ENTRIES[0].value}}
    assert stat.S_IMODE(plan.path.stat().st_mode) == 0o600
    assert addition(plan, ledger).is_nothing
    assert apply(removal(plan, ledger), ledger, now=NOW) is None
    assert list(plan.path.parent.iterdir()) == []
    assert removal(plan, ledger).is_nothing


def test_a_users_file_keeps_what_it_has_its_mode_and_a_backup(plan, ledger):
    text = '{\n  "secret": "s3cret",\n  "other": [1, 2]\n}\n'
    write(plan, text, 0o640)
    change = addition(plan, ledger)
    assert "s3cret" not in change.diff()
    assert change.diff().startswith(f"--- {plan.path}\n+++ {plan.path}\n@@")
    backup = apply(change, ledger, now=NOW)
    assert backup.name == "settings.json.hivemind-backup-20261122-100000"
    assert backup.read_text() == text
    assert {stat.S_IMODE(one.stat().st_mode) for one in plan.path.parent.iterdir()} == {0o640}
    assert json.loads(plan.path.read_text())["secret"] == "s3cret"
    second = apply(removal(plan, ledger), ledger, now=NOW)
    assert second.name == f"{backup.name}-1"
    assert plan.path.read_text() == text


def test_a_link_stays_a_link(plan, ledger, tmp_path):
    real = tmp_path / "dotfiles.json"
    real.write_text("{}\n")
    plan.path.parent.mkdir()
    plan.path.symlink_to(os.path.relpath(real, plan.path.parent))
    backup = apply(addition(plan, ledger), ledger, now=NOW)
    assert plan.path.is_symlink()
    assert "hivemind" in real.read_text()
    assert backup.parent == real.parent
    apply(removal(plan, ledger), ledger, now=NOW)
    assert plan.path.is_symlink()
    assert real.read_text() == "{}\n"


@each("text", ["{", "[]", '{"mcpServers": []}', "\udcff"])
def test_a_broken_file_is_named_and_left_alone(plan, ledger, text):
    plan.path.parent.mkdir(exist_ok=True)
    plan.path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(SetupTrouble, match=r"settings\.json .*mend it first"):
        addition(plan, ledger)
    assert plan.path.read_bytes() == text.encode(errors="surrogateescape")
    assert list(plan.path.parent.iterdir()) == [plan.path]


def test_comments_are_kept_by_saying_what_to_add(plan, ledger):
    write(plan, '{\n  // mine\n  "a": 1\n}\n')
    with pytest.raises(HasComments) as caught:
        addition(plan, ledger)
    assert str(caught.value).endswith(snippet(FileFormat.JSON, ENTRIES))
    assert json.loads(snippet(FileFormat.JSON, ENTRIES))["mcpServers"]


def test_a_folder_is_no_file(plan, ledger):
    plan.path.mkdir(parents=True)
    with pytest.raises(SetupTrouble, match="no file of settings"):
        addition(plan, ledger)


def test_what_changed_meanwhile_is_not_overwritten(plan, ledger):
    write(plan, "{}\n")
    change = addition(plan, ledger)
    write(plan, '{"new": 1}\n')
    with pytest.raises(SetupTrouble, match="changed meanwhile"):
        apply(change, ledger, now=NOW)
    assert plan.path.read_text() == '{"new": 1}\n'


def test_a_write_that_fails_leaves_the_file_and_can_be_done_again(plan, ledger, monkeypatch):
    write(plan, "{}\n")
    change = addition(plan, ledger)

    def broken(file, *content, mode=0o600):
        if file == ledger._path:
            return write_whole(file, *content, mode=mode)
        raise OSError(28, "No space left on device", str(file))

    with monkeypatch.context() as patch:
        patch.setattr("hivemind_addon.tools.setup.change.write_whole", broken)
        with pytest.raises(OSError, match="No space"):
            apply(change, ledger, now=NOW)
    assert plan.path.read_text() == "{}\n"
    apply(addition(plan, ledger), ledger, now=NOW)
    apply(removal(plan, ledger), ledger, now=NOW)
    assert plan.path.read_text() == "{}\n"


class Killed(BaseException):
    """The process has ended here."""


@pytest.fixture
def killed_at(ledger, monkeypatch):
    """Do something, and be killed before or after one of its writes; whether it got so far."""

    def run(step, work):
        left = [step]

        def may_die():
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        def dying(write):
            def write_and_die(*arguments, **more):
                may_die()
                write(*arguments, **more)
                may_die()

            return write_and_die

        with monkeypatch.context() as patch:
            patch.setattr(ledger, "note", dying(ledger.note))
            patch.setattr("hivemind_addon.tools.setup.change.write_whole", dying(write_whole))
            try:
                work()
            except Killed:
                return True
        return False

    return run


OTHERS = (
    FileEntry(("mcpServers", "hivemind"), {"command": "hivemind", "args": ["mcp", "--port", "9090"]}),
    FileEntry(("env", "PORT"), "9090"),
)
NEITHER = (FileEntry(("env", "PORT"), "9090"),)


@pytest.mark.parametrize("text", ['{\n  "other": [1, 2]\n}\n', None])
@pytest.mark.parametrize("then", [ENTRIES, OTHERS, NEITHER, ()])
def test_whenever_it_is_killed_what_is_ours_is_taken_out_again_and_nothing_else(plan, ledger, killed_at, text, then):
    after = FilePlan(plan.path, plan.format, then)
    step, is_killed = 0, True
    while is_killed:
        if text is not None:
            write(plan, text)
        apply(addition(plan, ledger), ledger, now=NOW)

        def change(after=after):
            wanted = addition(after, ledger) if after.entries else removal(plan, ledger)
            if not wanted.is_nothing:
                apply(wanted, ledger, now=NOW)

        is_killed = killed_at(step, change)
        step += 1
        if after.entries:
            apply(addition(after, ledger), ledger, now=NOW)
            assert addition(after, ledger).is_nothing
            assert not addition(after, ledger).kept
        last = removal(plan, ledger)
        assert not last.kept
        apply(last, ledger, now=NOW)
        assert (plan.path.read_text() if plan.path.exists() else None) == text
        assert ledger.of(plan.path) == OwnEntries()
    assert step > 1 or then == ENTRIES


def test_between_reading_the_notes_and_writing_them_nobody_else_does(plan, ledger, tmp_path, monkeypatch):
    monkeypatch.setattr("hivemind_addon.tools.setup.change._BUSY_S", 0.0)
    other, others = (
        FilePlan(tmp_path / "home" / "other.json", FileFormat.JSON, ENTRIES),
        Ledger(tmp_path / "setup.json"),
    )
    change, read = addition(plan, ledger), ledger._read

    def disturbed():
        known = read()
        with pytest.raises(SetupTrouble, match="another `hivemind setup` is writing for long; run this again"):
            apply(addition(other, others), others, now=NOW)
        return known

    ledger._read = disturbed
    apply(change, ledger, now=NOW)
    apply(addition(other, others), others, now=NOW)
    assert others.of(plan.path).entries == others.of(other.path).entries == ENTRIES


def test_a_read_only_file_stays_as_it_is(plan, ledger):
    write(plan, "{}\n")
    plan.path.chmod(0o444)
    with pytest.raises(SetupTrouble, match=r"settings\.json is read-only; allow"):
        apply(addition(plan, ledger), ledger, now=NOW)
    assert plan.path.read_text() == "{}\n"
    assert list(plan.path.parent.iterdir()) == [plan.path], "nor is there a backup"


def test_a_failure_names_the_file_that_is_meant(plan, ledger, monkeypatch):
    def broken(file, *content, mode=0o600):
        if file == ledger._path:
            return write_whole(file, *content, mode=mode)
        raise PermissionError(13, "Permission denied", f"{file}.x81f_")

    monkeypatch.setattr("hivemind_addon.tools.setup.change.write_whole", broken)
    with pytest.raises(PermissionError) as caught:
        apply(addition(plan, ledger), ledger, now=NOW)
    assert caught.value.filename == str(plan.path)


def test_a_file_that_is_gone_needs_nothing_taken_out(plan, ledger):
    apply(addition(plan, ledger), ledger, now=NOW)
    plan.path.unlink()
    assert removal(plan, ledger).is_nothing
    apply(addition(plan, ledger), ledger, now=NOW)
    assert plan.path.exists()


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
