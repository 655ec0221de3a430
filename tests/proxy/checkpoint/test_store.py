import errno
import os
import stat

import pytest

from hivemind_addon.proxy.checkpoint.store import CheckpointStore, KeepRule, UnknownCheckpoint
from hivemind_addon.system.folders import FolderNotPrivate
from tests.cases import each
from tests.proxy.checkpoint.samples import MESSAGES, WALL, checkpoint


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "state" / "checkpoints")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def ids(store):
    return [head.id for head in store.heads()]


def other_words(number):
    return {**MESSAGES, "messages": [{"role": "user", "content": f"question {number}"}]}


def test_what_is_kept_is_read_back_by_another_process_and_by_nobody_else(store):
    kept = checkpoint(request_hash="h1")
    assert store.keep(kept) == kept.head
    reader = CheckpointStore(store.folder)
    assert reader.heads() == [kept.head]
    read = reader.read("c0ffee0001")
    assert (read.head, read.url, read.headers, bytes(read.body)) == (
        kept.head,
        kept.url,
        kept.headers,
        bytes(kept.body),
    )
    assert mode(store.folder) == 0o700
    assert [mode(path) for path in store.folder.iterdir()] == [0o600]


def test_a_body_of_many_lines_is_read_back(store):
    body = b'{\n  "messages": [\n {"role": "user", "content": "hello"}\n ]\n}\n'
    store.keep(checkpoint(body=body))
    assert bytes(store.read("c0ffee0001").body) == body.strip()


def test_the_same_request_sent_again_is_not_written_again(store, monkeypatch):
    first = store.keep(checkpoint("a1", request_hash="h1"))
    monkeypatch.setattr(CheckpointStore, "_write", lambda *_: pytest.fail("written again"))
    for again in (store, CheckpointStore(store.folder)):
        assert again.keep(checkpoint("a2", request_hash="h1", wall=WALL + 5)) == first
    assert ids(store) == ["a1"]


def test_what_was_removed_is_kept_anew(store):
    store.keep(checkpoint("a1", request_hash="h1"))
    (store.folder / "a1.checkpoint").unlink()
    assert store.keep(checkpoint("a2", request_hash="h1")).id == "a2"


def test_a_request_without_a_hash_is_never_the_same(store):
    store.keep(checkpoint("a1", body=other_words(1)))
    store.keep(checkpoint("a2", body=other_words(2)))
    assert len(ids(store)) == 2


def test_the_newest_of_a_thread_replaces_the_older_and_no_other(store):
    store.keep(checkpoint("a1", request_hash="h1"))
    store.keep(checkpoint("b1", request_hash="h2", session="s-2"))
    store.keep(checkpoint("c1", request_hash="h3", body=other_words(1)))
    store.keep(checkpoint("d1", request_hash="h4", agent="agent-2"))
    assert store.keep(checkpoint("a2", request_hash="h5", wall=WALL - 60)).id == "a2"
    assert sorted(ids(store)) == ["a2", "b1", "c1", "d1"]


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (KeepRule(count=3), ["5", "4", "3"]),
        (KeepRule(count=1), ["5"]),
        (KeepRule(size_bytes=1), ["5"]),
        (KeepRule(age_s=2.5), ["5", "4", "3"]),
        (KeepRule(), ["5", "4", "3", "2", "1", "0"]),
    ],
)
def test_older_ones_are_forgotten_by_number_size_and_age(tmp_path, retention, left):
    store = CheckpointStore(tmp_path / "kept", retention=retention)
    for number in range(6):
        store.keep(checkpoint(str(number), request_hash=f"h{number}", body=other_words(number), wall=WALL + number))
    assert ids(store) == left


def test_size_counts_what_is_left(tmp_path):
    size = checkpoint(body=other_words(0)).head.body_bytes
    store = CheckpointStore(tmp_path / "kept", retention=KeepRule(size_bytes=2 * size + 1))
    for number in range(5):
        store.keep(checkpoint(str(number), body=other_words(number), wall=WALL + number))
    assert ids(store) == ["4", "3"]


def test_a_clock_that_was_set_back_costs_nothing_that_is_new(tmp_path):
    store = CheckpointStore(tmp_path / "kept", retention=KeepRule(count=2))
    for number in range(4):
        store.keep(checkpoint(str(number), body=other_words(number), wall=WALL - 1e6 * number))
        assert str(number) in ids(store)
    assert len(ids(store)) == 2


def test_what_a_killed_process_left_half_written_goes_later(store):
    store.keep(checkpoint("a1", body=other_words(1)))
    half = store.folder / ".unfinished-x"
    half.write_bytes(b"{")
    os.utime(half, (WALL, WALL))
    store.keep(checkpoint("a2", body=other_words(2), wall=WALL + 60))
    assert half.exists()
    assert sorted(ids(store)) == ["a1", "a2"]
    store.keep(checkpoint("a3", body=other_words(3), wall=WALL + 7200))
    assert not half.exists()


def test_a_disk_that_is_full_leaves_nothing_behind_and_what_was_there(store, monkeypatch):
    store.keep(checkpoint("a1", request_hash="h1"))

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.keep(checkpoint("a2", request_hash="h2"))
    monkeypatch.undo()
    assert ids(store) == ["a1"]
    assert [path.name for path in store.folder.iterdir()] == ["a1.checkpoint"]
    assert store.keep(checkpoint("a2", request_hash="h2")).id == "a2"


def test_a_file_where_the_folder_should_be_is_an_error(tmp_path):
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(OSError, match="exists"):
        CheckpointStore(tmp_path / "kept").keep(checkpoint())
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(FolderNotPrivate, match="link is not your own"):
        CheckpointStore(tmp_path / "link").keep(checkpoint())


def test_others_files_and_damaged_ones_are_left_alone_and_left_out(store):
    store.keep(checkpoint("a1"))
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / "bad.checkpoint").write_bytes(b"\xff\xfe")
    (store.folder / "odd.checkpoint").mkdir()
    whole = (store.folder / "a1.checkpoint").read_bytes()
    (store.folder / "torn.checkpoint").write_bytes(whole[: len(whole) // 2])
    assert [head.id for head in store.heads()].count("a1") == 2, "the torn one has a head"
    for name in ("bad", "torn"):
        with pytest.raises(UnknownCheckpoint, match=rf"{name}.checkpoint: damaged"):
            store.read(name)
    with pytest.raises(UnknownCheckpoint, match="odd"):
        store.read("odd")
    store.keep(checkpoint("a2", body=other_words(2)))
    assert (store.folder / "notes.txt").exists()
    assert (store.folder / "bad.checkpoint").exists()


def test_a_beginning_is_enough_where_it_names_one(store):
    for name in ("abc1", "abd1", "abd"):
        store.keep(checkpoint(name, body=other_words(name)))
    assert store.read("abc").head.id == "abc1"
    assert store.read("abd").head.id == "abd"
    for unclear, said in (("ab", "may be abc1 or abd or abd1"), ("x", "no checkpoint 'x' in"), ("", "say more of it")):
        with pytest.raises(UnknownCheckpoint, match=said):
            store.read(unclear)


@each("name", ["../secret", "/etc/passwd", "a\0b", "*"])
def test_an_id_leads_nowhere_else(store, name):
    store.folder.parent.mkdir(parents=True, exist_ok=True)
    (store.folder.parent / "secret.checkpoint").write_bytes(b"{}")
    with pytest.raises(UnknownCheckpoint, match="no checkpoints in"):
        store.read(name)


def test_without_a_folder_there_are_none(store):
    assert store.heads() == []
    assert not store.folder.exists()
