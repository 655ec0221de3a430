import os
import stat

import pytest

from hivemind_addon.tools.mcp.http import BadToken, is_token, kept_token, new_token


def test_each_new_one_is_another():
    assert len({new_token() for _ in range(20)}) == 20
    assert len(new_token()) >= 40


def test_a_file_is_made_for_its_owner_only_and_read_again(tmp_path):
    file = tmp_path / "token"
    token = kept_token(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert kept_token(file) == token


def test_a_file_that_others_can_read_is_refused_with_the_cure(tmp_path):
    file = tmp_path / "token"
    kept_token(file)
    file.chmod(0o640)
    with pytest.raises(BadToken, match=f"chmod 600 {file}"):
        kept_token(file)


def test_a_file_without_a_token_is_refused(tmp_path):
    file = tmp_path / "token"
    for text in ("", "short", "two words that are long enough", "x" * 20 + "\x00"):
        file.write_text(text)
        file.chmod(0o600)
        with pytest.raises(BadToken, match="has no token"):
            kept_token(file)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(BadToken, match="is no file"):
        kept_token(tmp_path / "pipe")
    os.close(writer)
    with pytest.raises(OSError, match="Is a directory"):
        kept_token(tmp_path)


def test_only_the_token_itself_is_right():
    right = ("Bearer abc", "bearer  abc ")
    wrong = ("Basic abc", "Bearer abcd", "Bearer", "abc", "", "Bearer äbc")
    assert [said for said in (*right, *wrong) if is_token(said, "abc")] == list(right)
