import os

import pytest

from hivemind_addon.proxy.run import append_file
from hivemind_addon.proxy.run.append_file import AppendFile


def everything(file):
    return os.fstat(file).st_size


async def test_records_follow_each_other_and_nobody_else_may_read_them(tmp_path):
    path = tmp_path / "file"
    mask = os.umask(0)
    try:
        file = AppendFile(path, whole_bytes=everything)
        assert path.stat().st_mode & 0o777 == 0o600  # from the first byte
    finally:
        os.umask(mask)
    file.append(lambda: b"one,", 4)
    file.append(lambda: b"two,", 4)
    await file.close()
    assert path.read_bytes() == b"one,two,"
    assert file.written == 2


async def test_a_file_that_everybody_could_read_is_closed_to_them(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old,")
    path.chmod(0o644)
    await AppendFile(path, whole_bytes=everything).close()
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_torn_end_is_cut_off_before_anything_follows(tmp_path, caplog):
    path = tmp_path / "file"
    path.write_bytes(b"whole,to")
    file = AppendFile(path, whole_bytes=lambda _file: 6)
    file.append(lambda: b"next,", 5)
    await file.close()
    assert path.read_bytes() == b"whole,next,"
    assert "2 bytes were torn" in caplog.text


async def test_a_full_disk_is_one_line_and_leaves_no_torn_record(tmp_path, caplog, monkeypatch):
    path = tmp_path / "file"
    file = AppendFile(path, whole_bytes=everything)
    room = [3]
    write = os.write

    def little_room(fd, data):
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = write(fd, bytes(data[: room[0]]))
        room[0] -= written
        return written

    with caplog.at_level("INFO"):
        monkeypatch.setattr(append_file.os, "write", little_room)
        for _ in range(3):
            file.append(lambda: b"much,", 5)
        file._thread.submit(monkeypatch.undo).result()
        file.append(lambda: b"fits,", 5)
        await file.close()
    assert path.read_bytes() == b"fits,"
    assert caplog.text.count("No space left on device") == 1
    assert "is written again; 3 records are missing" in caplog.text
    assert (file.written, file.missed) == (1, 3)


async def test_what_a_slow_disk_keeps_waiting_is_bounded(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(append_file, "MAX_WAITING_BYTES", 10)
    file = AppendFile(tmp_path / "file", whole_bytes=everything)
    import threading

    gate = threading.Event()
    file._thread.submit(gate.wait, 120)
    for _ in range(3):
        file.append(lambda: b"four", 4)
    gate.set()
    await file.close()
    assert file.missed == 1
    assert (tmp_path / "file").read_bytes() == b"fourfour"
    assert "the disk is too slow" in caplog.text


async def test_a_record_that_cannot_be_made_is_no_reason_to_stop(tmp_path, caplog):
    file = AppendFile(tmp_path / "file", whole_bytes=everything)
    file.append(lambda: 1 / 0, 1)
    file.append(lambda: b"next", 4)
    await file.close()
    assert (tmp_path / "file").read_bytes() == b"next"
    assert "could not be made" in caplog.text


async def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        AppendFile(tmp_path / "nowhere" / "file", whole_bytes=everything)
