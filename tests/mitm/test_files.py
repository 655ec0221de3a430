import dataclasses
import json

import pytest

from hivemind_addon.mitm.files import Files
from hivemind_addon.mitm.options import BadOption
from tests.mitm.samples import make_intake


@pytest.fixture
async def intake():
    return make_intake()


def settings(intake, **changes):
    return dataclasses.replace(intake.settings, **changes)


async def test_what_was_learned_is_saved_where_the_option_says_and_restored_once(intake, tmp_path, monkeypatch):
    restored = []
    monkeypatch.setattr(type(intake.driver), "restore", lambda *_, **__: restored.append(1))
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    for file in (one, other):
        file.write_text(json.dumps({"version": 1, "saved_at": 0, "state": {}}))
    files = Files(intake.driver)
    for file in (one, one, other):
        files.follow(settings(intake, state_file=file))
    assert restored == [1]
    one.unlink()
    other.unlink()
    await files.close()
    assert other.exists()
    assert not one.exists()


async def test_a_capture_is_begun_gone_on_with_moved_and_ended(intake, tmp_path):
    files = intake.files
    files.follow(settings(intake, capture=tmp_path / "one"))
    first = files.recorder
    files.follow(settings(intake, capture=tmp_path / "one"))
    assert files.recorder is first
    files.follow(settings(intake, capture=tmp_path / "two"))
    assert files.recorder.path == tmp_path / "two"
    files.follow(settings(intake, capture=tmp_path / "two", capture_content=False))
    assert not files.recorder.content
    files.follow(settings(intake))
    assert files.recorder is None
    await files.close()


async def test_a_capture_that_cannot_be_written_is_a_bad_option(intake, tmp_path):
    (tmp_path / "text").write_text("my notes")
    for file in (tmp_path, tmp_path / "text"):
        with pytest.raises(BadOption, match="hivemind_capture: "):
            intake.files.follow(settings(intake, capture=file))
        assert intake.files.recorder is None
