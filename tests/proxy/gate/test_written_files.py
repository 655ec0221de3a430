import dataclasses

import pytest

from hivemind_addon.kernel.values.events import GuardTripped
from hivemind_addon.proxy.gate.options import BadOption
from hivemind_addon.proxy.gate.written_files import Files
from tests.proxy.gate.samples import make_proxy
from tests.proxy.journal.samples import column


@pytest.fixture
async def proxy():
    return make_proxy()


def settings(proxy, **changes):
    return dataclasses.replace(proxy.settings.current, **changes)


async def test_the_journal_is_where_the_option_says_and_gives_what_it_has_once(proxy, tmp_path, monkeypatch):
    restored = []
    monkeypatch.setattr(type(proxy.driver), "restore", lambda *_, **__: restored.append(1))
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    files = Files(proxy.driver)
    files.listens_at(8080)
    for file in (one, one, None, one, other):
        files.follow(settings(proxy, journal=file))
        assert (files.journal is None) == (file is None)
    assert restored == [1]
    proxy.driver.note(GuardTripped(at=1.0, ticket_id=None, where="hook", error="E"))
    proxy.driver.tick()
    await files.close()
    assert files.journal is None
    assert [event for file in (one, other) for event in column(file, "happening", "event")] == ["GuardTripped"]
    assert {"jobs", "learned", "orders"} == set(column(other, "kept", "name", "name"))


async def test_a_capture_is_begun_gone_on_with_moved_and_ended(proxy, tmp_path):
    files = proxy.files
    files.follow(settings(proxy, capture=tmp_path / "one"))
    first = files.recorder
    files.follow(settings(proxy, capture=tmp_path / "one"))
    assert files.recorder is first
    files.follow(settings(proxy, capture=tmp_path / "two"))
    assert files.recorder.path == tmp_path / "two"
    files.follow(settings(proxy, capture=tmp_path / "two", capture_content=False))
    assert not files.recorder.content
    files.follow(settings(proxy))
    assert files.recorder is None
    await files.close()


async def test_a_capture_that_cannot_be_written_is_a_bad_option(proxy, tmp_path):
    (tmp_path / "text").write_text("my notes")
    for file in (tmp_path, tmp_path / "text"):
        with pytest.raises(BadOption, match="hivemind_capture: "):
            proxy.files.follow(settings(proxy, capture=file))
        assert proxy.files.recorder is None


async def test_conversations_are_kept_beside_the_state_and_nowhere_without_it(proxy, tmp_path):
    files = proxy.files
    assert files.keeper is None
    files.follow(settings(proxy, journal=tmp_path / "one" / "journal.db"))
    first = files.keeper
    assert first.store.folder == tmp_path / "one" / "contexts"
    files.follow(settings(proxy, journal=tmp_path / "one" / "journal.db", capture=tmp_path / "capture"))
    assert files.keeper is first
    files.follow(settings(proxy, journal=tmp_path / "two" / "journal.db"))
    assert files.keeper.store.folder == tmp_path / "two" / "contexts"
    files.follow(settings(proxy))
    assert files.keeper is None
    await files.close()
    assert not (tmp_path / "one" / "contexts").exists(), "made when something is kept"
